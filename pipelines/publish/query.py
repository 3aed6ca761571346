"""The page that asks the published database in the reader's browser."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from pipelines.publish.markup import folded
from pipelines.publish.vendor import ENGINE_BYTES

_FENCE: Final = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TITLED: Final = re.compile(r"^-- (?P<title>.+)\n(?P<sql>[^;]+);", re.MULTILINE)


class Example(NamedTuple):
    """A question in words, and the query that answers it."""

    title: str
    sql: str


def examples(runbook: Path) -> list[Example]:
    """The titled queries of the runbook: a reader meets the same ones on both pages."""
    text = "\n".join(_FENCE.findall(runbook.read_text(encoding="utf-8")))
    return [Example(found["title"], found["sql"].strip()) for found in _TITLED.finditer(text)]


def place_of_query(root: Path) -> str:
    """Where the page is built; without JavaScript, or without npm at build time, the queries."""
    known = examples(root / "RUNBOOK.md")
    data = escape(json.dumps([one._asdict() for one in known], ensure_ascii=False))
    listed = "\n".join(
        folded(one.title, f"<pre><code>{escape(one.sql)}</code></pre>") for one in known
    )
    return (
        f'<div id="lk-query" data-examples="{data}" data-bytes="{ENGINE_BYTES}">\n'
        f"<noscript><p>Asking here needs JavaScript; the same queries run on the command line."
        f"</p></noscript></div>\n\n{listed}"
    )
