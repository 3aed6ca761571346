"""The journal: what was finished is never lost, and nothing half finished counts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.bench.schedule import Step
from runner.errors import EnvironmentProblem, UsageError
from runner.journal import Journal, exclusive, find_unfinished
from runner.plan import Plan, Request, make_plan

PLAN = make_plan(
    Request(
        platform="cpu",
        model="tiny:llama",
        sweep="quick",
        prefix=40,
        hops=1,
        blocks=3,
        seed=1,
        threads=1,
        arms=("live_kv", "reprefill"),
        calibration=False,
        equivalence=False,
        exploratory=True,
    )
)
STEPS = PLAN.steps
OK: dict[str, Any] = {"status": "ok", "reason": None, "block": {"wall_s": 1.0}, "hops": []}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "cpu" / PLAN.run_id)
    made.begin(PLAN)
    return made


def steps_file(journal: Journal) -> Path:
    return journal.folder / "journal.jsonl"


def test_plan_and_steps_come_back_in_another_process(journal: Journal) -> None:
    for number, step in enumerate(STEPS):
        journal.append(step, {**OK, "reason": str(number)})
    again = Journal(journal.folder)
    assert again.plan() == PLAN
    entries = again.entries()
    assert list(entries) == STEPS
    assert [entry["reason"] for entry in entries.values()] == [str(n) for n in range(len(STEPS))]


def test_a_calibration_counts_by_itself(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"calibration": True, "equivalence": True})
    made = Journal(tmp_path)
    aside = [step for step in plan.steps if not step.is_arm]
    for step in aside:
        made.append(step, OK)
    assert len(aside) == 1 + PLAN.blocks
    assert list(made.finished_blocks(plan)) == aside


def test_a_journal_knows_how_often_its_run_was_gone_on_with(journal: Journal) -> None:
    assert journal.n_resumed == 0
    journal.note_resume()
    journal.note_resume()
    assert Journal(journal.folder).n_resumed == 2


def test_a_block_counts_only_when_every_arm_has_run(journal: Journal) -> None:
    for step in STEPS[:3]:
        journal.append(step, OK)
    assert list(journal.finished_blocks(PLAN)) == STEPS[:2]


def test_a_failed_step_is_a_finished_one(journal: Journal) -> None:
    journal.append(STEPS[0], OK)
    journal.append(STEPS[1], {**OK, "status": "failed", "reason": "SIGKILL"})
    assert journal.finished_blocks(PLAN)[STEPS[1]]["reason"] == "SIGKILL"


def test_the_last_entry_of_a_step_counts(journal: Journal) -> None:
    journal.append(STEPS[0], {**OK, "reason": "first"})
    journal.append(STEPS[0], {**OK, "reason": "second"})
    assert journal.entries()[STEPS[0]]["reason"] == "second"


@pytest.mark.parametrize("left", [1, 20, -2, -1])
def test_a_line_that_was_cut_is_dropped_and_does_not_swallow_the_next(
    journal: Journal, left: int
) -> None:
    journal.append(STEPS[0], OK)
    whole = steps_file(journal).read_text()
    journal.append(STEPS[1], OK)
    line = steps_file(journal).read_text()[len(whole) :]
    steps_file(journal).write_text(whole + line[:left])
    survived = left == -1  # only the newline is missing: the entry is whole
    assert list(journal.entries()) == STEPS[: 1 + survived]

    journal.append(STEPS[1], OK)
    journal.append(STEPS[2], OK)

    assert list(journal.entries()) == STEPS[:3]


def test_a_full_disk_keeps_what_was_finished_and_says_how_to_go_on(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(STEPS[0], OK)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblem, match=r"No space left on device; .* --resume"):
        journal.append(STEPS[1], OK)
    assert STEPS[0] in journal.entries()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text("a file")
    with pytest.raises(EnvironmentProblem, match="choose another --out"):
        Journal(tmp_path / "cpu" / "run").begin(PLAN)


def test_a_plan_that_could_not_be_written_leaves_no_run_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_text

    def half(self: Path, text: str, **given: Any) -> int:
        real(self, text[: len(text) // 2], **given)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        Journal(tmp_path / "cpu" / "run").begin(PLAN)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="no unfinished run under"):
        find_unfinished(tmp_path, "last")


def test_a_plan_of_another_version_is_refused(journal: Journal) -> None:
    (journal.folder / "plan.json").write_text('{"run_id": "x"}')
    with pytest.raises(UsageError, match="is not a plan of this version"):
        journal.plan()


def test_no_plan_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run to go on with in"):
        Journal(tmp_path).plan()


class TestFinding:
    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        for name in ("20260101T000000Z-a", "20260103T000000Z-c", "20260102T000000Z-b"):
            Journal(tmp_path / "cpu" / name).begin(PLAN)
        (tmp_path / "cpu" / "20260103T000000Z-c" / "run.parquet").touch()
        return tmp_path

    def test_last_is_the_newest_that_is_not_complete(self, out: Path) -> None:
        assert find_unfinished(out, "last").folder.name == "20260102T000000Z-b"

    def test_a_run_is_found_by_its_id(self, out: Path) -> None:
        assert find_unfinished(out, "20260101T000000Z-a").folder.name == "20260101T000000Z-a"

    def test_a_complete_run_has_nothing_to_go_on_with(self, out: Path) -> None:
        with pytest.raises(UsageError, match="20260103T000000Z-c is complete"):
            find_unfinished(out, "20260103T000000Z-c")

    def test_an_unknown_run_names_those_there_are(self, out: Path) -> None:
        with pytest.raises(UsageError, match="unfinished: 20260101T000000Z-a, 20260102T000000Z-b"):
            find_unfinished(out, "x")

    def test_an_empty_folder_has_none(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no unfinished run under"):
            find_unfinished(tmp_path / "nowhere", "last")


def test_two_sweeps_do_not_write_into_one_folder(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from runner.journal import exclusive\n"
        f"with exclusive(Path({str(tmp_path)!r})): pass"
    )
    with exclusive(tmp_path):
        other = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    assert other.returncode != 0
    assert f"another sweep is writing into {tmp_path}" in other.stderr
    with exclusive(tmp_path):
        pass


def test_the_lock_is_freed_when_the_sweep_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), exclusive(tmp_path):
        raise KeyboardInterrupt
    with exclusive(tmp_path):
        pass


def test_a_lock_in_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(EnvironmentProblem, match=r"cannot write .*Not a directory"),
        exclusive(tmp_path / "file" / "out"),
    ):
        pass


def test_steps_are_told_apart_by_everything_they_are(journal: Journal) -> None:
    other = Step(STEPS[0].block, STEPS[0].point, STEPS[0].arm, 1 - STEPS[0].position)
    journal.append(STEPS[0], OK)
    journal.append(other, OK)
    assert len(journal.entries()) == 2


def test_a_plan_keeps_its_steps_over_the_file(journal: Journal) -> None:
    back: Plan = journal.plan()
    assert back.steps == STEPS
