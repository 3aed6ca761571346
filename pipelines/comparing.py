"""The comparison of two runs of the results database, and how it is said on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines import words
from pipelines.analysis.comparison import PRACTICAL, Difference, differences, refusal
from pipelines.analysis.graded import Rows, seconds_of, shared_lines
from pipelines.database import Database, Row
from runner.errors import LivekvError, UsageError


class SlowerError(LivekvError):
    """At least one arm became slower from the first run to the second."""

    exit_code = 9


@dataclass(frozen=True)
class Comparison:
    """Two runs: what differs, why their times may not be compared, or how they compare."""

    first: Row
    second: Row
    differences: Sequence[Difference]
    refused: str | None
    lines: Sequence[Mapping[str, Any]]
    """As rows of table ``comparisons``, from `point` on."""


def compare_runs(database: Database, first: str, second: str) -> Comparison:
    """Compare two runs by their ids, or by beginnings that only one run has.

    Raises:
        UsageError: a run is not there, a beginning fits several, or both are one run.
    """
    one, other = _run(database, first), _run(database, second)
    if one["run_id"] == other["run_id"]:
        raise UsageError(f"{first} and {second} are one run; name two")
    refused = refusal(one, other)
    lines = [] if refused else _lines(database, one["run_id"], other["run_id"])
    if not refused and not lines:
        refused = "the two runs have no arm and point with usable blocks in common"
    return Comparison(one, other, differences(one, other), refused, lines)


def _run(database: Database, name: str) -> Row:
    rows = database.rows("from run where starts_with(run_id, ?) order by run_id", [name])
    exact = [row for row in rows if row["run_id"] == name]
    if len(exact or rows) == 1:
        return (exact or rows)[0]
    if rows:
        fits = ", ".join(row["run_id"] for row in rows[:3])
        raise UsageError(f"run {name} may be any of {fits}; write more of the name")
    raise UsageError(f"there is no run {name}; duckdb data/results.duckdb 'from run' lists them")


def _lines(database: Database, first: str, second: str) -> Rows:
    seconds = seconds_of(database, [first, second])
    return shared_lines(seconds[first], seconds[second])


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print what differs, then the grades; or why there are none."""
    names = Table(title="What differs", title_justify="left")
    for column in ("", comparison.first["run_id"], comparison.second["run_id"]):
        names.add_column(escape(str(column)), overflow="fold")
    for name, one, other in comparison.differences:
        names.add_row(*(escape(words.said(value)) for value in (name, one, other)))
    console.print(names if comparison.differences else "Nothing differs around the two runs.")
    if comparison.refused is None:
        console.print(_graded(comparison.lines))
        console.print(
            f"Time of the second run / time of the first, Welch's 95 % interval over blocks."
            f" Level: the whole interval within {PRACTICAL:.0%} of 1."
        )


def _graded(lines: Sequence[Mapping[str, Any]]) -> Table:
    shown = Table(title="Whole session", title_justify="left")
    for name in ("prefix / hops", "arm", "second / first", "95 % interval", "blocks", "grade"):
        shown.add_column(name)
    for line in lines:
        shown.add_row(
            words.point({**line}),
            escape(line["arm"]),
            f"{line['ratio']:.3f}",
            words.fine_interval(line["low"], line["high"]),
            f"{line['n_first']}, {line['n_second']}",
            line["grade"],
        )
    return shown


def require_no_slower(comparison: Comparison) -> None:
    """For continuous integration.

    Raises:
        UsageError: the times may not be compared; says why.
        SlowerError: names the arms and points that became slower.
    """
    if comparison.refused is not None:
        raise UsageError(comparison.refused)
    slower = [line for line in comparison.lines if line["grade"] == "slower"]
    if slower:
        worst = max(slower, key=lambda line: line["ratio"])
        raise SlowerError(
            f"slower at {len(slower)} of {len(comparison.lines)} arms and points; the worst is"
            f" {worst['arm']} at {words.point({**worst})}: {worst['ratio']:.3f} times"
        )
