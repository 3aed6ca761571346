"""The contract of the seam as runnable cases: one suite, held to every backend.

A case takes `Open` and raises AssertionError when the backend breaks its word. Tests run the cases
on the fake and on real models, and bring-up runs them on the machine and model at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from runner.engine.backend import (
    CacheFull,
    ContextExceeded,
    Entry,
    InvalidRequest,
    Logits,
    NativeBackend,
    StateRefused,
    TokenIds,
)


class Open(Protocol):
    """Makes a fresh backend of the kind under test; the caller closes it."""

    def __call__(
        self, *, n_ctx: int = 256, n_batch: int = 64, n_seq_max: int = 4, unified_kv: bool = True
    ) -> NativeBackend:
        """Open with these sizes."""


Case = Callable[[Open], None]
TOLERANCE: Final = 0.01
"""Largest root-mean-square difference, in standard deviations of the logits, between two ways to
compute the same thing in batches of the same shapes. Batches of other shapes select kernels with
other rounding: measured up to 0.22 on SmolLM2, as much as one wrong token far back, so a check
that compares them could not tell right from wrong."""


def distance(one: Logits, other: Logits) -> float:
    """Root-mean-square difference of two rows of logits in standard deviations of the first."""
    return float(np.sqrt(np.mean((one - other) ** 2)) / one.std())


def feed(backend: NativeBackend, seq: int, tokens: TokenIds) -> Logits:
    """Append `tokens` to a sequence in batches; the logits after the last, shape (n_vocab,)."""
    n_batch = backend.capabilities.n_batch
    rows: Logits = np.empty((0, 0), dtype=np.float32)
    for at in range(0, len(tokens), n_batch):
        part = tokens[at : at + n_batch]
        last = at + len(part) == len(tokens)
        rows = backend.decode([Entry(seq, backend.seq_end(seq), part, want_logits=last)])
    last_row: Logits = rows[0].copy()
    return last_row


def feed_split(backend: NativeBackend, seq: int, tokens: TokenIds, cut: int) -> Logits:
    """Append ``tokens[:cut]``, then the rest: a cold run in the batch shapes of a warm one."""
    feed(backend, seq, tokens[:cut])
    return feed(backend, seq, tokens[cut:])


def some_tokens(backend: NativeBackend, count: int, start: int = 0) -> TokenIds:
    """`count` ids that any vocabulary has, no control ids among the first ones."""
    text = b"The quick brown fox jumps over the lazy dog, 0123456789 times; then it rests. "
    ids = backend.tokenize(text * (1 + (start + count) // 8))
    return ids[start : start + count]


def refuses(kind: type[Exception], action: Callable[[], object]) -> None:
    """The action raises exactly this kind of error."""
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected and nothing was raised")


def decode_gives_one_row_per_wanted_entry(open_backend: Open) -> None:
    """Rows come in the order of the entries that want them."""
    backend = open_backend()
    a, b, c, d = (some_tokens(backend, 5, start) for start in (0, 7, 13, 22))
    rows = backend.decode(
        [Entry(2, 0, a, True), Entry(0, 0, b, False), Entry(1, 0, c, True)]
    ).copy()
    assert rows.shape == (2, backend.vocabulary.n_tokens), rows.shape
    backend.synchronize()
    assert np.isfinite(rows).all()
    for seq in range(3):
        backend.seq_remove(seq)
    # The same shapes with another neighbour: what is in other sequences must not matter.
    again = backend.decode([Entry(2, 0, a, True), Entry(0, 0, d, False), Entry(1, 0, c, True)])
    assert distance(rows[0], again[0]) < TOLERANCE
    assert distance(rows[1], again[1]) < TOLERANCE
    assert distance(rows[0], rows[1]) > TOLERANCE
    backend.close()


def decode_appends_and_seq_end_tells(open_backend: Open) -> None:
    """Positions grow by what was decoded; removing everything empties the sequence."""
    backend = open_backend()
    tokens = some_tokens(backend, 9)
    feed(backend, 1, tokens[:4])
    assert backend.seq_end(1) == 4
    feed(backend, 1, tokens[4:])
    assert (backend.seq_end(0), backend.seq_end(1)) == (0, 9)
    assert backend.seq_remove(1)
    assert backend.seq_end(1) == 0
    backend.close()


def logits_depend_on_the_whole_sequence(open_backend: Open) -> None:
    """Another first token, another row: a stale cell cannot hide."""
    backend = open_backend()
    tokens = some_tokens(backend, 12)
    changed = tokens.copy()
    changed[0] = tokens[5] if tokens[5] != tokens[0] else tokens[6]
    one, other = feed(backend, 0, tokens), feed(backend, 1, changed)
    assert np.abs(one - other).max() > 0
    backend.close()


def invalid_batches_change_nothing(open_backend: Open) -> None:
    """Each of these would assert, abort or half succeed in the library."""
    backend = open_backend()
    tokens = some_tokens(backend, 300)
    feed(backend, 0, tokens[:3])
    n_vocab = backend.vocabulary.n_tokens
    bad = [
        [],
        [Entry(0, 3, tokens[:0], True)],
        [Entry(0, 3, tokens[: backend.capabilities.n_batch + 1], True)],
        [Entry(99, 0, tokens[:1], True)],
        [Entry(-1, 0, tokens[:1], True)],
        [Entry(0, 5, tokens[:1], True)],
        [Entry(0, 2, tokens[:1], True)],
        [Entry(0, 3, np.array([n_vocab], dtype=np.int32), True)],
        [Entry(0, 3, np.array([-1], dtype=np.int32), True)],
        [Entry(1, 0, tokens[:2], True), Entry(1, 2, tokens[2:3], True)],
    ]
    for entries in bad:
        refuses(InvalidRequest, lambda entries=entries: backend.decode(entries))  # type: ignore[misc]
    assert backend.seq_end(0) == 3
    backend.close()


def a_sequence_ends_at_n_ctx(open_backend: Open) -> None:
    """One position too many is refused before the library sees it."""
    backend = open_backend(n_seq_max=1)
    n_ctx = backend.capabilities.n_ctx
    tokens = some_tokens(backend, n_ctx)
    feed(backend, 0, tokens)
    assert backend.seq_end(0) == n_ctx
    refuses(ContextExceeded, lambda: backend.decode([Entry(0, n_ctx, tokens[:1], True)]))
    backend.close()


def a_full_cache_rolls_back(open_backend: Open) -> None:
    """CacheFull leaves every sequence as it was."""
    backend = open_backend()
    if backend.capabilities.recurrent:
        backend.close()
        return  # a recurrent state has a fixed size: there is nothing to fill
    tokens = some_tokens(backend, 200)
    before = feed(backend, 0, tokens[:200])
    feed(backend, 1, tokens[:50])
    refuses(CacheFull, lambda: backend.decode([Entry(2, 0, tokens[:60], True)]))
    assert [backend.seq_end(seq) for seq in range(3)] == [200, 50, 0]
    assert before.shape == (backend.vocabulary.n_tokens,)
    assert backend.seq_remove(1)
    feed(backend, 2, tokens[:50])
    assert backend.seq_end(2) == 50
    backend.close()


def a_copied_sequence_goes_on_like_a_cold_one(open_backend: Open) -> None:
    """seq_copy, then continue: the same as computing it all; the source is untouched."""
    for unified in (True, False):
        backend = open_backend(n_ctx=512, unified_kv=unified)
        tokens = some_tokens(backend, 40)
        feed(backend, 0, tokens[:30])
        backend.seq_copy(0, 1)
        assert (backend.seq_end(0), backend.seq_end(1)) == (30, 30)
        warm = feed(backend, 1, tokens[30:])
        cold = feed_split(backend, 2, tokens, 30)
        assert distance(cold, warm) < TOLERANCE, distance(cold, warm)
        assert backend.seq_end(0) == 30
        assert distance(cold, feed(backend, 0, tokens[30:])) < TOLERANCE
        backend.close()


def a_part_is_copied_only_where_that_is_safe(open_backend: Open) -> None:
    """Unified: the copy ends where asked. Split or recurrent: refused, not aborted."""
    backend = open_backend()
    tokens = some_tokens(backend, 40)
    feed_split(backend, 0, tokens[:30], 10)
    if backend.capabilities.recurrent:
        refuses(InvalidRequest, lambda: backend.seq_copy(0, 1, 10))
    else:
        backend.seq_copy(0, 1, 10)
        assert backend.seq_end(1) == 10
        warm = feed(backend, 1, tokens[10:20])
        assert distance(feed_split(backend, 2, tokens[:20], 10), warm) < TOLERANCE
    backend.close()
    split = open_backend(n_ctx=512, unified_kv=False)
    feed(split, 0, tokens[:30])
    refuses(InvalidRequest, lambda: split.seq_copy(0, 1, 10))
    split.close()


def impossible_copies_are_refused(open_backend: Open) -> None:
    """Onto itself, onto a used sequence, more than there is, ids out of range."""
    backend = open_backend()
    tokens = some_tokens(backend, 10)
    feed(backend, 0, tokens)
    feed(backend, 1, tokens[:4])
    for src, dst, count in ((0, 0, None), (0, 1, None), (0, 2, 11), (0, 99, None), (-1, 2, None)):
        refuses(InvalidRequest, lambda s=src, d=dst, c=count: backend.seq_copy(s, d, c))  # type: ignore[misc]
    assert [backend.seq_end(seq) for seq in range(3)] == [10, 4, 0]
    backend.close()


def a_tail_is_removed_or_refused(open_backend: Open) -> None:
    """Roll-back continues like a cold run; memory that cannot says so and changes nothing."""
    backend = open_backend()
    tokens = some_tokens(backend, 40)
    feed_split(backend, 0, np.concatenate([tokens[:20], tokens[30:]]), 20)
    removed = backend.seq_remove(0, 20)
    assert removed == backend.capabilities.can_roll_back
    if not removed:
        assert backend.seq_end(0) == 30
    else:
        assert backend.seq_end(0) == 20
        again = feed(backend, 0, tokens[20:])
        assert distance(feed_split(backend, 1, tokens, 20), again) < TOLERANCE
    refuses(InvalidRequest, lambda: backend.seq_remove(0, 999))
    refuses(InvalidRequest, lambda: backend.seq_remove(99))
    backend.close()


def a_state_comes_back(open_backend: Open) -> None:
    """state_get, state_set into another sequence, continue: the same logits."""
    backend = open_backend()
    tokens = some_tokens(backend, 30)
    feed(backend, 0, tokens[:20])
    state = backend.state_get(0)
    assert state.dtype == np.uint8
    assert state.size > 0
    backend.state_set(3, state)
    assert backend.seq_end(3) == 20
    here, there = feed(backend, 0, tokens[20:]), feed(backend, 3, tokens[20:])
    assert distance(here, there) < TOLERANCE
    backend.close()


def a_cut_state_is_refused_and_leaves_nothing(open_backend: Open) -> None:
    """Truncated bytes: StateRefused, an empty sequence, neighbours as before."""
    backend = open_backend()
    tokens = some_tokens(backend, 30)
    feed(backend, 0, tokens[:20])
    state = backend.state_get(0)
    cuts = (state[:0], state[:5], state[:-1])
    for cut in cuts:
        refuses(StateRefused, lambda cut=cut: backend.state_set(1, cut))  # type: ignore[misc]
        assert backend.seq_end(1) == 0
    assert backend.seq_end(0) == 20
    warm = feed(backend, 0, tokens[20:])
    assert distance(feed_split(backend, 2, tokens, 20), warm) < TOLERANCE
    backend.close()


def every_piece_detokenizes(open_backend: Open) -> None:
    """No vocabulary entry is lost, however long; text comes back byte for byte."""
    backend = open_backend()
    count = backend.vocabulary.n_tokens
    pieces = [backend.detokenize([token]) for token in range(count)]
    assert backend.detokenize(list(range(count))) == b"".join(pieces)
    for text in (
        b"def f(x):\n    return {'a': [1, 2]}\n",
        "naïve 漢字 🙂".encode(),
        *(b" " * n + b"X" for n in (16, 31, 32, 33, 64, 128, 200)),
    ):
        back = backend.detokenize(backend.tokenize(text))
        # Some vocabularies open every text with a space; nothing else may differ.
        assert back in {text, b" " + text}, (text, back)
    refuses(InvalidRequest, lambda: backend.detokenize([count]))
    refuses(InvalidRequest, lambda: backend.detokenize([-1]))
    backend.close()


def content_cannot_forge_a_turn(open_backend: Open) -> None:
    """Control markers in content are text unless special parsing is asked for."""
    backend = open_backend()
    for end in sorted(backend.vocabulary.end_ids):
        marker = backend.detokenize([end])
        if not marker:
            continue
        ids = backend.tokenize(b"ok" + marker + b"system")
        assert not backend.vocabulary.end_ids.intersection(ids.tolist()), (marker, ids)
        assert end in backend.tokenize(marker, special=True).tolist()
    backend.close()


def a_backend_closes_twice(open_backend: Open) -> None:
    """Closing is idempotent."""
    backend = open_backend()
    backend.close()
    backend.close()


CASES: Final[tuple[Case, ...]] = (
    decode_gives_one_row_per_wanted_entry,
    decode_appends_and_seq_end_tells,
    logits_depend_on_the_whole_sequence,
    invalid_batches_change_nothing,
    a_sequence_ends_at_n_ctx,
    a_full_cache_rolls_back,
    a_copied_sequence_goes_on_like_a_cold_one,
    a_part_is_copied_only_where_that_is_safe,
    impossible_copies_are_refused,
    a_tail_is_removed_or_refused,
    a_state_comes_back,
    a_cut_state_is_refused_and_leaves_nothing,
    every_piece_detokenizes,
    content_cannot_forge_a_turn,
    a_backend_closes_twice,
)
