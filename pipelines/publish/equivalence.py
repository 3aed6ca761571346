"""What the arms would say freely, as it is shown beside a speed-up."""

from __future__ import annotations

from typing import Final

from pipelines import words
from pipelines.database import Database, Row
from pipelines.publish.markup import Cell, badge, folded, table

_POINTS: Final = """
select e.*, b.n_prefix, b.n_hops
from equivalence_points e
join (select distinct run_id, point, n_prefix, n_hops from blocks) b using (run_id, point)
order by b.n_hops, b.n_prefix, e.point, e.comparison
"""
_NAMES: Final = {"free": "against re-prefill", "matched": "control, equal batch shapes"}
_ABSENT: Final = (
    "<p>Not compared: the run is older than this comparison, or was made without it.</p>"
)


def free_output(row: Row) -> Cell:
    """A cell beside a ratio; `row` has `short` and `control_holds` of its point, or NULL."""
    return badge(row["short"]) if row["control_holds"] is False else row["short"]


def equivalence_section(database: Database, run_id: str) -> str:
    """The comparison of every point of a run, a failed control before anything else."""
    rows = database.of_run(_POINTS, run_id)
    if not rows:
        return _ABSENT
    head = (
        "Prefix / hops", "Comparison", "Tokens agreed", "Share", "First divergence, hop",
        "Smallest margin there", "Largest logit difference", "In a sentence",
    )  # fmt: skip
    caption = "What the model would say freely at the same hops"
    shown = table(caption, head, map(_point_row, rows))
    return "\n\n".join([*_alarm(rows), shown, _turns(database, run_id)])


def _alarm(rows: list[Row]) -> list[str]:
    failed = [words.point(row) for row in rows if _is_failed_control(row)]
    if not failed:
        return []
    return [
        f"<p>{badge('control failed').text} Kept state did not say what its own tokens say, in"
        f" equal batch shapes, at {'; '.join(failed)} (prefix / hops). A ratio there compares"
        " two different computations.</p>"
    ]


def _is_failed_control(row: Row) -> bool:
    return row["comparison"] == "matched" and row["control_holds"] is False


def _point_row(row: Row) -> list[Cell]:
    return [
        words.point(row), _NAMES[row["comparison"]],
        badge(row["short"]) if _is_failed_control(row) else _agreed(row),
        words.percent(row["share_agreed"]), row["first_divergence_hop"],
        _deviations(row["smallest_margin_sd"]), _deviations(row["largest_difference_sd"]),
        row["sentence"],
    ]  # fmt: skip


def _agreed(row: Row) -> str | None:
    return f"{row['n_agreed']} of {row['n_tokens']}" if row["n_tokens"] else None


def _deviations(value: float | None) -> str | None:
    return None if value is None else f"{value:.2g} sd"


def _turns(database: Database, run_id: str) -> str:
    rows = database.of_run("from equivalence order by point, comparison, hop", run_id)
    head = ("Point", "Comparison", "Hop", "Tokens agreed", "Margin", "Largest difference", "Spread")
    lines = (
        [
            row["point"], _NAMES[row["comparison"]], row["hop"], _agreed(row),
            _logits(row["top2_margin"]), _logits(row["max_logit_difference"]),
            _logits(row["logit_sd"]) or row["reason"],
        ]
        for row in rows
    )  # fmt: skip
    return folded("Hop by hop", table("Free turns at the chosen hops, in logits", head, lines))


def _logits(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"
