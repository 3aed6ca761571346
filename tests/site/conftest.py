"""A site built from synthetic runs, served on this machine, and a browser to look at it."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright
from rich.console import Console

from pipelines.paths import Layout
from pipelines.publish.serve import make_server
from pipelines.publish.site import build_site
from runner.paths import ROOT

# The synthetic runs are a helper of the unit tests; their folder is on the path only when a unit
# test was collected first.
sys.path.insert(0, str(ROOT / "tests" / "unit"))

from synthetic import World, usual_forecasts, write_expectation, write_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>"


def make_checkout(root: Path) -> Layout:
    """A checkout at `root` with the real source of the site and synthetic runs."""
    layout = Layout(root)
    shutil.copytree(ROOT / "site", layout.source)
    for name in ("mkdocs.yml", "RUNBOOK.md", "CHANGELOG.md", "package.json", "package-lock.json"):
        shutil.copy(ROOT / name, root / name)
    for name in ("targets", "platforms", "sweeps"):
        shutil.copytree(ROOT / "data" / name, layout.data / name)
    shutil.copy(ROOT / "data" / "models.toml", layout.data / "models.toml")
    name, digest = write_expectation(layout.data, *usual_forecasts())
    world = World(registration_status="registered", expectation_id=name, expectation_digest=digest)
    write_run(layout.published, world)
    hostile = {"model_name": HOSTILE, "cpu": HOSTILE, "registration_reason": HOSTILE}
    write_run(layout.local, World(run_id="mine", model_id=HOSTILE, days=1, run_extra=hostile))
    return layout


@dataclass(frozen=True)
class Served:
    """A built site and its address, which ends in a slash."""

    layout: Layout
    url: str


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    layout = make_checkout(tmp_path_factory.mktemp("checkout"))
    layout.built.mkdir(parents=True)
    with make_server(layout.built, 0) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        build_site(layout, Console(quiet=True), url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Served(layout, url)
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(f"no browser on PATH; install one of: {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield launched
        launched.close()


@dataclass
class Watched:
    """A page, with everything it complained about and every address it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def on_error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def on_request(self, request: Request) -> None:
        self.addresses.append(request.url)

    def drawn(self, expected: int) -> None:
        """Wait until `expected` charts are drawn, and no more."""
        self.page.wait_for_function(
            "n => document.querySelectorAll('.lk-plot[data-state=drawn]').length === n"
            " && document.querySelectorAll('.lk-plot').length === n"
            " && [...document.querySelectorAll('.lk-plot')]"
            ".every(p => p.querySelector('svg.main-svg .point'))",
            arg=expected,
            timeout=15_000,
        )


@pytest.fixture
def watched(browser: Browser, site: Served) -> Iterator[Watched]:
    """A fresh page; afterwards: no complaint, and nothing asked of another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    seen = Watched(context.new_page())
    seen.page.on("console", seen.on_console)
    seen.page.on("pageerror", seen.on_error)
    seen.page.on("request", seen.on_request)
    yield seen
    context.close()
    assert seen.complaints == []
    assert [address for address in seen.addresses if not _own(address, site.url)] == []


def _own(address: str, url: str) -> bool:
    return address.startswith((url, "data:", "blob:"))
