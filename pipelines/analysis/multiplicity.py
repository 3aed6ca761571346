"""Many claims, one chance of a false one: Holm's correction, and the p value of a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipelines.analysis.ratios import Floats, no_interval_reason
from pipelines.analysis.student import one_sided_p
from runner.registration import Expectation, Forecast

Pair = tuple[str, str]
"""Point and baseline arm."""


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p values, in the same order.

    A missing p stays missing and counts as 1: what could not be tested makes the rest no easier.
    """
    p = np.array([1.0 if value is None else value for value in values])
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return [
        None if value is None else q for value, q in zip(values, adjusted.tolist(), strict=True)
    ]


def claim_p(forecast: Forecast, d: Floats) -> float | None:
    """One-sided p against what `forecast` claims of exp(mean of `d`); None where `d` has none.

    Below 0.025 exactly when the 95 % t interval lies on the claimed side: above the threshold, or
    for a claim without one (near parity) within both ends of its forecast interval.
    """
    if no_interval_reason(d) is not None:
        return None
    if forecast.threshold is not None:
        return one_sided_p(d, float(np.log(forecast.threshold)), "greater")
    low, high = np.log([forecast.low, forecast.high]).tolist()
    return max(one_sided_p(d, low, "greater"), one_sided_p(d, high, "less"))


def adjusted_claims(
    expectation: Expectation, model: str, measured: Mapping[Pair, Floats]
) -> dict[Pair, tuple[float | None, float | None]]:
    """Per claim about `model` its p, raw and Holm-adjusted; `measured` has d by point and baseline.

    Two families: the primary claims (one alone is not corrected), and secondary with near-parity
    claims. They are those that were registered: a point that was not measured stays a member.
    Parity controls are gates, not claims, and belong to neither.
    """
    found: dict[Pair, tuple[float | None, float | None]] = {}
    for roles in (("primary",), ("secondary", "near_parity")):
        family = [f for f in expectation.forecast if f.model == model and f.role in roles]
        pairs = [(f.point, expectation.baseline_of(f)) for f in family]
        p = [
            claim_p(f, measured[pair]) if pair in measured else None
            for f, pair in zip(family, pairs, strict=True)
        ]
        found |= dict(zip(pairs, zip(p, holm(p), strict=True), strict=True))
    return found
