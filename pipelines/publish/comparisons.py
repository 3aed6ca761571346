"""What the comparing page holds: the published runs' surroundings, and the grades of every pair."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pipelines import words
from pipelines.analysis.comparison import COMMIT, FUTILE, MACHINE, MODEL, differences
from pipelines.analysis.environment import environment_facts
from pipelines.database import Database, Row
from pipelines.publish.markup import Cell, link, table
from pipelines.publish.runs import page_of

SOURCE: Final = "figures/compare.json"
_HEAD: Final = ("Prefix / hops", "Arm", "Second / first", "95 % interval", "Blocks", "Grade")

_RUNS: Final = "from run where published and status = 'complete' order by run_id desc"

# The newest pair of each machine and model first; lines as they were derived.
_LINES: Final = """
select c.* from comparisons c
join run f on f.run_id = c.first_run
join run s on s.run_id = c.second_run
where c.published
order by s.started_at desc, f.started_at desc, c.second_run, c.first_run, c.n_hops, c.n_prefix,
    c.arm
"""


def write_comparisons(database: Database, staged: Path) -> None:
    """Write the page's file into the staged site."""
    content = {
        "runs": [_run(row) for row in database.rows(_RUNS)],
        "machine": MACHINE,
        "model": MODEL,
        "futile": FUTILE,
        "pairs": [
            {"first": first, "second": second, "lines": [*map(_packed, lines)]}
            for (first, second), lines in _pairs(database)
        ],
    }
    path = staged / SOURCE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _run(row: Row) -> dict[str, Any]:
    return {
        "id": row["run_id"],
        "title": f"{row['run_id']}, {row['platform']}",
        "page": page_of(row),
        "facts": environment_facts(row) | {COMMIT: row[COMMIT]},
    }


def _pairs(database: Database) -> Iterable[tuple[tuple[str, str], Iterable[Row]]]:
    rows = database.rows(_LINES)
    return groupby(rows, key=lambda row: (row["first_run"], row["second_run"]))


def _packed(row: Row) -> dict[str, Any]:
    return {
        "point": words.point(row),
        "arm": row["arm"],
        "ratio": row["ratio"],
        "interval": words.fine_interval(row["low"], row["high"]),
        "blocks": f"{row['n_first']}, {row['n_second']}",
        "grade": row["grade"],
    }


def place_of_comparison(database: Database) -> str:
    """Where the page is built; without JavaScript the newest pair there is."""
    runs = {row["run_id"]: row for row in database.rows(_RUNS)}
    shown = "No machine has two published runs of one model yet."
    for (first, second), lines in _pairs(database):
        shown = _newest(runs[first], runs[second], lines)
        break
    return f'<div id="lk-compare" data-source="{SOURCE}">\n{shown}\n</div>'


def _newest(first: Row, second: Row, lines: Iterable[Row]) -> str:
    pages = [link(f"@/runs/{page_of(row)}/", row["run_id"]).text for row in (first, second)]
    named = ", ".join(name for name, *_ in differences(first, second)) or "nothing"
    caption = f"{second['run_id']} against {first['run_id']}, whole session"
    return (
        f"<p>Between {' and '.join(pages)} differs: {escape(named)}.</p>\n"
        f"{table(caption, _HEAD, map(_cells, lines))}"
    )


def _cells(row: Row) -> list[Cell]:
    packed = _packed(row)
    return [
        packed["point"], packed["arm"], f"{packed['ratio']:.3f}", packed["interval"],
        packed["blocks"], packed["grade"],
    ]  # fmt: skip
