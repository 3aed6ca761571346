"""Our own few lines of statistics, against scipy and statsmodels, which say the same slower."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from pipelines.analysis.multiplicity import holm
from pipelines.analysis.ratios import sign_flip_p
from pipelines.analysis.student import one_sided_p, quantile, two_sided_p, welch

SEEDS = range(5)


def values(seed: int, n: int, mean: float = 0.3) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 0.5, n)


@pytest.mark.parametrize("degrees", [1, 2, 5.5, 11, 200])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_quantiles_are_those_of_scipy(degrees: float, confidence: float) -> None:
    expected = stats.t.ppf(0.5 + confidence / 2, degrees)
    assert quantile(confidence, degrees) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [2, 6, 30])
def test_p_values_are_those_of_scipy(seed: int, n: int) -> None:
    found = values(seed, n)
    for side in ("greater", "less"):
        expected = stats.ttest_1samp(found, 0.2, alternative=side).pvalue
        assert one_sided_p(found, 0.2, side) == pytest.approx(expected, rel=1e-10)
    expected = stats.ttest_1samp(found, 0.0).pvalue
    assert two_sided_p(found) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sizes", [(2, 2), (6, 12), (30, 3)])
def test_two_groups_are_compared_as_scipy_compares_them(seed: int, sizes: tuple[int, int]) -> None:
    first, second = values(seed, sizes[0]), values(seed + 100, sizes[1], mean=0.5) * 3
    expected = stats.ttest_ind(first, second, equal_var=False)
    interval = expected.confidence_interval(0.95)
    found = welch(first, second, 0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-10)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    assert found.difference == pytest.approx(first.mean() - second.mean())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_is_that_of_statsmodels(p: list[float]) -> None:
    _, expected, _, _ = multipletests(p, method="holm")
    assert holm(p) == pytest.approx(expected.tolist())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [2, 5, 10])
def test_exact_sign_flips_are_those_of_scipy(seed: int, n: int) -> None:
    d = values(seed, n, mean=0.2)
    expected = stats.permutation_test(
        (d,), lambda x: float(np.mean(x)), permutation_type="samples", n_resamples=2**n
    )
    assert sign_flip_p(d) == pytest.approx(expected.pvalue)


def test_many_blocks_are_drawn_and_always_the_same() -> None:
    d = values(1, 20, mean=0.2)
    exact = stats.permutation_test(
        (d,), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples",
        n_resamples=99_999, vectorized=True, rng=np.random.default_rng(7),
    )  # fmt: skip
    found = sign_flip_p(d)
    assert found == sign_flip_p(d)
    assert found == pytest.approx(exact.pvalue, abs=0.01)
