"""Each gate is needed: the lie it catches is believed as soon as the gate is taken out.

A gate is taken out as a line of the product's own text. A gate that moves must be found again
here, and one that is no longer needed shows as a lie that is still caught without it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import lies
import pytest
import sabotage
from gates import Cut, Gate
from laboratory import Findings, Laboratory
from simulated import Machine

from runner.records import RecordError

PAIRS: Final = "pairs.sql"
JUDGING: Final = "pipelines.analysis.judging"
SAVING: Final = "pipelines.analysis.gates:saving_gate"
DOUBTS: Final = "runner.proof:doubts"
REPEAT: Final = "pipelines.analysis.gates:_repeat_gate"

GATES: Final = (
    Gate(
        "void rule",
        lies.told_by(sabotage.Disturbed),
        "the rule allows 20.0%",
        (
            Cut("runner.harvest:void_blocks", "if reason:", "if False:"),
            Cut(PAIRS, "when disturbance is not null", "when false"),
        ),
    ),
    Gate(
        "share of void blocks",
        lies.told_by(sabotage.Disturbed),
        "30% of the blocks are void, more than the 10% allowed",
        (Cut("pipelines.analysis.gates:_void_gate", "if share > limit:", "if False:"),),
    ),
    Gate(
        "receipts",
        lies.told_by(sabotage.CacheOn),
        "tokens evaluated, 27 expected",
        (Cut(PAIRS, "else k.receipt_fault", "else null"),),
    ),
    Gate(
        "digests of the ids",
        lies.told_by(sabotage.SparesControlAndFedText),
        "the arms differ in their tokens at hop 0",
        (Cut(PAIRS, "when digest_hop is not null", "when false"),),
    ),
    Gate(
        "digest of the script",
        lies.told_by(sabotage.AnotherScript),
        "the arms were given different scripts",
        (
            Cut(PAIRS, "when treat.script_digest <> base.script_digest", "when false"),
            Cut(PAIRS, "when digest_hop is not null", "when false"),
        ),
    ),
    Gate(
        "number of turns",
        lies.told_by(sabotage.ShorterForAll),
        "has 2 turns, 3 expected",
        (
            Cut(
                PAIRS,
                "when coalesce(s.n_hop_rows, 0) <> b.n_hops + 1 or s.first_hop <> 0"
                " or s.last_hop <> b.n_hops",
                "when false",
            ),
        ),
    ),
    Gate(
        "number of generated tokens",
        lies.told_by(sabotage.TerserForAll),
        "generated 3 to 3 tokens a turn, 4 expected",
        (
            Cut(
                PAIRS,
                "when s.n_generated_min <> b.n_generate or s.n_generated_max <> b.n_generate",
                "when false",
            ),
        ),
    ),
    Gate(
        "parity control",
        lies.told_by(sabotage.SlowControl),
        "the parity control failed",
        (Cut("pipelines.analysis.gates:_parity_gate", "if not parity.shown:", "if False:"),),
    ),
    Gate(
        "parity control is there",
        lies.without_control,
        "no parity control was measured",
        (Cut("pipelines.analysis.gates:_parity_gate", "if not parities:", "if False:"),),
    ),
    Gate(
        "A/A",
        lies.told_by(sabotage.FavouredTreatment),
        "the A/A gate failed: live_kv_again does the same",
        (Cut(REPEAT, "if not apart:", "if True:"),),
    ),
    Gate(
        "A/A is there",
        lies.without("live_kv_again"),
        "live_kv_again was not measured",
        (
            Cut(
                REPEAT,
                "if one is None:",
                "if one is None:\n            continue\n        if False:",
            ),
        ),
    ),
    Gate(
        "fewest blocks",
        lies.few_blocks,
        "5 usable, 6 registered",
        (
            Cut(REPEAT, "one.n_blocks < expectation.blocks_min", "False"),
            Cut(
                "pipelines.analysis.verdicts:judge",
                "if found.n_blocks < expectation.blocks_min:",
                "if False:",
            ),
        ),
    ),
    Gate(
        "registration",
        lies.exploratory,
        "Exploratory, not evidence: not committed",
        (
            Cut(
                f"{JUDGING}:_refusal",
                'if run.registration_status == "exploratory":',
                "if False:",
            ),
            Cut(
                f"{JUDGING}:_refusal",
                'if run.registration_status != "registered":',
                "if False:",
            ),
        ),
    ),
    Gate(
        "digest of the expectation",
        lies.moved_goalposts,
        "is not the file this run was registered under",
        (
            Cut(
                f"{JUDGING}:_judge_run",
                'known.get(run.expectation_digest or "")',
                "next(iter(known.values()))",
            ),
        ),
    ),
    Gate(
        "complete runs only",
        lies.spoilt(lies.rewrite("run", lies.aborted)),
        "the run is aborted: killed",
        (Cut("pipelines.analysis.gates:run_gate", 'if status != "complete":', "if False:"),),
    ),
    Gate(
        "zero variance",
        lies.told_by(sabotage.FrozenClock),
        "zero variance over 10 blocks",
        (Cut("pipelines.analysis.ratios:no_interval_reason", "np.ptp(d) <= 1e-12", "False"),),
    ),
    Gate(
        "numbers are finite, at the reader",
        lies.spoilt(lies.rewrite("blocks", lies.with_nan)),
        "holds NaN or infinity in blocks.decode_s",
        (Cut("pipelines.sources:_check_finite", "if finite is False:", "if False:"),),
    ),
    Gate(
        "a measurement counts once",
        lies.row_twice,
        "a measurement may count once",
        (Cut("pipelines.sources:_check_unique", "if count > 1:", "if False:"),),
    ),
    Gate(
        "planned blocks are all there",
        lies.dropped_blocks,
        "30% of the blocks are void",
        (
            Cut(
                "measures.sql",
                "greatest(count(*), any_value(blocks_planned) * count(distinct point))",
                "count(*)",
            ),
        ),
    ),
    Gate(
        "closure",
        lies.told_by(sabotage.SparesControlAndComputesTwice),
        "the saving is not explained: calibrated costs leave 62% of it open",
        (
            Cut(SAVING, "if not found.within_bound:", "if False:"),
            Cut(SAVING, "if found.efficiency_low > 1 + bound:", "if False:"),
        ),
    ),
    Gate(
        "ceiling",
        lies.told_by(sabotage.SparesControlAndSleepsAfter),
        "the saving is not explained: the ratio is at least 1.33 times what its tokens allow",
        (Cut(SAVING, "if found.efficiency_low > 1 + bound:", "if False:"),),
    ),
    Gate(
        "calibration is there",
        lies.told_by(Machine, calibration=False),
        "the saving is not explained: the run has no calibration",
        (Cut(SAVING, "if bound is None:", "if True:"),),
    ),
    Gate(
        "companions",
        lies.one_block_decides,
        "but its companions disagree",
        (Cut("pipelines.analysis.verdicts:_verdict", "if against is not None:", "if False:"),),
        leaves_open=True,
    ),
    Gate(
        "many claims",
        lies.one_of_many,
        "not among all claims of its kind",
        (
            Cut(
                "pipelines.analysis.verdicts:_verdict",
                "if p_adjusted is None or p_adjusted >= ALPHA:",
                "if False:",
            ),
        ),
        leaves_open=True,
    ),
    Gate(
        "ledger: the run was started in it",
        lies.never_started,
        "it was never started in the ledger",
        (Cut(DOUBTS, "return [_absent(ledgers, run_id, machine_key)]", "return []"),),
    ),
    Gate(
        "ledger: the files are those it ended with",
        lies.changed_afterwards,
        "blocks.parquet is not the file it ended with",
        (Cut(DOUBTS, "found += _altered(closed, folder)", "pass"),),
    ),
)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_catches_what_is_believed_without_it(
    lab: Laboratory, tmp_path: Path, findings: Findings, gate: Gate
) -> None:
    gate.lie(lab)
    found = lab.finding()
    said = found.reason(gate.says)
    assert not gate.lets_pass(found), f"with the gate it is {found.verdict}: {found.said}"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # Without its gate, scipy itself warns of a sample without variance; nobody reads that.
        warnings.simplefilter("ignore", RuntimeWarning)
        for cut in gate.cuts:
            cut.apply(patch, tmp_path / "sql")
        other = Laboratory(tmp_path / "without")
        other.register()
        gate.lie(other)
        without = other.finding()
    assert gate.lets_pass(without), f"it is caught without the gate too: {without.said}"
    lines = findings.setdefault("gates: caught with it, and the verdict without it", [])
    lines.append(
        (gate.name, f"{without.verdict} without; with: {said.removeprefix('Invalid: ')[:80]} ...")
    )


def test_the_writer_refuses_what_is_not_a_number(lab: Laboratory) -> None:
    with pytest.raises(RecordError, match=r"blocks\.decode_s is nan"):
        lab.measure(sabotage.ReportsNaN())
    assert not lab.finding().evidence


def test_an_honest_machine_passes_every_gate(lab: Laboratory) -> None:
    lab.measure(Machine())
    assert lab.finding().evidence
