"""A deterministic backend without a model: reference, control and the reason tests are fast.

Its next-token logits depend on every token of the sequence, so a stale or misplaced KV cell shows
as a different token, as it would on a real model. It counts cells, shares them between copied
sequences, runs full, refuses roll-back when told to, and reuses its logits buffer, so that a view
kept too long is seen to change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runner.engine.backend import (
    MAX_SEQUENCES,
    CacheFull,
    Capabilities,
    Entry,
    InvalidRequest,
    Logits,
    StateRefused,
    TokenIds,
    Vocabulary,
    check_copy,
    check_entries,
    check_sequence,
)

_SEED_HASH = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_TABLE_ROWS = 1024

# Ids 0..255 are bytes; after them come pieces that tokenizers really have.
_PIECES: tuple[bytes, ...] = (
    *(bytes([value]) for value in range(256)),
    b"<|start|>",
    b"<|end|>",
    b"<|stop|>",
    b" " * 64,
)
_BOS, _EOS, _EOT, _LONG = range(256, 260)
_SPECIAL = {_PIECES[token]: token for token in (_BOS, _EOS, _EOT)}


class _Sequence:
    """One sequence's memory: its tokens, the running hash after each, and its cells."""

    __slots__ = ("cells", "hashes", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.hashes: list[int] = []
        self.cells: list[int] = []


class FakeBackend:
    """`NativeBackend` in plain Python; see the module's docstring."""

    def __init__(
        self,
        *,
        n_ctx: int = 8192,
        n_batch: int = 2048,
        n_seq_max: int = 8,
        unified_kv: bool = True,
        can_roll_back: bool = True,
    ) -> None:
        if not 1 <= n_seq_max <= MAX_SEQUENCES:
            raise InvalidRequest(f"n_seq_max {n_seq_max} is outside 1..{MAX_SEQUENCES}")
        per_sequence = n_ctx if unified_kv else n_ctx // n_seq_max
        self._capabilities = Capabilities(
            n_ctx=per_sequence,
            n_cells=n_ctx,
            n_batch=n_batch,
            n_seq_max=n_seq_max,
            unified_kv=unified_kv,
            can_roll_back=can_roll_back,
            sliding_window=0,
            recurrent=not can_roll_back,
        )
        self._vocabulary = Vocabulary(len(_PIECES), _BOS, frozenset({_EOS, _EOT}))
        rng = np.random.default_rng(20240229)
        self._table = rng.standard_normal((_TABLE_ROWS, len(_PIECES)), dtype=np.float32)
        self._logits = np.zeros((n_seq_max, len(_PIECES)), dtype=np.float32)
        self._sequences = [_Sequence() for _ in range(n_seq_max)]
        self._ends = [0] * n_seq_max
        self._references: dict[int, int] = {}
        self._next_cell = 0

    @property
    def capabilities(self) -> Capabilities:
        """See `NativeBackend`."""
        return self._capabilities

    @property
    def vocabulary(self) -> Vocabulary:
        """See `NativeBackend`."""
        return self._vocabulary

    @property
    def fingerprint(self) -> str:
        """See `NativeBackend`."""
        return hashlib.sha256(b"livekv fake backend 1").hexdigest()

    @property
    def cells_used(self) -> int:
        """KV cells that hold a token of at least one sequence."""
        return len(self._references)

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        total = check_entries(self._capabilities, len(_PIECES), self._ends, entries)
        free = self._capabilities.n_cells - len(self._references)
        if total > free:
            raise CacheFull(f"{total} KV cells are needed, {free} are free")
        rows = []
        for seq, _, tokens, want_logits in entries:
            last = self._append(seq, tokens)
            if want_logits:
                rows.append(last % _TABLE_ROWS)
        view = self._logits[: len(rows)]
        if rows:
            np.take(self._table, rows, axis=0, out=view)
        return view

    def _append(self, seq: int, tokens: TokenIds) -> int:
        memory = self._sequences[seq]
        last = memory.hashes[-1] if memory.hashes else _SEED_HASH
        for token in tokens.tolist():
            last = ((last ^ (token + 1)) * 0x100000001B3) & _MASK
            last ^= last >> 29
            memory.tokens.append(token)
            memory.hashes.append(last)
            memory.cells.append(self._next_cell)
            self._references[self._next_cell] = 1
            self._next_cell += 1
        self._ends[seq] = len(memory.tokens)
        return last

    def seq_copy(self, src: int, dst: int, n_tokens: int | None = None) -> None:
        """See `NativeBackend`."""
        count = check_copy(self._capabilities, self._ends, src, dst, n_tokens)
        source, target = self._sequences[src], self._sequences[dst]
        if not self._capabilities.unified_kv:
            self._append(dst, np.array(source.tokens[:count], dtype=np.int32))
            return
        target.tokens = source.tokens[:count]
        target.hashes = source.hashes[:count]
        target.cells = source.cells[:count]
        for cell in target.cells:
            self._references[cell] += 1
        self._ends[dst] = count

    def seq_remove(self, seq: int, start: int = 0) -> bool:
        """See `NativeBackend`."""
        check_sequence(self._capabilities, seq)
        memory = self._sequences[seq]
        if not 0 <= start <= len(memory.tokens):
            raise InvalidRequest(f"sequence {seq} ends at {len(memory.tokens)}, not past {start}")
        if 0 < start < len(memory.tokens) and not self._capabilities.can_roll_back:
            return False
        for cell in memory.cells[start:]:
            self._references[cell] -= 1
            if not self._references[cell]:
                del self._references[cell]
        del memory.tokens[start:], memory.hashes[start:], memory.cells[start:]
        self._ends[seq] = start
        return True

    def seq_end(self, seq: int) -> int:
        """See `NativeBackend`."""
        check_sequence(self._capabilities, seq)
        return len(self._sequences[seq].tokens)

    def state_get(self, seq: int) -> NDArray[np.uint8]:
        """See `NativeBackend`."""
        check_sequence(self._capabilities, seq)
        return np.array(self._sequences[seq].tokens, dtype="<i4").view(np.uint8).copy()

    def state_set(self, seq: int, state: NDArray[np.uint8]) -> None:
        """See `NativeBackend`. Like the real one it believes any bytes of a possible length."""
        self.seq_remove(seq)
        fits = state.size % 4 == 0 and state.size // 4 <= self._capabilities.n_ctx
        if state.size == 0 or not fits:
            raise StateRefused(f"a state of {state.size} bytes was refused")
        self._append(seq, state.view("<i4").astype(np.int32))

    def tokenize(self, text: bytes, *, special: bool = False) -> TokenIds:
        """See `NativeBackend`."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            token = self._match(text, at, special)
            ids.append(token)
            at += len(_PIECES[token])
        return np.array(ids, dtype=np.int32)

    @staticmethod
    def _match(text: bytes, at: int, special: bool) -> int:
        if special:
            for piece, token in _SPECIAL.items():
                if text.startswith(piece, at):
                    return token
        return _LONG if text.startswith(_PIECES[_LONG], at) else text[at]

    def detokenize(self, tokens: TokenIds | Sequence[int]) -> bytes:
        """See `NativeBackend`."""
        ids = [int(token) for token in tokens]
        if ids and not 0 <= min(ids) <= max(ids) < len(_PIECES):
            raise InvalidRequest(f"token ids {min(ids)}..{max(ids)} are outside the vocabulary")
        return b"".join(_PIECES[token] for token in ids)

    def synchronize(self) -> None:
        """See `NativeBackend`: nothing is ever pending here."""

    def close(self) -> None:
        """See `NativeBackend`: there is nothing to free."""
