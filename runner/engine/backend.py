"""The seam: what the engine asks of a native library, and nothing more.

Everything above this file runs unchanged on `FakeBackend` and `LlamaCppBackend`; one contract
suite (``tests/contract.py``) holds both to what is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.errors import LivekvError

TokenIds = NDArray[np.int32]
"""Token ids, shape (n,)."""

Logits = NDArray[np.float32]
"""One row a request for logits, shape (n_rows, n_vocab)."""

MAX_SEQUENCES = 256
"""LLAMA_MAX_SEQ of llama.cpp: more sequences than this are refused at construction."""


class BackendError(LivekvError):
    """The native library, or the check in front of it, refused."""


class InvalidRequest(BackendError, ValueError):
    """Arguments that must not reach the C API (it would assert, or return -1)."""


class ContextExceeded(InvalidRequest):
    """More positions than one sequence may hold; the message names the n_ctx that would do."""


class CacheFull(BackendError):
    """No free KV cells for the batch; the library rolled the whole batch back."""


class DecodeFailed(BackendError):
    """Decode failed with `code`; parts of the batch may have stayed in memory.

    The caller asks `NativeBackend.seq_end` where each sequence really ends before going on.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"llama_decode returned {code}")
        self.code = code


class StateRefused(BackendError):
    """A saved state was not accepted; the sequence is empty now."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded model on a backend can do, asked at load and never assumed."""

    n_ctx: int
    """Positions one sequence may hold."""
    n_cells: int
    """KV cells shared by all sequences (equals n_ctx on a unified cache)."""
    n_batch: int
    """Tokens one `decode` may carry."""
    n_seq_max: int
    unified_kv: bool
    """One cache for all sequences: a copied prefix costs no cells and may be partial."""
    can_roll_back: bool
    """A sequence's tail can be removed; false for recurrent state."""
    sliding_window: int
    """Attention window in tokens, 0 for none."""
    recurrent: bool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids that mean something to the engine."""

    n_tokens: int
    bos: int | None
    """The id that opens a conversation, None when the model wants none."""
    end_ids: frozenset[int]
    """Every id that ends a turn; models may have several."""


class Entry(NamedTuple):
    """Consecutive tokens of one sequence in a batch."""

    seq: int
    start: int
    """Position of the first token; must be where the sequence ends now."""
    tokens: TokenIds
    want_logits: bool
    """Ask for the logits after the last of `tokens`."""


class NativeBackend(Protocol):
    """One loaded model with its KV memory. Not thread-safe: one caller at a time.

    Safe at any time: `seq_end`, `tokenize`, `detokenize`, `capabilities`, `vocabulary`.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Fixed for the life of the backend."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Fixed for the life of the backend."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of what a saved state depends on: model file, library, KV layout."""

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """Compute all entries in one batch and append them to their sequences' memory.

        Returns:
            Logits of the entries with `want_logits`, in the order of `entries`, shape
            (n_wanted, n_vocab). A view into the library's memory: valid until the next `decode`,
            not to be written to. The work may still be going on when no logits are wanted; only
            reading them or `synchronize` waits.

        Raises:
            InvalidRequest: empty batch, too many tokens, an id out of range, a position gap, a
                sequence named twice. Nothing was changed.
            ContextExceeded: positions past n_ctx. Nothing was changed.
            CacheFull: no room. Nothing was changed.
            DecodeFailed: memory may hold a part of the batch; ask `seq_end`.
        """

    def seq_copy(self, src: int, dst: int, n_tokens: int | None = None) -> None:
        """Make the empty sequence `dst` hold the first `n_tokens` (None: all) of `src`.

        Raises:
            InvalidRequest: ids out of range, `dst` not empty, more tokens than `src` holds, or a
                part of a sequence on a cache that is not unified.
        """

    def seq_remove(self, seq: int, start: int = 0) -> bool:
        """Forget the positions from `start` on. Removing everything (start 0) always succeeds.

        Returns:
            False when the memory cannot do it (recurrent state); then nothing was changed.
        """

    def seq_end(self, seq: int) -> int:
        """Where the sequence ends in memory: its number of positions, 0 when empty."""

    def state_get(self, seq: int) -> NDArray[np.uint8]:
        """A copy of the sequence's memory as the library serialises it, shape (n_bytes,)."""

    def state_set(self, seq: int, state: NDArray[np.uint8]) -> None:
        """Replace the sequence's memory. The bytes carry no checksum: frame them (`states`).

        Raises:
            StateRefused: the library did not take them; the sequence is empty.
        """

    def tokenize(self, text: bytes, *, special: bool = False) -> TokenIds:
        """Token ids of UTF-8 `text`; control markers are parsed only with `special`."""

    def detokenize(self, tokens: TokenIds | Sequence[int]) -> bytes:
        """The exact bytes of `tokens`, control tokens by their text."""

    def synchronize(self) -> None:
        """Wait until all submitted work is done. Time is read only after this."""

    def close(self) -> None:
        """Free the native memory. May be called twice; nothing else may be called after."""


def check_sequence(capabilities: Capabilities, seq: int) -> None:
    """Refuse a sequence id that the library would assert on."""
    if not 0 <= seq < capabilities.n_seq_max:
        raise InvalidRequest(f"sequence {seq} is outside 0..{capabilities.n_seq_max - 1}")


def check_entries(
    capabilities: Capabilities, n_vocab: int, ends: Sequence[int], entries: Sequence[Entry]
) -> int:
    """Refuse a batch that the library would assert on or half accept.

    Args:
        capabilities: of the backend.
        n_vocab: ids are valid below this.
        ends: where each sequence ends now, indexed by sequence id.
        entries: the batch.

    Returns:
        Number of tokens in the batch.

    Raises:
        InvalidRequest, ContextExceeded: as `NativeBackend.decode` says.
    """
    total = 0
    seen: set[int] = set()
    for seq, start, tokens, _ in entries:
        n = len(tokens)
        if n == 0 or not 0 <= seq < capabilities.n_seq_max or seq in seen or start != ends[seq]:
            raise InvalidRequest(_what_is_wrong(capabilities, ends, seq, start, n))
        if start + n > capabilities.n_ctx:
            raise ContextExceeded(
                f"sequence {seq} would hold {start + n} positions, n_ctx is {capabilities.n_ctx}; "
                f"use n_ctx >= {start + n}"
            )
        low, high = (tokens[0], tokens[0]) if n == 1 else (tokens.min(), tokens.max())
        if low < 0 or high >= n_vocab:
            raise InvalidRequest(f"token ids {low}..{high} are outside 0..{n_vocab - 1}")
        seen.add(seq)
        total += n
    if total == 0:
        raise InvalidRequest("an empty batch")
    if total > capabilities.n_batch:
        raise InvalidRequest(f"a batch of {total} tokens, n_batch is {capabilities.n_batch}")
    return total


def _what_is_wrong(
    capabilities: Capabilities, ends: Sequence[int], seq: int, start: int, n_tokens: int
) -> str:
    if n_tokens == 0:
        return f"an empty entry for sequence {seq}"
    if not 0 <= seq < capabilities.n_seq_max:
        return f"sequence {seq} is outside 0..{capabilities.n_seq_max - 1}"
    if start != ends[seq]:
        return f"sequence {seq} ends at {ends[seq]}, the entry starts at {start}"
    return f"sequence {seq} is named twice in one batch"


def check_copy(
    capabilities: Capabilities, ends: Sequence[int], src: int, dst: int, n_tokens: int | None
) -> int:
    """Refuse a copy that the library would assert on; return how many tokens to copy."""
    check_sequence(capabilities, src)
    check_sequence(capabilities, dst)
    count = ends[src] if n_tokens is None else n_tokens
    if src == dst or ends[dst]:
        raise InvalidRequest(f"cannot copy sequence {src} over {dst}: the target must be empty")
    if not 0 <= count <= ends[src]:
        raise InvalidRequest(f"sequence {src} holds {ends[src]} tokens, {count} were asked for")
    if count < ends[src] and not capabilities.unified_kv:
        raise InvalidRequest(
            f"copying {count} of {ends[src]} tokens needs kv_unified=True: "
            "a split cache copies whole sequences only"
        )
    if count < ends[src] and capabilities.recurrent:
        raise InvalidRequest("a recurrent model's state cannot be copied in part")
    return count
