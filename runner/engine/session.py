"""A session: a conversation whose KV state stays alive between turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from runner.engine.backend import ContextExceeded, InvalidRequest, NativeBackend, TokenIds
from runner.engine.requests import Request, Turn
from runner.engine.sampling import GREEDY, Sampler
from runner.engine.scheduler import Scheduler
from runner.engine.slots import Slot, SlotPool
from runner.engine.states import SavedState, freeze, thaw


class Session:
    """Append tokens, generate, append a tool's result, go on; only what is new is computed.

    While a turn runs the conversation is its own: changing it raises `InvalidRequest`.
    Not thread-safe, like its engine. Use as a context manager, or call `close`.
    """

    def __init__(
        self,
        backend: NativeBackend,
        scheduler: Scheduler,
        slots: SlotPool,
        slot: Slot,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._slots = slots
        self._slot: Slot | None = slot
        self._on_close = on_close

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> Slot:
        if self._slot is None:
            raise InvalidRequest("the session is closed")
        return self._slot

    @property
    def _idle(self) -> Slot:
        """The slot, when no turn is running on it that a change would pull it away from."""
        slot = self._open
        if self._scheduler.running(slot):
            raise InvalidRequest("a turn is running: finish it, or close the session")
        return slot

    @property
    def tokens(self) -> TokenIds:
        """The whole conversation, shape (n_tokens,), read-only, valid until the next change."""
        return self._open.tokens

    @property
    def n_past(self) -> int:
        """Tokens of the conversation that are in KV."""
        return self._open.n_past

    def send(self, tokens: TokenIds | Sequence[int]) -> None:
        """Append tokens to the conversation; they are computed with the next turn.

        Raises:
            ContextExceeded, InvalidRequest: nothing was appended.
        """
        self._idle.append(tokens)

    def append_tool_result(self, tokens: TokenIds | Sequence[int]) -> None:
        """Append a tool's result to live KV.

        The next turn computes it in one batch with the last generated token, and nothing before.

        Raises:
            InvalidRequest: no turn was generated yet that a tool could answer.
        """
        slot = self._idle
        if slot.n_tokens == slot.n_past:
            raise InvalidRequest("no generated token is waiting: generate a turn before its result")
        slot.append(tokens)

    def set_conversation(self, tokens: TokenIds | Sequence[int]) -> int:
        """Replace the conversation, keeping the longest common beginning that is in KV.

        At least the last token is always computed again, so that its logits are never those of
        an older, longer conversation.

        Returns:
            Tokens kept in KV.
        """
        ids = np.asarray(tokens, dtype=np.int32)
        slot = self._idle
        shared = min(len(ids), slot.n_tokens)
        differs = np.flatnonzero(slot.buffer[:shared] != ids[:shared])
        common = int(differs[0]) if len(differs) else shared
        slot.truncate(min(common, max(len(ids) - 1, 0)))
        slot.append(ids[slot.n_tokens :])
        return slot.n_past

    def generate(
        self,
        max_tokens: int,
        sampler: Sampler = GREEDY,
        *,
        script: Sequence[int] | None = None,
        ignore_end: bool = False,
    ) -> Turn:
        """Generate a turn; other active sessions advance in the same batches.

        Args:
            max_tokens: at most this many; 0 only brings the conversation into KV.
            sampler: greedy, or a seeded chain.
            script: ids fed on in place of the sampled ones (`max_tokens` of them); the sampled
                ones are recorded. A script is never cut short by an end token.
            ignore_end: go on after an end token.

        Raises:
            ContextExceeded: the turn would not fit; nothing was computed.
            BackendError: decode failed; the conversation is kept and may be generated again.
        """
        request = self.start(max_tokens, sampler, script=script, ignore_end=ignore_end)
        try:
            return self._scheduler.finish(request)
        except BaseException:
            self._scheduler.withdraw(request)
            raise

    def stream(
        self, max_tokens: int, sampler: Sampler = GREEDY, *, ignore_end: bool = False
    ) -> Iterator[int]:
        """Generate a turn and yield each token as soon as it is known.

        Leaving the loop early withdraws the request; the conversation keeps what was generated.
        """
        request = self.start(max_tokens, sampler, ignore_end=ignore_end)
        yielded = 0
        try:
            while True:
                while yielded < len(request.fed):
                    yield request.fed[yielded]
                    yielded += 1
                if request.done:
                    break
                self._scheduler.step()
        finally:
            self._scheduler.withdraw(request)
        if request.error:
            raise request.error

    def start(
        self,
        max_tokens: int,
        sampler: Sampler = GREEDY,
        *,
        script: Sequence[int] | None = None,
        ignore_end: bool = False,
    ) -> Request:
        """Queue a turn without waiting; `Engine.step` or `Engine.run` advances it."""
        slot = self._idle
        if slot.n_tokens == 0:
            raise InvalidRequest("the conversation is empty: send tokens first")
        if script is not None and len(script) < max_tokens:
            raise InvalidRequest(f"the script has {len(script)} ids, max_tokens is {max_tokens}")
        end = slot.n_tokens + max_tokens
        if end > len(slot.buffer):
            raise ContextExceeded(
                f"{slot.n_tokens} tokens and {max_tokens} to generate need n_ctx >= {end}, "
                f"it is {len(slot.buffer)}"
            )
        if slot.n_past == slot.n_tokens and max_tokens:
            # Everything is in KV: the logits of its last token are needed again.
            last = slot.tokens[-1:].copy()
            slot.truncate(slot.n_tokens - 1)
            slot.append(last)
        return self._scheduler.submit(
            slot, max_tokens, sampler, script=script, ignore_end=ignore_end
        )

    def fork(self) -> Session:
        """A second session that goes on from here; on a unified cache its KV costs nothing.

        Raises:
            InvalidRequest: no free sequence.
        """
        copy = self._slots.copy(self._open)
        return Session(self._backend, self._scheduler, self._slots, copy)

    def roll_back(self, n_tokens: int) -> bool:
        """Cut the conversation to its first `n_tokens`.

        Returns:
            False when KV could not roll back (recurrent models): the next turn prefills again,
            and its receipt says so.
        """
        return self._idle.truncate(n_tokens)

    def reset(self) -> None:
        """Forget conversation and KV."""
        self._idle.clear()

    def save_state(self) -> bytes:
        """The session as framed, checksummed bytes; see `states`."""
        slot = self._open
        backend = self._backend
        return freeze(
            SavedState(
                fingerprint=backend.fingerprint,
                tokens=slot.tokens.copy(),
                n_past=slot.n_past,
                payload=backend.state_get(slot.seq) if slot.n_past else np.empty(0, np.uint8),
            )
        )

    def load_state(self, blob: bytes) -> None:
        """Replace this session by a saved one.

        Raises:
            StateRefused: the frame is damaged or from another model, or the library refused its
                bytes; the session is empty then and can be prefilled.
        """
        slot = self._idle
        slot.clear()
        saved = thaw(blob, self._backend.fingerprint)
        slot.restore(saved.tokens, saved.n_past, saved.payload)

    def close(self) -> None:
        """Free the sequence, a running turn with it; may be called twice."""
        if self._slot is None:
            return
        running = self._scheduler.running(self._slot)
        if running:
            self._scheduler.withdraw(running)
        self._slots.give_back(self._slot)
        self._slot = None
        if self._on_close:
            self._on_close()
