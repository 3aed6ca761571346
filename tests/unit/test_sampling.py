"""Sampling against a reference that does the same slowly, one step of the chain at a time."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine.sampling import GREEDY, SamplingParameters, SeededChain

ROWS = st.lists(st.integers(-80, 80), min_size=1, max_size=40).map(
    lambda values: np.array(values, dtype=np.float32) / 8
)
CHAINS = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)


def probabilities(row: NDArray[np.float32], ids: list[int], temperature: float) -> list[float]:
    top = max(float(row[i]) for i in ids)
    weights = [math.exp((float(row[i]) - top) / temperature) for i in ids]
    return [weight / math.fsum(weights) for weight in weights]


def reference(row: NDArray[np.float32], chain: SamplingParameters) -> dict[int, float]:
    """Ids that may be drawn with their probabilities: top-k, top-p, min-p, temperature."""
    ids = sorted(range(len(row)), key=lambda i: (-row[i], i))
    if chain.top_k:
        ids = ids[: chain.top_k]
    nucleus: list[int] = []
    mass = 0.0
    for token, share in zip(ids, probabilities(row, ids, 1.0), strict=True):
        if nucleus and mass >= chain.top_p:
            break
        nucleus.append(token)
        mass += share
    shares = probabilities(row, nucleus, 1.0)
    kept = [i for i, p in zip(nucleus, shares, strict=True) if p >= chain.min_p * shares[0]]
    return dict(zip(kept, probabilities(row, kept, chain.temperature), strict=True))


def near_a_bound(row: NDArray[np.float32], chain: SamplingParameters) -> bool:
    """The two ways to add up may round to different sides of a bound."""
    ids = sorted(range(len(row)), key=lambda i: (-row[i], i))[: chain.top_k or None]
    shares = np.array(probabilities(row, ids, 1.0))
    return bool(
        (np.abs(np.cumsum(shares) - chain.top_p) < 1e-9).any()
        or (np.abs(shares / shares[0] - chain.min_p) < 1e-9).any()
    )


@given(ROWS, CHAINS)
def test_only_what_the_reference_keeps_is_ever_drawn(
    row: NDArray[np.float32], chain: SamplingParameters
) -> None:
    assume(not near_a_bound(row, chain))
    allowed = reference(row, chain)
    sampler = SeededChain(chain)
    assert {sampler.sample(row) for _ in range(20)} <= set(allowed)


@given(ROWS, CHAINS)
def test_a_draw_is_the_references_draw_with_the_same_chance(
    row: NDArray[np.float32], chain: SamplingParameters
) -> None:
    assume(not near_a_bound(row, chain))
    allowed = reference(row, chain)
    rng = np.random.default_rng(chain.seed)
    expected = rng.choice(len(allowed), p=np.array(list(allowed.values())))
    assert SeededChain(chain).sample(row) == list(allowed)[expected]


@pytest.mark.parametrize(
    "chain",
    [
        SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
        SamplingParameters(temperature=0.7, top_k=5, top_p=1.0, min_p=0.0, seed=2),
        SamplingParameters(temperature=1.5, top_k=0, top_p=0.8, min_p=0.0, seed=3),
        SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.1, seed=4),
        SamplingParameters(seed=5),
    ],
    ids=["plain", "top-k", "top-p", "min-p", "default"],
)
def test_draws_are_distributed_as_the_reference_says(chain: SamplingParameters) -> None:
    row = np.random.default_rng(8).normal(0, 2, 30).astype(np.float32)
    expected = reference(row, chain)
    n = 4000
    sampler = SeededChain(chain)
    drawn = Counter(sampler.sample(row) for _ in range(n))
    assert set(drawn) <= set(expected)
    for token, share in expected.items():
        # Five standard deviations: one false alarm in some 10,000 runs, and the seed is fixed.
        assert abs(drawn[token] - n * share) <= 5 * math.sqrt(n * share * (1 - share)) + 1


def test_the_same_seed_makes_the_same_choices_and_another_seed_others() -> None:
    rows = np.random.default_rng(0).normal(0, 1, (50, 64)).astype(np.float32)

    def choices(seed: int) -> list[int]:
        chain = SeededChain(SamplingParameters(seed=seed, min_p=0.0))
        return [chain.sample(row) for row in rows]

    assert choices(7) == choices(7)
    assert choices(7) != choices(8)


@given(ROWS)
def test_greedy_takes_the_largest_and_the_lowest_id_of_a_tie(row: NDArray[np.float32]) -> None:
    chosen = GREEDY.sample(row)
    assert row[chosen] == row.max()
    assert not (row[:chosen] == row.max()).any()


@given(ROWS, st.integers(0, 2**32))
def test_top_k_of_one_is_greedy(row: NDArray[np.float32], seed: int) -> None:
    assert SeededChain(SamplingParameters(top_k=1, seed=seed)).sample(row) == GREEDY.sample(row)


def test_ties_at_the_edge_of_top_k_go_to_the_lower_ids() -> None:
    row = np.array([1, 3, 3, 3, 0], dtype=np.float32)
    sampler = SeededChain(SamplingParameters(temperature=1, top_k=2, top_p=1, min_p=0))
    assert {sampler.sample(row) for _ in range(100)} == {1, 2}


@given(ROWS, CHAINS)
def test_the_row_is_not_changed(row: NDArray[np.float32], chain: SamplingParameters) -> None:
    before = row.copy()
    row.flags.writeable = False
    SeededChain(chain).sample(row)
    assert np.array_equal(row, before)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"top_p": math.nan},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_with_their_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParameters(**wrong)  # type: ignore[arg-type]
