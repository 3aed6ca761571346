"""From the baseline's time to live KV's, step by step: where calibrated costs say it was saved."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from pipelines import words
from pipelines.database import Database, Row
from pipelines.publish.figures import Figure, write_figure
from pipelines.publish.markup import Cell, chart, table

_STEPS: Final = (
    ("prefill avoided", "avoided_s", "ours-2"),
    ("decode difference", "decode_s", "ours-3"),
    ("unexplained", "other_s", "ours-4"),
)
_HEIGHT: Final = 320

_POINTS: Final = """
select c.*, q.n_prefix, q.n_hops, e.ceiling, e.ceiling_low, e.ceiling_high,
       e.efficiency, e.efficiency_low, e.efficiency_high
from closure_points c
join point_blocks q using (run_id, point, baseline)
join ceilings e using (run_id, point, baseline)
order by q.n_hops, q.n_prefix, c.point, c.baseline
"""


def write_waterfalls(database: Database, run_id: str, name: str, folder: Path) -> list[str]:
    """Write a figure for each point of a run that has a prediction, ``waterfall-<name>-<i>.json``.

    Returns:
        Markup: the place of each figure, and last a table of every point, with the reason where
        there is no prediction.
    """
    fragments = []
    for index, (row, figure) in enumerate(waterfalls(database, run_id)):
        figure_id = f"waterfall-{name}-{index}"
        write_figure(folder, figure_id, figure)
        label = (
            f"{words.point(row)}, {row['baseline']}: seconds of a session, "
            f"means over {row['n_blocks']} blocks"
        )
        fragments.append(chart(figure_id, label, _HEIGHT))
    return [*fragments, _table(database, run_id)]


def waterfalls(database: Database, run_id: str) -> Iterator[tuple[Row, Figure]]:
    """Every point of a run that has a prediction, with its figure."""
    for row in database.of_run(_POINTS, run_id):
        if row["avoided_s"] is not None:
            yield row, _figure(row)


def _figure(row: Row) -> Figure:
    # What is taken off starts where the step before it ended; a loss climbs.
    levels = [row["base_s"]]
    for _, column, _ in _STEPS:
        levels.append(levels[-1] - row[column])
    steps = [
        _bar(name, low, high - low, tone)
        for (name, _, tone), (low, high) in zip(_STEPS, pairwise(levels), strict=True)
    ]
    first = _bar(row["baseline"], 0.0, row["base_s"], "target")
    last = _bar("live KV", 0.0, row["treat_s"], "ours-1")
    return {
        "data": [first, *steps, last],
        "layout": {
            "showlegend": False,
            "bargap": 0.3,
            "xaxis": {"type": "category"},
            "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
        },
    }


def _bar(name: str, base: float, height: float, tone: str) -> Figure:
    return {
        "type": "bar",
        "name": name,
        "x": [name],
        "base": [base],
        "y": [height],
        "text": [words.seconds(height)],
        "textposition": "outside",
        "cliponaxis": False,
        "meta": {"tone": tone},
    }


def _table(database: Database, run_id: str) -> str:
    head = (
        "Prefix / hops", "Baseline", "Saved", "Prefill avoided", "Decode difference",
        "Unexplained", "Share", "95 % interval", "Whole interval within the bound",
        "Bound met and 0 not excluded", "Ceiling", "Efficiency", "Blocks", "No number because",
    )  # fmt: skip
    rows = database.of_run(_POINTS, run_id)
    return table("Does the saving add up?", head, map(_row, rows))


def _row(row: Row) -> list[Cell]:
    return [
        words.point(row), row["baseline"], words.seconds(row["saved_s"]),
        words.seconds(row["avoided_s"]), words.seconds(row["decode_s"]),
        words.seconds(row["other_s"]), _share(row["unexplained_share"]),
        _interval(row["unexplained_low"], row["unexplained_high"]),
        _said(row["within_bound"], f"yes, {row['unexplained_max']:.1%}"),
        _said(row["explained"], "yes"),
        _with_interval(row, "ceiling"), _with_interval(row, "efficiency"), row["n_blocks"],
        row["reason"],
    ]  # fmt: skip


def _share(value: float | None) -> str:
    return words.ABSENT if value is None else f"{value:+.1%}"


def _interval(low: float | None, high: float | None) -> str:
    return words.ABSENT if low is None or high is None else f"{low:+.1%} to {high:+.1%}"


def _said(flag: bool | None, yes: str) -> str | None:
    return None if flag is None else yes if flag else "no"


def _with_interval(row: Row, name: str) -> str:
    if row[f"{name}_low"] is None:
        return words.ratio(row[name])
    interval = words.interval(row[f"{name}_low"], row[f"{name}_high"])
    return f"{words.ratio(row[name])} ({interval})"
