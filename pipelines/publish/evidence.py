"""One published number, walked from its claim to its rows in Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from pipelines import words
from pipelines.database import Database, Row
from pipelines.publish.markup import Cell, badge, code, facts, link, table, verdict_badge
from pipelines.publish.runs import page_of

# The longest primary point of the newest published run that is evidence: the number most read.
_NUMBER: Final = """
select h.*, e.title, e.claim, e.negative, e.blocks_min, e.parity_margin, e.id as expectation,
       r.expectation_commit, r.expectation_digest, r.harness_commit, r.command, r.machine_key,
       r.order_seed, v.forecast_low, v.forecast_high, v.threshold
from headline h
join run r using (run_id)
join verdicts v using (run_id, point, baseline)
join expectations e on e.digest = r.expectation_digest
where h.published and h.registration_status = 'registered'
order by h.evidence desc, v.role = 'primary' desc, h.output_meaningful desc, h.started_at desc,
    h.n_hops desc, h.n_prefix desc
limit 1
"""


def walk(database: Database) -> str:
    """The walk, or that there is no number to walk through yet."""
    found = database.rows(_NUMBER)
    if not found:
        return "No registered run is published yet."
    row = found[0]
    return "\n\n".join(
        f"### {place}. {title}\n\n{step(database, row)}"
        for place, (title, step) in enumerate(_STEPS, start=1)
    )


def _claim(_: Database, row: Row) -> str:
    where = f"{row['platform']}, {row['hardware']}"
    named = f"{row['model_name']} on {where}, {words.point(row)} (prefix / hops)"
    expected: list[tuple[str, Cell]] = [
        ("claim", row["claim"]),
        ("a real negative would be", row["negative"]),
        ("point", named),
        ("forecast", words.interval(row["forecast_low"], row["forecast_high"])),
        ("refuted at or below", words.ratio(row["threshold"])),
        ("measured", f"{words.ratio(row['ratio'])} ({words.interval(row['low'], row['high'])})"),
        ("verdict", verdict_badge(row["verdict"], row["registration_status"])),
        ("in a sentence", row["sentence"]),
    ]
    return facts("What was claimed, and what came out", expected)


def _registration(_: Database, row: Row) -> str:
    asked = f"git merge-base --is-ancestor {row['expectation_commit']} {row['harness_commit']}"
    stated: list[tuple[str, Cell]] = [
        ("expectation", code(f"data/expectations/{row['expectation']}.toml")),
        ("its SHA-256", code(row["expectation_digest"])),
        ("came alone in commit", code(row["expectation_commit"])),
        ("measured by commit", code(row["harness_commit"])),
        ("ask git yourself", code(asked)),
        ("state", badge(row["registration_status"])),
    ]
    return facts("The expectation came before the number", stated)


def _control(database: Database, row: Row) -> str:
    rows = database.rows(
        """
        select q.*, v.role, v.sentence
        from ratios q join verdicts v using (run_id, point, baseline)
        where q.run_id = ? and q.measure = 'whole session' and v.role in ('parity', 'a/a')
        order by v.role desc, q.n_hops, q.n_prefix
        """,
        [row["run_id"]],
    )
    if not rows:
        return "This run has no control."
    lines = (
        [
            one["role"], words.point(one), words.ratio(one["ratio"]),
            words.interval(one["low"], one["high"]), words.blocks(one), one["sentence"],
        ]
        for one in rows
    )  # fmt: skip
    head = ("Control", "Prefix / hops", "Ratio", "95 % t interval", "Blocks", "In a sentence")
    return table("Both sides do the same work: the ratio must be 1", head, lines)


def _blocks(database: Database, row: Row) -> str:
    rows = database.rows(
        """
        select block, base_wall_s, treat_wall_s, ln(base_wall_s) - ln(treat_wall_s) as d,
               coalesce(reason, 'yes') as used
        from block_pairs where run_id = ? and point = ? and baseline = ? order by block
        """,
        [row["run_id"], row["point"], row["baseline"]],
    )
    lines = (
        [
            one["block"], words.seconds(one["base_wall_s"]), words.seconds(one["treat_wall_s"]),
            None if one["d"] is None else f"{one['d']:.4f}", one["used"],
        ]
        for one in rows
    )  # fmt: skip
    head = ("Block", row["baseline"], "live_kv", "d = ln(baseline) - ln(live KV)", "Used")
    return table(f"Order drawn from seed {row['order_seed']}", head, lines)


def _interval(database: Database, row: Row) -> str:
    one = database.one(
        """
        select count(*) as n, avg(d) as mean, stddev_samp(d) as sd from pair_measures
        where run_id = ? and point = ? and baseline = ? and measure = 'whole session'
        """,
        [row["run_id"], row["point"], row["baseline"]],
    )
    if one["sd"] is None:
        return "Too few blocks for an interval."
    worked: list[tuple[str, Cell]] = [
        ("blocks", one["n"]),
        ("mean of d", f"{one['mean']:.4f}"),
        ("standard deviation of d", f"{one['sd']:.4f}"),
        ("ratio = exp(mean)", f"{words.ratio(row['ratio'])}"),
        ("95 % t interval of the mean, as ratios", words.interval(row["low"], row["high"])),
    ]
    return facts("The block is the unit; nothing is pooled", worked)


def _rows(_: Database, row: Row) -> str:
    folder = f"data/runs/{row['platform']}/{row['run_id']}"
    query = (
        f"select block, arm, wall_s from '{folder}/blocks.parquet'"
        f" where point = '{row['point']}' order by block, arm"
    )
    asked: list[tuple[str, Cell]] = [
        ("Parquet", code(f"{folder}/blocks.parquet")),
        ("ask it", code(f'duckdb -c "{query}"')),
        ("its run", link(f"@/runs/{page_of(row)}/", row["run_id"])),
        ("measure it yourself", code(row["command"])),
    ]
    return facts("Where the number lies", asked)


def _explained(database: Database, row: Row) -> str:
    rows = database.rows(
        """
        select c.*, e.ceiling, e.efficiency from closure_points c
        left join ceilings e using (run_id, point, baseline)
        where c.run_id = ? and c.point = ? and c.baseline = ?
        """,
        [row["run_id"], row["point"], row["baseline"]],
    )
    if not rows or rows[0]["saved_s"] is None:
        why = rows[0]["reason"] if rows else "the run has no calibration"
        return f"Not shown for this run: {escape(why)}."
    (one,) = rows
    within = words.signed_interval(one["unexplained_low"], one["unexplained_high"])
    added: list[tuple[str, Cell]] = [
        ("saved a session", words.seconds(one["saved_s"])),
        ("prefill avoided, predicted from calibrated costs", words.seconds(one["avoided_s"])),
        ("decode difference, measured", words.seconds(one["decode_s"])),
        ("the rest", words.seconds(one["other_s"])),
        ("unexplained share of the saving", f"{one['unexplained_share']:+.1%} ({within})"),
        ("at most allowed", words.percent(one["unexplained_max"])),
        ("ceiling by calibrated costs", words.ratio(one["ceiling"])),
        ("efficiency = measured / ceiling", words.percent(one["efficiency"])),
    ]
    return facts("The saving adds up, or it is not a headline", added)


_STEPS: Final = (
    ("The claim", _claim),
    ("Written down before", _registration),
    ("Controls of the same run", _control),
    ("Every block", _blocks),
    ("From blocks to an interval", _interval),
    ("Where the time went", _explained),
    ("The rows themselves", _rows),
)


def planted(database: Database) -> str:
    """Slowdowns of known size, made on a real machine, and what came out of the pipeline."""
    rows = database.rows("from planted where published")
    if not rows:
        return "None is published yet."
    head = (
        "Slowed by", "Model, platform", "Prefix / hops", "Ratio found", "95 % t interval", "Blocks",
        "Recovered", "Run",
    )  # fmt: skip
    lines: Iterator[list[Cell]] = (
        [
            words.percent(row["planted_ratio"] - 1), f"{row['model_id']}, {row['platform']}",
            words.point(row), f"{row['ratio']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}",
            words.blocks(row), words.yes(bool(row["recovered"])),
            link(f"@/runs/{page_of(row)}/", row["run_id"]),
        ]
        for row in rows
        if row["low"] is not None
    )  # fmt: skip
    return table("Live KV slowed on purpose, by the whole pipeline unchanged", head, lines)


def ledger(database: Database) -> str:
    """The balance of every machine's ledger, and every run that one names."""
    runs = database.rows("from ledger_runs order by started_at, machine_key, run_id")
    if not runs:
        return "No registered run was started since there is a ledger."
    balance = table(
        "Started = published + aborted; a line that does not balance says what is missing",
        ("Machine", "Started", "Published", "Aborted", "Open", "Unpublished", "Before the ledger"),
        (
            [
                row["machine_key"], row["started"], row["published"], row["aborted"],
                row["open"], row["unpublished"], row["before_ledger"],
            ]
            for row in database.rows("from ledger_balance")
        ),
    )  # fmt: skip
    listed = table(
        "Every registered run that was started",
        ("Run", "Started", "Machine", "Expectation", "Model", "State", "Reason"),
        (
            [
                row["run_id"], f"{row['started_at']:%Y-%m-%d %H:%M} UTC", row["machine_key"],
                row["expectation_id"], row["model"], badge(row["state"]), row["reason"],
            ]
            for row in runs
        ),
    )  # fmt: skip
    faults = database.rows("from ledger_faults order by path, reason")
    doubted = table(
        "What ledgers and runs do not agree about",
        ("File", "Fault", "The run is no evidence"),
        ([code(row["path"]), row["reason"], words.yes(row["voids_run"])] for row in faults),
    )
    return "\n\n".join([balance, listed, *([doubted] if faults else [])])


def replications(database: Database) -> str:
    """Whether runs of one expectation on one machine agree, per point."""
    rows = database.rows(
        "from replications where published order by expectation_id, model_id, machine_key, point"
    )
    if not rows:
        return "No registered run is published yet."
    head = ("Expectation", "Model", "Machine", "Point", "Runs", "State", "In a sentence")
    lines = (
        [
            row["expectation_id"], row["model_id"], row["machine_key"], row["point"],
            row["n_runs"], badge(row["state"]), row["sentence"],
        ]
        for row in rows
    )  # fmt: skip
    return table("A headline is provisional until two runs agree", head, lines)
