"""One page a run: environment, registration, checks, every block, where the time went."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pipelines import words
from pipelines.database import Database, Row
from pipelines.publish import builder
from pipelines.publish.equivalence import equivalence_section, free_output
from pipelines.publish.figures import run_blocks, write_figure
from pipelines.publish.markup import (
    Cell,
    badge,
    chart,
    code,
    facts,
    folded,
    heading,
    link,
    place,
    table,
    verdict_badge,
)
from pipelines.publish.shell import Page, fill_shell
from pipelines.publish.waterfall import write_waterfalls

FOLDER: Final = "runs"

_IDENTITY: Final = (
    "status", "status_reason", "started_at", "ended_at", "sweep", "order_seed", "blocks_planned",
    "platform", "machine_key", "harness_version", "harness_commit", "harness_tree",
    "harness_dirty", "runner_tree", "n_resumed", "waited_quiet_s",
)  # fmt: skip
_REGISTRATION: Final = (
    "registration_status", "registration_reason", "expectation_id", "expectation_digest",
    "expectation_commit", "ledger_start",
)  # fmt: skip
_ENGINE: Final = (
    "binding_version", "llama_cpp_commit", "library_sha256", "cmake_flags", "system_info",
    "model_id", "model_kind", "model_name", "model_sha256", "model_quantisation",
    "model_parameters", "model_bytes", "output_meaningful", "n_ctx", "n_batch", "n_ubatch",
    "n_threads", "threads_reason", "n_gpu_layers", "flash_attention", "kv_type", "sampling",
    "warmup_tokens",
)  # fmt: skip
_MACHINE: Final = (
    "os", "kernel", "cpu", "physical_cores", "logical_cores", "memory_bytes", "gpu", "gpu_driver",
    "environment",
)  # fmt: skip


def page_of(row: Row) -> str:
    """Name of the page of a run, safe in a path and an address; `row` has platform and run_id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{row['platform']}-{row['run_id']}")


def write_run_pages(database: Database, built: Path) -> None:
    """Make the page and the figures of every run in the built site, from the shell of `FOLDER`."""
    pages = []
    for run in database.rows("from run order by platform, run_id"):
        name = page_of(run)
        figures = built / "figures"
        write_figure(figures, f"run-{name}", run_blocks(database, run["run_id"]))
        falls = write_waterfalls(database, run["run_id"], f"run-{name}", figures)
        body = place(_page(database, run, f"run-{name}", falls), depth=2)
        pages.append(Page(name, f"Run {run['run_id']}", body))
    fill_shell(built, FOLDER, pages)


def _page(database: Database, run: Row, figure_id: str, falls: list[str]) -> str:
    kind = "Published" if run["published"] else "Local, not published"
    shape = words.weights(run)
    label = "Block ratios, whole session: every block; crosses are void blocks."
    run_id = run["run_id"]
    parts = [
        f"<p>{badge(run['registration_status']).text} {kind}. {shape}</p>",
        heading("Verdicts"), _verdicts(database, run_id),
        heading("Ratios"), _ratios(database, run_id),
        heading("What the model would say freely"), equivalence_section(database, run_id),
        heading("Every block"), chart(figure_id, label), _blocks(database, run_id),
        _order(database, run_id),
        heading("Where the saved time comes from"), *falls,
        _ceilings(database, run_id), _hops_times_ttft(database, run_id), _closure(database, run_id),
        heading("Registration"), _facts("Registration", run, _REGISTRATION),
        _ledger(database, run_id),
        heading("Reproduce"), _reproduce(run),
        heading("Checks"), _checks(database, run_id),
        heading("Engine and model"), _facts("Engine and model", run, _ENGINE),
        heading("Machine"), _facts("Machine", run, _MACHINE),
        heading("Identity"), _facts("Identity", run, _IDENTITY),
    ]  # fmt: skip
    return "\n".join(parts)


def _reproduce(run: Row) -> str:
    panel: list[tuple[str, Cell]] = [
        ("command", code(run["command"])),
        ("check out first", code(f"git checkout {run['harness_commit']}")),
        ("the same, in a form", link(f"@/{builder.address(run['command'])}", "build the command")),
        ("machine", f"{run['gpu'] or run['cpu']}, {run['n_threads']} thread(s), {run['os']}"),
        ("library", code(run["library_sha256"])),
        ("model", f"{run['model_id']}, {run['model_quantisation']}"),
    ]
    return facts("Command, configuration, environment", panel)


def _facts(caption: str, run: Row, names: tuple[str, ...]) -> str:
    return facts(caption, [(name, words.said(run[name])) for name in names])


def _verdicts(database: Database, run_id: str) -> str:
    rows = database.of_run(
        """
        select v.*, q.n_prefix, q.n_hops, r.registration_status
        from verdicts v join run r using (run_id)
        join ratios q on q.run_id = v.run_id and q.point = v.point and q.baseline = v.baseline
            and q.measure = 'whole session'
        order by q.n_hops, q.n_prefix, q.baseline
        """,
        run_id,
    )
    head = ("Prefix / hops", "Baseline", "Role", "Verdict", "Forecast", "In a sentence")
    lines = (
        [
            words.point(row), row["baseline"], row["role"], _verdict(row), row["forecast"],
            row["sentence"],
        ]
        for row in rows
    )  # fmt: skip
    return table("Whole session, held against what was written down before", head, lines)


def _ratios(database: Database, run_id: str) -> str:
    rows = database.of_run(
        """
        select q.*, v.verdict, v.forecast, v.sentence, v.role, r.registration_status,
               e.short, e.control_holds
        from ratios q join run r using (run_id)
        left join verdicts v on v.run_id = q.run_id and v.point = q.point
            and v.baseline = q.baseline and q.measure = 'whole session'
        left join measures m using (measure)
        left join equivalence_points e on e.run_id = q.run_id and e.point = q.point
            and e.comparison = 'free'
        order by m.position, q.n_hops, q.n_prefix, q.baseline
        """,
        run_id,
    )
    head = (
        "Prefix / hops", "Times", "Baseline", "Ratio", "95 % t interval", "Exact median interval",
        "Ratio of totals", "Saved a block", "Blocks", "Verdict", "Free output", "Remark",
    )  # fmt: skip
    return table("Baseline time / live KV time", head, map(_ratio_row, rows))


def _ratio_row(row: Row) -> list[Cell]:
    primary = row["sentence"] is not None
    return [
        words.point(row), row["measure"], row["baseline"], words.ratio(row["ratio"]),
        words.interval(row["low"], row["high"]),
        words.interval(row["median_low"], row["median_high"]), _totals(row),
        words.seconds(row["saved_s"]), words.blocks(row),
        _verdict(row) if primary else None, free_output(row) if primary else None, row["reason"],
    ]  # fmt: skip


def _totals(row: Row) -> str:
    within = words.interval(row["total_low"], row["total_high"])
    return f"{words.ratio(row['total_ratio'])} ({within})"


def _verdict(row: Row) -> Cell:
    # A/A makes no claim; only a gate of the whole run can say something of it.
    if row["role"] == "a/a" and row["verdict"] is None:
        return badge("A/A")
    return verdict_badge(row["verdict"], row["registration_status"])


def _order(database: Database, run_id: str) -> str:
    rows = database.of_run("from order_effects order by point, baseline", run_id)
    if not rows:
        return ""
    head = ("Point", "Baseline", "First of the two: live KV, baseline", "In a sentence")
    lines = (
        [
            row["point"], row["baseline"],
            f"{row['n_treatment_first']}, {row['n_baseline_first']} blocks", row["sentence"],
        ]
        for row in rows
    )  # fmt: skip
    return folded("Does the order matter?", table("Order within a block", head, lines))


def _ceilings(database: Database, run_id: str) -> str:
    rows = database.of_run(
        """
        select c.*, q.n_prefix, q.n_hops, q.ratio from ceilings c
        join ratios q using (run_id, point, baseline)
        where q.measure = 'whole session' order by q.n_hops, q.n_prefix, c.baseline
        """,
        run_id,
    )
    head = (
        "Prefix / hops", "Baseline", "Ratio", "Ceiling", "95 % t interval",
        "Efficiency = ratio / ceiling", "95 % t interval", "No ceiling because",
    )  # fmt: skip
    lines = (
        [
            words.point(row), row["baseline"], words.ratio(row["ratio"]),
            words.ratio(row["ceiling"]), words.interval(row["ceiling_low"], row["ceiling_high"]),
            words.percent(row["efficiency"]),
            words.interval(row["efficiency_low"], row["efficiency_high"]), row["reason"],
        ]
        for row in rows
    )  # fmt: skip
    caption = "What exact token counts and calibrated costs allow, and how near the ratio comes"
    return table(caption, head, lines)


def _ledger(database: Database, run_id: str) -> str:
    rows = database.of_run("from ledger where run_id is not null order by machine_key, seq", run_id)
    if not rows:
        return "<p>This run stands in no ledger.</p>"
    head = ("Line", "Event", "Written", "Reason", "Its SHA-256")
    lines = (
        [
            row["seq"], row["event"], f"{row['written_at']:%Y-%m-%d %H:%M:%S} UTC",
            row["reason"], code(row["hash"]),
        ]
        for row in rows
    )  # fmt: skip
    return table("What the ledger of the machine says of this run", head, lines)


def _blocks(database: Database, run_id: str) -> str:
    rows = database.of_run(
        """
        select p.*, p.base_wall_s / nullif(p.treat_wall_s, 0) as ratio
        from block_pairs p join point_blocks q using (run_id, point, baseline)
        order by q.n_hops, q.n_prefix, p.point, p.baseline, p.block
        """,
        run_id,
    )
    head = ("Point", "Baseline", "Block", "Baseline time", "Live KV time", "Ratio", "Used")
    lines = (
        [
            row["point"], row["baseline"], row["block"], words.seconds(row["base_wall_s"]),
            words.seconds(row["treat_wall_s"]), words.ratio(row["ratio"]),
            row["reason"] or "yes",
        ]
        for row in rows
    )  # fmt: skip
    return folded("Data of the chart", table("Whole session of every block", head, lines))


def _hops_times_ttft(database: Database, run_id: str) -> str:
    rows = database.of_run("from hops_times_ttft", run_id)
    head = (
        "Point", "Baseline", "Saved", "Hops x baseline TTFT", "Share",
        "Hops x TTFT difference", "Share",
    )  # fmt: skip
    lines = (
        [
            row["point"], row["baseline"], words.seconds(row["saved_s"]),
            words.seconds(row["hops_x_ttft_s"]), words.percent(row["share_of_ttft"]),
            words.seconds(row["hops_x_ttft_difference_s"]),
            words.percent(row["share_of_ttft_difference"]),
        ]
        for row in rows
    )  # fmt: skip
    return table("Time saved against hops x TTFT, means over blocks", head, lines)


def _closure(database: Database, run_id: str) -> str:
    rows = database.of_run("from closure", run_id)
    head = ("Point", "Hop", "Saved", "Prefill", "Decode", "Other", "Tokens not evaluated")
    lines = (
        [
            row["point"], row["hop"], words.seconds(row["saved_s"]),
            words.seconds(row["prefill_s"]), words.seconds(row["decode_s"]),
            words.seconds(row["other_s"]), f"{row['tokens_not_evaluated']:,.0f}",
        ]
        for row in rows
    )  # fmt: skip
    return folded("Hop by hop", table("Seconds saved a hop, means over blocks", head, lines))


def _checks(database: Database, run_id: str) -> str:
    rows = database.of_run("from checks", run_id)
    head = ("Check", "Status", "Value", "Detail", "A failure would mean")
    lines = (
        [row["check"], row["status"], _value(row), row["detail"], row["meaning"]] for row in rows
    )
    return table("Bring-up and integrity checks", head, lines)


def _value(row: Row) -> str | None:
    return None if row["value"] is None else f"{row['value']:g} {row['unit'] or ''}".strip()
