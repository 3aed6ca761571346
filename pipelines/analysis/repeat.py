"""A/A: the treatment against itself, in a process of its own. Any difference is the harness's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipelines.analysis.multiplicity import holm
from pipelines.analysis.parity import Parity, equivalence
from pipelines.analysis.ratios import Floats, no_interval_reason
from pipelines.analysis.student import two_sided_p

ALPHA: Final = 0.05


@dataclass(frozen=True)
class Repeat:
    """One point's A/A ratio. `p`: two-sided t test against 1; `p_adjusted`: Holm's, over points.

    `parity` is the equivalence test, which is reported and gates nothing. Where there is no test,
    `reason` says why.
    """

    n_blocks: int
    ratio: float | None
    p: float | None
    p_adjusted: float | None
    parity: Parity
    reason: str | None

    @property
    def differs(self) -> bool:
        """Whether two equal arms were told apart."""
        return self.p_adjusted is not None and self.p_adjusted < ALPHA


def repeats(measured: Mapping[str, Floats], margin: float) -> dict[str, Repeat]:
    """Test every point's A/A log block ratios; `margin` is that of the equivalence test."""
    p = [_p(d) for d in measured.values()]
    return {
        point: Repeat(
            n_blocks=len(d),
            ratio=float(np.exp(d.mean())) if len(d) else None,
            p=raw,
            p_adjusted=adjusted,
            parity=equivalence(d, margin),
            reason=no_interval_reason(d),
        )
        for (point, d), raw, adjusted in zip(measured.items(), p, holm(p), strict=True)
    }


def _p(d: Floats) -> float | None:
    if no_interval_reason(d) is not None:
        return None
    return two_sided_p(d)
