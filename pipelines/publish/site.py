"""The site: hand-written source, data laid over it, built strictly, links checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from pipelines.database import Database, open_database
from pipelines.paths import Layout
from pipelines.publish.comparisons import write_comparisons
from pipelines.publish.downloads import write_downloads
from pipelines.publish.explorer import write_explorer
from pipelines.publish.figures import measured_vs_target, write_figure
from pipelines.publish.fragments import Context, fragment
from pipelines.publish.linkcheck import check_site
from pipelines.publish.markup import place
from pipelines.publish.runs import FOLDER, write_run_pages
from pipelines.publish.shell import stage_shell
from pipelines.publish.vendor import write_vendor
from pipelines.warehouse import build_warehouse
from runner.errors import EnvironmentProblem, LivekvError

# Alone on its line: a page says where a generated piece goes, the text around it stays by hand.
_MARKER: Final = re.compile(r"^<!-- data: ([a-z-]+) -->$", re.MULTILINE)


_THEME: Final = Path(__file__).parent / "theme"


class SiteError(LivekvError):
    """The built site has a fault a reader would meet."""

    exit_code = 6


def build_site(layout: Layout, console: Console, url: str | None = None) -> None:
    """Build the warehouse and the site from it; `url` is where the site will be served.

    Raises:
        SiteError: mkdocs refused the source, or the built site has dead or foreign links.
    """
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        stage(layout, database, console)
        epoch = database.one("select coalesce(epoch(max(ended_at))::bigint, 0) as t from run")["t"]
        _mkdocs(layout, url, epoch)
        write_run_pages(database, layout.built)
    faults = check_site(layout.built)
    if faults:
        listed = "; ".join(str(fault) for fault in faults[:5])
        raise SiteError(f"the built site has {len(faults)} bad link(s): {listed}")


def stage(layout: Layout, database: Database, console: Console) -> None:
    """Copy the source, fill its markers and add generated pages, figures and downloads."""
    shutil.rmtree(layout.staged, ignore_errors=True)
    shutil.copytree(layout.source, layout.staged)
    downloads = write_downloads(layout, layout.staged)
    context = Context(database, layout.root, downloads)
    for page in sorted(layout.staged.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        filled = _MARKER.sub(lambda found: fragment(found[1], context), text)
        page.write_text(place(filled, _depth(page, layout.staged)), encoding="utf-8")
    write_figure(layout.staged / "figures", "measured-vs-target", measured_vs_target(database))
    stage_shell(layout.staged / FOLDER)
    write_explorer(database, layout.staged)
    write_comparisons(database, layout.staged)
    write_vendor(layout.root, layout.staged, console)


def _depth(page: Path, staged: Path) -> int:
    # A page x.md is served as x/, an index.md as its folder.
    folders = len(page.relative_to(staged).parts) - 1
    return folders if page.name == "index.md" else folders + 1


def _mkdocs(layout: Layout, url: str | None, epoch: int) -> None:
    config = layout.staged.parent / "mkdocs.yml"
    lines = [
        f"INHERIT: {_quoted(layout.root / 'mkdocs.yml')}",
        f"docs_dir: {_quoted(layout.staged)}",
        f"site_dir: {_quoted(layout.built)}",
        f"theme: {{custom_dir: {_quoted(_THEME)}}}",
    ]
    if url is not None:
        lines.append(f"site_url: '{url}'")
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    # The date in the site map is that of the newest run: the same data gives the same bytes.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in said if "WARNING" in line or "ERROR" in line or "rror:" in line]
        raise SiteError(f"mkdocs refused the site: {'; '.join((telling or said)[-5:])}")


def _quoted(path: Path) -> str:
    text = str(path)
    if "'" in text:
        raise EnvironmentProblem(f"the path {text} holds a quote; move the checkout")
    return f"'{text}'"
