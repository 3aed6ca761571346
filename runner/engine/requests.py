"""A request: generate on one slot until a length or an end token, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.engine.backend import BackendError
from runner.engine.sampling import Sampler
from runner.engine.slots import Slot

StopReason = Literal["length", "eos", "prefilled"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished request. Times are seconds on the scheduler's clock."""

    sampled: tuple[int, ...]
    """What the model chose at each step."""
    fed: tuple[int, ...]
    """What went into the conversation: `sampled`, or the script's ids."""
    n_context: int
    """Length of the conversation the turn generated from."""
    n_reused: int
    """Context tokens that were in KV when the turn began and were not computed again."""
    n_evaluated: int
    """Tokens the backend computed for this turn, counted where batches are built."""
    wall_s: float
    ttft_s: float
    prefill_s: float
    """To the end of the decode that gave the first logits."""
    decode_s: float
    """From the first token to the last."""
    stop_reason: StopReason

    @property
    def n_generated(self) -> int:
        """Tokens generated, the end token included, nothing after it counted."""
        return len(self.fed)


class Request:
    """A running turn. The scheduler advances it; `turn` is its result when `done`."""

    __slots__ = (
        "_end_ids",
        "_first_logits_at",
        "_first_token_at",
        "_n_context",
        "_n_reused",
        "_started_at",
        "error",
        "fed",
        "max_tokens",
        "n_evaluated",
        "sampled",
        "sampler",
        "script",
        "slot",
        "turn",
    )

    def __init__(
        self,
        slot: Slot,
        max_tokens: int,
        sampler: Sampler,
        *,
        script: Sequence[int] | None,
        end_ids: frozenset[int],
        started_at: float,
    ) -> None:
        self.slot = slot
        self.max_tokens = max_tokens
        self.sampler = sampler
        self.script = script
        self.sampled: list[int] = []
        self.fed: list[int] = []
        self.n_evaluated = 0
        self.turn: Turn | None = None
        self.error: BackendError | None = None
        self._end_ids = end_ids
        self._n_context = slot.n_tokens
        self._n_reused = slot.n_past
        self._started_at = started_at
        self._first_logits_at = started_at
        self._first_token_at = started_at

    @property
    def done(self) -> bool:
        """True when there is a result or an error."""
        return self.turn is not None or self.error is not None

    def accept(self, sampled: int, decoded_at: float, now: float) -> None:
        """Take the sampled token (or the script's in its place) and finish if it is the last.

        The token is appended to the conversation but not decoded: it rides with the next batch.
        """
        n = len(self.fed)
        if n == 0:
            self._first_logits_at, self._first_token_at = decoded_at, now
        token = sampled if self.script is None else self.script[n]
        self.sampled.append(sampled)
        self.fed.append(token)
        slot = self.slot
        slot.buffer[slot.n_tokens] = token
        slot.n_tokens += 1
        if token in self._end_ids:
            self.finish("eos", now)
        elif n + 1 == self.max_tokens:
            self.finish("length", now)

    def recount_reuse(self) -> None:
        """KV was lost in a failed decode: what is computed again is not reuse."""
        self._n_reused = min(self._n_reused, self.slot.n_past)

    def finish(self, reason: StopReason, now: float) -> None:
        """Freeze the result."""
        if reason == "prefilled":
            self._first_logits_at = self._first_token_at = now
        self.turn = Turn(
            sampled=tuple(self.sampled),
            fed=tuple(self.fed),
            n_context=self._n_context,
            n_reused=self._n_reused,
            n_evaluated=self.n_evaluated,
            wall_s=now - self._started_at,
            ttft_s=self._first_token_at - self._started_at,
            prefill_s=self._first_logits_at - self._started_at,
            decode_s=now - self._first_logits_at,
            stop_reason=reason,
        )
