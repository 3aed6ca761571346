"""Does it matter which of two arms ran first in a block?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipelines.analysis.ratios import CONFIDENCE, Floats, no_interval_reason
from pipelines.analysis.student import welch

ALPHA: Final = 0.05


@dataclass(frozen=True)
class OrderEffect:
    """Ratio where the treatment ran first over the ratio where the baseline did.

    1 means that order does not matter. `low`, `high` and the two-sided `p` are Welch's, over
    blocks. None, with a `reason`, where either group has fewer than two blocks.
    """

    n_treatment_first: int
    n_baseline_first: int
    effect: float | None
    low: float | None
    high: float | None
    p: float | None
    reason: str | None


def order_effect(treatment_first: Floats, baseline_first: Floats) -> OrderEffect:
    """Compare log block ratios of the blocks in either order."""
    n = len(treatment_first), len(baseline_first)
    for name, group in (("treatment", treatment_first), ("baseline", baseline_first)):
        cause = no_interval_reason(group)
        if cause is not None:
            return OrderEffect(*n, None, None, None, None, f"{name} first: {cause}")
    *interval, p = welch(treatment_first, baseline_first, CONFIDENCE)
    effect, low, high = np.exp(interval).tolist()
    return OrderEffect(*n, effect, low, high, p, reason=None)


def sentence(found: OrderEffect, p_adjusted: float | None, baseline: str, treatment: str) -> str:
    """What the comparison says; `p_adjusted` is Holm's over the points of the run."""
    if found.effect is None or p_adjusted is None:
        return f"Whether the order of the arms matters is not known ({found.reason})."
    numbers = (
        f"{found.effect:.3f} (95 % interval {found.low:.3f} to {found.high:.3f},"
        f" p = {p_adjusted:.2g} after Holm's correction over the points)"
    )
    compared = (
        f"the ratio in the {found.n_treatment_first} blocks where {treatment} ran before"
        f" {baseline}, divided by that in the {found.n_baseline_first} other blocks, is {numbers}"
    )
    if p_adjusted < ALPHA:
        return f"The order of the arms matters here: {compared}."
    return f"No effect of the order of the arms was found: {compared}."
