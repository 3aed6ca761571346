"""What the calculator starts from: the calibrated costs of measured machines, and their error."""

from __future__ import annotations

import json
from html import escape
from typing import Any, Final

from pipelines import words
from pipelines.database import Database, Row
from pipelines.publish.markup import Cell, link, table
from pipelines.publish.runs import page_of

# The newest calibrated run of each machine, model and number of threads.
_RUNS: Final = """
select r.run_id, r.platform, r.model_id, r.cpu, r.gpu, r.n_threads, r.n_ctx
from run r
where r.published and r.status = 'complete' and r.run_id in (select run_id from cost_lines)
qualify row_number() over (
    partition by r.machine_key, r.model_id, r.n_threads
    order by r.registration_status = 'registered' desc, r.started_at desc, r.run_id desc) = 1
order by r.platform, r.model_id, r.cpu, r.n_threads
"""


def machines(database: Database) -> list[dict[str, Any]]:
    """Every calibrated machine and model, as ``calculator.js`` reads them.

    ``error_low`` and ``error_high`` are predicted / measured - 1, the least and the most over the
    points that were measured in that run: what the formula is worth there.
    """
    return [_machine(database, run) for run in database.rows(_RUNS)]


def _machine(database: Database, run: Row) -> dict[str, Any]:
    lines = database.rows("from cost_lines where run_id = ? order by n_tokens", [run["run_id"]])
    parts = database.rows("from cost_parts where run_id = ? order by n_tokens", [run["run_id"]])
    error = database.one(
        "select min(predicted_s / measured_s) - 1 as error_low,"
        " max(predicted_s / measured_s) - 1 as error_high from predictions where run_id = ?",
        [run["run_id"]],
    )
    return {
        "id": run["run_id"],
        "title": _title(run),
        "n_ctx": run["n_ctx"],
        "page": page_of(run),
        "sizes": [part["n_tokens"] for part in parts],
        "seconds": [part["seconds"] for part in parts],
        **error,
        "lines": [_line(line) for line in lines],
        **{line["kind"]: _line(line) for line in lines if line["kind"] != "part"},
    }


def _title(run: Row) -> str:
    where = run["gpu"] or run["cpu"]
    return f"{run['model_id']} on {where}, {run['platform']}, {run['n_threads']} thread(s)"


def _line(line: Row) -> Row:
    return {name: line[name] for name in ("n_tokens", "fixed_s", "per_depth_s")}


def place_of_calculator(database: Database) -> str:
    """Where the calculator is built."""
    data = json.dumps(machines(database), sort_keys=True, allow_nan=False, ensure_ascii=False)
    return (
        f'<div id="lk-calculator" data-machines="{escape(data)}">'
        "<noscript><p>The calculator needs JavaScript; the formula and the table below do not."
        "</p></noscript></div>"
    )


def accuracy(database: Database) -> str:
    """Predicted beside measured, for every point of every machine the calculator offers."""
    rows = [
        run | row
        for run in database.rows(_RUNS)
        for row in database.rows(
            "from predictions where run_id = ? order by n_hops, n_prefix, arm", [run["run_id"]]
        )
    ]
    if not rows:
        return "No calibrated run is published yet; the calculator takes rates of your own."
    head = (
        "Machine, model",
        "Prefix / hops",
        "Arm",
        "Measured",
        "Predicted",
        "Predicted / measured",
    )
    caption = "The formula against what was measured on the same machine"
    return table(caption, head, map(_accuracy, rows))


def _accuracy(row: Row) -> list[Cell]:
    return [
        link(f"@/runs/{page_of(row)}/", _title(row)), words.point(row), row["arm"],
        words.seconds(row["measured_s"]), words.seconds(row["predicted_s"]),
        f"{row['predicted_s'] / row['measured_s']:.3f}",
    ]  # fmt: skip
