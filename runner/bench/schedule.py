"""Who runs when: balanced random order, the same again from the same seed.

Arms that run one after the other blame drift on each other; a fixed alternation does so with
anything periodic. Here every group of ``len(arms)`` blocks is a random Latin square: each arm
holds each position once, and which arm comes first is chance.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Final

import numpy as np

CALIBRATION: Final = "calibration"
"""Point and arm of a step that measures costs instead of an arm."""
FLOOR: Final = "floor"
"""Point and arm of a step that asks llama-bench for the physical floor."""
EQUIVALENCE: Final = "equivalence"
"""Arm of a step that compares what the arms would say freely; before the blocks, untimed."""
DICTATION: Final = "dictation"
"""Arm of a step that lets the model write a point's script; before the arms of its block."""
BEFORE_BLOCKS: Final = -1
"""Block of a step that belongs to none."""
# Far from the keys that spawning counts up from zero.
_STREAMS: Final = {CALIBRATION: 2**31, FLOOR: 2**31 + 1}


@dataclass(frozen=True)
class Step:
    """One arm runs one point once. `position` is its 0-based place within point and block."""

    block: int
    point: str
    arm: str
    position: int

    @property
    def is_arm(self) -> bool:
        """Whether an arm runs, and not a calibration or a comparison beside the arms."""
        return self.arm not in (CALIBRATION, EQUIVALENCE, DICTATION, FLOOR)


def draw_seed() -> int:
    """A seed nobody chose, short enough to be typed again."""
    return secrets.randbits(32)


def orders(arms: Sequence[str], blocks: int, seed: int) -> list[tuple[str, ...]]:
    """The order of `arms` in each of `blocks` blocks.

    Within each full group of ``len(arms)`` blocks every arm holds every position exactly once; in
    the rest at most once. A longer plan of the same seed begins with the shorter one.

    Raises:
        ValueError: no arm, an arm named twice, no block, a negative seed.
    """
    _require_distinct("arm", arms)
    return _orders(arms, blocks, _sequence(blocks, seed))


def plan_blocks(points: Sequence[str], arms: Sequence[str], blocks: int, seed: int) -> list[Step]:
    """Every step of a run, in the order it runs.

    Each point has arm orders of its own, drawn from a stream of its own, and each block shuffles
    the points. A longer plan of the same seed begins with the shorter one, so that a run can be
    resumed from its seed alone.

    Raises:
        ValueError: as `orders`, and for no point or a point named twice.
    """
    _require_distinct("point", points)
    _require_distinct("arm", arms)
    for_points, *for_arms = _sequence(blocks, seed).spawn(1 + len(points))
    arm_orders = {
        point: _orders(arms, blocks, stream) for point, stream in zip(points, for_arms, strict=True)
    }
    chance = np.random.default_rng(for_points)
    return [
        Step(block, points[chosen], arm, position)
        for block in range(blocks)
        for chosen in chance.permutation(len(points)).tolist()
        for position, arm in enumerate(arm_orders[points[chosen]][block])
    ]


def with_calibration(steps: Sequence[Step], seed: int, kind: str = CALIBRATION) -> list[Step]:
    """`steps` with one step of `kind` in every block, between two points or at an end, by chance.

    Each kind has a stream of its own: the order of the arms is the same with it and without it.
    """
    stream = _STREAMS[kind]
    chance = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))
    planned: list[Step] = []
    for block, group in groupby(steps, key=lambda step: step.block):
        points = [list(arms) for _, arms in groupby(group, key=lambda step: step.point)]
        place = int(chance.integers(len(points) + 1))
        points.insert(place, [Step(block, kind, kind, 0)])
        planned.extend(chain.from_iterable(points))
    return planned


def with_dictation(steps: Sequence[Step]) -> list[Step]:
    """`steps` with a dictation before the arms of every point and block."""
    planned: list[Step] = []
    for (block, point), arms in groupby(steps, key=lambda step: (step.block, step.point)):
        planned += [Step(block, point, DICTATION, -1), *arms]
    return planned


def _orders(
    arms: Sequence[str], blocks: int, stream: np.random.SeedSequence
) -> list[tuple[str, ...]]:
    rows = _latin_rows(len(arms), np.random.default_rng(stream))
    return [tuple(arms[index] for index in row) for row in islice(rows, blocks)]


def _latin_rows(size: int, chance: np.random.Generator) -> Iterator[list[int]]:
    """Rows of one random Latin square after another.

    Rows, columns and symbols of the cyclic square are all shuffled: without the columns, each arm
    would always follow the same neighbour.
    """
    while True:
        rows, columns, symbols = (chance.permutation(size) for _ in range(3))
        square = symbols[(rows[:, None] + columns[None, :]) % size]
        yield from square.tolist()


def _sequence(blocks: int, seed: int) -> np.random.SeedSequence:
    if blocks < 1:
        raise ValueError(f"{blocks} blocks cannot be ordered; ask for at least 1")
    if seed < 0:
        raise ValueError(f"order seed {seed} is negative; give 0 or more")
    return np.random.SeedSequence(seed)


def _require_distinct(what: str, names: Sequence[str]) -> None:
    if not names:
        raise ValueError(f"no {what} to order; name at least one")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} {', '.join(twice)} is named twice; each runs once a block")
