"""Live KV beside the other ways: mechanism and competition in columns of their own."""

from __future__ import annotations

from typing import Any, Final

from pipelines import words
from pipelines.database import Database, Row
from pipelines.publish.markup import Cell, Html, table, verdict_badge

_SIDES: Final = (
    ("mechanism", "Mechanism: against re-prefill, same engine"),
    ("server", "Competitive: against the tuned llama-server"),
    ("server_cold", "Against llama-server without reuse"),
    ("binding", "Competitive: against the high-level binding"),
)


def sides(database: Database) -> str:
    """Every published point with each baseline that was measured there."""
    rows = database.rows("from sides where published")
    if not any(row["server"] or row["binding"] for row in rows):
        return "No run against a server is published yet."
    head = ("Model, platform", "Prefix / hops", *(title for _, title in _SIDES), "Live KV / floor")
    lines = (
        [
            f"{row['model_id']}, {row['platform']}, {row['hardware']}", words.point(row),
            *(_side(row[name]) for name, _ in _SIDES),
            _ratio(row["floor_ratio"], row["floor_low"], row["floor_high"]),
        ]
        for row in rows
    )  # fmt: skip
    return table("Whole session, time of the other / time of live KV", head, lines)


def _side(side: dict[str, Any] | None) -> Cell:
    if side is None:
        return "not measured"
    said = _ratio(side["ratio"], side["low"], side["high"])
    mark = verdict_badge(side["verdict"], side["registration_status"])
    return Html(f"{said} {mark.text}")


def _ratio(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return words.ABSENT
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})" if low and high else f"{ratio:.3f}"


def floors(database: Database) -> str:
    """Every arm over the floor that llama-bench gives."""
    rows = database.rows(
        "select f.*, r.model_id, r.platform, p.n_prefix, p.n_hops"
        " from floors f join run r using (run_id)"
        " join (select distinct run_id, point, n_prefix, n_hops from blocks) p"
        " using (run_id, point)"
        " where r.published order by r.platform, r.model_id, p.n_hops, p.n_prefix, f.arm, f.run_id"
    )
    if not rows:
        return "No run with a floor is published yet."
    head = (
        "Model, platform",
        "Prefix / hops",
        "Arm",
        "Floor",
        "Measured",
        "Measured / floor",
        "Blocks",
    )
    return table(
        "What llama-bench says the tokens cost, and what each arm took", head, map(_floor, rows)
    )


def _floor(row: Row) -> list[Cell]:
    return [
        f"{row['model_id']}, {row['platform']}", words.point(row), row["arm"],
        words.seconds(row["floor_s"]), words.seconds(row["wall_s"]),
        _ratio(row["ratio"], row["low"], row["high"]), row["n_blocks"],
    ]  # fmt: skip
