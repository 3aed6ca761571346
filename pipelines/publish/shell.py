"""One built page as the shell of many: what mkdocs makes once serves every run.

mkdocs renders a page in some 20 ms, most of it for navigation and theme that are the same on each.
With a thousand runs that alone would take longer than everything else.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

_NAME: Final = "shell"
_TITLE: Final = "LIVEKV-SHELL-TITLE"
_BODY: Final = "LIVEKV-SHELL-BODY"
_SITEMAP_ENTRY: Final = re.compile(r"\s*<url>(?:(?!</url>).)*?/shell/.*?</url>", re.DOTALL)


class Page(NamedTuple):
    """A page to be made: its name in the folder of the shell, its title, its markup."""

    name: str
    title: str
    body: str


def stage_shell(folder: Path) -> None:
    """Put the page that becomes the shell into a folder of the staged source."""
    text = f"---\ntitle: {_TITLE}\nhide: [toc]\nsearch: {{exclude: true}}\n---\n\n{_BODY}\n"
    (folder / f"{_NAME}.md").write_text(text, encoding="utf-8")


def fill_shell(built: Path, folder: str, pages: Sequence[Page]) -> None:
    """Make `pages` from the shell in ``built/folder``; the shell itself goes.

    The site map names the pages: the theme follows a link without loading a whole page only to an
    address that stands in it.
    """
    shell = built / folder / _NAME
    text = (shell / "index.html").read_text(encoding="utf-8")
    shutil.rmtree(shell)
    before, after = text.split(f"<p>{_BODY}</p>")
    for page in pages:
        target = built / folder / page.name / "index.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        head, tail = (_named(part, folder, page) for part in (before, after))
        target.write_text(f"{head}{page.body}{tail}", encoding="utf-8")
    _write_sitemap(built, folder, pages)
    _leave_out_of_search(built, folder)


def _named(text: str, folder: str, page: Page) -> str:
    return text.replace(_TITLE, escape(page.title)).replace(
        f"{folder}/{_NAME}/", f"{folder}/{page.name}/"
    )


def _write_sitemap(built: Path, folder: str, pages: Sequence[Page]) -> None:
    path = built / "sitemap.xml"
    text = path.read_text(encoding="utf-8")
    found = _SITEMAP_ENTRY.search(text)
    if found is None:
        return  # a site without an address has no map
    entry = found[0]
    named = (entry.replace(f"{folder}/{_NAME}/", f"{folder}/{page.name}/") for page in pages)
    text = text.replace(entry, "".join(named))
    path.write_text(text, encoding="utf-8")
    (built / "sitemap.xml.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _leave_out_of_search(built: Path, folder: str) -> None:
    path = built / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    start = f"{folder}/{_NAME}/"
    index["docs"] = [doc for doc in index["docs"] if not doc["location"].startswith(start)]
    path.write_text(json.dumps(index, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")
