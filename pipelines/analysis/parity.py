"""Parity is shown by two one-sided tests against a margin, not by an interval that holds 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipelines.analysis.ratios import Floats, no_interval_reason
from pipelines.analysis.student import one_sided_p

ALPHA: Final = 0.05


@dataclass(frozen=True)
class Parity:
    """Result of the equivalence test; `p` is the larger of the two one-sided p values."""

    margin: float
    p: float | None
    shown: bool
    reason: str


def equivalence(d: Floats, margin: float) -> Parity:
    """Test that exp(mean of `d`) lies within 1 - `margin` to 1 + `margin`.

    Noise cannot pass it: too few or too scattered blocks leave parity not shown.

    Raises:
        ValueError: the margin is not between 0 and 1.
    """
    if not 0 < margin < 1:
        raise ValueError(f"parity margin {margin} is not between 0 and 1")
    cause = no_interval_reason(d)
    if cause is not None:
        return Parity(margin, None, shown=False, reason=cause)
    above = one_sided_p(d, float(np.log1p(-margin)), "greater")
    below = one_sided_p(d, float(np.log1p(margin)), "less")
    p = max(above, below)
    shown = p < ALPHA
    said = "within" if shown else "not shown to be within"
    ratio = float(np.exp(d.mean()))
    return Parity(
        margin,
        p,
        shown,
        f"ratio {ratio:.3f} {said} 1 ± {margin:g} (two one-sided tests, p = {p:.3g})",
    )
