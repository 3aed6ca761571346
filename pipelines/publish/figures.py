"""Charts as plotly JSON: every value comes from DuckDB, colours come from the page's theme."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pipelines.database import Database, Row

Figure = dict[str, Any]

# `tone` names a colour of the style sheet, so that one file serves light and dark.
TONES: Final = ("ours-1", "ours-2", "ours-3", "ours-4")
SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up")
OPEN: Final = ("circle-open", "square-open", "diamond-open")


def write_figure(folder: Path, figure_id: str, figure: Figure) -> None:
    """Write ``<figure_id>.json``; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figure, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    (folder / f"{figure_id}.json").write_text(text + "\n", encoding="utf-8")


def measured_vs_target(database: Database) -> Figure:
    """Whole-session ratios of the newest runs with their intervals, and the published figures."""
    rows = database.rows("from chart_points")
    order = sorted({(row["n_hops"], row["n_prefix"]) for row in rows})
    axis = [_point({"n_prefix": prefix, "n_hops": hops}) for hops, prefix in order]
    traces = [_our_trace, _target_trace]
    data: list[Figure] = []
    for trace, ours in zip(traces, (True, False), strict=True):
        groups = _by([row for row in rows if row["ours"] is ours], "series")
        data += [trace(name, list(group), i) for i, ((name,), group) in enumerate(groups)]
    return {
        "data": data,
        "layout": {
            "xaxis": {
                "title": {"text": "measured prefix (tokens) / hops"},
                "type": "category",
                "categoryorder": "array",
                "categoryarray": axis,
            },
            "yaxis": {"title": {"text": "ratio (log scale)"}, "type": "log", "dtick": "D2"},
            "shapes": [_one_line()],
        },
    }


def _target_trace(name: str, rows: list[Row], index: int) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [_point(row) for row in rows],
        "y": [row["ratio"] for row in rows],
        "line": {"dash": "dot", "width": 1.5},
        "marker": {"symbol": OPEN[index % len(OPEN)], "size": 9},
        "meta": {"tone": "target"},
    }


def _our_trace(name: str, rows: list[Row], index: int) -> Figure:
    def arm(row: Row, far: str, near: str) -> float | None:
        return None if row["low"] is None else row[far] - row[near]

    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [_point(row) for row in rows],
        "y": [row["ratio"] for row in rows],
        "text": [f"{row['n_blocks']} blocks" for row in rows],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [arm(row, "high", "ratio") for row in rows],
            "arrayminus": [arm(row, "ratio", "low") for row in rows],
        },
        "marker": {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 10},
        "meta": {"tone": TONES[index % len(TONES)]},
    }


def run_blocks(database: Database, run_id: str) -> Figure:
    """Every block of a run, one mark a block and point; void ones are drawn as crosses."""
    rows = database.of_run(
        """
        select p.run_id, p.point, p.baseline, p.block, p.usable, p.reason,
               p.base_wall_s / p.treat_wall_s as ratio
        from block_pairs p join point_blocks q using (run_id, point, baseline)
        where p.base_wall_s > 0 and p.treat_wall_s > 0
        order by q.n_hops, q.n_prefix, p.point, p.baseline, p.block
        """,
        run_id,
    )
    traces = []
    for index, (name, group) in enumerate(_by(rows, "point", "baseline")):
        items = list(group)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{name[0]}, {name[1]}",
                "x": [row["block"] for row in items],
                "y": [row["ratio"] for row in items],
                "text": [row["reason"] or "used" for row in items],
                "marker": {
                    "symbol": [
                        SYMBOLS[index % len(SYMBOLS)] if row["usable"] else "x-thin-open"
                        for row in items
                    ],
                    "size": 9,
                },
                "meta": {"tone": TONES[index % len(TONES)]},
            }
        )
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": "block"}, "dtick": 1},
            "yaxis": {"title": {"text": "block ratio (log scale)"}, "type": "log", "dtick": "D2"},
            "shapes": [_one_line()],
        },
    }


def _one_line() -> Figure:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 1,
        "y1": 1,
        "line": {"width": 1},
    }


def _point(row: Row) -> str:
    return f"{row['n_prefix']} / {row['n_hops']}"


def _by(rows: list[Row], *names: str) -> Iterable[tuple[tuple[str, ...], Iterable[Row]]]:
    return groupby(rows, key=lambda row: tuple(str(row[name]) for name in names))
