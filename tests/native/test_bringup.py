"""Bring-up: green on four architectures, red on a backend that lies, and never the end of us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import ARCHITECTURES, parameters
from numpy.typing import NDArray
from rich.console import Console

from runner import bringup, records, validate
from runner.bench.isolated import Job, JobDied, JobFailed, call
from runner.bench.worker import to_job
from runner.bringup import CHECKS, BringUp, bring_up, run_checks
from runner.building import EngineBuild
from runner.engine.backend import DecodeFailed, Entry, Logits
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.validate import ValidationFailed, validate_models

Parameters = Callable[[str], LoadParameters]


@pytest.fixture
def of(engine_build: EngineBuild, tiny_model: Callable[[str], Path]) -> Parameters:
    return lambda architecture: parameters(engine_build, tiny_model(architecture))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_check_passes_and_what_a_model_lacks_is_said(
    of: Parameters, architecture: str
) -> None:
    found = bring_up(of(architecture))
    assert [row["check"] for row in found.checks] == [name for name, _, _ in CHECKS]
    assert found.failed == []
    absent = [row["check"] for row in found.checks if row["status"] == "absent"]
    assert absent == (["seq_remove and roll back"] if architecture == "mamba" else [])
    for row in found.checks:
        records.check_row("checks", {"run_id": "r", **row})
    prefill_per_s, decode_s = found.rates
    assert prefill_per_s > 0
    assert 0 < decode_s < 1
    assert found.system_info


class Sabotaged(LlamaCppBackend):
    """A backend that is wrong in one way; the subclasses say in which."""


class ForgetsOne(Sabotaged):
    def seq_copy(self, src: int, dst: int, n_tokens: int | None = None) -> None:
        super().seq_copy(src, dst, max(self.seq_end(src) - 1, 0))


class MixesUp(Sabotaged):
    def decode(self, entries: Any) -> Logits:
        rows = super().decode(entries)
        return rows[::-1]


class RestoresAnother(Sabotaged):
    def state_get(self, seq: int) -> NDArray[np.uint8]:
        state = super().state_get(seq)
        # Not a byte of the cells' list, which is checked, but of what the cells hold.
        state[state.size // 2 :: 7] ^= 0x3F
        return state


class NeverDecodes(Sabotaged):
    def decode(self, entries: Any) -> Logits:
        entry: Entry = entries[0]
        if len(entries) == 1 and len(entry.tokens) > 100:
            raise DecodeFailed(-3)
        return super().decode(entries)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (ForgetsOne, "seq_copy and continue"),
        (MixesUp, "two sequences, one batch"),
        (RestoresAnother, "state, same process"),
        (NeverDecodes, "multi-token prefill"),
    ],
)
def test_a_sabotaged_backend_is_a_failed_row_with_its_reason(
    of: Parameters, monkeypatch: pytest.MonkeyPatch, kind: type[Sabotaged], check: str
) -> None:
    monkeypatch.setattr(bringup, "LlamaCppBackend", kind)
    job = {"load": to_job(replace(of("llama"), n_seq_max=4))}
    rows = {row["check"]: row for row in run_checks(job)["checks"]}
    assert rows[check]["status"] == "fail", rows[check]
    assert rows[check]["detail"]
    assert rows[check]["value"] is None
    assert rows["construct"]["status"] == "pass"


def test_a_model_that_cannot_be_loaded_ends_the_checks_with_the_librarys_reason(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 64)
    found = bring_up(parameters(engine_build, path))
    assert [row["status"] for row in found.checks] == ["pass", "fail"]
    assert "cannot load" in found.checks[1]["detail"]
    with pytest.raises(JobFailed, match="bring-up measured no 'multi-token prefill'"):
        _ = found.rates


CRASHES = """
import os
from runner import bringup
from runner.bench.isolated import serve

def crash(rig):
    os.abort()

bringup.CHECKS = (*bringup.CHECKS[:2], ("crash", crash, "it crashes"))
serve(bringup.run_checks)
"""


def test_a_crash_of_the_library_is_told_by_the_signals_name(
    of: Parameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crashes.py").write_text(CRASHES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(JobDied, match="the crashes process was killed by SIGABRT"):
        call("crashes", {"load": to_job(of("llama"))})


def test_validate_writes_what_it_found_and_ends_in_an_error_when_a_check_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_build: EngineBuild
) -> None:
    def dies(parameters: LoadParameters) -> BringUp:
        raise JobDied("the bringup process was killed by SIGSEGV; it last said: [/x]")

    monkeypatch.setattr(validate, "bring_up", dies)
    with pytest.raises(ValidationFailed, match=r"tiny:llama: bring-up process"):
        validate_models("cpu", ["tiny:llama"], 1, tmp_path, None, Console(quiet=True))
    (row,) = records.read_table(tmp_path / "checks.parquet").to_pylist()
    assert row["status"] == "fail"
    assert "killed by SIGSEGV" in row["detail"]


def test_validate_writes_every_model_that_passed(
    tmp_path: Path, engine_build: EngineBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passes(parameters: LoadParameters) -> BringUp:
        job: Job = {"load": to_job(parameters)}
        monkeypatch.setattr(bringup, "CHECKS", CHECKS[:2])
        return BringUp(**run_checks(job))

    monkeypatch.setattr(validate, "bring_up", passes)
    validate_models("cpu", ["tiny:llama", "tiny:mamba"], 1, tmp_path, None, Console(quiet=True))
    rows = records.read_table(tmp_path / "checks.parquet").to_pylist()
    assert [row["run_id"] for row in rows] == (
        ["validate-cpu-tiny:llama"] * 2 + ["validate-cpu-tiny:mamba"] * 2
    )
