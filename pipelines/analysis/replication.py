"""Was a number measured twice under one expectation on one machine, and did it come out again?

Rule: two runs agree at a point when they have the same verdict there, and their mean log ratios
differ by no more than the runs' own scatter allows (Welch's t test over blocks, p at least 0.05)
or by no more than 1 % of the ratio, which nobody acts on. The second part keeps very precise runs
from disagreeing about nothing; the first lets scattered runs agree easily, which their intervals
show. With more than two runs the newest is held against every earlier one, and a single
disagreement stands: measuring again until two runs agree does not clear it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from pipelines.analysis.ratios import CONFIDENCE, Floats
from pipelines.analysis.student import welch

ALPHA: Final = 0.05
PRACTICAL: Final = 0.01

State = Literal["provisional", "replicated", "disagree"]


@dataclass(frozen=True)
class Measured:
    """One valid registered run at one point: its log block ratios `d` and verdict."""

    run_id: str
    verdict: str
    d: Floats

    @property
    def ratio(self) -> float:
        """Baseline time / treatment time."""
        return float(np.exp(self.d.mean()))


@dataclass(frozen=True)
class Replication:
    """The newest run beside the earlier one it is told about: the first to disagree, or the last.

    `difference`: newest ratio / earlier ratio, with Welch's two-sided `p`. None with one run.
    """

    state: State
    newest_ratio: float
    earlier_run: str | None
    earlier_ratio: float | None
    difference: float | None
    p: float | None
    sentence: str


def replication(runs: Sequence[Measured]) -> Replication:
    """Compare the runs of one point, newest first; there is at least one, with an interval each."""
    newest, *earlier = runs
    if not earlier:
        said = "Provisional: measured in one run; no second run of it on this machine is known."
        return Replication("provisional", newest.ratio, None, None, None, None, said)
    compared = [_compare(newest, one) for one in earlier]
    against = [one for one in compared if one.state == "disagree"]
    return (against or compared)[0]


def _compare(newest: Measured, earlier: Measured) -> Replication:
    gap, _, _, p = welch(newest.d, earlier.d, CONFIDENCE)
    near = p >= ALPHA or abs(gap) <= float(np.log1p(PRACTICAL))
    agree = near and newest.verdict == earlier.verdict
    state: State = "replicated" if agree else "disagree"
    return Replication(
        state,
        newest.ratio,
        earlier.run_id,
        earlier.ratio,
        float(np.exp(gap)),
        p,
        f"{_SAID[state]}: the newest run measured {newest.ratio:.2f} ({newest.verdict}),"
        f" {earlier.run_id} {earlier.ratio:.2f} ({earlier.verdict}); the two differ by"
        f" {abs(float(np.expm1(gap))):.1%} (p = {p:.2g}, over blocks).",
    )


_SAID: Final = {
    "replicated": "Replicated on this machine",
    "disagree": "The runs of this machine disagree",
}
