"""Table ``comparisons``: the newest runs of each machine and model, pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, groupby
from typing import Any, Final

import duckdb

from pipelines.analysis.comparison import compare
from pipelines.analysis.rows import insert_rows
from pipelines.database import Database

# Of each machine and model, published and local apart; older ones are compared on request.
NEWEST: Final = 8

_TABLE: Final = """
create table comparisons (
    first_run varchar, second_run varchar, published boolean, point varchar, arm varchar,
    n_prefix int, n_hops int, ratio double, low double, high double,
    n_first int, n_second int, grade varchar)
"""

_RUNS: Final = f"""
select run_id, machine_key, model_sha256, published from run where status = 'complete'
qualify row_number() over (
    partition by machine_key, model_sha256, published
    order by started_at desc, run_id desc) <= {NEWEST}
order by machine_key, model_sha256, published, started_at, run_id
"""

# Used blocks only, by the rule of the run itself; an arm that no pair uses has its good blocks.
_SECONDS: Final = """
select b.run_id, b.point, b.arm, any_value(b.n_prefix) as n_prefix, any_value(b.n_hops) as n_hops,
       list(b.wall_s order by b.block) as seconds
from arm_blocks b
left join disturbed d using (run_id, point, block)
where list_contains(?, b.run_id) and b.fault is null and d.disturbance is null and b.wall_s > 0
group by b.run_id, b.point, b.arm order by b.run_id, n_hops, n_prefix, b.point, b.arm
"""

Rows = list[Mapping[str, Any]]


def seconds_of(database: Database, run_ids: Sequence[str]) -> dict[str, Rows]:
    """Of each run a row an arm and point, with its wall seconds of every used block."""
    runs: dict[str, Rows] = {run_id: [] for run_id in run_ids}
    for row in database.rows(_SECONDS, [[*run_ids]]) if runs else []:
        runs[row["run_id"]].append(row)
    return runs


def shared_lines(first: Rows, second: Rows) -> Rows:
    """Each arm and point that both have, in the order of the first, with `compare`'s columns.

    Both are from `seconds_of`.
    """
    known = {(row["point"], row["arm"]): row["seconds"] for row in second}
    return [
        {name: row[name] for name in ("point", "arm", "n_prefix", "n_hops")}
        | compare(row["seconds"], known[row["point"], row["arm"]]).columns
        for row in first
        if (row["point"], row["arm"]) in known
    ]


def insert_comparisons(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill ``comparisons``: the earlier run of a pair is the first."""
    con.execute(_TABLE)
    runs = con.execute(_RUNS).fetchall()
    same = [[*group] for _, group in groupby(runs, key=lambda row: row[1:])]
    several = [group for group in same if len(group) > 1]
    seconds = seconds_of(Database(con), [run_id for group in several for run_id, *_ in group])
    rows: list[list[Any]] = []
    for group in several:
        for (first, *_), (second, *_, published) in combinations(group, 2):
            lines = shared_lines(seconds[first], seconds[second])
            rows.extend([first, second, published, *line.values()] for line in lines)
    insert_rows(con, "comparisons", rows)
