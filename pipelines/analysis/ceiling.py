"""How much of what token counts and calibrated costs allow was reached?

The ceiling of a point is the ratio that its exact token counts would give at the calibrated costs
and nothing else: predicted baseline time / predicted treatment time, of the same block. Efficiency
is the measured ratio / the ceiling; below 1 something costs time that no token explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.analysis.ratios import no_interval_reason, t_interval


@dataclass(frozen=True)
class PredictedBlock:
    """Seconds of one block, measured and predicted; all positive."""

    base_s: float
    treat_s: float
    base_predicted_s: float
    treat_predicted_s: float


@dataclass(frozen=True)
class Ceiling:
    """Ratios without a unit; means and t intervals over blocks, on their logs."""

    n_blocks: int
    ceiling: float | None
    ceiling_low: float | None
    ceiling_high: float | None
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    reason: str | None


def no_ceiling(reason: str) -> Ceiling:
    """A point of which nothing can be said, and why."""
    return Ceiling(0, *(None,) * 6, reason)


def ceiling(blocks: Sequence[PredictedBlock]) -> Ceiling:
    """Ceiling and efficiency of `blocks`, which must not be empty."""
    base, treat, base_predicted, treat_predicted = np.log(
        [[b.base_s, b.treat_s, b.base_predicted_s, b.treat_predicted_s] for b in blocks]
    ).T
    allowed = base_predicted - treat_predicted
    reached = base - treat - allowed
    allowed_low, allowed_high = t_interval(allowed)
    reached_low, reached_high = t_interval(reached)
    return Ceiling(
        n_blocks=len(blocks),
        ceiling=float(np.exp(allowed.mean())),
        ceiling_low=_exp(allowed_low),
        ceiling_high=_exp(allowed_high),
        efficiency=float(np.exp(reached.mean())),
        efficiency_low=_exp(reached_low),
        efficiency_high=_exp(reached_high),
        reason=no_interval_reason(allowed) or no_interval_reason(reached),
    )


def _exp(value: float | None) -> float | None:
    return None if value is None else float(np.exp(value))
