"""Does the saving of a point add up? Seconds saved = prefill avoided + decode difference + rest.

The share of the saved time that is the rest is held against a bound in two ways:

* `explained`, the rule to the letter: the mean share is at most the bound, and its interval does
  not exclude 0.
* `within_bound`: the whole interval lies within the bound, both ways.

A page should gate on `within_bound`. "The interval contains 0" is passed by noise and failed by
precision: few or scattered blocks always contain 0, and tight ones exclude it for half a percent
of model error that no reader cares about. It is the fault that the equivalence test of the parity
control avoids, and it is avoided in the same way: what is to be shown is closeness to 0. Noise
cannot pass it, and `explained` stands beside it as the finer question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipelines.analysis.ratios import Floats, no_interval_reason, t_interval

UNEXPLAINED_MAX: Final = 0.05
"""The bound where no expectation names one."""


@dataclass(frozen=True)
class SavedBlock:
    """Seconds of one block: both walls on one clock, and what calibration and decode explain."""

    block: int
    base_s: float
    treat_s: float
    avoided_s: float
    decode_s: float

    @property
    def saved_s(self) -> float:
        """What the treatment took less than the baseline."""
        return self.base_s - self.treat_s

    @property
    def other_s(self) -> float:
        """What neither avoided prefill nor decode explains."""
        return self.saved_s - self.avoided_s - self.decode_s


@dataclass(frozen=True)
class Closure:
    """Means over blocks, in seconds a session; the share is the mean of the blocks' shares."""

    n_blocks: int
    base_s: float | None
    treat_s: float | None
    saved_s: float | None
    avoided_s: float | None
    decode_s: float | None
    other_s: float | None
    unexplained_share: float | None
    unexplained_low: float | None
    unexplained_high: float | None
    explained: bool | None
    within_bound: bool | None
    reason: str | None


def no_closure(reason: str) -> Closure:
    """A point of which nothing can be said, and why."""
    return Closure(0, *(None,) * 11, reason)


def close(blocks: Sequence[SavedBlock], bound: float) -> Closure:
    """Hold the unexplained share of `blocks` against `bound`; `blocks` must not be empty.

    Where a block saved nothing there is no share of it, and the point has none.
    """
    lost = [one.block for one in blocks if one.saved_s <= 0]
    share = low = high = None
    reason: str | None = f"live KV saved no time in block {lost[0]}" if lost else None
    if not lost:
        shares = np.array([one.other_s / one.saved_s for one in blocks])
        share = float(shares.mean())
        low, high = t_interval(shares)
        reason = no_interval_reason(shares)
    explained = within = None
    if share is not None and low is not None and high is not None:
        explained = abs(share) <= bound and low <= 0 <= high
        within = -bound <= low and high <= bound
    return Closure(
        n_blocks=len(blocks),
        base_s=_mean([one.base_s for one in blocks]),
        treat_s=_mean([one.treat_s for one in blocks]),
        saved_s=_mean([one.saved_s for one in blocks]),
        avoided_s=_mean([one.avoided_s for one in blocks]),
        decode_s=_mean([one.decode_s for one in blocks]),
        other_s=_mean([one.other_s for one in blocks]),
        unexplained_share=share,
        unexplained_low=low,
        unexplained_high=high,
        explained=explained,
        within_bound=within,
        reason=reason,
    )


def _mean(values: Sequence[float]) -> float:
    array: Floats = np.array(values)
    return float(array.mean())
