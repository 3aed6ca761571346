"""Jobs in processes of their own: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runner.bench.isolated import JobDied, JobFailed, call

MODULE = """
import os, signal, sys, time
from runner.bench.isolated import serve
from runner.errors import UsageError

def work(job):
    if job["do"] == "answer":
        return {"twice": 2 * job["number"]}
    if job["do"] == "refuse":
        raise UsageError("the number 7 cannot be done")
    if job["do"] == "break":
        raise ZeroDivisionError("in the job")
    if job["do"] == "exit":
        sys.exit(9)
    if job["do"] == "kill":
        print("last words", flush=True)
        os.kill(os.getpid(), job["signal"])
    if job["do"] == "wait":
        open(job["note"], "w").write(str(os.getpid()))
        time.sleep(60)

serve(work)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_job.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "a_job"


def until(true: Callable[[], bool], limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_a_job_gives_its_answer(module: str) -> None:
    assert call(module, {"do": "answer", "number": 21}) == {"twice": 42}


def test_a_process_that_answered_ends_by_itself_and_at_once(module: str, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"do": "answer", "number": 1}')
    child = subprocess.Popen(
        [sys.executable, "-m", module, str(tmp_path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.wait(20) == 0  # and no abort of the interpreter at its exit
    assert child.stderr is not None
    assert child.stderr.read() == b""
    for pipe in (child.stdin, child.stderr):
        if pipe:
            pipe.close()


def test_a_refusal_is_the_jobs_own_sentence(module: str) -> None:
    with pytest.raises(JobFailed, match=r"^the number 7 cannot be done$"):
        call(module, {"do": "refuse"})


def test_an_error_nobody_expected_names_itself(module: str) -> None:
    with pytest.raises(
        JobDied, match=r"a_job process ended with exit code 1 .*ZeroDivisionError: in the job"
    ):
        call(module, {"do": "break"})


def test_an_exit_without_an_answer_is_a_death(module: str) -> None:
    with pytest.raises(JobDied, match="exit code 9 and no answer"):
        call(module, {"do": "exit"})


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT", "SIGSEGV"])
def test_a_signal_is_named_with_the_last_words(module: str, name: str) -> None:
    with pytest.raises(JobDied, match=f"a_job process was killed by {name}; it last said: last wo"):
        call(module, {"do": "kill", "signal": int(signal.Signals[name])})


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="this system has no such signals")
def test_a_signal_without_a_name_is_given_by_its_number(module: str) -> None:
    number = int(signal.SIGRTMIN) + 3
    with pytest.raises(JobDied, match=f"was killed by .*{number}"):
        call(module, {"do": "kill", "signal": number})


def test_a_job_over_its_time_is_stopped(module: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with pytest.raises(JobDied, match="passed its time limit and was stopped"):
        call(module, {"do": "wait", "note": str(note)}, limit_s=2)
    assert not psutil.pid_exists(int(note.read_text()))


def test_no_process_is_left_after_an_interrupt(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note"

    def interrupted(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        until(lambda: note.exists() and note.read_text() != "")
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(module, {"do": "wait", "note": str(note)})
    assert not psutil.pid_exists(int(note.read_text()))


def test_a_child_does_not_outlive_a_killed_parent(module: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = {"do": "wait", "note": str(note)}
    code = f"from runner.bench.isolated import call; call({module!r}, {job!r})"
    parent = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
    until(lambda: note.exists() and note.read_text() != "")
    child = psutil.Process(int(note.read_text()))
    parent.kill()
    parent.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
