"""The ratios of one run on the terminal, with what each rests on and what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines import words
from pipelines.database import Database, Row
from runner.errors import UsageError

_POINTS = """
select q.*, v.verdict, v.forecast, v.sentence, v.role, v.parity_margin, v.parity_p, v.p_adjusted,
       t.target_low, t.target_high, t.comparison, p.state as replication,
       p.sentence as replication_sentence, o.significant, o.sentence as order_sentence,
       -- Without a forecast there is no role; a point without a hop is a control all the same.
       coalesce(v.role in ('a/a', 'parity'), false) or q.n_hops = 0 as control
from ratios q
join run r using (run_id)
left join verdicts v using (run_id, point, baseline)
left join order_effects o using (run_id, point, baseline)
left join replications p on p.point = q.point and p.baseline = q.baseline
    and p.published = r.published and list_contains(p.runs, q.run_id)
left join (
    select run_id, point, baseline, any_value(target_low order by target_id) as target_low,
           any_value(target_high order by target_id) as target_high,
           any_value(comparison order by target_id) as comparison
    from measured_vs_target
    where run_id is not null and target_platform = platform
    group by all) t using (run_id, point, baseline)
where q.run_id = ? and q.measure = 'whole session'
order by q.n_hops, q.n_prefix, q.baseline
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
    """Print the whole-session ratios of `run`, one line a point, then its controls and notes."""
    rows = database.rows(_POINTS, [run["run_id"]])
    claims = [row for row in rows if not row["control"]]
    controls = [row for row in rows if row["control"]]
    if claims:
        console.print(_claims(run, claims))
        console.print()
    if controls:
        console.print(_controls(controls))
        console.print()
    console.print(escape(_caption(run)), highlight=False)
    for note in _notes(rows):
        console.print(escape(note), highlight=False)


def _claims(run: Row, rows: Sequence[Row]) -> Table:
    several = len({row["baseline"] for row in rows}) > 1
    table = _table(
        _title(run),
        ("prefix / hops", "ratio", "95 % interval", "blocks", "saved"),
        (*(["against"] if several else []), "verdict", "replication", "elsewhere"),
    )
    for row in rows:
        table.add_row(
            *_measured(row),
            words.seconds(row["saved_s"]),
            *([escape(row["baseline"])] if several else []),
            escape(_verdict(row)),
            row["replication"] or words.ABSENT,
            escape(_target(row)),
        )
    return table


def _controls(rows: Sequence[Row]) -> Table:
    title = "Controls: both arms do the same work, so each ratio should be 1"
    table = _table(
        title,
        ("prefix / hops", "ratio", "95 % interval", "blocks"),
        ("control", "verdict", "equal within", "differs, p"),
    )
    for row in rows:
        kind = "A/A" if row["role"] == "a/a" else "parity"
        table.add_row(
            *_measured(row), kind, escape(_control_verdict(row)), _equal(row), _p(row["p_adjusted"])
        )
    return table


def _table(title: str, numbers: Sequence[str], texts: Sequence[str]) -> Table:
    # Two spaces between columns and no edges: a line of figures fits into 100 columns unbroken.
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for name in texts:
        table.add_column(name, no_wrap=True)
    return table


def _measured(row: Row) -> tuple[str, str, str, str]:
    return (
        words.point(row),
        words.ratio(row["ratio"]),
        words.interval(row["low"], row["high"]),
        words.blocks(row),
    )


def _title(run: Row) -> str:
    where = f"{run['model_id']} on {run['platform']}, {run['n_threads']} thread(s)"
    return escape(f"Whole session, time of the baseline / time of live KV: {where}")


def _caption(run: Row) -> str:
    kind = "published" if run["published"] else "local, not published"
    state = run["registration_status"]
    said = "evidence" if state == "registered" else "not evidence"
    shape = f"; {words.weights(run)}" if words.weights(run) else ""
    numbers = "t interval over blocks, time saved a block"
    return f"run {run['run_id']} ({kind}; {state}, {said}{shape}); {numbers}"


def _verdict(row: Row) -> str:
    outcome = f", {row['forecast']}" if row["forecast"] else ""
    return f"{words.verdict(row)}{outcome}"


def _control_verdict(row: Row) -> str:
    # A/A claims nothing: it has no verdict of its own, only a gate that it opens or shuts.
    if row["role"] == "a/a" and row["verdict"] is None:
        return words.ABSENT
    return words.verdict(row)


def _equal(row: Row) -> str:
    if row["parity_margin"] is None:
        return words.ABSENT
    return f"{row['parity_margin']:.0%}, p = {_p(row['parity_p'])}"


def _p(value: float | None) -> str:
    return words.ABSENT if value is None else f"{value:.2g}"


def _target(row: Row) -> str:
    if row["target_low"] is None:
        return words.ABSENT
    return words.figure(row["target_low"], row["target_high"])


def _notes(rows: Sequence[Row]) -> list[str]:
    """What the tables cannot hold, each said once with the points it is about."""
    places: dict[str, list[str]] = {}
    for row in rows:
        for note in _said(row):
            points = places.setdefault(note, [])
            if words.point(row) not in points:
                points.append(words.point(row))
    points_of_run = {words.point(row) for row in rows}
    return [
        note if len(points) == len(points_of_run) > 1 else f"{', '.join(points)}: {note}"
        for note, points in places.items()
    ]


def _said(row: Row) -> list[str]:
    said = []
    if row["verdict"] is not None and row["verdict"] != "CONFIRMED":
        said.append(row["sentence"])
    if row["reason"] is not None:
        said.append(f"{row['baseline']}: {row['reason']}")
    if row["significant"]:
        said.append(row["order_sentence"])
    if row["replication"] == "disagree":
        said.append(row["replication_sentence"])
    if row["comparison"] is not None:
        said.append(f"the figure published elsewhere: {row['comparison']}")
    return said
