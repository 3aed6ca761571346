"""Costs pooled over the blocks of a run, and what they predict of the sessions measured there."""

from __future__ import annotations

from typing import Final

import duckdb

from pipelines.analysis.costs import CannotPredict, Costs, Reading, fit_costs
from pipelines.analysis.rows import insert_rows
from pipelines.analysis.session import Loop, session_s

_TABLES: Final = """
create table cost_lines (
    run_id varchar, kind varchar, n_tokens int, fixed_s double, per_depth_s double);
create table cost_parts (run_id varchar, n_tokens int, seconds double);
create table predictions (
    run_id varchar, point varchar, arm varchar, n_prefix int, n_hops int,
    n_generate int, n_result int, n_blocks int, measured_s double, predicted_s double);
"""

_READINGS: Final = """
select run_id, kind, depth, n_tokens, seconds from calibration
where seconds > 0 and not starts_with(kind, 'floor_')
order by run_id, kind, depth, n_tokens, block, repeat
"""

_MEASURED: Final = """
select b.run_id, a.state_kept, b.point, b.arm, any_value(b.n_prefix), any_value(b.n_hops),
       any_value(b.n_generate), any_value(b.n_result), count(*), avg(b.wall_s)
from arm_blocks b join arm_rules a using (arm)
left join disturbed d using (run_id, point, block)
where a.own_engine and a.planted is null and a.repeats is null
    and b.fault is null and d.disturbance is null
group by b.run_id, a.state_kept, b.point, b.arm order by b.run_id, b.point, b.arm
"""


def insert_predictions(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill ``cost_lines``, ``cost_parts`` and ``predictions``.

    One fit a run, over the readings of all its blocks: what a reader's own loop is computed from.
    A run whose calibration cannot be fitted has no rows.
    """
    con.execute(_TABLES)
    costs = _costs(con)
    insert_rows(con, "cost_lines", [row for one in costs.items() for row in _line_rows(*one)])
    insert_rows(con, "cost_parts", [row for one in costs.items() for row in _part_rows(*one)])
    rows = []
    for run_id, kept, point, arm, *sizes, n_blocks, measured_s in con.execute(_MEASURED).fetchall():
        if run_id in costs:
            predicted_s = session_s(costs[run_id], Loop(*sizes), kept=kept)
            rows.append([run_id, point, arm, *sizes, n_blocks, measured_s, predicted_s])
    insert_rows(con, "predictions", rows)


def _costs(con: duckdb.DuckDBPyConnection) -> dict[str, Costs]:
    readings: dict[str, list[Reading]] = {}
    for run_id, *reading in con.execute(_READINGS).fetchall():
        readings.setdefault(run_id, []).append(Reading(*reading))
    costs = {}
    for run_id, found in readings.items():
        try:
            costs[run_id] = fit_costs(found)
        except CannotPredict:
            continue  # said on the run's page, by its blocks
    return costs


def _line_rows(run_id: str, costs: Costs) -> list[list[object]]:
    parts = (("part", line) for line in costs.parts)
    named = (("chunk", costs.chunk), ("hop", costs.hop), ("step", costs.step), *parts)
    return [[run_id, kind, one.n_tokens, one.fixed_s, one.per_depth_s] for kind, one in named]


def _part_rows(run_id: str, costs: Costs) -> list[list[object]]:
    sizes = zip(costs.sizes.tolist(), costs.seconds.tolist(), strict=True)
    return [[run_id, int(size), seconds] for size, seconds in sizes]
