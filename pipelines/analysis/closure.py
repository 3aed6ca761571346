"""Tables of what calibrated costs explain: fits, hops, points and ceilings.

Block b's calibration predicts block b's savings, so that a machine that drifts from block to block
drifts out of both. A usable block without a calibration is left out and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb

from pipelines.analysis.ceiling import Ceiling, PredictedBlock, ceiling, no_ceiling
from pipelines.analysis.costs import KINDS, CannotPredict, Costs, Line, Reading, fit_costs
from pipelines.analysis.unexplained import (
    UNEXPLAINED_MAX,
    Closure,
    SavedBlock,
    close,
    no_closure,
)
from pipelines.expectations import ExpectationFile

_VIEWS: Final = Path(__file__).parents[1] / "sql" / "closure.sql"

_TABLES: Final = """
create table calibration_fit (
    run_id varchar, block int, kind varchar, n_tokens int, n_rows int,
    fixed_s double, per_depth_s double, error double, reason varchar);
create table closure_hops (
    run_id varchar, point varchar, baseline varchar, block int, hop int,
    saved_s double, avoided_s double, decode_s double, other_s double);
create table closure_points (
    run_id varchar, point varchar, baseline varchar,
    n_uncalibrated int, tokens_not_evaluated double, unexplained_max double,
    n_blocks int, base_s double, treat_s double,
    saved_s double, avoided_s double, decode_s double, other_s double,
    unexplained_share double, unexplained_low double, unexplained_high double,
    explained boolean, within_bound boolean, reason varchar);
create table ceilings (
    run_id varchar, point varchar, baseline varchar, n_blocks int,
    ceiling double, ceiling_low double, ceiling_high double,
    efficiency double, efficiency_low double, efficiency_high double, reason varchar)
"""

_OWN: Final = "select arm from arm_rules where own_engine"

_RUNS: Final = "select run_id, expectation_digest from run order by platform, run_id"

_POINTS: Final = """
select point, baseline from point_blocks where run_id = ? order by n_prefix, n_hops, point, baseline
"""

_WALLS: Final = """
select point, baseline, block, base_wall_s, treat_wall_s
from block_pairs where usable and run_id = ? order by point, baseline, block
"""

_HOPS: Final = """
select point, baseline, block, hop, base_wall_s - treat_wall_s, base_decode_s - treat_decode_s,
       base_fed, base_reused, treat_fed, treat_reused, n_context, n_generated
from hop_pairs where run_id = ? order by point, baseline, block, hop
"""

_CALIBRATION: Final = """
select block, kind, depth, n_tokens, seconds, reason
from calibration where run_id = ? order by block, kind, depth, n_tokens, repeat
"""

Pair = tuple[str, str]
"""Point and baseline arm."""


class _Hop(NamedTuple):
    """One hop of a pair: differences are baseline less treatment; see view ``hop_pairs``."""

    hop: int
    saved_s: float
    decode_s: float
    base_fed: int
    base_reused: int
    treat_fed: int
    treat_reused: int
    n_context: int
    n_generated: int

    @property
    def avoided(self) -> int:
        """Prompt tokens that only the baseline computed."""
        return self.base_fed - self.treat_fed

    def predict(self, costs: Costs) -> tuple[float, float]:
        """Seconds of prefill, baseline and treatment."""
        base = costs.prefill_s(self.base_fed, self.base_reused)
        return base, costs.prefill_s(self.treat_fed, self.treat_reused)


@dataclass(frozen=True)
class _Block:
    """A usable block of a pair: its walls in seconds, its hops."""

    block: int
    base_s: float
    treat_s: float
    hops: Sequence[_Hop]


@dataclass(frozen=True)
class _Predicted:
    """A block with what calibration says of it: the saving, the ceiling, and each hop's part."""

    saved: SavedBlock
    times: PredictedBlock
    hops: Sequence[tuple[int, float, float, float, float]]
    """Hop, and seconds saved, avoided, of decode, other."""


def insert_closure(con: duckdb.DuckDBPyConnection, files: Sequence[ExpectationFile] = ()) -> None:
    """Create the views of ``closure.sql``, and create and fill what calibration says.

    Needs ``block_pairs``, ``point_blocks`` and the tables of the runs. Every point of every run
    has a row in ``closure_points`` and ``ceilings``; where numbers are missing `reason` says why.
    `unexplained_max` is the expectation's, or 5 % where none names one.
    """
    con.execute(_VIEWS.read_text(encoding="utf-8"))
    con.execute(_TABLES)
    bounds = {file.digest: file.expectation.unexplained_max for file in files}
    for run_id, digest in con.execute(_RUNS).fetchall():
        bound = bounds.get(digest)
        _insert_run(con, run_id, UNEXPLAINED_MAX if bound is None else bound)


def _insert_run(con: duckdb.DuckDBPyConnection, run_id: str, bound: float) -> None:
    fits = _fits(con, run_id)
    for block, fit in fits.items():
        _insert(con, "calibration_fit", [(run_id, block, *row) for row in _fit_rows(fit)])
    blocks = _blocks(con, run_id)
    own = {arm for (arm,) in con.execute(_OWN).fetchall()}
    for pair in con.execute(_POINTS, [run_id]).fetchall():
        refusal = _no_prediction(pair[1], own, blocks.get(pair, []), fits)
        _insert_pair(con, (run_id, *pair), blocks.get(pair, []), fits, bound, refusal)


def _insert_pair(
    con: duckdb.DuckDBPyConnection,
    key: tuple[str, str, str],
    blocks: Sequence[_Block],
    fits: Mapping[int, Costs | str],
    bound: float,
    refusal: str | None,
) -> None:
    predicted, missing = _predict(blocks, fits)
    reason = refusal or (missing[0] if not predicted else None)
    closed: Closure
    allowed: Ceiling
    if reason is None:
        closed = close([one.saved for one in predicted], bound)
        allowed = ceiling([one.times for one in predicted])
        rows = [(*key, one.saved.block, *hop) for one in predicted for hop in one.hops]
        _insert(con, "closure_hops", rows)
    else:
        closed, allowed = no_closure(reason), no_ceiling(reason)
    avoided = sum(hop.avoided for one in blocks for hop in one.hops) / max(1, len(blocks))
    head = (*key, len(missing), avoided if blocks else None, bound)
    _insert(con, "closure_points", [(*head, *asdict(closed).values())])
    _insert(con, "ceilings", [(*key, *asdict(allowed).values())])


def _no_prediction(
    baseline: str, own: Set[str], blocks: Sequence[_Block], fits: Mapping[int, Costs | str]
) -> str | None:
    """Why a pair has no prediction, whatever its calibrations say."""
    if baseline not in own:
        return f"{baseline} does not run on the engine whose costs are calibrated"
    if not blocks:
        return "no usable block"
    if not any(hop.avoided for one in blocks for hop in one.hops):
        return "nothing is avoided here: both arms compute the same tokens"
    if not fits:
        return "the run has no calibration"
    return None


def _predict(
    blocks: Sequence[_Block], fits: Mapping[int, Costs | str]
) -> tuple[list[_Predicted], list[str]]:
    """Blocks that have a prediction, and for the others why they have none."""
    predicted, missing = [], []
    for one in blocks:
        fit = fits.get(one.block, "it has no row")
        try:
            if isinstance(fit, str):
                raise CannotPredict(fit)
            predicted.append(_predict_block(one, fit))
        except CannotPredict as reason:
            missing.append(f"block {one.block} is not calibrated: {reason}")
    return predicted, missing


def _predict_block(block: _Block, costs: Costs) -> _Predicted:
    prefills = [hop.predict(costs) for hop in block.hops]
    decode = sum(costs.decode_s(hop.n_generated - 1, hop.n_context) for hop in block.hops)
    base, treat = (sum(times) + decode for times in zip(*prefills, strict=True))
    if min(base, treat) <= 0:
        raise CannotPredict("its costs predict a time that is not positive")
    hops = [
        (hop.hop, hop.saved_s, b - t, hop.decode_s, hop.saved_s - (b - t) - hop.decode_s)
        for hop, (b, t) in zip(block.hops, prefills, strict=True)
    ]
    avoided, decode_difference = sum(row[2] for row in hops), sum(row[3] for row in hops)
    return _Predicted(
        SavedBlock(block.block, block.base_s, block.treat_s, avoided, decode_difference),
        PredictedBlock(block.base_s, block.treat_s, base, treat),
        hops,
    )


def _blocks(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[Pair, list[_Block]]:
    hops: dict[tuple[str, str, int], list[_Hop]] = defaultdict(list)
    for point, baseline, block, *row in con.execute(_HOPS, [run_id]).fetchall():
        hops[point, baseline, block].append(_Hop(*row))
    found: dict[Pair, list[_Block]] = defaultdict(list)
    for point, baseline, block, base_s, treat_s in con.execute(_WALLS, [run_id]).fetchall():
        one = _Block(block, base_s, treat_s, hops[point, baseline, block])
        found[point, baseline].append(one)
    return found


def _fits(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[int, Costs | str]:
    """The costs of every block that was to be calibrated, or why it has none."""
    readings: dict[int, list[Reading]] = defaultdict(list)
    reasons: dict[int, str] = {}
    rows = con.execute(_CALIBRATION, [run_id]).fetchall()
    for block, kind, depth, n_tokens, seconds, reason in rows:
        kept = readings[block]
        if seconds is not None and seconds > 0:
            kept.append(Reading(kind, depth, n_tokens, seconds))
        else:
            reasons.setdefault(block, reason or "a time that is not positive")
    return {block: _fit(rows, reasons.get(block)) for block, rows in readings.items()}


def _fit(readings: Sequence[Reading], reason: str | None) -> Costs | str:
    try:
        return fit_costs(readings)
    except CannotPredict as error:
        return reason or str(error)


def _fit_rows(fit: Costs | str) -> list[tuple[Any, ...]]:
    """Rows of ``calibration_fit``: a line a kind, and kind ``part`` for the curve at depth 0.

    Lines of partial chunks are of kind ``part`` too, and say their tokens.
    """
    if isinstance(fit, str):
        return [(kind, *(None,) * 5, fit) for kind in KINDS]
    lines = zip(KINDS, (fit.chunk, fit.hop, fit.step), strict=True)
    part = ("part", None, len(fit.sizes), None, None, fit.parts_error, None)
    deep = (("part", line) for line in fit.parts)
    return [*((kind, *_line_row(line)) for kind, line in (*lines, *deep)), part]


def _line_row(line: Line) -> tuple[Any, ...]:
    reason = None if line.error is not None else "too few depths to check the line with"
    return (*asdict(line).values(), reason)


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        places = ", ".join("?" * len(rows[0]))
        con.executemany(f"insert into {table} values ({places})", [list(row) for row in rows])
