"""Dead internal links and anything loaded from another host, in a built site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_LOADS: Final = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "form": ("action",),
}
_LOADING_RELS: Final = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "manifest"}
_CSS_URL: Final = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""")


@dataclass(frozen=True)
class Fault:
    """One bad reference: the file that holds it, the reference, what is wrong with it."""

    file: str
    reference: str
    reason: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.file}: {self.reference} ({self.reason})"


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and _LOADING_RELS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        for name in _LOADS.get(tag, ()):
            if given.get(name):
                self.loads += [part.split()[0] for part in given[name].split(",") if part.strip()]
        self.loads += _CSS_URL.findall(given.get("style", ""))


def check_site(folder: Path) -> list[Fault]:
    """Every fault of the built site under `folder`, in the order of file names."""
    pages = {
        path: _Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))
    }
    known = {path.resolve(): page.ids for path, page in pages.items()}
    faults: list[Fault] = []
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        for reference in page.links:
            if not _is_foreign(reference):
                reason = _dead(reference, path, folder, known)
                faults += [Fault(name, reference, reason)] if reason else []
        faults += _load_faults(page.loads, path, folder)
    for path in sorted(folder.rglob("*.css")):
        loads = _CSS_URL.findall(path.read_text(encoding="utf-8"))
        faults += _load_faults(loads, path, folder)
    return faults


def _load_faults(loads: list[str], path: Path, folder: Path) -> Iterator[Fault]:
    name = path.relative_to(folder).as_posix()
    for reference in loads:
        if reference.startswith(("data:", "#")):
            continue
        if _is_foreign(reference):
            yield Fault(name, reference, "loaded from another host")
        elif not _target(reference, path, folder).exists():
            yield Fault(name, reference, "no such file")


def _is_foreign(reference: str) -> bool:
    parts = urlsplit(reference)
    return bool(parts.scheme or parts.netloc)


def _target(reference: str, path: Path, folder: Path) -> Path:
    inside = unquote(urlsplit(reference).path)
    if not inside:
        return path
    target = folder / inside.lstrip("/") if inside.startswith("/") else path.parent / inside
    return target / "index.html" if inside.endswith("/") or target.is_dir() else target


def _dead(reference: str, path: Path, folder: Path, known: dict[Path, set[str]]) -> str | None:
    target = _target(reference, path, folder).resolve()
    if not target.is_relative_to(folder.resolve()):
        return "leaves the site"
    if not target.exists():
        return "no such page"
    anchor = unquote(urlsplit(reference).fragment)
    ids = known.get(target) if anchor else None
    if ids is not None and anchor not in ids and not anchor.startswith("__"):
        return "no such anchor"
    return None
