"""The text of a new expectation, from a sweep and pilots: complete, and the author's to change."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.catalog import Point, Sweep
from runner.errors import UsageError
from runner.expectations import load_expectation
from runner.pilot import BASELINE, TREATMENT, Pilot
from runner.plan import EXPLORATORY_VOID, WARMUP_TOKENS

REPEAT: Final = "live_kv_again"
BLOCKS: Final = 10
"""The fewest blocks of a published number."""
NEAR: Final = 1.05
"""A forecast that begins at or below claims nothing but itself: near parity, no threshold."""
_CLAIM: Final = (
    "At every point with a threshold a session whose KV state stays alive is faster than one that "
    "reads the whole conversation again at every hop, by more than that threshold."
)
_ESTIMAND: Final = (
    f"Per point: exp of the mean over blocks of ln({BASELINE} wall) - ln({TREATMENT} wall), where "
    "wall is the whole session from the first token in to the last token out, model loading and "
    "warm-up left out."
)
_NEGATIVE: Final = (
    "At a primary point: an interval that lies wholly at or below its threshold. A ratio near 1 "
    "would say that state is not worth keeping there."
)
_EXCLUSIONS: Final = (
    "None by value. A block is void for every arm when the machine was disturbed by the rule "
    "below, when an arm failed, or when the arms did not do the same work token for token."
)


@dataclass(frozen=True)
class Registering:
    """What is to be registered; None means the default."""

    id: str
    sweep: str
    model: str
    pilots: tuple[Path, ...] = ()
    blocks: int | None = None
    margin: float = 0.03
    widen: float = 0.2
    dry_run: bool = False


def lines(asked: Registering, sweep: Sweep, pilots: Sequence[Pilot], folder: Path) -> Iterator[str]:
    """The lines of the expectation; `folder` holds those it may have to take over from.

    Raises:
        UsageError: a pilot lacks a point of the sweep, or an expectation cannot be read.
    """
    ids = [point.id for point in sweep.points]
    older = [load_expectation(file) for file in sorted(folder.glob("*.toml"))]
    taken = [
        one.id
        for one in older
        if one.sweep == sweep.id and any(not one.missing(pilot.model, ids) for pilot in pilots)
    ]
    yield "# Written from a pilot. Forecasts, thresholds and texts are the author's to change."
    yield f"title = {_quoted(f'{sweep.title}: {TREATMENT} against {BASELINE}')}"
    yield f"claim = {_quoted(_CLAIM)}"
    yield f"estimand = {_quoted(_ESTIMAND)}"
    yield f"workload = {_quoted(sweep.points[0].workload)}"
    yield f"treatment = {_quoted(TREATMENT)}"
    yield f"baseline = {_quoted(BASELINE)}"
    if REPEAT in sweep.arms:
        yield f"repeat_arm = {_quoted(REPEAT)}"
    yield f"sweep = {_quoted(sweep.id)}"
    yield f"blocks_min = {blocks_of(asked, sweep)}"
    yield f"warmup_tokens = {WARMUP_TOKENS}"
    yield f"parity_margin = {asked.margin:g}"
    yield "unexplained_max = 0.05"
    yield f"negative = {_quoted(_NEGATIVE)}"
    yield f"exclusions = {_quoted(_EXCLUSIONS)}"
    if taken:
        yield f"replaces = [{', '.join(_quoted(name) for name in taken)}]"
    yield "\n[void]"
    for name, limit in EXPLORATORY_VOID.model_dump(exclude_none=True).items():
        yield f"{name} = {json.dumps(limit)}"
    for pilot in pilots:
        yield from _forecasts(asked, sweep, pilot)
    yield ""


def _quoted(text: str) -> str:
    return json.dumps(text)  # what JSON escapes in a string, TOML escapes alike


def blocks_of(asked: Registering, sweep: Sweep) -> int:
    """The blocks that are asked for, and at least those of a published number otherwise."""
    return asked.blocks or max(BLOCKS, sweep.blocks)


def _forecasts(asked: Registering, sweep: Sweep, pilot: Pilot) -> Iterator[str]:
    absent = [point.id for point in sweep.points if point.id not in pilot.noise]
    if absent:
        raise UsageError(
            f"the pilot on {pilot.model} lacks {', '.join(absent)}; "
            f"run all of sweep {sweep.id} with --exploratory first"
        )
    longest = max(point.n_tokens for point in sweep.points)
    for point in sweep.points:
        noise = pilot.noise[point.id]
        yield f"\n# Pilot: {noise.ratio:.3f}, sd of ln {noise.sd:.4f}, {noise.n_blocks} blocks."
        yield "[[forecast]]"
        yield f"model = {_quoted(pilot.model)}"
        yield f"point = {_quoted(point.id)}"
        yield from _forecast(asked, point, noise.ratio, is_longest=point.n_tokens == longest)


def _forecast(asked: Registering, point: Point, ratio: float, *, is_longest: bool) -> Iterator[str]:
    if point.hops == 0:
        yield 'role = "parity"'
        yield f"low = {1 - asked.margin:g}"
        yield f"high = {1 + asked.margin:g}"
        return
    low = math.floor(ratio / (1 + asked.widen) * 100) / 100
    high = math.ceil(ratio * (1 + asked.widen) * 100) / 100
    near = low <= NEAR
    yield f'role = "{"near_parity" if near else "primary" if is_longest else "secondary"}"'
    yield f"low = {low:g}"
    yield f"high = {high:g}"
    if not near:
        # Half of the gain we count on, in log: less than that would be a disappointment.
        yield f"threshold = {math.floor(math.sqrt(low) * 100) / 100:g}"
