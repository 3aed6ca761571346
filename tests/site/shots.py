"""Write a picture of every page of the built site: light, dark, and as wide as a phone."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from pipelines.paths import Layout
from pipelines.publish.serve import make_server

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
LOOKS: Final = {"light": (1280, "light"), "dark": (1280, "dark"), "phone": (390, "light")}


def find_browser() -> str | None:
    """Path of a browser that playwright can drive."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def pages(built: Path) -> list[str]:
    """Addresses of the built pages below the root, the home page first."""
    found = (path.parent.relative_to(built).as_posix() for path in built.rglob("index.html"))
    return sorted("" if name == "." else f"{name}/" for name in found)


def shoot(browser: Browser, url: str, page: str, look: str, folder: Path) -> Path:
    """Write one picture; return its path."""
    width, scheme = LOOKS[look]
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    opened = context.new_page()
    opened.goto(url + page)
    opened.wait_for_load_state("networkidle")
    opened.wait_for_function(
        "[...document.querySelectorAll('.lk-plot')].every(p => p.dataset.state === 'drawn')"
    )
    target = folder / f"{page.strip('/').replace('/', '-') or 'home'}-{look}.png"
    opened.screenshot(path=target, full_page=True)
    context.close()
    return target


def main(out: Path) -> int:
    """Shoot every page of ``build/site``."""
    layout, console = Layout(), Console()
    found = find_browser()
    if found is None or not (layout.built / "index.html").exists():
        console.print("error: no browser on PATH, or no site; build it with: nox -s site")
        return 3
    out.mkdir(parents=True, exist_ok=True)
    with make_server(layout.built, 0) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        for page in pages(layout.built):
            for look in LOOKS:
                console.print(shoot(browser, url, page, look, out), soft_wrap=True)
        browser.close()
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/shots")))
