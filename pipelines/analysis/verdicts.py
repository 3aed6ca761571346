"""What a point's numbers say about what was written down before them, with the sentence for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipelines.analysis.parity import Parity
from pipelines.analysis.ratios import RatioSummary
from runner.registration import Expectation, Forecast

Verdict = Literal["CONFIRMED", "REFUTED", "UNDECIDED", "INVALID"]


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
    return Judgement("INVALID", None, f"Invalid: {reason}.")


def run_gate(
    expectation: Expectation,
    status: str,
    status_reason: str | None,
    void_share: float,
    parity: Parity | None,
) -> str | None:
    """Why no point of the run counts, or None. `void_share`: void blocks / all blocks."""
    if status != "complete":
        return f"the run is {status}: {status_reason or 'no reason recorded'}"
    limit = expectation.void.void_blocks_max
    if void_share > limit:
        return (
            f"{void_share:.0%} of the blocks are void, more than the {limit:.0%} allowed beforehand"
        )
    if parity is None:
        return "no parity control was measured in this run"
    if not parity.shown:
        return f"the parity control failed: {parity.reason}"
    return None


def judge(
    expectation: Expectation, forecast: Forecast, found: RatioSummary, parity: Parity | None
) -> Judgement:
    """Hold one point's summary against its forecast; gates of the whole run come before."""
    if found.n_blocks < expectation.blocks_min:
        return invalid(
            f"not enough blocks: {found.n_blocks} usable, {expectation.blocks_min} registered"
        )
    if found.ratio is None or found.low is None or found.high is None:
        return invalid(found.reason or "no interval")
    hit: Literal["HIT", "MISS"] = "HIT" if forecast.low <= found.ratio <= forecast.high else "MISS"
    verdict, why = _verdict(forecast, found, parity)
    measured = f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f}, {found.n_blocks} blocks)"
    expected = f"forecast {forecast.low:g} to {forecast.high:g}: {hit}"
    return Judgement(verdict, hit, f"{verdict.capitalize()}: {measured} {why}; {expected}.")


def _verdict(forecast: Forecast, found: RatioSummary, parity: Parity | None) -> tuple[Verdict, str]:
    if forecast.role == "parity":
        shown = parity is not None and parity.shown
        return ("CONFIRMED" if shown else "UNDECIDED"), (
            parity.reason if parity else "has no parity test"
        )
    if forecast.threshold is not None:
        return _against_threshold(forecast.threshold, found)
    return _within(forecast, found)


def _against_threshold(threshold: float, found: RatioSummary) -> tuple[Verdict, str]:
    sides = {_side(found.low, found.high, threshold)}
    if found.median_low is not None:
        sides.add(_side(found.median_low, found.median_high, threshold))
    sides.add(_side(found.total_ratio, found.total_ratio, threshold))
    if sides == {"CONFIRMED"}:
        return "CONFIRMED", f"lies wholly above the threshold {threshold:g}"
    if sides == {"REFUTED"}:
        return "REFUTED", f"lies wholly at or below the threshold {threshold:g}"
    if "UNDECIDED" in sides:
        return "UNDECIDED", f"spans the threshold {threshold:g}"
    return "UNDECIDED", f"and its companions disagree about the threshold {threshold:g}"


def _side(low: float | None, high: float | None, threshold: float) -> Verdict:
    if low is not None and low > threshold:
        return "CONFIRMED"
    if high is not None and high <= threshold:
        return "REFUTED"
    return "UNDECIDED"


def _within(forecast: Forecast, found: RatioSummary) -> tuple[Verdict, str]:
    # A point without a threshold (near parity) claims to lie in its forecast interval.
    low, high = found.low or 0.0, found.high or 0.0
    if forecast.low <= low and high <= forecast.high:
        return "CONFIRMED", "lies wholly in what was claimed"
    if high < forecast.low or low > forecast.high:
        return "REFUTED", "lies wholly outside what was claimed"
    return "UNDECIDED", "spans an end of what was claimed"
