"""How near does every arm come to what llama-bench of the same build says its tokens cost?

The floor of a session is physical: the tokens that are new at each hop, at llama-bench's prefill
cost behind what is in KV, and the generated tokens at its decode cost there. It is the same for
every arm; what an arm computes again is not on it. Costs are llama-bench's of the same block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import duckdb
import numpy as np

from pipelines.analysis.costs import CannotPredict, Costs, Reading, fit_costs
from pipelines.analysis.ratios import no_interval_reason, t_interval
from pipelines.analysis.rows import groups, insert_rows, integers

PREFIX: Final = "floor_"

_TABLE: Final = """
create table floors (
    run_id varchar, point varchar, arm varchar, n_blocks int, floor_s double, wall_s double,
    ratio double, low double, high double, reason varchar)
"""

_BENCH: Final = """
select run_id, block, kind, depth, n_tokens, seconds from calibration
where starts_with(kind, 'floor_') and seconds > 0 order by run_id, block, kind, depth, repeat
"""

# The least that a hop can take: what is new to a session that keeps its state.
_TOKENS: Final = """
select h.run_id, h.point, h.block, h.n_new + if(h.hop > 0, 1, 0) as n_fed, h.n_context,
       h.n_generated
from hops h
semi join (select run_id, block from calibration where starts_with(kind, 'floor_')) c
    using (run_id, block)
where h.arm = 'live_kv' order by h.run_id, h.point, h.block, h.hop
"""

_WALLS: Final = """
select b.run_id, b.point, b.arm, b.block, b.wall_s
from arm_blocks b left join disturbed d using (run_id, point, block)
where b.fault is null and d.disturbance is null order by all
"""

_TOKENS_OF_A_HOP: Final = ("n_fed", "n_context", "n_generated")


@dataclass(frozen=True)
class Floor:
    """Mean seconds of a session, floor and measured; their ratio with a t interval over blocks."""

    n_blocks: int
    floor_s: float | None
    wall_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    reason: str | None


def above(pairs: Sequence[tuple[float, float]]) -> Floor:
    """Compare (floor, measured) seconds, one pair a block; all positive."""
    if not pairs:
        return Floor(0, *(None,) * 5, "no block has both a time and a floor")
    floor, wall = np.array(pairs).T
    d = np.log(wall) - np.log(floor)
    low, high = t_interval(d)
    return Floor(
        n_blocks=len(pairs),
        floor_s=float(floor.mean()),
        wall_s=float(wall.mean()),
        ratio=float(np.exp(d.mean())),
        low=None if low is None else float(np.exp(low)),
        high=None if high is None else float(np.exp(high)),
        reason=no_interval_reason(d),
    )


def insert_floors(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill table ``floors``: a row an arm and point of every run that has a floor."""
    con.execute(_TABLE)
    least = _least(con, _costs(con))
    pairs: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for run_id, point, arm, block, wall_s in con.execute(_WALLS).fetchall():
        floor_s = least.get((run_id, point, block))
        if floor_s is not None:
            pairs[run_id, point, arm].append((floor_s, wall_s))
    rows = [[*key, *asdict(above(pairs[key])).values()] for key in sorted(pairs)]
    insert_rows(con, "floors", rows)


def _costs(con: duckdb.DuckDBPyConnection) -> dict[tuple[str, int], Costs]:
    readings: dict[tuple[str, int], list[Reading]] = defaultdict(list)
    for run_id, block, kind, *sizes in con.execute(_BENCH).fetchall():
        readings[run_id, block].append(Reading(kind.removeprefix(PREFIX), *sizes))
    found = {}
    for key, rows in readings.items():
        try:
            found[key] = fit_costs(rows)
        except CannotPredict:
            continue  # llama-bench broke off in this block; its arms have no floor there
    return found


def _least(
    con: duckdb.DuckDBPyConnection, costs: Mapping[tuple[str, int], Costs]
) -> dict[tuple[str, str, int], float]:
    """Seconds of the floor by run, point and block."""
    found: dict[tuple[str, str, int], float] = {}
    table = con.sql(_TOKENS).to_arrow_table()
    fed, contexts, generated = (integers(table, name) for name in _TOKENS_OF_A_HOP)
    for (run_id, point, block), at in groups(table, ("run_id", "point", "block")):
        if (run_id, block) in costs:
            cost = costs[run_id, block]
            prefills = cost.prefill_s(fed[at], contexts[at] - fed[at])
            seconds = prefills + cost.decode_s(generated[at] - 1, contexts[at])
            found[run_id, point, block] = float(seconds.sum())
    return found
