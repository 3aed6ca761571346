"""The engine: sessions, shared prefixes and continuous batching over one backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.engine.backend import InvalidRequest, NativeBackend, TokenIds
from runner.engine.prefixes import Prefix
from runner.engine.requests import Request, Turn
from runner.engine.scheduler import Clock, Scheduler
from runner.engine.session import Session
from runner.engine.slots import Slot, SlotPool


@dataclass(frozen=True, slots=True)
class Features:
    """What an engine over a given backend offers."""

    streaming: bool
    stateful_sessions: bool
    continuous_batching: bool
    """More than one sequence can share a decode."""
    server_side_tools: bool
    shared_prefix: bool
    """A prefix computed once can be given to further sessions."""
    kv_persistence: bool
    roll_back: bool
    """A turn can be taken back without a new prefill."""


class Engine:
    """One backend and everything that runs on it. Not thread-safe: one caller at a time."""

    def __init__(self, backend: NativeBackend, clock: Clock = time.perf_counter) -> None:
        self.backend = backend
        self._scheduler = Scheduler(backend, clock)
        self._slots = SlotPool(backend)

    @property
    def features(self) -> Features:
        """Derived from the backend's capabilities; sequences decide what can be shared."""
        several = self.backend.capabilities.n_seq_max > 1
        return Features(
            streaming=True,
            stateful_sessions=True,
            continuous_batching=several,
            server_side_tools=True,
            shared_prefix=several,
            kv_persistence=True,
            roll_back=self.backend.capabilities.can_roll_back,
        )

    def session(self, prefix: Prefix | None = None) -> Session:
        """A new session, empty or starting after a shared prefix.

        Raises:
            InvalidRequest: no free sequence, or the prefix is closed.
        """
        if prefix is None:
            return self._session(self._slots.take(), None)
        slot = self._slots.copy(prefix.slot)
        prefix.retain()
        return self._session(slot, prefix.release)

    def _session(self, slot: Slot, on_close: Callable[[], None] | None) -> Session:
        return Session(self.backend, self._scheduler, self._slots, slot, on_close)

    def prefix(self, tokens: TokenIds | Sequence[int]) -> Prefix:
        """Compute a prefix once and hold it.

        Raises:
            ContextExceeded, InvalidRequest, BackendError: nothing is held.
        """
        slot = self._slots.take()
        try:
            slot.append(tokens)
            self._scheduler.finish(self._scheduler.submit(slot, 0))
        except BaseException:
            running = self._scheduler.running(slot)
            if running:
                self._scheduler.withdraw(running)
            self._slots.give_back(slot)
            raise
        return Prefix(self._slots, slot)

    def step(self) -> None:
        """Advance every active request by one batch."""
        self._scheduler.step()

    def run(self, requests: Sequence[Request]) -> list[Turn]:
        """Step until all `requests` are done, together.

        Raises:
            BackendError: of the first request that failed.
        """
        return [self._scheduler.finish(request) for request in requests]

    def check(self) -> None:
        """Compare the books with memory.

        Raises:
            InvalidRequest: something is still running.
            AssertionError: with the numbers that disagree.
        """
        if not self._scheduler.idle:
            raise InvalidRequest("the engine is not idle")
        self._slots.check()

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()
