"""What the explorer filters: every published ratio with its run, and the figures of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pipelines import words
from pipelines.database import Database, Row
from pipelines.publish.markup import Cell, link, table, verdict_badge
from pipelines.publish.runs import page_of

SOURCE: Final = "figures/explorer.json"

# A row is a list in this order; `run` is the place of its run among the runs of the file.
COLUMNS: Final = (
    "run", "point", "workload", "prefix", "hops", "baseline", "measure", "ratio", "low", "high",
    "n_blocks", "n_void", "verdict", "forecast", "newest",
)  # fmt: skip

_RATIOS: Final = """
select
    q.run_id, q.point, q.workload, q.n_prefix as prefix, q.n_hops as hops, q.baseline, q.measure,
    q.ratio, q.low, q.high, q.n_blocks, q.n_void,
    case when q.measure = 'whole session' then v.verdict end as verdict,
    case when q.measure = 'whole session' then v.forecast end as forecast,
    h.run_id is not null as newest
from ratios q
join run r using (run_id)
join measures m using (measure)
join arm_rules a on a.arm = q.baseline
left join verdicts v using (run_id, point, baseline)
left join headline h on h.run_id = q.run_id and h.point = q.point and h.baseline = q.baseline
    and h.published
where r.published and r.status = 'complete' and a.repeats is null and a.planted is null
order by r.platform, r.model_id, q.baseline, m.position, q.n_hops, q.n_prefix, q.point,
    r.started_at desc, r.run_id
"""

_RUNS: Final = """
select run_id, platform, coalesce(gpu, cpu) as hardware, machine_key as machine,
       model_id as model, registration_status as registration
from run where published and status = 'complete' order by platform, run_id
"""

_TARGETS: Final = """
select format('{}, {}', hardware, model) as name, times as measure, baseline,
       measured_prefix as prefix, hops, low as ratio
from targets where measured_prefix is not null and hops is not null
order by name, measure, hops, prefix
"""


def write_explorer(database: Database, staged: Path) -> None:
    """Write the explorer's file into the staged site."""
    path = staged / SOURCE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(explorer(database), sort_keys=True, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def explorer(database: Database) -> dict[str, Any]:
    """Columns, runs, rows and targets, as ``explorer.js`` reads them."""
    runs = database.rows(_RUNS)
    place = {run["run_id"]: index for index, run in enumerate(runs)}
    return {
        "columns": COLUMNS,
        "runs": [run | {"page": page_of(run)} for run in runs],
        "rows": [_packed(row, place) for row in database.rows(_RATIOS)],
        "targets": database.rows(_TARGETS),
    }


def _packed(row: Row, place: dict[str, int]) -> list[Any]:
    known = row | {"run": place[row["run_id"]]}
    return [known[name] for name in COLUMNS]


def place_of_explorer(database: Database) -> str:
    """Where the explorer is built, holding the newest ratios for readers without JavaScript."""
    rows = database.rows(
        "from headline where published"
        " order by platform, hardware, machine_key, model_id, baseline, n_hops, n_prefix"
    )
    head = ("Model, platform", "Prefix / hops", "Baseline", "Ratio", "95 % t interval", "Blocks",
            "Verdict", "Run")  # fmt: skip
    shown = table("The newest published ratios, whole session", head, map(_row, rows))
    return f'<div id="lk-explorer" data-source="{SOURCE}">\n{shown}\n</div>'


def _row(row: Row) -> list[Cell]:
    return [
        f"{row['model_id']}, {row['platform']}, {row['hardware']}", words.point(row),
        row["baseline"],
        words.ratio(row["ratio"]), words.interval(row["low"], row["high"]), words.blocks(row),
        verdict_badge(row["verdict"], row["registration_status"]),
        link(f"@/runs/{page_of(row)}/", row["run_id"]),
    ]  # fmt: skip
