"""Two runs side by side: what differs around them first, then each arm at each shared point.

Seconds are only held together where machine and model are the same; everything else that differs
(library, settings, harness) is what a comparison is made for, and is named.

The grade of an arm at a point comes from Welch's interval on the difference of mean log seconds
over the used blocks: *level* where the whole interval lies within `PRACTICAL` of 1, else *faster*
or *slower* where it excludes 1, else *unclear*: the blocks cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from pipelines.analysis.environment import Value, environment_difference
from pipelines.analysis.ratios import Floats
from pipelines.analysis.student import welch

PRACTICAL: Final = 0.02
CONFIDENCE: Final = 0.95
# What no setting of ours changes: with another of these, seconds compare machines or models.
MACHINE: Final = ("machine_key", "platform", "cpu", "physical_cores", "logical_cores", "gpu")
MODEL: Final = ("model_sha256",)

FUTILE: Final = "a ratio of their times would say nothing of the software"
COMMIT: Final = "harness_commit"

Grade = Literal["faster", "slower", "level", "unclear"]
Difference = tuple[str, Value, Value]


@dataclass(frozen=True)
class Compared:
    """One arm at one point: seconds of the second run / seconds of the first, with its interval."""

    ratio: float
    low: float | None
    high: float | None
    n_first: int
    n_second: int
    grade: Grade

    @property
    def columns(self) -> dict[str, Any]:
        """As columns of table ``comparisons``, in their order."""
        return asdict(self)


def refusal(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Why the seconds of two rows of table run may not be held together; None: they may."""
    for names, said in ((MACHINE, "different machines"), (MODEL, "different models")):
        for name in names:
            if one[name] != other[name]:
                return (
                    f"{said}: {name} is {one[name]} in {one['run_id']} and {other[name]} in"
                    f" {other['run_id']}; {FUTILE}"
                )
    return None


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """What differs between two rows of table run, the harness's commit included, by name."""
    found = environment_difference(one, other)
    if one[COMMIT] != other[COMMIT]:
        found = sorted([*found, (COMMIT, one[COMMIT], other[COMMIT])])
    return found


def compare(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> Compared:
    """Hold the seconds of two runs together, one value a block, all positive, at least one each."""
    a, b = np.log(np.asarray(first, float)), np.log(np.asarray(second, float))
    gap = float(b.mean() - a.mean())
    low, high = _interval(a, b, gap)
    return Compared(
        ratio=float(np.exp(gap)),
        low=None if low is None else float(np.exp(low)),
        high=None if high is None else float(np.exp(high)),
        n_first=len(a),
        n_second=len(b),
        grade=_grade(low, high),
    )


def _interval(a: Floats, b: Floats, gap: float) -> tuple[float | None, float | None]:
    if min(len(a), len(b)) < 2:
        return None, None
    if a.std() == 0 and b.std() == 0:
        return gap, gap
    found = welch(b, a, CONFIDENCE)
    return found.low, found.high


def _grade(low: float | None, high: float | None) -> Grade:
    if low is None or high is None:
        return "unclear"
    margin = float(np.log1p(PRACTICAL))
    if -margin <= low and high <= margin:
        return "level"
    if high < 0:
        return "faster"
    return "slower" if low > 0 else "unclear"
