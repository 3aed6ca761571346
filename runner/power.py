"""Can so many blocks disappoint a forecast? Asked before it is registered, with a pilot's noise."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from scipy import optimize, stats
from statsmodels.stats.power import TTestPower

from runner.expectations import Expectation, Forecast

POWER: Final = 0.8
ALPHA: Final = 0.025
"""One-sided: the lower end of a two-sided 95 % interval."""
PARITY_ALPHA: Final = 0.05
"""Of each of the two one-sided tests of parity."""
SD_CONFIDENCE: Final = 0.8
BLOCKS_MAX: Final = 1000
_STEPS: Final = 2000
_FEWEST: Final = 2

PerSd = Callable[[int], float]
"""The least log ratio that a number of blocks can tell, in standard deviations."""


@dataclass(frozen=True)
class Noise:
    """What a pilot found at a point: its ratio, and the sd of the log block ratio."""

    n_blocks: int
    ratio: float
    sd: float

    @property
    def planning_sd(self) -> float:
        """What the true sd is below with 80 % confidence.

        The sd of few blocks is too small as often as too large: a plan that believes it falls
        short of its power half of the time.
        """
        free = self.n_blocks - 1
        return self.sd * float(np.sqrt(free / stats.chi2.ppf(1 - SD_CONFIDENCE, free)))


@dataclass(frozen=True)
class PointPower:
    """What can be told of one forecast. `detectable` and `distance` are log ratios.

    `refusal` says why the forecast cannot be disappointed; None: it can.
    """

    forecast: Forecast
    detectable: float | None = None
    distance: float | None = None
    blocks_needed: int | None = None
    refusal: str | None = None


def check_power(
    expectation: Expectation, noise: Mapping[tuple[str, str], Noise]
) -> list[PointPower]:
    """Say of every forecast whether `blocks_min` blocks could disappoint it.

    `noise` is what pilots found, by model and point; a model without a pilot is left out.
    """
    piloted = {model for model, _ in noise}
    return [
        _point_power(expectation, forecast, noise.get((forecast.model, forecast.point)))
        for forecast in expectation.forecast
        if forecast.model in piloted
    ]


def _point_power(expectation: Expectation, forecast: Forecast, noise: Noise | None) -> PointPower:
    if noise is None:
        return PointPower(forecast, refusal="the pilot did not measure it")
    toothless = _toothless(forecast)
    if toothless:
        return PointPower(forecast, refusal=toothless)
    n, sd = expectation.blocks_min, noise.planning_sd
    distance, per_sd = _question(expectation, forecast)
    detectable = per_sd(n) * sd
    if distance is None:
        return PointPower(forecast, detectable)
    needed = _blocks_needed(per_sd, distance / sd)
    refusal = None if detectable <= distance else _too_few(n, detectable, distance, needed)
    return PointPower(forecast, detectable, distance, needed, refusal)


def _toothless(forecast: Forecast) -> str | None:
    """Why no measurement could disappoint the forecast, however fine."""
    low, threshold = forecast.low, forecast.threshold
    if threshold is None or forecast.role == "near_parity":
        return None
    if low <= threshold:
        return f"its forecast begins at {low:g}, not above the threshold {threshold:g}"
    if threshold < 1 < low:
        return f"its threshold {threshold:g} would call a loss a success; make it 1 or more"
    return None


def _question(expectation: Expectation, forecast: Forecast) -> tuple[float | None, PerSd]:
    """The distance that has to be told, None where nothing is claimed, and what tells it."""
    if forecast.role == "parity":
        return float(np.log1p(expectation.parity_margin)), _parity_margin
    if forecast.threshold is None:
        return float(np.log(forecast.high / forecast.low)) / 2, _half_width
    if forecast.role == "near_parity":
        return None, _difference
    return float(np.log(forecast.low / forecast.threshold)), _difference


def _too_few(n: int, detectable: float, distance: float, needed: int | None) -> str:
    enough = f"{needed} blocks would do" if needed else f"{BLOCKS_MAX} blocks would not do either"
    return (
        f"{n} blocks can tell {_percent(detectable)} and it has to tell {_percent(distance)}; "
        f"{enough}, or a bolder forecast"
    )


def _percent(log_ratio: float) -> str:
    return f"{np.expm1(log_ratio):.2%}"


def _blocks_needed(per_sd: PerSd, distance: float) -> int | None:
    """The fewest blocks that tell `distance` (in sd), up to `BLOCKS_MAX`."""
    numbers = range(_FEWEST, BLOCKS_MAX + 1)
    place = bisect_left(numbers, True, key=lambda n: per_sd(n) <= distance)
    return numbers[place] if place < len(numbers) else None


@cache
def _difference(n: int) -> float:
    found = TTestPower().solve_power(
        effect_size=None, nobs=n, alpha=ALPHA, power=POWER, alternative="larger"
    )
    return float(found)


def _parity_margin(n: int) -> float:
    return _margin(n, PARITY_ALPHA)


def _half_width(n: int) -> float:
    return _margin(n, ALPHA)


@cache
def _margin(n: int, alpha: float) -> float:
    """The least margin within which `n` blocks show a ratio that truly is in the middle, in sd."""
    return float(optimize.brentq(lambda margin: equivalence_power(margin, n, alpha) - POWER, 0, 99))


def equivalence_power(margin: float, n: int, alpha: float) -> float:
    """Power of two one-sided t tests of `n` blocks, each at `alpha`, where the truth is 0.

    `margin` is in standard deviations. No kept library has it for a t test; the sample's own sd is
    averaged over its distribution.
    """
    shares = (np.arange(_STEPS) + 0.5) / _STEPS
    sd = np.sqrt(stats.chi2.ppf(shares, n - 1) / (n - 1))
    room = margin * np.sqrt(n) - stats.t.ppf(1 - alpha, n - 1) * sd
    inside = 2 * stats.norm.cdf(np.maximum(room, 0)) - 1
    return float(inside.mean())
