"""The interval, its companions and what they refuse."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from pipelines.analysis.fieller import fieller
from pipelines.analysis.parity import equivalence
from pipelines.analysis.ratios import sign_flip_p, summarise

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
    one, other = asdict(summarise(base, treat)), asdict(summarise(treat, base))
    for name in ("ratio", "median_ratio", "total_ratio"):
        assert one[name] * other[name] == pytest.approx(1, rel=1e-12)
    for low, high in (("low", "high"), ("median_low", "median_high"), ("total_low", "total_high")):
        for this, that in ((low, high), (high, low)):
            assert (one[this] is None) == (other[that] is None)
            if one[this] is not None:
                assert one[this] * other[that] == pytest.approx(1, rel=1e-6)
    assert one["saved_s"] == -other["saved_s"]
    assert one["sign_flip_p"] == other["sign_flip_p"]


@given(TIMES, st.floats(1.01, 50))
def test_a_common_unit_changes_nothing(pairs: list[tuple[float, float]], unit: float) -> None:
    base, treat = _arrays(pairs)
    one, other = asdict(summarise(base, treat)), asdict(summarise(base * unit, treat * unit))
    for name, value in one.items():
        if isinstance(value, float):
            expected = value * unit if name.startswith("saved") else value
            # Where an interval is nearly unbounded, its far end hangs on the last bits.
            assert other[name] == pytest.approx(expected, rel=1e-4, abs=1e-9 * unit), name


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


def _noisy(n: int, seed: int = 11) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    drift = np.exp(rng.normal(0, 0.2, n))
    return 3 * drift * np.exp(rng.normal(0, 0.1, n)), drift * np.exp(rng.normal(0, 0.1, n))


@pytest.mark.parametrize("n", [2, 6, 10, 23])
def test_the_t_interval_is_that_of_statsmodels(n: int) -> None:
    base, treat = _noisy(n)
    found = summarise(base, treat)
    expected = np.exp(DescrStatsW(np.log(base / treat)).tconfint_mean(0.05))
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-12)
    saved = DescrStatsW(base - treat).tconfint_mean(0.05)
    assert (found.saved_low_s, found.saved_high_s) == pytest.approx(saved, rel=1e-12)


@pytest.mark.parametrize("n", [6, 10, 23])
def test_the_median_interval_is_the_binomial_one(n: int) -> None:
    base, treat = _noisy(n)
    found = summarise(base, treat)
    ordered = np.sort(base / treat)
    # The widest pair of order statistics that leaves at most 2.5 % on either side.
    k = max(k for k in range(n) if stats.binom.cdf(k - 1, n, 0.5) <= 0.025)
    assert (found.median_low, found.median_high) == pytest.approx((ordered[k - 1], ordered[n - k]))


@pytest.mark.parametrize("n", [3, 6, 10, 23])
def test_fieller_holds_what_a_paired_t_test_does_not_reject(n: int) -> None:
    base, treat = _noisy(n)

    def rejected(ratio: float) -> float:
        return float(stats.ttest_rel(base, ratio * treat).pvalue) - 0.05

    found = fieller(base, treat, 0.95)
    middle = base.sum() / treat.sum()
    assert found.low == pytest.approx(optimize.brentq(rejected, 0.01, middle), rel=1e-6)
    assert found.high == pytest.approx(optimize.brentq(rejected, middle, 1000), rel=1e-6)


def test_a_total_that_is_not_told_from_zero_has_no_interval() -> None:
    wild, tame = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 3000.0]), np.linspace(1, 1.1, 6)
    over, under = summarise(tame, wild), summarise(wild, tame)
    assert (over.total_low, over.total_high) == (None, None)
    assert "treatment total is not told from 0" in (over.reason or "")
    assert (under.total_low, under.total_high) == (None, None)
    assert "baseline total is not told from 0" in (under.reason or "")
    assert over.low is not None and over.median_low is not None


def test_fieller_covers_the_true_ratio_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        treat = rng.normal(10, 1, 10)
        found = fieller(2 * treat + rng.normal(0, 1, 10), treat, 0.95)
        assert found.low is not None and found.high is not None
        held += found.low <= 2 <= found.high
    assert 366 <= held <= 392  # 380 expected; outside has a chance of about one in 500


@pytest.mark.parametrize("n", [2, 6, 9])
def test_the_sign_flip_is_exact_for_few_blocks(n: int) -> None:
    d = np.log(np.divide(*_noisy(n))) - 1.1
    flipped = [abs(float(np.mean(d * signs))) for signs in product((-1, 1), repeat=n)]
    extreme = sum(value >= abs(float(d.mean())) * (1 - 1e-12) for value in flipped)
    assert sign_flip_p(d) == pytest.approx(extreme / 2**n)


def test_the_sign_flip_of_many_blocks_is_drawn_the_same_every_time() -> None:
    d = np.random.default_rng(2).normal(0.01, 0.05, 40)
    assert sign_flip_p(d) == sign_flip_p(d)
    assert sign_flip_p(d) == pytest.approx(float(stats.ttest_1samp(d, 0).pvalue), abs=0.02)
    assert sign_flip_p(np.array([0.3])) is None


def test_parity_is_that_of_statsmodels() -> None:
    base, treat = _noisy(12, seed=4)
    d = np.log(base / treat) - np.log(3)
    expected, _, _ = ttost_paired(d, np.zeros(12), np.log(0.9), np.log(1.1))
    assert equivalence(d, 0.1).p == pytest.approx(float(expected), rel=1e-9)


def test_five_percent_bias_under_fifteen_percent_noise_is_no_parity() -> None:
    rng = np.random.default_rng(9)
    passed = sum(
        equivalence(np.log(1.05) + rng.normal(0, 0.15, 10), 0.05).shown for _ in range(400)
    )
    # The true ratio lies on the margin, where two one-sided tests pass at most one in twenty.
    assert passed <= 20
