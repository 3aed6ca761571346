"""A site built from synthetic runs, served on this machine, and a browser to look at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from checkout import Served, Watched, make_checkout
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from shots import BROWSERS, FLAGS, find_browser

from pipelines.publish.serve import make_server
from pipelines.publish.site import build_site


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
    found = find_browser()
    if found is None:
        pytest.fail(f"no browser on PATH; install one of: {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield launched
        launched.close()


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
