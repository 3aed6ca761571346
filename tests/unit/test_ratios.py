"""The interval, its companions and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.analysis.parity import equivalence
from pipelines.analysis.ratios import summarise

TIMES = st.lists(st.tuples(st.floats(0.01, 1000), st.floats(0.01, 1000)), min_size=2, max_size=20)


def _arrays(pairs: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    base, treat = zip(*pairs, strict=True)
    return np.array(base), np.array(treat)


def test_known_values() -> None:
    found = summarise(np.array([4.0, 8.0, 2.0]), np.array([2.0, 2.0, 2.0]))
    assert found.ratio == pytest.approx((2 * 4 * 1) ** (1 / 3))
    assert found.median_ratio == pytest.approx(2.0)
    assert found.total_ratio == pytest.approx(14 / 6)
    assert found.saved_s == pytest.approx((2 + 6 + 0) / 3)
    # t quantile for 2 degrees of freedom from a printed table.
    half = 4.302653 * np.std(np.log([2, 4, 1]), ddof=1) / 3**0.5
    assert found.low == pytest.approx(2 * np.exp(-half), rel=1e-6)
    assert found.high == pytest.approx(2 * np.exp(half), rel=1e-6)


def test_median_interval_needs_six_blocks() -> None:
    base = np.array([2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    five = summarise(base[:5], np.ones(5))
    six = summarise(base, np.ones(6))
    assert five.median_low is None and five.low is not None
    assert (six.median_low, six.median_high) == pytest.approx((2.0, 7.0))


@given(TIMES)
def test_swapped_labels_give_exactly_the_inverse(pairs: list[tuple[float, float]]) -> None:
    base, treat = _arrays(pairs)
    one, other = summarise(base, treat), summarise(treat, base)
    assert one.ratio is not None and other.ratio is not None
    assert one.ratio * other.ratio == pytest.approx(1, rel=1e-12)
    if one.low is not None:
        assert other.high is not None
        assert one.low * other.high == pytest.approx(1, rel=1e-9)


@given(TIMES, st.floats(1.01, 50))
def test_a_common_unit_changes_nothing(pairs: list[tuple[float, float]], unit: float) -> None:
    base, treat = _arrays(pairs)
    assert summarise(base * unit, treat * unit).ratio == pytest.approx(
        summarise(base, treat).ratio, rel=1e-9
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_not_a_time_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not a time"):
        summarise(np.array([1.0, bad]), np.array([1.0, 1.0]))


def test_one_block_and_no_variance_give_no_interval() -> None:
    one = summarise(np.array([2.0]), np.array([1.0]))
    same = summarise(np.full(10, 2.0), np.ones(10))
    assert (one.low, one.high) == (None, None) and "not enough blocks: 1" in (one.reason or "")
    assert (same.low, same.median_low) == (None, None) and "zero variance" in (same.reason or "")
    assert summarise(np.array([]), np.array([])).reason == "no usable block"


def test_an_a_a_session_misses_one_in_twenty() -> None:
    rng = np.random.default_rng(20260101)
    misses = faster = 0
    for _ in range(400):
        drift = np.linspace(0, rng.normal(0, 0.2), 10)  # common to both arms of a block
        base = np.exp(drift + rng.normal(0, 0.05, 10))
        treat = np.exp(drift + rng.normal(0, 0.05, 10))
        found = summarise(base, treat)
        assert found.low is not None and found.high is not None
        missed = not found.low <= 1 <= found.high
        misses += missed
        faster += missed and found.low > 1
    # 20 expected of 400; outside 8 to 34 has a chance under one in 500.
    assert 8 <= misses <= 34
    assert 0 < faster < misses


@pytest.mark.parametrize("planted", [1.02, 1.05, 1.2, 4.67])
def test_a_planted_ratio_is_recovered(planted: float) -> None:
    rng = np.random.default_rng(7)
    treat = np.exp(rng.normal(0, 0.01, 40))
    found = summarise(planted * treat * np.exp(rng.normal(0, 0.005, 40)), treat)
    assert found.low is not None and found.high is not None
    assert found.low < planted < found.high
    assert found.ratio == pytest.approx(planted, rel=0.005)


def test_parity_is_shown_by_precision_not_by_noise() -> None:
    rng = np.random.default_rng(3)
    assert equivalence(rng.normal(0, 0.01, 10), 0.05).shown
    biased = equivalence(np.log(1.05) + rng.normal(0, 0.15, 10), 0.05)
    assert not biased.shown
    assert "not shown" in biased.reason
    assert not equivalence(np.log(1.2) + rng.normal(0, 0.01, 10), 0.05).shown
    assert not equivalence(np.log(0.8) + rng.normal(0, 0.01, 10), 0.05).shown
    assert not equivalence(np.zeros(10), 0.05).shown
    assert not equivalence(np.array([0.0]), 0.05).shown
    with pytest.raises(ValueError, match=r"margin 1\.5"):
        equivalence(np.zeros(10), 1.5)
