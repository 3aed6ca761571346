"""Holm's correction, and when a claim's p goes with its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.analysis.multiplicity import adjusted_claims, claim_p, holm
from pipelines.analysis.ratios import t_interval
from runner.registration import Expectation, Forecast

P = st.one_of(st.none(), st.floats(0, 1))


def _forecast(point: str, role: str, threshold: float | None, high: float = 3.0) -> Forecast:
    return Forecast.model_validate(
        {"model": "m", "point": point, "role": role, "low": 0.5, "high": high,
         "threshold": threshold}
    )  # fmt: skip


def _expectation(*forecasts: Forecast) -> Expectation:
    control = Forecast(model="m", point="control", role="parity", low=0.9, high=1.1)
    words = dict.fromkeys(
        ("id", "title", "claim", "estimand", "workload", "sweep", "negative", "exclusions"), "said"
    )
    void = {"steal_fraction_max": 0.1, "other_cpu_fraction_max": 0.1, "void_blocks_max": 0.1}
    return Expectation.model_validate(
        {**words, "treatment": "live_kv", "baseline": "reprefill", "blocks_min": 6,
         "warmup_tokens": 0, "parity_margin": 0.05, "void": void,
         "forecast": [control, *forecasts]}
    )  # fmt: skip


def _around(ratio: float, noise: float = 0.1, n: int = 10) -> np.ndarray:
    z = np.linspace(-1, 1, n)
    return np.asarray(np.log(ratio) + noise * z / z.std(ddof=1))


def test_holm_by_hand() -> None:
    # Sorted 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.5 x 1, never falling.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.04]) == pytest.approx([0.04])
    assert holm([]) == []


def test_what_was_not_tested_makes_the_rest_no_easier() -> None:
    assert holm([0.01, None, None]) == [pytest.approx(0.03), None, None]


@settings(max_examples=30, deadline=None)
@given(st.lists(P, max_size=8))
def test_holm_only_raises_and_keeps_the_order(values: list[float | None]) -> None:
    pairs = sorted(
        (p, q) for p, q in zip(values, holm(values), strict=True) if p is not None and q is not None
    )
    assert all(p <= q <= 1 for p, q in pairs)
    assert [q for _, q in pairs] == sorted(q for _, q in pairs)


@given(st.floats(0.3, 4), st.floats(0.01, 0.5), st.sampled_from([2.0, None]))
def test_p_below_one_in_forty_is_the_interval_on_the_claimed_side(
    ratio: float, noise: float, threshold: float | None
) -> None:
    role = "near_parity" if threshold is None else "secondary"
    d = _around(ratio, noise)
    p = claim_p(_forecast("a", role, threshold), d)
    low, high = (math.exp(end) for end in t_interval(d) if end is not None)
    inside = low > threshold if threshold else low > 0.5 and high < 3
    assert p is not None
    if abs(p - 0.025) > 1e-9:
        assert (p < 0.025) == inside


def test_one_primary_is_not_corrected_and_two_are() -> None:
    a, b = ("a", "reprefill"), ("b", "reprefill")
    d = {a: _around(2.1), b: _around(2.2)}
    one = adjusted_claims(_expectation(_forecast("a", "primary", 2.0)), "m", d)
    two = adjusted_claims(
        _expectation(_forecast("a", "primary", 2.0), _forecast("b", "primary", 2.0)), "m", d
    )
    raw, alone = one[a]
    assert raw is not None and alone == raw
    assert two[a][0] == raw
    assert two[a][1] == pytest.approx(max(raw, 2 * (two[b][0] or 0)))


def test_families_are_apart_and_as_they_were_registered() -> None:
    forecasts = (
        _forecast("a", "primary", 2.0),
        _forecast("b", "secondary", 2.0),
        _forecast("c", "near_parity", None),
        _forecast("never measured", "secondary", 2.0),
    )
    a, b, c = (("a", "reprefill"), ("b", "reprefill"), ("c", "reprefill"))
    d = {a: _around(2.2), b: _around(2.2), c: _around(1.0, 1.2)}
    found = adjusted_claims(_expectation(*forecasts), "m", d)
    raw = claim_p(forecasts[1], d[b])
    assert raw is not None and found[a][1] == raw
    assert found[b][0] == raw and found[b][1] == pytest.approx(3 * raw)
    assert found["never measured", "reprefill"] == (None, None)
    assert ("control", "reprefill") not in found and adjusted_claims(
        _expectation(*forecasts), "other", d
    ) == {}


def test_no_interval_no_p() -> None:
    assert claim_p(_forecast("a", "primary", 2.0), np.zeros(10)) is None
    assert claim_p(_forecast("a", "primary", 2.0), np.array([1.0])) is None
