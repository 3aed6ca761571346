"""A ``llama_batch`` in our own memory, filled through numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from runner.engine.backend import Entry


class Batch:
    """The arrays behind a ``llama_batch``.

    Each token's ``seq_id`` pointer points into one int32 array, so filling it is one slice.
    Nothing here was allocated by the library, so nothing is handed to ``llama_batch_free``.
    """

    def __init__(self, binding: Any, n_batch: int, n_ctx: int) -> None:
        """Make the arrays.

        Args:
            binding: llama-cpp-python's low-level module.
            n_batch: tokens it can hold.
            n_ctx: positions are below this.
        """
        self.tokens = np.zeros(n_batch, dtype=np.int32)
        self.positions = np.zeros(n_batch, dtype=np.int32)
        self.sequences = np.zeros(n_batch, dtype=np.int32)
        self.wanted = np.zeros(n_batch, dtype=np.int8)
        self._one_each = np.ones(n_batch, dtype=np.int32)
        step = self.sequences.itemsize
        self._pointers = self.sequences.ctypes.data + step * np.arange(n_batch, dtype=np.uintp)
        self._count = np.arange(n_ctx, dtype=np.int32)
        self.native = binding.llama_batch()
        kinds = dict(binding.llama_batch._fields_)
        for field, array in (
            ("token", self.tokens),
            ("pos", self.positions),
            ("n_seq_id", self._one_each),
            ("seq_id", self._pointers),
            ("logits", self.wanted),
        ):
            setattr(self.native, field, ctypes.cast(array.ctypes.data, kinds[field]))

    def fill(self, entries: Sequence[Entry]) -> int:
        """Lay the entries out one after the other; return how many want logits."""
        at = wanted = 0
        for seq, start, tokens, want_logits in entries:
            end = at + len(tokens)
            self.tokens[at:end] = tokens
            self.positions[at:end] = self._count[start : start + len(tokens)]
            self.sequences[at:end] = seq
            self.wanted[at:end] = 0
            if want_logits:
                self.wanted[end - 1] = 1
                wanted += 1
            at = end
        self.native.n_tokens = at
        return wanted
