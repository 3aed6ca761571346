"""HTML pieces of generated pages. Everything that comes from data is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Html:
    """Markup that is already safe; any other value is escaped when it is shown."""

    text: str


Cell = str | int | Html | None


def show(value: Cell) -> str:
    """Markup of one value: text is escaped, nothing is a dash."""
    if isinstance(value, Html):
        return value.text
    return "&mdash;" if value is None else escape(str(value))


def link(target: str, text: str) -> Html:
    """A link; a `target` that begins with ``@/`` starts at the root of the site."""
    return Html(f'<a href="{escape(target)}">{escape(text)}</a>')


def code(text: str) -> Html:
    """Text in the fixed-width face."""
    return Html(f"<code>{escape(text)}</code>")


def badge(word: str) -> Html:
    """A verdict or a state as a coloured word."""
    return Html(f'<span class="lk-badge" data-state="{escape(word)}">{escape(word)}</span>')


def verdict_badge(verdict: str | None, registration: str) -> Html:
    """A verdict; without one, why there is none: no forecast, or what the run is instead."""
    return badge(verdict or ("no forecast" if registration == "registered" else registration))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table that scrolls by itself on a narrow screen; the first column heads its rows."""
    lines = [
        f'<div class="lk-scroll" tabindex="0" role="region" aria-label="{escape(caption)}">',
        f'<table class="lk-table"><caption>{escape(caption)}</caption><thead><tr>',
        "".join(f'<th scope="col">{escape(name)}</th>' for name in head),
        "</tr></thead><tbody>",
    ]
    for first, *rest in rows:
        cells = "".join(f"<td>{show(value)}</td>" for value in rest)
        lines.append(f'<tr><th scope="row">{show(first)}</th>{cells}</tr>')
    lines.append("</tbody></table></div>")
    return "\n".join(lines)


def heading(text: str) -> str:
    """A second heading with an anchor of its own words, as mkdocs writes it."""
    anchor = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    sign = f'<a class="headerlink" href="#{anchor}" title="Permanent link">&para;</a>'
    return f'<h2 id="{anchor}">{escape(text)}{sign}</h2>'


def facts(caption: str, rows: Iterable[tuple[str, Cell]]) -> str:
    """A two-column table of names and values."""
    return table(caption, ("What", "Value"), rows)


def chart(figure_id: str, label: str, height: int = 440) -> str:
    """The place where ``charts.js`` draws figure `figure_id`; `height` in CSS pixels.

    A group, not an image: a chart has buttons, and an image may hold none.
    """
    name = escape(figure_id)
    return (
        f'<figure class="lk-chart" role="group" aria-label="{escape(label)}">'
        f'<div id="lk-{name}" class="lk-plot" data-figure="figures/{name}.json"'
        f' style="height:{height}px"></div>'
        f"<figcaption>{escape(label)}</figcaption></figure>"
    )


def folded(summary: str, inner: str) -> str:
    """Markup behind a line that opens it; it is there without JavaScript too."""
    return f"<details><summary>{escape(summary)}</summary>\n{inner}\n</details>"


def place(text: str, depth: int) -> str:
    """Make links from the root of the site fit a page `depth` folders below it."""
    return text.replace('href="@/', f'href="{"../" * depth}')
