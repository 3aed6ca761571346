"""Measure what the site promises: build times, memory, how soon a chart and an answer are there.

Run by ``nox -s speed``; a bound that is missed makes it fail. Never part of the tests.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from checkout import make_checkout
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table
from shots import FLAGS, find_browser
from synthetic import World, calibration, write_run

from pipelines.paths import Layout
from pipelines.publish.serve import make_server
from runner.catalog import Point
from runner.paths import ROOT

BUILD: Final = (
    "import sys; from pathlib import Path; from rich.console import Console\n"
    "from pipelines.paths import Layout; from pipelines.publish.site import build_site\n"
    "root, url = sys.argv[1:]; build_site(Layout(Path(root)), Console(quiet=True), url)\n"
)
WAREHOUSE: Final = (
    "import sys; from pathlib import Path; from pipelines.paths import Layout\n"
    "from pipelines.warehouse import build_warehouse\n"
    "layout = Layout(Path(sys.argv[1])); build_warehouse(layout, layout.database)\n"
)
N_RUNS: Final = 1000
N_HOPS: Final = 10_000_000
N_LARGE: Final = 100
"""Runs that those hops are spread over."""


@dataclass(frozen=True)
class Found:
    """One promise and what was measured; seconds or GiB."""

    what: str
    bound: float
    measured: float
    unit: str = "s"

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return self.measured <= self.bound


def timed(program: str, *arguments: str) -> tuple[float, float]:
    """Seconds and peak GiB of a program in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)
    took = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return took, max(before, peak) / 2**20


def builds(work: Path) -> Iterator[Found]:
    """Today's data, and a thousand runs."""
    today = make_checkout(work / "today")
    shutil.rmtree(today.data / "runs")
    shutil.copytree(ROOT / "data", today.data, dirs_exist_ok=True)
    took, _ = timed(BUILD, str(today.root), "http://127.0.0.1:8000/")
    yield Found("site of today's data", 20, took)
    many = make_checkout(work / "many")
    for number in range(N_RUNS):
        world = World(
            run_id=f"20270101T{number:06d}Z-many", days=number % 300, seed=number, n_blocks=6
        )
        world.calibration = calibration(world)
        write_run(many.published, world)
    took, _ = timed(BUILD, str(many.root), "http://127.0.0.1:8000/")
    yield Found(f"site of {N_RUNS:,} runs", 20, took)


def warehouse(work: Path) -> Iterator[Found]:
    """Ten million hop rows: a run of long loops, there again and again under other names."""
    layout = make_checkout(work / "large")
    loop = Point(prefix=363, hops=N_HOPS // N_LARGE // 20 - 1)
    world = World(run_id="20270101T000000Z-large", n_blocks=10, points=(loop,))
    world.calibration = calibration(world)
    folder = write_run(layout.published, world)
    for number in range(1, N_LARGE):
        _copy_run(folder, folder.with_name(f"20270101T{number:06d}Z-large"))
    n_rows = pq.read_metadata(folder / "hops.parquet").num_rows * N_LARGE
    took, peak = timed(WAREHOUSE, str(layout.root))
    yield Found(f"warehouse of {n_rows:,} hop rows", 30, took)
    yield Found("its memory", 2, peak, "GiB")


def _copy_run(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        table = pq.read_table(path)
        place = table.schema.get_field_index("run_id")
        named = pa.array([target.name] * table.num_rows, pa.string())
        field = table.schema.field(place)
        pq.write_table(table.set_column(place, field, named), target / path.name)


@contextmanager
def served(layout: Layout) -> Iterator[tuple[Page, str]]:
    """The built site and a page to look at it."""
    with make_server(layout.built, 0) as server, sync_playwright() as playwright:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        timed(BUILD, str(layout.root), url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(FLAGS))
        yield browser.new_page(), url
        browser.close()
        server.shutdown()


def pages(work: Path) -> Iterator[Found]:
    """A chart after load, after a click and after going back; the first answer of SQL."""
    layout = make_checkout(work / "looked-at")
    layout.built.mkdir(parents=True)
    drawn = "document.querySelector('.lk-plot[data-state=drawn] .main-svg')"
    with served(layout) as (page, url):

        def chart(name: str, act: Callable[[], object]) -> Found:
            started = time.perf_counter()
            act()
            page.wait_for_function(drawn)
            return Found(f"chart after {name}", 1, time.perf_counter() - started)

        yield chart("a load", lambda: page.goto(url))
        yield chart("a click", lambda: page.click("article a:has-text('measured against target')"))
        page.goto(url + "method/")
        yield chart("going back", page.go_back)
        page.goto(url + "query/")
        started = time.perf_counter()
        page.click("#lk-query button[type=submit]")
        page.wait_for_function(
            "/row/.test(document.querySelector('#lk-query [role=status]').textContent)"
        )
        yield Found("first answer of SQL, with loading", 3, time.perf_counter() - started)


def main() -> int:
    """Measure, print, and say whether every promise was kept."""
    console = Console()
    shown = Table("what", "bound", "measured", "kept", title="What the site promises")
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        for part in (builds, warehouse, pages):
            for found in part(Path(folder)):
                kept &= found.kept
                said = (f"{found.bound:g} {found.unit}", f"{found.measured:.2f} {found.unit}")
                shown.add_row(found.what, *said, "yes" if found.kept else "NO")
                console.print(f"{found.what}: {said[1]}")
    console.print(shown)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
