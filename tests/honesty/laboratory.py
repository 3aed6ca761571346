"""A throwaway checkout in which simulated machines measure and the real pipelines judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest
from simulated import Machine

from pipelines.database import Database, Row, open_database
from pipelines.paths import Layout
from pipelines.warehouse import build_warehouse
from runner import catalog
from runner.bench.machine import machine_facts
from runner.bench.schedule import Step
from runner.bringup import BringUp
from runner.building import EngineBuild
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.expectations import Expectation, load_expectation
from runner.harvest import Session, write_run
from runner.journal import Journal
from runner.ledger import Ledger, file_digests
from runner.models import ResolvedModel
from runner.plan import Plan, Request, make_plan
from runner.registration import digest
from runner.sweep import run_step

MODEL: Final = "smollm2-135m"
CLAIM: Final = Point(prefix=16, hops=2, generate=4, result=4)
"""Where live KV is about twice as fast on an honest machine."""
CONTROL: Final = Point(prefix=24, hops=0, generate=4, result=4)
"""One turn, nothing to reuse: both arms do the same work."""
ARMS: Final = ("live_kv", "live_kv_again", "reprefill")

Order = Callable[[Plan], Sequence[Step]]
Findings = dict[str, list[tuple[str, str]]]
"""Lines of the summary by their heading: what was tried, what came of it."""

_EXPECTATION: Final = f"""\
title = "Tool loop, simulated"
claim = "Live KV beats re-prefill."
estimand = "whole session, reprefill / live_kv"
workload = "tool_loop"
treatment = "live_kv"
baseline = "reprefill"
sweep = "reference"
blocks_min = 6
warmup_tokens = 32
parity_margin = 0.05
negative = "a ratio at or below 1"
exclusions = "none"
repeat_arm = "live_kv_again"
unexplained_max = 0.05

[void]
steal_fraction_max = 0.05
other_cpu_fraction_max = 0.2
void_blocks_max = 0.1

[[forecast]]
model = "{MODEL}"
point = "{CLAIM.id}"
role = "primary"
low = 1.8
high = 2.5
threshold = 1.5

[[forecast]]
model = "{MODEL}"
point = "{CONTROL.id}"
role = "parity"
low = 0.97
high = 1.03
"""

_BUILD: Final = EngineBuild(
    lib_dir=Path("build"),
    binding_version="0.3.36",
    llama_cpp_commit=None,
    library_sha256="a" * 64,
    cmake_flags=None,
    source="ours",
)
_PARAMETERS: Final = LoadParameters(
    model_path=Path("model.gguf"),
    model_sha256="b" * 64,
    lib_dir=_BUILD.lib_dir,
    library_sha256=_BUILD.library_sha256,
)


@lru_cache
def _model() -> ResolvedModel:
    model = catalog.models()[MODEL]
    return ResolvedModel(
        model=model,
        path=_PARAMETERS.model_path,
        sha256=_PARAMETERS.model_sha256,
        bytes=98_362_432,
        parameters=None,
        quantisation="Q4_1",
    )


@lru_cache
def _settled() -> Plan:
    """A plan as the command line settles it, before a simulation says what it differs in."""
    return make_plan(
        Request(
            platform="cpu",
            model=MODEL,
            sweep="reference",
            blocks=10,
            seed=1,
            threads=1,
            calibration=False,
            equivalence=False,
            exploratory=True,
        )
    )


_CLAIM: Final = f"""
select verdict, evidence from verdicts
where run_id = ? and point = '{CLAIM.id}' and baseline = 'reprefill'
"""
_SAID: Final = """
select distinct said from (
    select run_id, reason as said from block_pairs
    union all select run_id, sentence from verdicts
    union all select split_part(path, '/', 4), reason from skipped
) where run_id = ? and said is not null order by said
"""
_NO_VERDICT: Final[Row] = {"verdict": None, "evidence": False}


@dataclass(frozen=True)
class Finding:
    """What came of a run: the verdict on `CLAIM`, and everything that was said of the run."""

    verdict: str | None
    evidence: bool
    said: tuple[str, ...]

    def reason(self, words: str) -> str:
        """The sentence that holds `words`; fails where nobody said so."""
        found = [said for said in self.said if words in said]
        assert found, f"nobody said {words!r}: {self.verdict}, {self.said}"
        return found[0]


class Laboratory:
    """Registers an expectation, lets machines measure, builds the warehouse and reads it."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.expectation: Expectation | None = None
        self._digest: str | None = None
        self.ledger = Ledger(self.layout.data / "ledger", machine_facts()["machine_key"])

    def register(self, change: Callable[[str], str] = lambda text: text) -> None:
        """Write the expectation that later runs are registered under, its text changed first."""
        folder = self.layout.data / "expectations"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "simulated.toml"
        path.write_text(change(_EXPECTATION), encoding="utf-8")
        self.expectation = load_expectation(path)
        self._digest = digest(path)

    def plan(self, name: str, **settled: Any) -> Plan:
        """The plan of run `name`, registered if there is an expectation; `settled` overrides."""
        fields: dict[str, Any] = {
            "run_id": name,
            "points": (CLAIM, CONTROL),
            "arms": ARMS,
            "harness_dirty": False,
            "calibration": self.expectation is not None,
        }
        if self.expectation:
            fields |= {
                "registration_status": "registered",
                "registration_reason": None,
                "expectation_id": self.expectation.id,
                "expectation_digest": self._digest,
                "expectation_commit": "e" * 40,
                "harness_commit": "c" * 40,
                "runner_tree": "d" * 40,
                "warmup_tokens": self.expectation.warmup_tokens,
                "void": self.expectation.void,
            }
        return _settled().model_copy(update=fields | settled)

    def measure(
        self,
        machine: Machine,
        name: str = "run",
        *,
        order: Order = lambda plan: plan.steps,
        spoil: Callable[[Path], object] = lambda folder: None,
        **settled: Any,
    ) -> Path:
        """Run a plan on `machine` as a sweep does; return the folder of its Parquet.

        `spoil` is called with it before the ledger hears of the end; `settled` overrides the plan.
        """
        plan = self._start(self.plan(name, **settled))
        journal = Journal(self.layout.published / plan.platform / plan.run_id)
        journal.begin(plan)
        steps = order(plan)
        machine.begin(steps)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("runner.sweep.call", machine.call)
            for step in steps:
                machine.turn_to(step)
                journal.append(step, run_step(plan, step, _PARAMETERS))
        session = Session(plan, _PARAMETERS, _BUILD, _model(), BringUp([], None))
        folder = write_run(session, journal)
        spoil(folder)
        if plan.ledger_start:
            self.ledger.end(plan.run_id, file_digests(folder))
        return folder

    def _start(self, plan: Plan) -> Plan:
        if plan.registration_status != "registered":
            return plan
        started = self.ledger.start(**plan.ledger_entry())
        return plan.model_copy(update={"ledger_start": started})

    @contextmanager
    def judged(self) -> Iterator[Database]:
        """Build the warehouse and open it."""
        build_warehouse(self.layout, self.layout.database)
        with open_database(self.layout.database) as database:
            yield database

    def finding(self, name: str = "run") -> Finding:
        """What the pipelines say of run `name`."""
        with self.judged() as database:
            rows = database.rows(_SAID, [name])
            verdicts = database.rows(_CLAIM, [name])
        (claim,) = verdicts or [_NO_VERDICT]
        return Finding(claim["verdict"], claim["evidence"], tuple(row["said"] for row in rows))

    def rows(self, query: str) -> list[Row]:
        """Rows of `query` from the warehouse, built anew."""
        with self.judged() as database:
            return database.rows(query)
