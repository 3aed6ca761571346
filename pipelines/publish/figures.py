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
    points = database.rows(
        """
        select distinct measured_prefix as n_prefix, hops as n_hops from measured_vs_target
        where measured_prefix is not null and hops is not null and times = 'whole session'
        union select distinct n_prefix, n_hops from headline where ratio is not null
        order by n_hops, n_prefix
        """
    )
    axis = [_point(row) for row in points]
    traces = [*_target_traces(database), *_our_traces(database)]
    return {
        "data": traces,
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


def _target_traces(database: Database) -> list[Figure]:
    rows = database.rows(
        """
        select hardware, model, measured_prefix as n_prefix, hops as n_hops, low, position
        from targets
        where times = 'whole session' and measured_prefix is not null and hops is not null
        order by hardware, model, position
        """
    )
    traces = []
    for index, (name, group) in enumerate(_by(rows, "hardware", "model")):
        items = list(group)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"published: {', '.join(name)}",
                "x": [_point(row) for row in items],
                "y": [row["low"] for row in items],
                "line": {"dash": "dot", "width": 1.5},
                "marker": {"symbol": OPEN[index % len(OPEN)], "size": 9},
                "meta": {"tone": "target"},
            }
        )
    return traces


def _our_traces(database: Database) -> list[Figure]:
    rows = database.rows(
        """
        select platform, model_id, if(published, 'published', 'local') as kind, n_prefix, n_hops,
               ratio, ratio - low as minus, high - ratio as plus, n_blocks
        from headline where ratio is not null
        order by published desc, platform, model_id, n_hops, n_prefix
        """
    )
    traces = []
    for index, (name, group) in enumerate(_by(rows, "platform", "model_id", "kind")):
        items = list(group)
        platform, model, kind = name
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"ours: {model}, {platform}{'' if kind == 'published' else ' (local run)'}",
                "x": [_point(row) for row in items],
                "y": [row["ratio"] for row in items],
                "text": [f"{row['n_blocks']} blocks" for row in items],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [row["plus"] for row in items],
                    "arrayminus": [row["minus"] for row in items],
                },
                "marker": {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 10},
                "meta": {"tone": TONES[index % len(TONES)]},
            }
        )
    return traces


def run_blocks(database: Database, run_id: str) -> Figure:
    """Every block of a run, one mark a block and point; void ones are drawn as crosses."""
    rows = database.rows(
        """
        select p.point, p.baseline, p.block, p.usable, p.reason,
               p.base_wall_s / p.treat_wall_s as ratio
        from block_pairs p join point_blocks q using (run_id, point, baseline)
        where p.run_id = ? and p.base_wall_s > 0 and p.treat_wall_s > 0
        order by q.n_hops, q.n_prefix, p.point, p.baseline, p.block
        """,
        [run_id],
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
