"""Continuous batching: one batch from all active requests, one decode, results to their owners."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from runner.engine.backend import (
    BackendError,
    CacheFull,
    Entry,
    InvalidRequest,
    Logits,
    NativeBackend,
)
from runner.engine.requests import Request, Turn
from runner.engine.sampling import GREEDY, Sampler
from runner.engine.slots import Slot

Clock = Callable[[], float]


class Scheduler:
    """Advances all active requests together, a step at a time.

    A step gives every request that is generating its one token and fills the rest of the batch
    with prefill, oldest request first, in chunks that never exceed ``n_batch``. A failed decode
    fails the requests of that batch (or, when the cache ran full, the one that asked for most) and
    leaves every slot in step with memory.
    """

    def __init__(self, backend: NativeBackend, clock: Clock = time.perf_counter) -> None:
        self._backend = backend
        self._n_batch = backend.capabilities.n_batch
        self.clock = clock
        self._active: list[Request] = []

    @property
    def idle(self) -> bool:
        """True when nothing is running."""
        return not self._active

    def submit(
        self,
        slot: Slot,
        max_tokens: int,
        sampler: Sampler = GREEDY,
        *,
        script: Sequence[int] | None = None,
        ignore_end: bool = True,
    ) -> Request:
        """Queue a turn on a slot; it joins the next step. See `Session.generate`."""
        keeps_going = ignore_end or script is not None
        request = Request(
            slot,
            max_tokens,
            sampler,
            script=script,
            end_ids=frozenset() if keeps_going else self._backend.vocabulary.end_ids,
            started_at=self.clock(),
        )
        if max_tokens == 0 and slot.n_past == slot.n_tokens:
            request.finish("prefilled", self.clock())
        else:
            self._active.append(request)
        return request

    def finish(self, request: Request) -> Turn:
        """Step until `request` is done; the others advance with it.

        Raises:
            BackendError: what failed it.
        """
        while request.turn is None:
            if request.error:
                raise request.error
            self.step()
        return request.turn

    def withdraw(self, request: Request) -> None:
        """Stop advancing a request; its slot stays as it is, and who waits for it is told."""
        if request in self._active:
            self._fail([request], InvalidRequest("the turn was withdrawn before its end"))

    def running(self, slot: Slot) -> Request | None:
        """The request that is running on a slot."""
        return next((request for request in self._active if request.slot is slot), None)

    def step(self) -> None:
        """Plan a batch, decode it, demultiplex the logits."""
        batch = self._plan()
        if not batch:
            return
        logits = self._decode(batch)
        if logits is not None:
            self._demux(batch, logits)
            self._active = [request for request in self._active if not request.done]

    def _plan(self) -> list[tuple[Request, Entry]]:
        """One entry a request: single tokens first, so that a long prefill starves nobody."""
        room = self._n_batch
        batch: list[tuple[Request, Entry]] = []
        for request in sorted(self._active, key=_is_prefilling):
            if not room:
                break
            slot = request.slot
            start = slot.n_past
            end = min(slot.n_tokens, start + room)
            wants = end == slot.n_tokens and request.max_tokens > 0
            batch.append((request, Entry(slot.seq, start, slot.buffer[start:end], wants)))
            room -= end - start
        return batch

    def _decode(self, batch: list[tuple[Request, Entry]]) -> Logits | None:
        """Decode and wait; None when the batch failed and its requests were told."""
        try:
            logits = self._backend.decode([entry for _, entry in batch])
            self._backend.synchronize()
        except CacheFull as error:
            self._reconcile(batch)
            greediest = max(batch, key=lambda pair: len(pair[1].tokens))[0]
            self._fail([greediest], error)
            return None
        except BackendError as error:
            self._reconcile(batch)
            self._fail([request for request, _ in batch], error)
            return None
        except BaseException:
            # Ctrl-C between two C calls: the requests go on at the next step.
            self._reconcile(batch)
            raise
        return logits

    @staticmethod
    def _reconcile(batch: list[tuple[Request, Entry]]) -> None:
        for request, _ in batch:
            request.slot.reconcile()
            request.recount_reuse()

    def _fail(self, requests: list[Request], error: BackendError) -> None:
        for request in requests:
            request.error = error
            self._active.remove(request)

    def _demux(self, batch: list[tuple[Request, Entry]], logits: Logits) -> None:
        """Give each request its row. Time is read after `synchronize`, never before."""
        decoded_at = self.clock()
        waiting: list[Request] = []
        for request, entry in batch:
            n = len(entry[2])
            request.n_evaluated += n
            slot = request.slot
            slot.n_past += n
            if entry[3]:
                waiting.append(request)
            elif request.max_tokens == 0 and slot.n_past == slot.n_tokens:
                request.finish("prefilled", decoded_at)
        if not waiting:
            return
        tokens = self._sample(waiting, logits)
        now = self.clock()
        for request, token in zip(waiting, tokens, strict=True):
            request.accept(token, decoded_at, now)

    @staticmethod
    def _sample(requests: list[Request], logits: Logits) -> list[int]:
        """One token a row; all-greedy batches take one vectorised argmax."""
        if all(request.sampler.is_greedy for request in requests):
            tokens: list[int] = logits.argmax(axis=1).tolist()
            return tokens
        pairs = zip(requests, logits, strict=True)
        return [request.sampler.sample(row) for request, row in pairs]


def _is_prefilling(request: Request) -> bool:
    """Whether more than one token waits; the sort by it keeps the order of arrival."""
    return request.slot.n_tokens - request.slot.n_past > 1
