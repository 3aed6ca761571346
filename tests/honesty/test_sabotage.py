"""Every way to cheat that we could think of, and the rule that says so."""

from __future__ import annotations

import inspect
from typing import Final

import pytest
import sabotage
from laboratory import Findings, Laboratory
from simulated import Machine

CONTROL_GATE: Final = "the parity control failed"
REPEAT_GATE: Final = "the A/A gate failed"
CLOSURE: Final = "not explained"

CATALOGUE: Final[dict[type[Machine], tuple[str, str]]] = {
    sabotage.SleepsBeforeFirstToken: ("parity control", CONTROL_GATE),
    sabotage.SparesControlAndSleepsBefore: ("closure", CLOSURE),
    sabotage.SleepsAfterFirstToken: ("parity control", CONTROL_GATE),
    sabotage.SparesControlAndSleepsAfter: ("closure", CLOSURE),
    sabotage.FewThreads: ("parity control", CONTROL_GATE),
    sabotage.SparesControlAndFewThreads: ("closure", CLOSURE),
    sabotage.FavouredTreatment: ("A/A", REPEAT_GATE),
    sabotage.SmallBatch: ("parity control", CONTROL_GATE),
    sabotage.SparesControlAndSmallBatch: ("closure", CLOSURE),
    sabotage.LessWarmUp: ("parity control", CONTROL_GATE),
    sabotage.AnotherModelFile: ("parity control", CONTROL_GATE),
    sabotage.ComputesTwice: ("parity control", CONTROL_GATE),
    sabotage.SparesControlAndComputesTwice: ("closure", CLOSURE),
    sabotage.CacheOn: ("receipt", "reprefill hop 1: 8 tokens evaluated, 27 expected; 19 reused"),
    sabotage.ComputesAgain: ("receipt", "live_kv hop 1: 11 tokens evaluated, 8 expected"),
    sabotage.FedText: ("digest", "the arms differ in their tokens at hop 0"),
    sabotage.ExtraTokens: ("digest", "the arms differ in their tokens at hop 0"),
    sabotage.AnotherScript: ("script digest", "the arms were given different scripts"),
    sabotage.TruncatesOutput: ("generated count", "reprefill generated 3 to 3 tokens a turn, 4"),
    sabotage.TerserForAll: ("generated count", "generated 3 to 3 tokens a turn, 4 expected"),
    sabotage.SkipsHop: ("failed step", "reprefill is failed: the process ended"),
    sabotage.ShorterForAll: ("turn count", "live_kv has 2 turns, 3 expected"),
    sabotage.LosesHop: ("turn count", "reprefill has 2 turns, 3 expected"),
    sabotage.ClockBackwards: ("positive time", "reprefill has a time that is not positive"),
    sabotage.Disturbed: ("void rule", "other processes used 50.0% of the CPU, the rule allows 20"),
    sabotage.FrozenClock: ("zero variance", "zero variance over 10 blocks"),
}
"""Each machine with the rule that catches it, and the words in which the rule says so."""


def test_an_honest_machine_is_believed(lab: Laboratory) -> None:
    lab.measure(Machine())
    found = lab.finding()
    assert (found.verdict, found.evidence) == ("CONFIRMED", True)


@pytest.mark.parametrize("cheat", CATALOGUE, ids=lambda cheat: cheat.__name__)
def test_a_sabotage_is_caught(lab: Laboratory, findings: Findings, cheat: type[Machine]) -> None:
    rule, words = CATALOGUE[cheat]
    lab.measure(cheat())
    found = lab.finding()
    said = found.reason(words)
    findings.setdefault("sabotages, and the rule that caught each", []).append(
        (
            inspect.getdoc(cheat) or cheat.__name__,
            f"{rule}: {said.removeprefix('Invalid: ')[:90]} ...",
        )
    )
    assert not found.evidence, f"{found.verdict} in spite of: {said}"
