"""Costs pooled over the blocks of a run, and what they predict of the sessions measured there."""

from __future__ import annotations

from typing import Final

import duckdb

from pipelines.analysis.costs import CannotPredict, Costs, Reading, fit_costs
from pipelines.analysis.derive import insert_row
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
select b.point, b.arm, any_value(b.n_prefix), any_value(b.n_hops), any_value(b.n_generate),
       any_value(b.n_result), count(*), avg(b.wall_s)
from arm_blocks b join arm_rules a using (arm)
left join disturbed d using (run_id, point, block)
where b.run_id = ? and a.own_engine and a.planted is null and a.repeats is null
    and b.fault is null and d.disturbance is null
group by b.point, b.arm order by b.point, b.arm
"""

_KEPT: Final = "select state_kept from arm_rules where arm = ?"


def insert_predictions(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill ``cost_lines``, ``cost_parts`` and ``predictions``.

    One fit a run, over the readings of all its blocks: what a reader's own loop is computed from.
    A run whose calibration cannot be fitted has no rows.
    """
    con.execute(_TABLES)
    readings: dict[str, list[Reading]] = {}
    for run_id, *reading in con.execute(_READINGS).fetchall():
        readings.setdefault(run_id, []).append(Reading(*reading))
    for run_id, found in readings.items():
        try:
            costs = fit_costs(found)
        except CannotPredict:
            continue  # said on the run's page, by its blocks
        _insert_costs(con, run_id, costs)
        _insert_checks(con, run_id, costs)


def _insert_costs(con: duckdb.DuckDBPyConnection, run_id: str, costs: Costs) -> None:
    parts = (("part", line) for line in costs.parts)
    for kind, line in (
        ("chunk", costs.chunk), ("hop", costs.hop), ("step", costs.step), *parts
    ):  # fmt: skip
        insert_row(con, "cost_lines", [run_id, kind, line.n_tokens, line.fixed_s, line.per_depth_s])
    for size, seconds in zip(costs.sizes.tolist(), costs.seconds.tolist(), strict=True):
        insert_row(con, "cost_parts", [run_id, int(size), seconds])


def _insert_checks(con: duckdb.DuckDBPyConnection, run_id: str, costs: Costs) -> None:
    for point, arm, *sizes, n_blocks, measured_s in con.execute(_MEASURED, [run_id]).fetchall():
        ((kept,),) = con.execute(_KEPT, [arm]).fetchall()
        predicted_s = session_s(costs, Loop(*sizes), kept=kept)
        insert_row(
            con, "predictions", [run_id, point, arm, *sizes, n_blocks, measured_s, predicted_s]
        )
