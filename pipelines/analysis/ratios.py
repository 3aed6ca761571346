"""One ratio and its companions from per-block times: the block is the unit, nothing is pooled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipelines.analysis.fieller import Fieller, fieller
from pipelines.analysis.student import quantile

CONFIDENCE: Final = 0.95

# All 2^n signs are tried up to 13 blocks; beyond, as many of them as this, by a fixed seed.
SIGN_FLIPS: Final = 9999
_EXACT: Final = 13
_SIGN_FLIP_SEED: Final = 20261201

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RatioSummary:
    """Baseline time / treatment time over blocks; an interval that cannot be had is None.

    Ratios have no unit, `saved_*` are seconds a block. `low`, `high`: t interval on the mean log
    block ratio. `median_low`, `median_high`: exact (binomial) interval of the median block ratio,
    which needs six blocks. `total_ratio`: all baseline seconds / all treatment seconds, with its
    Fieller interval. `sign_flip_p`: two-sided p of a ratio of 1, by flipping the labels of whole
    blocks; it assumes no distribution. `reason`: why the t interval, or else that of the totals,
    is missing.
    """

    n_blocks: int
    ratio: float | None
    low: float | None
    high: float | None
    median_ratio: float | None
    median_low: float | None
    median_high: float | None
    total_ratio: float | None
    total_low: float | None
    total_high: float | None
    saved_s: float | None
    saved_low_s: float | None
    saved_high_s: float | None
    sign_flip_p: float | None
    reason: str | None


_EMPTY: Final = RatioSummary(0, *(None,) * 13, "no usable block")


def summarise(base_s: Floats, treat_s: Floats) -> RatioSummary:
    """Summarise matched blocks; `base_s[i]` and `treat_s[i]` are seconds of one block.

    Raises:
        ValueError: lengths differ, or a time is not a positive finite number.
    """
    _check(base_s, treat_s)
    n = len(base_s)
    if n == 0:
        return _EMPTY
    d = log_ratios(base_s, treat_s)
    saved = base_s - treat_s
    low, high = t_interval(d)
    median_low, median_high = median_interval(d)
    total = total_interval(base_s, treat_s)
    saved_low, saved_high = t_interval(saved)
    return RatioSummary(
        n_blocks=n,
        ratio=float(np.exp(d.mean())),
        low=_exp(low),
        high=_exp(high),
        median_ratio=float(np.exp(np.median(d))),
        median_low=_exp(median_low),
        median_high=_exp(median_high),
        total_ratio=float(base_s.sum() / treat_s.sum()),
        total_low=total.low,
        total_high=total.high,
        saved_s=float(saved.mean()),
        saved_low_s=saved_low,
        saved_high_s=saved_high,
        sign_flip_p=sign_flip_p(d),
        reason=total.reason,
    )


def log_ratios(base_s: Floats, treat_s: Floats) -> Floats:
    """Log block ratios d = ln(baseline) - ln(treatment); swapped labels only change the sign."""
    result: Floats = np.log(base_s) - np.log(treat_s)
    return result


def no_interval_reason(d: Floats) -> str | None:
    """Why there is no interval on `d`, or None when there is one."""
    if len(d) < 2:
        return f"not enough blocks: {len(d)}, an interval needs 2"
    # Equal times to the last bit come from a copied or constant clock, never from a machine.
    if np.ptp(d) <= 1e-12:
        return f"zero variance over {len(d)} blocks: these are not {len(d)} measurements"
    return None


def t_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float | None, float | None]:
    """Two-sided t interval of the mean of `values`; (None, None) when there is none."""
    if no_interval_reason(values) is not None:
        return None, None
    n = len(values)
    half = quantile(confidence, n - 1) * float(values.std(ddof=1)) / n**0.5
    return float(values.mean()) - half, float(values.mean()) + half


def median_interval(d: Floats) -> tuple[float | None, float | None]:
    """Exact distribution-free interval of the median of `d`; (None, None) under six blocks."""
    if no_interval_reason(d) is not None:
        return None, None
    ranks = _median_ranks(len(d))
    if ranks is None:
        return None, None
    low, high = np.sort(d)[[*ranks]].tolist()
    return low, high


@cache
def _median_ranks(n: int) -> tuple[int, int] | None:
    """Which of `n` sorted values end the interval: that depends on their number alone."""
    # The stubs say float; scipy gives a named pair.
    found: Any = stats.quantile_test(np.arange(n, dtype=float), q=0.0, p=0.5).confidence_interval(
        CONFIDENCE
    )
    ends = float(found.low), float(found.high)
    return (int(ends[0]), int(ends[1])) if np.isfinite(ends).all() else None


def total_interval(base_s: Floats, treat_s: Floats) -> Fieller:
    """Fieller interval of the ratio of totals; without one, and its reason, where `d` has none."""
    cause = no_interval_reason(log_ratios(base_s, treat_s))
    return fieller(base_s, treat_s, CONFIDENCE) if cause is None else Fieller(None, None, cause)


def sign_flip_p(d: Floats) -> float | None:
    """Two-sided p that the mean of `d` is 0, every block's label flipped on its own.

    Exact up to 13 blocks, above that drawn with a fixed seed. None where `d` has no interval.
    """
    if no_interval_reason(d) is not None:
        return None
    observed = abs(float(d.mean()))
    means = np.abs(_signs(len(d)) @ d) / len(d)
    # What is equal must not be parted by rounding.
    return float(np.mean(means >= observed * (1 - 1e-12)))


@lru_cache(maxsize=16)
def _signs(n: int) -> Floats:
    """Labellings of `n` blocks, shape (labellings, n), 1 or -1; the measured one is among them."""
    if n <= _EXACT:
        return np.array(list(product((1.0, -1.0), repeat=n)))
    drawn = np.random.default_rng(_SIGN_FLIP_SEED).choice((1.0, -1.0), size=(SIGN_FLIPS, n))
    return np.vstack([np.ones(n), drawn])


def _exp(value: float | None) -> float | None:
    return None if value is None else float(np.exp(value))


def _check(base_s: Floats, treat_s: Floats) -> None:
    if len(base_s) != len(treat_s):
        raise ValueError(
            f"{len(base_s)} baseline and {len(treat_s)} treatment times do not pair up"
        )
    for value in (*base_s, *treat_s):
        if not np.isfinite(value) or value <= 0:
            raise ValueError(f"{value} is not a time in seconds: void the block and say why")
