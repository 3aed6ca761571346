"""Fakes that fail or dawdle as real libraries do: small subclasses, one behaviour each."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.backend import CacheFull, DecodeFailed, Entry, Logits
from runner.engine.fake import FakeBackend

ROLLED_BACK = (1, -1)
"""Codes after which llama.cpp leaves memory as it was; 2 and below -1 leave a part behind."""


class FailingBackend(FakeBackend):
    """Fails the decodes named in `failures` (0-based call -> code, or an exception to raise).

    A failure that does not roll back leaves the first half of every entry in memory.
    """

    def __init__(
        self,
        *,
        n_ctx: int = 8192,
        n_batch: int = 2048,
        n_seq_max: int = 8,
        can_roll_back: bool = True,
    ) -> None:
        super().__init__(
            n_ctx=n_ctx, n_batch=n_batch, n_seq_max=n_seq_max, can_roll_back=can_roll_back
        )
        self.failures: dict[int, int | BaseException] = {}
        self.batches: list[list[tuple[int, int]]] = []
        """(sequence, tokens) of every batch that was asked for, failed ones too."""

    def fail(self, failure: int | BaseException, *, after: int = 0) -> None:
        """Fail the decode that comes `after` that many good ones, once."""
        self.failures[len(self.batches) + after] = failure

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        failure = self.failures.pop(len(self.batches), None)
        self.batches.append([(entry.seq, len(entry.tokens)) for entry in entries])
        if failure is None:
            return super().decode(entries)
        if failure == 1:
            raise CacheFull("no room, it was said")
        if failure not in ROLLED_BACK:
            self._leave_a_part(entries)
        if isinstance(failure, BaseException):
            raise failure
        raise DecodeFailed(failure)

    def _leave_a_part(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            part = entry.tokens[: (len(entry.tokens) + 1) // 2]
            super().decode([entry._replace(tokens=part, want_logits=False)])


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class AsynchronousBackend(FakeBackend):
    """Returns from decode at once; the work takes `work_s` and only `synchronize` waits for it."""

    def __init__(self, clock: FakeClock, work_s: float, *, n_batch: int) -> None:
        super().__init__(n_batch=n_batch)
        self._clock = clock
        self._work_s = work_s
        self._pending = 0

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        self._pending += 1
        return super().decode(entries)

    def synchronize(self) -> None:
        """See `NativeBackend`."""
        self._clock.now += self._work_s * self._pending
        self._pending = 0
