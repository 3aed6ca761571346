"""Generated pieces that hand-written pages ask for with ``<!-- data: name -->``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from pipelines import words
from pipelines.database import Database, Row
from pipelines.publish import (
    builder,
    calculator,
    comparisons,
    competition,
    evidence,
    explorer,
    query,
)
from pipelines.publish.markup import (
    Cell,
    badge,
    chart,
    code,
    folded,
    link,
    table,
    verdict_badge,
)
from pipelines.publish.runs import page_of
from runner import catalog
from runner.errors import UsageError


@dataclass(frozen=True)
class Context:
    """What a fragment may read: the database, the checkout, the files offered for download."""

    database: Database
    root: Path
    downloads: tuple[Row, ...]

    @property
    def data(self) -> Path:
        """Folder of committed data."""
        return self.root / "data"


def fragment(name: str, context: Context) -> str:
    """The markup of fragment `name`.

    Raises:
        UsageError: no fragment has that name.
    """
    if name not in FRAGMENTS:
        known = ", ".join(sorted(FRAGMENTS))
        raise UsageError(f"a page asks for data {name!r}; there is: {known}")
    return FRAGMENTS[name](context)


def _answers(context: Context) -> str:
    rows = context.database.rows(
        """
        select *, row_number() over (partition by platform, machine_key, model_id
            order by coalesce(role = 'primary', false) desc, n_hops desc, n_prefix desc) as place
        from headline where published and baseline = 'reprefill'
        qualify place = 1 order by platform, hardware, machine_key, model_id
        """
    )
    lines = ['<div class="lk-answers">']
    lines += [_answer(row) for row in rows]
    measured = {row["platform"] for row in rows}
    for platform in catalog.platforms(context.data).values():
        if platform.id not in measured:
            lines.append(
                f'<div class="lk-answer"><h3>{escape(platform.title)}</h3>'
                f"<p>{badge('not measured yet').text}</p>"
                f"<p>No published run on this platform. <code>{builder.PREFIX} -- --platform"
                f" {escape(platform.id)}</code> measures it on a machine that has it.</p></div>"
            )
    return "\n".join([*lines, "</div>"])


def _answer(row: Row) -> str:
    meaningless = words.weights(row)
    # Most models without meaning already say so in their names.
    shape = f" ({meaningless})" if meaningless not in row["model_name"] else ""
    sentence = row["sentence"] or "No verdict: the run has no forecast for this point."
    page = link(f"@/runs/{page_of(row)}/", f"run of {row['started_at']:%Y-%m-%d}")
    name = f"{row['model_name']} on {row['platform']}, {row['hardware']}{shape}"
    number = f"{words.ratio(row['ratio'])}x" if row["is_headline"] else _no_number(row)
    standing = f" {badge(row['replication']).text}" if row["replication"] else ""
    return (
        f'<div class="lk-answer"><h3>{escape(name)}</h3>'
        f'<p class="lk-number">{escape(number)}'
        f" <small>whole session, {escape(row['baseline'])} / live KV, at"
        f" {row['n_prefix']:,} tokens and {row['n_hops']} hops</small></p>"
        f"<p>{verdict_badge(row['verdict'], row['registration_status']).text}{standing}"
        f" {escape(sentence)}"
        f" {page.text}, {row['n_blocks']} blocks.</p></div>"
    )


def _no_number(row: Row) -> str:
    return "saving not explained" if row["evidence"] else "no verdict"


def _ratio_row(row: Row) -> list[Cell]:
    return [
        f"{row['model_id']}, {row['platform']}, {row['hardware']}",
        words.point(row),
        words.ratio(row["ratio"]),
        words.interval(row["low"], row["high"]),
        words.blocks(row),
        verdict_badge(row["verdict"], row["registration_status"]),
        row["forecast"],
        row["replication"],
        f"{row['unexplained_share']:+.1%}" if row["unexplained_share"] is not None else None,
        words.percent(row["efficiency"]),
        link(f"@/runs/{page_of(row)}/", row["run_id"]),
    ]


_RATIO_HEAD: Final = (
    "Model, platform, hardware", "Prefix / hops", "Ratio", "95 % t interval", "Blocks", "Verdict",
    "Forecast", "Replication", "Unexplained", "Efficiency", "Run",
)  # fmt: skip


def _ours(context: Context) -> str:
    rows = context.database.rows(
        "from headline where published and baseline = 'reprefill'"
        " order by platform, hardware, machine_key, model_id, n_hops, n_prefix"
    )
    if not rows:
        return "No run is published yet."
    return table("Published ratios, whole session", _RATIO_HEAD, map(_ratio_row, rows))


def _local(context: Context) -> str:
    rows = context.database.rows(
        "from headline where not published order by platform, model_id, n_hops, n_prefix"
    )
    if not rows:
        return ""
    shown = table("Runs of this checkout, not published", _RATIO_HEAD, map(_ratio_row, rows))
    return f"## Your own runs\n\nMeasured in this checkout and not published.\n\n{shown}"


def _targets(context: Context) -> str:
    rows = context.database.rows("from measured_vs_target")
    head = (
        "Published figure", "Mechanism", "What it times", "Setting", "Model, hardware",
        "Measured prefix / hops", "Ours", "95 % t interval", "Comparison", "Source",
    )  # fmt: skip
    return table("Figures published elsewhere, and ours beside them", head, map(_target_row, rows))


def _target_row(row: Row) -> list[Cell]:
    setting = row["setting"]
    if row["nominal_prefix"] is not None and row["measured_prefix"] is not None:
        setting += f"; labelled {row['nominal_prefix']}"
    prefix = words.said(row["measured_prefix"]) if row["measured_prefix"] else None
    where = None if row["hops"] is None else f"{prefix or 'prefix not stated'} / {row['hops']}"
    ours: Cell = "open"
    if row["run_id"] is not None:
        name = f"{words.ratio(row['ratio'])}, {row['model_id']}, {row['our_hardware']}"
        ours = link(f"@/runs/{page_of(row)}/", name if row["published"] else f"{name} (local)")
    return [
        row["figure"], row["mechanism"], row["times"], setting,
        f"{row['target_model']}, {row['hardware']}", where or prefix, ours,
        words.interval(row["low"], row["high"]) if row["run_id"] else None, row["comparison"],
        row["source"] + (" (cited)" if row["cited"] else ""),
    ]  # fmt: skip


def _depth(context: Context) -> str:
    rows = context.database.rows("from depth_costs where published")
    if not rows:
        return "No calibrated run is published yet."
    head = ("Model, platform, hardware", "What", "Tokens at once", "A token behind few others",
            "A token behind many", "Times as dear", "Run")  # fmt: skip
    return table("What depth does to the cost of a token", head, map(_depth_row, rows))


_KINDS: Final = {"prefill": "chunk of a prompt", "hop": "tool result", "decode": "decode step"}


def _depth_row(row: Row) -> list[Cell]:
    return [
        f"{row['model_id']}, {row['platform']}, {row['hardware']}", _KINDS[row["kind"]],
        1 if row["kind"] == "decode" else row["n_tokens"],
        f"{words.seconds(row['shallow_s'])} at {row['shallow']:,}",
        f"{words.seconds(row['deep_s'])} at {row['deep']:,}", words.ratio(row["factor"]),
        link(f"@/runs/{page_of(row)}/", row["run_id"]),
    ]  # fmt: skip


def _target_chart(context: Context) -> str:
    label = (
        "Whole session, baseline time / live KV time. Ours with a 95 % t interval over blocks;"
        " published figures with open marks."
    )
    rows = context.database.rows("from chart_points")
    head = ("Series", "Prefix / hops", "Ratio", "95 % t interval", "Blocks")
    lines: Iterable[list[Cell]] = (
        [
            row["series"], words.point(row), words.ratio(row["ratio"]),
            words.interval(row["low"], row["high"]), row["n_blocks"],
        ]
        for row in rows
    )  # fmt: skip
    drawn = chart("measured-vs-target", label, 480)
    return f"{drawn}\n\n{folded('Data of the chart', table(label, head, lines))}"


def _run_list(context: Context) -> str:
    rows = context.database.rows("from run order by published desc, started_at desc, run_id")
    if not rows:
        return "No run is published yet."
    head = ("Run", "Started", "Platform", "Model", "Sweep", "Blocks", "Status", "Registration")
    return table(
        "Runs, published first",
        head,
        (
            [
                link(f"@/runs/{page_of(row)}/", row["run_id"]),
                f"{row['started_at']:%Y-%m-%d %H:%M} UTC",
                row["platform"],
                row["model_id"],
                row["sweep"],
                row["blocks_planned"],
                row["status"] if row["published"] else f"{row['status']}, local",
                badge(row["registration_status"]),
            ]
            for row in rows
        ),
    )


def _skipped(context: Context) -> str:
    rows = context.database.rows("from skipped")
    if not rows:
        return "No file was skipped."
    lines: Iterable[list[Cell]] = ([code(row["path"]), row["reason"]] for row in rows)
    return table("Files that contribute nothing, and why", ("File", "Reason"), lines)


def _downloads(context: Context) -> str:
    rows = (
        [
            link(f"@/{row['path']}", row["path"].rsplit("/", 1)[-1]),
            row["what"],
            f"{row['bytes']:,}",
            code(row["sha256"]),
        ]
        for row in context.downloads
    )
    return table("Files, with their SHA-256", ("File", "What", "Bytes", "SHA-256"), rows)


def _schema(context: Context) -> str:
    rows = context.database.rows(
        """
        select table_name, string_agg(column_name, ', ' order by ordinal_position) as columns
        from information_schema.columns where table_schema = 'main' group by 1 order by 1
        """
    )
    lines: Iterable[list[Cell]] = ([code(row["table_name"]), row["columns"]] for row in rows)
    return table("Tables and views of the database", ("Table", "Columns"), lines)


def _commands(context: Context) -> str:
    lines: Iterable[list[Cell]] = (
        [code(text), said] for text, said in builder.common_commands(context.data)
    )
    return table("Common commands", ("Command", "What it does"), lines)


def _builder(context: Context) -> str:
    # In the order of the form.
    allowed = json.dumps(builder.choices(context.data), ensure_ascii=False)
    return (
        f'<div id="lk-builder" data-choices="{escape(allowed)}">'
        "<noscript>The form needs JavaScript; the table below does not.</noscript></div>"
    )


def _text_of(name: str) -> Callable[[Context], str]:
    def read(context: Context) -> str:
        return (context.root / name).read_text(encoding="utf-8")

    return read


FRAGMENTS: Final[Mapping[str, Callable[[Context], str]]] = {
    "answers": _answers,
    "ours": _ours,
    "sides": lambda context: competition.sides(context.database),
    "floors": lambda context: competition.floors(context.database),
    "explorer": lambda context: explorer.place_of_explorer(context.database),
    "comparison": lambda context: comparisons.place_of_comparison(context.database),
    "calculator": lambda context: calculator.place_of_calculator(context.database),
    "accuracy": lambda context: calculator.accuracy(context.database),
    "query": lambda context: query.place_of_query(context.root),
    "local": _local,
    "depth": _depth,
    "targets": _targets,
    "target-chart": _target_chart,
    "evidence": lambda context: evidence.walk(context.database),
    "planted": lambda context: evidence.planted(context.database),
    "ledger": lambda context: evidence.ledger(context.database),
    "replications": lambda context: evidence.replications(context.database),
    "runs": _run_list,
    "skipped": _skipped,
    "downloads": _downloads,
    "schema": _schema,
    "commands": _commands,
    "builder": _builder,
    "runbook": _text_of("RUNBOOK.md"),
    "changelog": _text_of("CHANGELOG.md"),
}
