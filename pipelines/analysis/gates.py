"""What makes a whole run worthless, whatever its ratios: each gate gives its reason or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.analysis.parity import Parity
from pipelines.analysis.repeat import Repeat
from runner.registration import Expectation


def run_gate(
    expectation: Expectation,
    status: str,
    status_reason: str | None,
    void_share: float,
    parities: Sequence[Parity],
    repeated: Mapping[str, Repeat],
    points: Sequence[str],
) -> str | None:
    """Why no point of the run counts, or None; the first gate that fails is the one named.

    Args:
        expectation: which gates there are, and their limits.
        status: ``complete``, or what became of the run instead.
        status_reason: why it is not complete.
        void_share: void blocks / all blocks.
        parities: the parity controls.
        repeated: the A/A ratios, by point.
        points: every point of the run.
    """
    if status != "complete":
        return f"the run is {status}: {status_reason or 'no reason recorded'}"
    return (
        _void_gate(expectation, void_share)
        or _repeat_gate(expectation, repeated, points)
        or _parity_gate(expectation, parities)
    )


def _void_gate(expectation: Expectation, share: float) -> str | None:
    limit = expectation.void.void_blocks_max
    if share > limit:
        return f"{share:.0%} of the blocks are void, more than the {limit:.0%} allowed beforehand"
    return None


def _repeat_gate(
    expectation: Expectation, repeated: Mapping[str, Repeat], points: Sequence[str]
) -> str | None:
    """An A/A ratio is needed at every point, from as many blocks as a claim, and must not differ.

    Holm over the points keeps the chance of losing an honest run to this gate at 5 %.
    """
    arm = expectation.repeat_arm
    if arm is None:
        return None
    same = f"{arm} does the same as {expectation.treatment}"
    for point in points:
        one = repeated.get(point)
        if one is None:
            return f"the A/A gate failed: {arm} was not measured at {point}"
        if one.p is None or one.n_blocks < expectation.blocks_min:
            why = one.reason or f"{one.n_blocks} usable, {expectation.blocks_min} registered"
            return f"the A/A gate failed: {arm} cannot be tested at {point} ({why})"
    apart = [(one.p_adjusted or 0.0, point, one) for point, one in repeated.items() if one.differs]
    if not apart:
        return None
    p, point, one = min(apart, key=lambda item: item[:2])
    return (
        f"the A/A gate failed: {same}, and yet their ratio at {point} is {one.ratio:.3f}"
        f" (p = {p:.2g} after Holm's correction over {len(repeated)} points)"
    )


def _parity_gate(expectation: Expectation, parities: Sequence[Parity]) -> str | None:
    if not parities and not any(one.role == "parity" for one in expectation.forecast):
        return None  # A/A is the control, and was asked before
    if not parities:
        return "no parity control was measured in this run"
    for parity in parities:
        if not parity.shown:
            return f"the parity control failed: {parity.reason}"
    return None


@dataclass(frozen=True)
class Saving:
    """What closure and ceiling say of a point; None where nothing is known, for `reason`."""

    within_bound: bool | None
    share: float | None
    efficiency_low: float | None
    reason: str | None


def saving_gate(expectation: Expectation, found: Saving) -> str | None:
    """Why a point may not be said to save time: what it saved does not add up.

    Asked of a confirmed claim only: where nothing was saved there is nothing to explain. Time saved
    in decode is a part that closure takes as measured. The ceiling does not: both arms decode the
    same tokens at the same depths.
    """
    bound = expectation.unexplained_max
    if bound is None:
        return None
    if found.within_bound is None or found.share is None or found.efficiency_low is None:
        return f"the saving is not explained: {found.reason or 'nothing is known of it'}"
    if not found.within_bound:
        return (
            f"the saving is not explained: calibrated costs leave {found.share:.0%} of it open,"
            f" and to within {bound:.0%} was registered"
        )
    if found.efficiency_low > 1 + bound:
        return (
            f"the saving is not explained: the ratio is at least {found.efficiency_low:.2f} times"
            " what its tokens allow at calibrated costs"
        )
    return None
