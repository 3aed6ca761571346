"""The ratios of one run on the terminal, with what each rests on and what stands beside it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines import words
from pipelines.database import Database, Row
from runner.errors import UsageError

_POINTS = """
select q.*, v.verdict, v.forecast, v.sentence, v.role, t.target_low, t.target_high, t.comparison
from ratios q
left join verdicts v using (run_id, point, baseline)
left join (
    select run_id, point, any_value(target_low order by target_id) as target_low,
           any_value(target_high order by target_id) as target_high,
           any_value(comparison order by target_id) as comparison
    from measured_vs_target where run_id is not null and target_platform = platform
    group by all) t on t.run_id = q.run_id and t.point = q.point
where q.run_id = ? and q.measure = 'whole session'
order by q.n_hops, q.n_prefix
"""


def choose_run(database: Database, run_id: str | None) -> Row:
    """The named run, or the one that started last.

    Raises:
        UsageError: there is no run, or none of that id.
    """
    runs = database.rows("from run order by started_at desc, run_id desc")
    if not runs:
        raise UsageError("no run has been measured yet; measure one with: nox -s sweep")
    if run_id is None:
        return runs[0]
    for run in runs:
        if run["run_id"] == run_id:
            return run
    known = ", ".join(run["run_id"] for run in runs[:5])
    raise UsageError(f"no run {run_id!r} in the database; the newest are: {known}")


def print_ratios(database: Database, run: Row, console: Console) -> None:
    """Print the whole-session ratios of `run`, one line a point."""
    table = Table(title=_title(run), caption=_caption(run), title_justify="left")
    for name in ("prefix / hops", "ratio", "95 % interval", "blocks", "saved a block"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    table.add_column("published elsewhere")
    rows = database.rows(_POINTS, [run["run_id"]])
    for row in rows:
        table.add_row(
            words.point(row),
            words.ratio(row["ratio"]),
            words.interval(row["low"], row["high"]),
            words.blocks(row),
            words.seconds(row["saved_s"]),
            escape(_verdict(row)),
            escape(_target(row)),
        )
    console.print(table)
    for row in rows:
        note = row["sentence"] if row["verdict"] == "INVALID" else row["reason"]
        if note:
            console.print(escape(f"{words.point(row)}: {note}"))


def _title(run: Row) -> str:
    where = f"{run['model_id']} on {run['platform']}, {run['n_threads']} thread(s)"
    return escape(f"Whole session, time of the baseline / time of live KV: {where}")


def _caption(run: Row) -> str:
    kind = "published" if run["published"] else "local, not published"
    state = run["registration_status"]
    said = "evidence" if state == "registered" else "not evidence"
    shape = f"; {words.weights(run)}" if words.weights(run) else ""
    return escape(f"run {run['run_id']} ({kind}; {state}, {said}{shape}); t interval over blocks")


def _verdict(row: Row) -> str:
    outcome = f", forecast {row['forecast']}" if row["forecast"] else ""
    return f"{words.verdict(row)}{outcome}"


def _target(row: Row) -> str:
    if row["target_low"] is None:
        return words.ABSENT
    return f"{words.figure(row['target_low'], row['target_high'])} ({row['comparison']})"
