"""What a point's numbers say about what was written down before them, with the sentence for it.

CONFIRMED: the t interval, the exact median interval and the Fieller interval of the totals all
lie on the claimed side, and the claim's one-sided p stays below 0.025 after Holm's correction
within its family (`multiplicity.adjusted_claims`); one primary claim alone is not corrected.
REFUTED: all three lie beyond. There is no correction against ourselves. UNDECIDED: anything
else, so also where companions disagree. INVALID: a gate failed (`gates`), or too few blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pipelines.analysis.parity import Parity
from pipelines.analysis.ratios import RatioSummary
from pipelines.analysis.repeat import Repeat
from runner.registration import Expectation, Forecast

Verdict = Literal["CONFIRMED", "REFUTED", "UNDECIDED", "INVALID"]

# One-sided, so that it belongs to a two-sided 95 % interval.
ALPHA: Final = 0.025


@dataclass(frozen=True)
class Judgement:
    """A verdict on one point; `verdict` and `forecast` are None where nothing may be said."""

    verdict: Verdict | None
    forecast: Literal["HIT", "MISS"] | None
    sentence: str


def not_evidence(reason: str) -> Judgement:
    """An exploratory run: its numbers are shown, and nothing is concluded from them."""
    return Judgement(None, None, f"Exploratory, not evidence: {reason}.")


def invalid(reason: str) -> Judgement:
    """A gate failed: the number must not be read as an answer."""
    no_answer = "What was measured here is no answer, neither for the claim nor against it"
    return Judgement("INVALID", None, f"Invalid: {reason}. {no_answer}.")


def repeated(expectation: Expectation, arm: str, found: Repeat) -> Judgement:
    """The A/A line of a point: no claim, so no verdict; the gate has spoken before."""
    same = f"A/A: {arm} does the same as {expectation.treatment}"
    if found.ratio is None or found.p_adjusted is None:
        return Judgement(None, None, f"{same}; there is no test ({found.reason}).")
    said = "they differ" if found.differs else "no difference was found"
    test = f"p = {found.p_adjusted:.2g} after Holm's correction over the points"
    equal = "shown" if found.parity.shown else "not shown"
    return Judgement(
        None,
        None,
        f"{same}, and {said}: ratio {found.ratio:.3f} over {found.n_blocks} blocks ({test}). That"
        f" they are equal to within {found.parity.margin:.0%} is {equal} by the equivalence test.",
    )


def judge(
    expectation: Expectation,
    forecast: Forecast,
    found: RatioSummary,
    parity: Parity | None,
    p_adjusted: float | None,
) -> Judgement:
    """Hold one point's summary against its forecast; gates of the whole run come before.

    `parity` is the equivalence test of a parity control, `p_adjusted` the p of any other claim.
    """
    if found.n_blocks < expectation.blocks_min:
        return invalid(
            f"not enough blocks: {found.n_blocks} usable, {expectation.blocks_min} registered"
        )
    if found.ratio is None or found.low is None or found.high is None:
        return invalid(found.reason or "no interval")
    hit: Literal["HIT", "MISS"] = "HIT" if forecast.low <= found.ratio <= forecast.high else "MISS"
    if parity is not None:
        verdict, measured = _parity(found, parity)
    else:
        verdict, why = _verdict(forecast, found, p_adjusted)
        measured = f"it took {found.ratio:.2f} times as long ({_interval(found)}), {why}"
    met = "was met" if hit == "HIT" else "was missed"
    return Judgement(
        verdict,
        hit,
        f"{verdict.capitalize()}: it was claimed that {_claim(expectation, forecast)}; {measured}."
        f" The forecast of {forecast.low:g} to {forecast.high:g} {met} ({hit}).",
    )


def _claim(expectation: Expectation, forecast: Forecast) -> str:
    arms = f"with {expectation.baseline_of(forecast)} as with {expectation.treatment}"
    if forecast.role == "parity":
        margin = f"to within {expectation.parity_margin:.0%}"
        return f"with nothing to reuse, a whole session takes as long {arms}, {margin}"
    if forecast.threshold is not None:
        return f"a whole session takes more than {forecast.threshold:g} times as long {arms}"
    return f"a whole session takes {_range(forecast.low, forecast.high)} times as long {arms}"


def _parity(found: RatioSummary, parity: Parity) -> tuple[Verdict, str]:
    verdict: Verdict = "CONFIRMED" if parity.shown else "UNDECIDED"
    return verdict, f"measured over {found.n_blocks} blocks: {parity.reason}"


def _verdict(
    forecast: Forecast, found: RatioSummary, p_adjusted: float | None
) -> tuple[Verdict, str]:
    verdict = _side(forecast, found.low, found.high)
    if verdict == "UNDECIDED":
        return verdict, f"which does not lie wholly on one side of {_limits(forecast)}"
    against = _disagreement(forecast, found, verdict)
    if against is not None:
        return "UNDECIDED", f"but its companions disagree: {against}"
    if verdict == "REFUTED":
        where = "outside" if forecast.threshold is None else "at or below"
        return verdict, f"wholly {where} {_limits(forecast)}"
    if p_adjusted is None or p_adjusted >= ALPHA:
        said = "no p value" if p_adjusted is None else f"p = {p_adjusted:.2g}"
        return "UNDECIDED", (
            f"which would do for one claim alone, but not among all claims of its kind"
            f" ({said} after Holm's correction, below {ALPHA:g} is needed)"
        )
    where = "within" if forecast.threshold is None else "above"
    return verdict, f"wholly {where} {_limits(forecast)}"


def _disagreement(forecast: Forecast, found: RatioSummary, verdict: Verdict) -> str | None:
    """The companion that does not say `verdict`, if there is one."""
    median = found.median_low, found.median_high
    # Under six blocks the median has no interval; the totals always have one, or a reason.
    if found.median_low is not None and _side(forecast, *median) != verdict:
        return f"the exact interval of the median ratio is {_range(*median)}"
    if found.total_low is None:
        return found.reason or "the ratio of totals has no interval"
    total = found.total_low, found.total_high
    if _side(forecast, *total) != verdict:
        return f"the interval of the ratio of totals is {_range(*total)}"
    return None


def _side(forecast: Forecast, low: float | None, high: float | None) -> Verdict:
    if low is None or high is None:
        return "UNDECIDED"
    if forecast.threshold is not None:
        above = low > forecast.threshold
        return "CONFIRMED" if above else "REFUTED" if high <= forecast.threshold else "UNDECIDED"
    # A claim without a threshold (near parity) is to lie in its forecast interval.
    if forecast.low < low and high < forecast.high:
        return "CONFIRMED"
    return "REFUTED" if high < forecast.low or low > forecast.high else "UNDECIDED"


def _interval(found: RatioSummary) -> str:
    return f"95 % interval {_range(found.low, found.high)}, {found.n_blocks} blocks"


def _limits(forecast: Forecast) -> str:
    if forecast.threshold is not None:
        return f"the threshold {forecast.threshold:g}"
    return f"what was claimed, {forecast.low:g} to {forecast.high:g}"


def _range(low: float | None, high: float | None) -> str:
    return f"{low:.2f} to {high:.2f}" if low is not None and high is not None else "missing"
