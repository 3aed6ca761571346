"""Interval of a ratio of totals, by Fieller's theorem: no kept library has it for paired times.

Source: E. C. Fieller, "Some problems in interval estimation", Journal of the Royal Statistical
Society B 16 (1954), 175 to 185. The interval holds every ratio r that a paired t test does not
reject: with means b and t, their variances and covariance (each over n), and the quantile q of
Student's t at n - 1 degrees of freedom, those with

    (b - r t)^2  <=  q^2 (var_b - 2 r cov + r^2 var_t)

which is a quadratic in r with a = t^2 - q^2 var_t, h = b t - q^2 cov and c = b^2 - q^2 var_b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.analysis.student import quantile


@dataclass(frozen=True)
class Fieller:
    """`low` and `high` of the ratio of totals, or None and the `reason` there is no interval."""

    low: float | None
    high: float | None
    reason: str | None


def fieller(
    base_s: NDArray[np.float64], treat_s: NDArray[np.float64], confidence: float
) -> Fieller:
    """Two-sided interval of sum(`base_s`) / sum(`treat_s`), blocks paired, in at least two of them.

    Where a total cannot be told from zero the interval has no upper end (treatment) or holds
    ratios that times cannot have (baseline): neither is an interval, so both are None.
    """
    n = len(base_s)
    square = quantile(confidence, n - 1) ** 2 / n
    base, treat = float(base_s.mean()), float(treat_s.mean())
    ((var_base, cov), (_, var_treat)) = np.cov(base_s, treat_s).tolist()
    a = treat**2 - square * var_treat
    c = base**2 - square * var_base
    if a <= 0 or c <= 0:
        which = "treatment" if a <= 0 else "baseline"
        return Fieller(
            None, None, f"ratio of totals unbounded: the {which} total is not told from 0"
        )
    h = base * treat - square * cov
    # The roots are positive, so h is. Their product is c / a: this way nothing cancels, and
    # swapped labels give exactly the inverse.
    far = h + max(h**2 - a * c, 0.0) ** 0.5
    return Fieller(c / far, far / a, None)
