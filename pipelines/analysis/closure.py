"""Tables of what calibrated costs explain: fits, hops, points and ceilings.

Block b's calibration predicts block b's savings, so that a machine that drifts from block to block
drifts out of both. A usable block without a calibration is left out and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.analysis.ceiling import Ceiling, PredictedBlock, ceiling, no_ceiling
from pipelines.analysis.costs import KINDS, CannotPredict, Costs, Line, Reading, fit_costs
from pipelines.analysis.floor import PREFIX
from pipelines.analysis.ratios import Floats
from pipelines.analysis.rows import floats, groups, insert_rows, integers
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
    run_id varchar, point varchar, baseline varchar, hop int, n_blocks int,
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

# A run's hops lie together, in the order of the runs; one without a hop has no rowid.
_RUNS: Final = """
select r.run_id, r.expectation_digest, min(h.rowid), max(h.rowid), count(h.rowid)
from run r left join hops h using (run_id)
group by r.platform, r.run_id, r.expectation_digest order by r.platform, r.run_id
"""

_POINTS: Final = """
select run_id, point, baseline from point_blocks
order by run_id, n_prefix, n_hops, point, baseline
"""

_WALLS: Final = """
select run_id, point, baseline, treatment, block, base_wall_s, treat_wall_s
from block_pairs where usable order by run_id, point, baseline, block
"""

# `n_fed`: prompt tokens the engine computed for the turn, its receipt without the steps that
# generate; they start behind `n_reused` tokens in KV.
_TURNS: Final = """
select run_id, block, point, arm, wall_s, decode_s, n_evaluated - n_generated + 1 as n_fed,
       n_reused, n_context, n_generated
from hops where rowid between ? and ? order by run_id, block, point, arm, hop
"""

_CALIBRATION: Final = f"""
select run_id, block, kind, depth, n_tokens, seconds, reason
from calibration where not starts_with(kind, '{PREFIX}')
order by run_id, block, kind, depth, n_tokens, repeat
"""

AT_ONCE: Final = 500_000
"""Hops that are held at a time, or those of one run where it has more."""

Pair = tuple[str, str]
"""Point and baseline arm."""

Fits = Mapping[int, Costs | str]
"""The costs of every block that was to be calibrated, or why it has none."""


@dataclass(frozen=True)
class _Turns:
    """The turns of one arm in one block: arrays of shape (hops + 1,), `n_fed` in tokens."""

    n_fed: NDArray[np.int64]
    wall_s: Floats
    decode_s: Floats
    prefill_predicted_s: Floats
    decode_predicted_s: Floats
    """As `prefill_predicted_s`, not a number where the block has no costs."""


@dataclass(frozen=True)
class _Block:
    """A usable block of a pair: its walls in seconds, its turns."""

    block: int
    base_s: float
    treat_s: float
    base: _Turns
    treat: _Turns

    @property
    def avoided(self) -> int:
        """Prompt tokens that only the baseline computed."""
        return int(self.base.n_fed.sum() - self.treat.n_fed.sum())


@dataclass(frozen=True)
class _Predicted:
    """A block with what calibration says of it: the saving, the ceiling, and each hop's part."""

    saved: SavedBlock
    times: PredictedBlock
    hops: Floats
    """Seconds saved, avoided, of decode, other: shape (4, hops + 1)."""


@dataclass(frozen=True)
class _Found:
    """Rows for the tables of this module."""

    fits: list[Sequence[Any]] = field(default_factory=list)
    hops: list[Sequence[Any]] = field(default_factory=list)
    points: list[Sequence[Any]] = field(default_factory=list)
    ceilings: list[Sequence[Any]] = field(default_factory=list)


def insert_closure(con: duckdb.DuckDBPyConnection, files: Sequence[ExpectationFile] = ()) -> None:
    """Create the views of ``closure.sql``, and create and fill what calibration says.

    Needs ``block_pairs``, ``point_blocks`` and the tables of the runs. Every point of every run
    has a row in ``closure_points`` and ``ceilings``; where numbers are missing `reason` says why.
    Rows of ``closure_hops`` are means over the blocks that have a prediction. `unexplained_max`
    is the expectation's, or 5 % where none names one.
    """
    con.execute(_VIEWS.read_text(encoding="utf-8"))
    con.execute(_TABLES)
    own = {arm for (arm,) in con.execute(_OWN).fetchall()}
    bounds = {file.digest: file.expectation.unexplained_max for file in files}
    pairs, fits, walls = _pairs(con), _fits(con), _walls(con)
    found = _Found()
    for runs in _batches(con):
        turns = _turns(con, runs, fits)
        for run_id, digest, *_ in runs:
            bound = bounds.get(digest)
            for block, fit in fits[run_id].items():
                found.fits.extend((run_id, block, *row) for row in _fit_rows(fit))
            for pair in pairs[run_id]:
                key = (run_id, *pair)
                blocks = [_block(key, wall, turns) for wall in walls[key]]
                refusal = _no_prediction(pair[1], own, blocks, fits[run_id])
                _add_pair(
                    found,
                    key,
                    blocks,
                    fits[run_id],
                    UNEXPLAINED_MAX if bound is None else bound,
                    refusal,
                )
    insert_rows(con, "calibration_fit", found.fits)
    insert_rows(con, "closure_hops", found.hops)
    insert_rows(con, "closure_points", found.points)
    insert_rows(con, "ceilings", found.ceilings)


def _add_pair(
    found: _Found,
    key: tuple[str, str, str],
    blocks: Sequence[_Block],
    fits: Fits,
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
        means = np.mean([one.hops for one in predicted], axis=0).T.tolist()
        found.hops.extend((*key, hop, len(predicted), *row) for hop, row in enumerate(means))
    else:
        closed, allowed = no_closure(reason), no_ceiling(reason)
    avoided = sum(one.avoided for one in blocks) / len(blocks) if blocks else None
    found.points.append((*key, len(missing), avoided, bound, *asdict(closed).values()))
    found.ceilings.append((*key, *asdict(allowed).values()))


def _no_prediction(
    baseline: str, own: Set[str], blocks: Sequence[_Block], fits: Fits
) -> str | None:
    """Why a pair has no prediction, whatever its calibrations say."""
    if baseline not in own:
        return f"{baseline} does not run on the engine whose costs are calibrated"
    if not blocks:
        return "no usable block"
    if all((one.base.n_fed == one.treat.n_fed).all() for one in blocks):
        return "nothing is avoided here: both arms compute the same tokens"
    if not fits:
        return "the run has no calibration"
    return None


def _predict(blocks: Sequence[_Block], fits: Fits) -> tuple[list[_Predicted], list[str]]:
    """Blocks that have a prediction, and for the others why they have none."""
    predicted, missing = [], []
    for one in blocks:
        fit = fits.get(one.block, "it has no row")
        try:
            if isinstance(fit, str):
                raise CannotPredict(fit)
            predicted.append(_predict_block(one))
        except CannotPredict as reason:
            missing.append(f"block {one.block} is not calibrated: {reason}")
    return predicted, missing


def _predict_block(block: _Block) -> _Predicted:
    base, treat = block.base, block.treat
    # Both arms generate the same: the steps of one are predicted for both.
    steps_s = float(base.decode_predicted_s.sum())
    base_s, treat_s = (float(one.prefill_predicted_s.sum()) + steps_s for one in (base, treat))
    if min(base_s, treat_s) <= 0:
        raise CannotPredict("its costs predict a time that is not positive")
    saved = base.wall_s - treat.wall_s
    avoided = base.prefill_predicted_s - treat.prefill_predicted_s
    decode = base.decode_s - treat.decode_s
    return _Predicted(
        SavedBlock(
            block.block, block.base_s, block.treat_s, float(avoided.sum()), float(decode.sum())
        ),
        PredictedBlock(block.base_s, block.treat_s, base_s, treat_s),
        np.array([saved, avoided, decode, saved - avoided - decode]),
    )


def _batches(con: duckdb.DuckDBPyConnection) -> Iterator[list[tuple[Any, ...]]]:
    """Rows of `_RUNS`, as many at a time as have at most `AT_ONCE` hops, or one."""
    batch: list[tuple[Any, ...]] = []
    n_hops = 0
    for run in con.execute(_RUNS).fetchall():
        if batch and n_hops + run[-1] > AT_ONCE:
            yield batch
            batch, n_hops = [], 0
        batch.append(run)
        n_hops += run[-1]
    if batch:
        yield batch


def _turns(
    con: duckdb.DuckDBPyConnection,
    runs: Sequence[tuple[Any, ...]],
    fits: Mapping[str, Fits],
) -> Mapping[tuple[str, int, str, str], _Turns]:
    """The turns of `runs` by run, block, point and arm."""
    spans = [(first, last) for *_, first, last, n_hops in runs if n_hops]
    if not spans:
        return {}
    table = con.sql(_TURNS, params=[spans[0][0], spans[-1][1]]).to_arrow_table()
    fed = integers(table, "n_fed")
    seconds = (floats(table, "wall_s"), floats(table, "decode_s"), *_predicted(table, fits))
    return {
        (run_id, block, point, arm): _Turns(fed[at], *(values[at] for values in seconds))
        for (run_id, block, point, arm), at in groups(table, ("run_id", "block", "point", "arm"))
    }


def _predicted(table: pa.Table, fits: Mapping[str, Fits]) -> tuple[Floats, Floats]:
    """Seconds of prefill and of decode that each turn of `table` should take."""
    names = ("n_fed", "n_reused", "n_generated", "n_context")
    fed, reused, generated, context = (integers(table, name) for name in names)
    prefill, decode = np.full((2, table.num_rows), np.nan)
    for (run_id, block), at in groups(table, ("run_id", "block")):
        costs = fits[run_id].get(block)
        if isinstance(costs, Costs):
            prefill[at] = costs.prefill_s(fed[at], reused[at])
            decode[at] = costs.decode_s(generated[at] - 1, context[at])
    return prefill, decode


def _block(
    key: tuple[str, str, str],
    wall: tuple[Any, ...],
    turns: Mapping[tuple[str, int, str, str], _Turns],
) -> _Block:
    run_id, point, baseline = key
    treatment, block, base_s, treat_s = wall
    base, treat = (turns[run_id, block, point, arm] for arm in (baseline, treatment))
    return _Block(block, base_s, treat_s, base, treat)


def _pairs(con: duckdb.DuckDBPyConnection) -> Mapping[str, list[Pair]]:
    pairs: dict[str, list[Pair]] = defaultdict(list)
    for run_id, *pair in con.execute(_POINTS).fetchall():
        pairs[run_id].append((pair[0], pair[1]))
    return pairs


def _walls(
    con: duckdb.DuckDBPyConnection,
) -> Mapping[tuple[str, str, str], list[tuple[Any, ...]]]:
    """Treatment, block and walls of the usable blocks by run, point and baseline."""
    walls: dict[tuple[str, str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for run_id, point, baseline, *wall in con.execute(_WALLS).fetchall():
        walls[run_id, point, baseline].append(tuple(wall))
    return walls


def _fits(con: duckdb.DuckDBPyConnection) -> Mapping[str, Fits]:
    """What calibration says of every block, by run."""
    readings: dict[tuple[str, int], list[Reading]] = defaultdict(list)
    reasons: dict[tuple[str, int], str] = {}
    found = con.execute(_CALIBRATION).fetchall()
    for run_id, block, kind, depth, n_tokens, seconds, reason in found:
        kept = readings[run_id, block]
        if seconds is not None and seconds > 0:
            kept.append(Reading(kind, depth, n_tokens, seconds))
        else:
            reasons.setdefault((run_id, block), reason or "a time that is not positive")
    fits: dict[str, dict[int, Costs | str]] = defaultdict(dict)
    for (run_id, block), rows in readings.items():
        fits[run_id][block] = _fit(rows, reasons.get((run_id, block)))
    return fits


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
