"""What the site's tests look at: a checkout with synthetic runs, its built site, a watched page."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import ConsoleMessage, Error, Page, Request
from synthetic import World, calibration, usual_forecasts, write_expectation, write_run

from pipelines.paths import Layout
from runner.paths import ROOT

AGAIN = "20260103T030405-again"
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
    world.calibration = calibration(world)
    write_run(layout.published, world)
    # A second run of the same machine, no evidence: for what holds two runs together.
    write_run(layout.published, World(run_id=AGAIN, days=1, seed=2, slowdown=1.2))
    hostile = {"model_name": HOSTILE, "cpu": HOSTILE, "registration_reason": HOSTILE}
    write_run(layout.local, World(run_id="mine", model_id=HOSTILE, days=1, run_extra=hostile))
    return layout


@dataclass(frozen=True)
class Served:
    """A built site and its address, which ends in a slash."""

    layout: Layout
    url: str


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
