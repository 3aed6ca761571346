"""A slot: one sequence id with its conversation and how much of it is in KV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runner.engine.backend import (
    ContextExceeded,
    InvalidRequest,
    NativeBackend,
    StateRefused,
    TokenIds,
)


class Slot:
    """The one substrate under tool loop, prefix sharing and persistence.

    ``tokens[:n_past]`` is in KV memory, ``tokens[n_past:n_tokens]`` waits to be fed. A generated
    token is appended when it is chosen and rides with whatever is fed next, so no decode is ever
    spent only to have it in KV. Invariant: ``0 <= n_past <= n_tokens <= n_ctx``.
    """

    __slots__ = ("_backend", "buffer", "n_past", "n_tokens", "seq")

    def __init__(self, backend: NativeBackend, seq: int) -> None:
        self._backend = backend
        self.seq = seq
        self.buffer: TokenIds = np.empty(backend.capabilities.n_ctx, dtype=np.int32)
        self.n_tokens = 0
        self.n_past = 0

    @property
    def tokens(self) -> TokenIds:
        """The whole conversation, a read-only view, shape (n_tokens,)."""
        view = self.buffer[: self.n_tokens]
        view.flags.writeable = False
        return view

    def append(self, tokens: TokenIds | Sequence[int]) -> None:
        """Add tokens to the conversation; they are fed at the next step.

        Raises:
            ContextExceeded: names the n_ctx that would do.
            InvalidRequest: an id outside the vocabulary.
        """
        ids = np.asarray(tokens, dtype=np.int32)
        end = self.n_tokens + len(ids)
        if end > len(self.buffer):
            raise ContextExceeded(
                f"the conversation would hold {end} tokens, n_ctx is {len(self.buffer)}; "
                f"use n_ctx >= {end}"
            )
        n_vocab = self._backend.vocabulary.n_tokens
        if len(ids) and not 0 <= ids.min() <= ids.max() < n_vocab:
            raise InvalidRequest(f"token ids {ids.min()}..{ids.max()} are outside 0..{n_vocab - 1}")
        self.buffer[self.n_tokens : end] = ids
        self.n_tokens = end

    def truncate(self, n_tokens: int) -> bool:
        """Cut the conversation to its first `n_tokens`, and KV with it.

        Returns:
            False when KV could not roll back and was dropped: the rest will be prefilled again.
        """
        if not 0 <= n_tokens <= self.n_tokens:
            raise InvalidRequest(f"cannot cut {self.n_tokens} tokens to {n_tokens}")
        self.n_tokens = n_tokens
        if n_tokens >= self.n_past:
            return True
        if self._backend.seq_remove(self.seq, n_tokens):
            self.n_past = n_tokens
            return True
        self.drop()
        return False

    def drop(self) -> None:
        """Forget the KV memory, keep the conversation."""
        self._backend.seq_remove(self.seq)
        self.n_past = 0

    def clear(self) -> None:
        """Forget everything."""
        self.drop()
        self.n_tokens = 0

    def restore(self, tokens: TokenIds, n_past: int, payload: NDArray[np.uint8]) -> None:
        """Become a saved conversation; `payload` must have passed its frame.

        Raises:
            StateRefused: the library refused the bytes, or holds another length than `n_past`;
                the slot is empty.
        """
        self.clear()
        try:
            self.append(tokens)
            if n_past:
                self._backend.state_set(self.seq, payload)
                end = self._backend.seq_end(self.seq)
                if end != n_past:
                    raise StateRefused(f"the restored sequence ends at {end}, not at {n_past}")
                self.n_past = n_past
        except BaseException:
            self.clear()
            raise

    def reconcile(self) -> None:
        """After a failed decode: trust what was known before it, ask memory for the rest.

        Cells past `n_past` came from the failed batch and are removed; if memory cannot do that,
        or has lost cells, the sequence is dropped and will be prefilled again.
        """
        end = self._backend.seq_end(self.seq)
        if end == self.n_past:
            return
        if end > self.n_past and self._backend.seq_remove(self.seq, self.n_past):
            return
        self.drop()


class SlotPool:
    """Hands out sequence ids, the lowest free one first."""

    def __init__(self, backend: NativeBackend) -> None:
        self._backend = backend
        self._free = list(range(backend.capabilities.n_seq_max - 1, -1, -1))
        self.in_use: dict[int, Slot] = {}

    def take(self) -> Slot:
        """A free, empty slot.

        Raises:
            InvalidRequest: all sequences are in use.
        """
        if not self._free:
            n = self._backend.capabilities.n_seq_max
            raise InvalidRequest(
                f"all {n} sequences are in use; close a session or raise n_seq_max"
            )
        slot = Slot(self._backend, self._free.pop())
        self.in_use[slot.seq] = slot
        return slot

    def copy(self, source: Slot) -> Slot:
        """A new slot with the conversation of `source` and, shared or copied, its KV.

        Raises:
            InvalidRequest: all sequences are in use.
        """
        target = self.take()
        try:
            target.append(source.tokens)
            if source.n_past:
                self._backend.seq_copy(source.seq, target.seq)
                target.n_past = source.n_past
        except BaseException:
            self.give_back(target)
            raise
        return target

    def give_back(self, slot: Slot) -> None:
        """Forget the slot's memory and make its sequence id free."""
        slot.clear()
        del self.in_use[slot.seq]
        self._free.append(slot.seq)
        self._free.sort(reverse=True)

    def check(self) -> None:
        """Compare every slot with memory; call when nothing is running.

        Raises:
            AssertionError: with the numbers that disagree.
        """
        n_seq_max = self._backend.capabilities.n_seq_max
        held, free = len(self.in_use), len(self._free)
        if held + free != n_seq_max:
            raise AssertionError(f"{held} slots held + {free} free != {n_seq_max} sequences")
        for slot in self.in_use.values():
            end = self._backend.seq_end(slot.seq)
            if not end == slot.n_past <= slot.n_tokens:
                raise AssertionError(
                    f"sequence {slot.seq}: memory ends at {end}, "
                    f"n_past {slot.n_past}, n_tokens {slot.n_tokens}"
                )
        for seq in self._free:
            if self._backend.seq_end(seq):
                raise AssertionError(
                    f"free sequence {seq} holds {self._backend.seq_end(seq)} cells"
                )
