"""One meter for every arm: what a hop took, what the engine says it computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from runner.engine.backend import TokenIds
from runner.engine.requests import Turn


@dataclass(frozen=True)
class HopReading:
    """One hop as the engine reported it. `wall_s` is seconds from the first call to the last."""

    index: int
    n_new: int
    wall_s: float
    turn: Turn
    conversation: TokenIds
    """The ids the session really held after the turn, context and output."""
    n_shared: int | None = None
    """Tokens of the prompt that the arm had in KV before; None where the engine tells by itself."""


class Meter:
    """Collects readings; `clock` gives seconds and is passed in so that tests need no waiting."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._hop_started_at = 0.0
        self._dawdle: Callable[[float], None] | None = None
        self.readings: list[HopReading] = []
        self.wall_s = 0.0
        """Seconds of the whole session, set when `session` ends."""

    @contextmanager
    def session(self) -> Iterator[None]:
        """Time the whole session: first token in to last token out."""
        started = self._clock()
        yield
        self.wall_s = self._clock() - started

    def start_hop(self) -> None:
        """The first thing an arm does for a hop."""
        self._hop_started_at = self._clock()

    @contextmanager
    def dawdling(self, dawdle: Callable[[float], None]) -> Iterator[None]:
        """Before a hop ends, call `dawdle` with its seconds so far: a slowdown of known size."""
        self._dawdle = dawdle
        yield
        self._dawdle = None

    def end_hop(
        self,
        index: int,
        n_new: int,
        turn: Turn,
        conversation: TokenIds,
        n_shared: int | None = None,
    ) -> None:
        """The last thing an arm does for a hop; copies the ids after reading the clock."""
        if self._dawdle:
            self._dawdle(self._clock() - self._hop_started_at)
        wall_s = self._clock() - self._hop_started_at
        self.readings.append(HopReading(index, n_new, wall_s, turn, conversation.copy(), n_shared))
