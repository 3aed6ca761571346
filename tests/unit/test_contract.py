"""The contract of the seam, held to the fake: with roll-back, and without."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.backend import MAX_SEQUENCES, Entry, InvalidRequest, NativeBackend
from runner.engine.contract import CASES, Case
from runner.engine.fake import FakeBackend


def open_fake(
    *, n_ctx: int = 256, n_batch: int = 64, n_seq_max: int = 4, unified_kv: bool = True
) -> NativeBackend:
    return FakeBackend(n_ctx=n_ctx, n_batch=n_batch, n_seq_max=n_seq_max, unified_kv=unified_kv)


def open_recurrent(
    *, n_ctx: int = 256, n_batch: int = 64, n_seq_max: int = 4, unified_kv: bool = True
) -> NativeBackend:
    return FakeBackend(
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_seq_max=n_seq_max,
        unified_kv=unified_kv,
        can_roll_back=False,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_fake_keeps_the_contract(case: Case) -> None:
    case(open_fake)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_fake_that_cannot_roll_back_keeps_the_contract(case: Case) -> None:
    case(open_recurrent)


@pytest.mark.parametrize("n_seq_max", [0, -1, MAX_SEQUENCES + 1])
def test_the_fake_refuses_what_the_library_would(n_seq_max: int) -> None:
    with pytest.raises(InvalidRequest, match=f"n_seq_max {n_seq_max} is outside 1..256"):
        FakeBackend(n_seq_max=n_seq_max)


def test_copied_cells_are_shared_on_a_unified_cache_and_doubled_on_a_split_one() -> None:
    for unified, cells in ((True, 30), (False, 60)):
        backend = FakeBackend(n_ctx=512, n_seq_max=4, unified_kv=unified)
        backend.state_set(0, np.arange(30, dtype="<i4").view(np.uint8))
        backend.seq_copy(0, 1)
        assert backend.cells_used == cells
        backend.seq_remove(0)
        assert backend.cells_used == 30
        backend.seq_remove(1)
        assert backend.cells_used == 0


def test_a_view_kept_past_the_next_decode_changes() -> None:
    """The fake reuses its buffer as the library does: a caller that keeps a view is found out."""
    backend = FakeBackend()
    view = backend.decode([Entry(0, 0, np.array([1], dtype=np.int32), True)])
    kept = view.copy()
    backend.decode([Entry(0, 1, np.array([2], dtype=np.int32), True)])
    assert not np.array_equal(view, kept)
