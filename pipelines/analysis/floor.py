"""How near does every arm come to what llama-bench of the same build says its tokens cost?

The floor of a session is physical: the tokens that are new at each hop, at llama-bench's prefill
cost behind what is in KV, and the generated tokens at its decode cost there. It is the same for
every arm; what an arm computes again is not on it. Costs are llama-bench's of the same block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import duckdb
import numpy as np

from pipelines.analysis.costs import CannotPredict, Costs, Reading, fit_costs
from pipelines.analysis.ratios import no_interval_reason, t_interval

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
select run_id, point, block, n_new + if(hop > 0, 1, 0) as n_fed, n_context, n_generated
from hops where arm = 'live_kv' order by run_id, point, block, hop
"""

_WALLS: Final = """
select b.run_id, b.point, b.arm, b.block, b.wall_s
from arm_blocks b left join disturbed d using (run_id, point, block)
where b.fault is null and d.disturbance is null order by all
"""


class _Hop(NamedTuple):
    n_fed: int
    n_context: int
    n_generated: int

    def least_s(self, costs: Costs) -> float:
        prefill = costs.prefill_s(self.n_fed, self.n_context - self.n_fed)
        return prefill + costs.decode_s(self.n_generated - 1, self.n_context)


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
    for key in sorted(pairs):
        row = [*key, *asdict(above(pairs[key])).values()]
        con.execute(f"insert into floors values ({', '.join('?' * len(row))})", row)


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
    found: dict[tuple[str, str, int], float] = defaultdict(float)
    for run_id, point, block, *sizes in con.execute(_TOKENS).fetchall():
        if (run_id, block) in costs:
            found[run_id, point, block] += _Hop(*sizes).least_s(costs[run_id, block])
    return dict(found)
