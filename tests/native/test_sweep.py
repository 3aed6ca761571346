"""Real sweeps on a tiny model: they end in Parquet, and nothing finished is ever lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner import cli, records
from runner import sweep as sweeping
from runner.bench import isolated
from runner.bench.isolated import JobDied
from runner.building import EngineBuild
from runner.entries import read_ledger
from runner.journal import exclusive
from runner.ledger import file_digests
from runner.plan import Plan, Request, make_plan

HOPS = 1
POINT = ("--prefix", "30", "--hops", str(HOPS), "--n-ctx", "512")
BARE = ("--no-calibration", "--no-equivalence")


class Cli:
    """The command line, in this process or in one of its own."""

    def __init__(
        self,
        build: EngineBuild,
        out: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.out = out
        self._own = ("--llama-cpp", str(build.lib_dir), "--threads", "1", "--exploratory")
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def words(self, *given: str) -> list[str]:
        words = ["sweep", "--out", str(self.out), *given]
        if "--resume" not in given:
            words += self._own
            if "--calibration" not in given:
                words += BARE
            if "--arms" not in given:
                words += ("--arms", "live_kv,reprefill")
        if "--model" not in given and "--resume" not in given:
            words += ["--model", "tiny:llama"]
        return words

    def run(self, *given: str) -> tuple[int, str, str]:
        """Run here; exit code, standard output, standard error."""
        self._monkeypatch.setattr(sys, "argv", ["livekv", *self.words(*given)])
        self._capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def start(self, *given: str, **options: Any) -> subprocess.Popen[str]:
        """Start in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "runner", *self.words(*given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell's background job ignores Ctrl-C, and so would all that it starts.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
            **options,
        )

    @property
    def folder(self) -> Path:
        (folder,) = self.out.glob("cpu/*")
        return folder

    @property
    def journal(self) -> list[dict[str, Any]]:
        try:
            lines = (self.folder / "journal.jsonl").read_text().splitlines()
        except (OSError, ValueError):
            return []
        return [json.loads(line) for line in lines]

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = records.read_table(self.folder / f"{name}.parquet").to_pylist()
        return rows


@pytest.fixture
def sweep(
    engine_build: EngineBuild,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    return Cli(engine_build, tmp_path / "runs", monkeypatch, capsys)


def until(true: Callable[[], object], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def workers(runner: psutil.Process) -> list[psutil.Process]:
    """The worker processes of a runner that run an arm now."""
    found = []
    for child in runner.children():
        try:
            if "runner.bench.worker" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def a_worker(runner: psutil.Process) -> psutil.Process:
    found: list[psutil.Process] = []

    def seen() -> bool:
        found.extend(workers(runner))
        return bool(found)

    until(seen)
    return found[0]


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def test_a_sweep_ends_in_valid_tables(sweep: Cli) -> None:
    code, said, complaint = sweep.run(*POINT, "--blocks", "2", "--seed", "7")
    assert (code, complaint) == (0, "")
    assert f"is in {sweep.folder}" in said
    assert {path.name for path in sweep.folder.iterdir()} == {
        *(f"{table}.parquet" for table in records.TABLES),
        "plan.json",
        "journal.jsonl",
    }

    (run,) = sweep.table("run")
    assert run["run_id"] == sweep.folder.name
    assert (run["status"], run["order_seed"], run["blocks_planned"]) == ("complete", 7, 2)
    assert (run["n_ctx"], run["n_threads"], run["model_kind"]) == (512, 1, "tiny")
    assert run["registration_status"] != "registered"
    assert run["output_meaningful"] is False
    assert run["ended_at"] > run["started_at"]

    blocks = sweep.table("blocks")
    assert sorted((row["block"], row["arm"]) for row in blocks) == [
        (0, "live_kv"),
        (0, "reprefill"),
        (1, "live_kv"),
        (1, "reprefill"),
    ]
    for block in (0, 1):
        pair = [row for row in blocks if row["block"] == block]
        assert len({row["script_digest"] for row in pair}) == 1
        assert sorted(row["position"] for row in pair) == [0, 1]
    assert blocks[0]["script_digest"] != blocks[2]["script_digest"]
    for row in blocks:
        assert row["status"] in {"ok", "void"}
        assert row["wall_s"] == pytest.approx(
            row["prefill_s"] + row["decode_s"] + row["other_s"], rel=1e-9
        )
    evaluated = {row["arm"]: row["n_evaluated"] for row in blocks}
    assert evaluated == {"live_kv": 61 + 56, "reprefill": 61 + 86 + 31}

    hops = sweep.table("hops")
    assert len(hops) == 2 * 2 * (HOPS + 1)
    for block in (0, 1):
        for hop in range(HOPS + 1):
            pair = [row for row in hops if (row["block"], row["hop"]) == (block, hop)]
            assert pair[0]["digest_in"] == pair[1]["digest_in"]
            assert pair[0]["digest_out"] == pair[1]["digest_out"]
    assert all(row["status"] in {"pass", "absent"} for row in sweep.table("checks"))


def test_a_whole_sweep_compares_calibrates_and_runs_the_treatment_twice(
    sweep: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "wait_quiet", lambda limit_s, **_: limit_s / 2)
    arms = "live_kv,live_kv_again,reprefill"
    code, _, complaint = sweep.run(
        "--prefix", "400", "--hops", "1", "--n-ctx", "1024", "--blocks", "2",
        "--arms", arms, "--calibration", "--wait-quiet", "3",
    )  # fmt: skip
    assert (code, complaint) == (0, "")
    assert {row["arm"] for row in sweep.table("blocks")} == set(arms.split(","))

    assert sweep.table("run")[0]["waited_quiet_s"] == 1.5
    costs = sweep.table("calibration")
    assert {row["block"] for row in costs} == {0, 1}
    assert {row["kind"] for row in costs} == {"prefill", "hop", "decode"}
    assert all(row["seconds"] > 0 for row in costs)

    said = sweep.table("equivalence")
    assert {row["comparison"] for row in said} == {"free", "matched"}
    matched = [row for row in said if row["comparison"] == "matched"]
    assert all(row["n_agreed"] == row["n_tokens"] for row in matched)
    assert {row["max_logit_difference"] for row in matched} == {0.0}


class Drawer:
    """A sweep that counts as registered, and the ledger it writes into."""

    def __init__(self, sweep: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sweep = sweep
        self.folder = folder
        monkeypatch.setattr(sweeping, "LEDGERS", folder)
        monkeypatch.setattr(sweeping, "make_plan", self._plan)

    def _plan(self, request: Request) -> Plan:
        standing = {
            "registration_status": "registered",
            "expectation_id": "loop",
            "expectation_digest": "d" * 64,
            "expectation_commit": "e" * 40,
            "harness_commit": "c" * 40,
            "runner_tree": make_plan(request).runner_tree or "f" * 40,
        }
        return make_plan(request).model_copy(update=standing)

    @property
    def records(self) -> list[Any]:
        (path,) = self.folder.glob("*.jsonl")
        return [entry.record for entry in read_ledger(path).entries]

    @property
    def events(self) -> list[str]:
        return [record.event for record in self.records]


@pytest.fixture
def drawer(sweep: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drawer:
    return Drawer(sweep, tmp_path / "ledger", monkeypatch)


def test_a_registered_run_stands_in_the_ledger_before_it_measures_and_with_its_files(
    drawer: Drawer,
) -> None:
    code, _, complaint = drawer.sweep.run(*POINT, "--blocks", "1")
    assert (code, complaint) == (0, "")
    start, end = drawer.records
    assert (start.event, end.event) == ("START", "END")
    assert start.run_id == end.run_id == drawer.sweep.folder.name
    assert end.files == file_digests(drawer.sweep.folder)
    (run,) = drawer.sweep.table("run")
    assert run["ledger_start"] == end.previous
    assert start.at <= end.at


def test_a_registered_run_without_a_result_is_aborted_with_its_reason(
    drawer: Drawer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> dict[str, Any]:
        raise JobDied("the worker process was killed by SIGSEGV")

    monkeypatch.setattr(sweeping, "call", dies)
    assert drawer.sweep.run(*POINT, "--blocks", "1")[0] == 4
    start, abort = drawer.records
    assert (start.event, abort.event) == ("START", "ABORT")
    assert "no step gave a result: the worker process was killed by SIGSEGV" in abort.reason


def test_an_interrupted_registered_run_stays_open_until_it_is_gone_on_with(
    drawer: Drawer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = isolated.call
    calls = 0

    def interrupting(*given: Any, **named: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(sweeping, "call", interrupting)
    monkeypatch.setattr(sweeping, "require_same_harness", lambda *_: None)
    assert drawer.sweep.run(*POINT, "--blocks", "1")[0] == 130
    assert drawer.events == ["START"]
    assert drawer.sweep.run("--resume", "last")[0] == 0
    assert drawer.events == ["START", "RESUME", "END"]
    (run,) = drawer.sweep.table("run")
    assert run["n_resumed"] == 1
    assert run["ledger_start"] == drawer.records[1].previous


def test_a_run_that_was_killed_before_its_end_was_heard_gets_it_later(
    drawer: Drawer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Path) -> dict[str, str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "file_digests", killed)
        assert drawer.sweep.run(*POINT, "--blocks", "1")[0] == 130
    assert drawer.events == ["START"]
    name = drawer.sweep.folder.name
    code, said, _ = drawer.sweep.run("--resume", name)
    assert code == 0
    assert f"run {name} was complete; its ledger says so now" in said
    assert drawer.events == ["START", "END"]
    assert drawer.records[1].files == file_digests(drawer.sweep.folder)


def test_a_dry_run_prints_the_plan_and_runs_nothing(sweep: Cli) -> None:
    code, said, complaint = sweep.run(*POINT, "--blocks", "2", "--dry-run")
    assert (code, complaint) == (0, "")
    assert "tool_loop-p30-h1" in said
    assert not sweep.out.exists()


@pytest.fixture
def bad_models(tmp_path: Path, tiny_model: Callable[[str], Path]) -> dict[str, Path]:
    whole = tiny_model("llama").read_bytes()
    paths = {name: tmp_path / f"{name}.gguf" for name in ("absent", "text", "cut", "[x]")}
    paths["text"].write_text("this is not a model")
    paths["cut"].write_bytes(whole[: len(whole) // 2])
    return paths


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--model", "gpt-5"), 2, "unknown model 'gpt-5'; choose one of: "),
        (("--model", "{absent}"), 2, "no such model file: "),
        (("--model", "{[x]}"), 2, "[x].gguf"),
        (("--model", "{text}"), 2, "text.gguf"),
        (("--model", "{cut}"), 2, "is truncated: "),
        (("--prefix", "9000", "--hops", "4"), 2, "use --n-ctx 9256 or more"),
        (("--platform", "abacus"), 2, "unknown platform 'abacus'; choose one of: "),
        (("--platform", "cuda"), 3, "platform cuda needs a CUDA device, the library sees none"),
        (("--arms", "live_kv,magic"), 2, "unknown arm 'magic'; choose one of: "),
        (("--sweep", "slow"), 2, "unknown sweep 'slow'; choose one of: "),
        (("--resume", "last"), 2, "no unfinished run under "),
        (("--resume", "2026-x"), 2, "no run '2026-x' under "),
    ],
)
def test_bad_input_is_one_clear_line_and_an_exit_code(
    sweep: Cli, bad_models: dict[str, Path], words: tuple[str, ...], code: int, said: str
) -> None:
    given = [str(bad_models[word[1:-1]]) if word.startswith("{") else word for word in words]
    found, _, complaint = sweep.run(*given)
    assert found == code
    assert complaint.startswith("error: ")
    assert len(complaint.splitlines()) == 1
    assert said in complaint
    assert not list(sweep.out.glob("cpu/*"))


def test_a_folder_that_cannot_be_written_is_one_line(sweep: Cli, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    code, _, complaint = sweep.run(*POINT)
    assert code == 3
    assert len(complaint.splitlines()) == 1
    assert f"cannot write {sweep.out}" in complaint


def test_two_sweeps_do_not_run_in_one_folder(sweep: Cli) -> None:
    with exclusive(sweep.out):
        code, _, complaint = sweep.run(*POINT)
    assert code == 2
    assert f"another sweep is writing into {sweep.out}" in complaint


def test_a_worker_that_is_killed_costs_its_block_and_the_sweep_goes_on(sweep: Cli) -> None:
    process = sweep.start(*POINT, "--blocks", "2")
    a_worker(psutil.Process(process.pid)).kill()
    code, complaint = finish(process)
    assert (code, complaint) == (0, "")
    rows = sweep.table("blocks")
    assert len(rows) == 4
    (failed,) = (row for row in rows if row["status"] == "failed")
    assert "the worker process was killed by SIGKILL" in failed["reason"]
    assert (failed["wall_s"], failed["n_evaluated"]) == (None, None)
    assert len(sweep.table("hops")) == 3 * (HOPS + 1)


def test_when_every_step_fails_the_run_is_not_called_complete(
    sweep: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> dict[str, Any]:
        raise JobDied("the worker process was killed by SIGSEGV; it last said: [/x] in [y]")

    monkeypatch.setattr(sweeping, "call", dies)
    code, _, complaint = sweep.run(*POINT, "--blocks", "1")
    assert code == 4
    assert "no step gave a result: the worker process was killed by SIGSEGV" in complaint
    assert len(complaint.splitlines()) == 1
    assert not (sweep.folder / "run.parquet").exists()


def interrupted(sweep: Cli, number: int, blocks: int = 3) -> tuple[int, str, list[dict[str, Any]]]:
    """A sweep that gets a signal while its fourth step runs."""
    process = sweep.start(*POINT, "--blocks", str(blocks))
    until(lambda: list(sweep.out.glob("cpu/*")) and len(sweep.journal) >= 3)
    worker = a_worker(psutil.Process(process.pid))
    process.send_signal(number)
    code, complaint = finish(process)
    until(lambda: ended(worker), 20)
    return code, complaint, sweep.journal


def went_on(sweep: Cli, before: list[dict[str, Any]], blocks: int = 3) -> None:
    """Resuming finishes every block and runs no whole block again."""
    code, _, complaint = sweep.run("--resume", "last")
    assert (code, complaint) == (0, "")
    assert sweep.journal[: len(before)] == before
    rows = sweep.table("blocks")
    assert len({(row["block"], row["arm"]) for row in rows}) == len(rows) == 2 * blocks
    whole = len(before) - len(before) % 2
    starts = {(row["step"]["block"], row["step"]["arm"]): row["block"] for row in before[:whole]}
    for row in rows:
        kept = starts.get((row["block"], row["arm"]))
        if kept:
            assert row["started_at"].isoformat() == kept["started_at"]
    assert "no unfinished run" in sweep.run("--resume", "last")[2]


SAID = "error: interrupted; finished blocks are kept, go on with --resume last\n"


def test_ctrl_c_keeps_what_was_finished_and_resume_does_the_rest(sweep: Cli) -> None:
    code, complaint, before = interrupted(sweep, signal.SIGINT)
    assert (code, complaint) == (130, SAID)
    went_on(sweep, before)


def test_a_request_to_terminate_is_a_ctrl_c(sweep: Cli) -> None:
    code, complaint, before = interrupted(sweep, signal.SIGTERM)
    assert (code, complaint) == (130, SAID)
    assert len(before) == 3


def test_a_killed_runner_leaves_no_worker_and_resume_does_the_rest(sweep: Cli) -> None:
    code, complaint, before = interrupted(sweep, signal.SIGKILL)
    assert (code, complaint) == (-signal.SIGKILL, "")
    went_on(sweep, before)


@pytest.mark.skipif(not psutil.LINUX, reason="no other system limits another process")
def test_a_disk_that_runs_full_keeps_what_was_finished_and_resume_does_the_rest(
    sweep: Cli,
) -> None:
    process = sweep.start(*POINT, "--blocks", "3")
    until(lambda: list(sweep.out.glob("cpu/*")) and len(sweep.journal) >= 2)
    # A limit on the size of files is what a full disk is to the one who writes.
    limit = (sweep.folder / "journal.jsonl").stat().st_size + 1000
    psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (limit, limit))
    code, complaint = finish(process)
    assert code == 3
    assert len(complaint.splitlines()) == 1
    assert "journal.jsonl: File too large; free space and go on with --resume" in complaint
    lines = (sweep.folder / "journal.jsonl").read_text().splitlines()
    whole = [line for line in lines if line.endswith("}")]
    assert len(whole) >= 2
    before = [json.loads(line) for line in whole]
    code, _, complaint = sweep.run("--resume", "last")
    assert (code, complaint) == (0, "")
    rows = sweep.table("blocks")
    assert len({(row["block"], row["arm"]) for row in rows}) == len(rows) == 6
    starts = {row["started_at"].isoformat() for row in rows}
    for entry in before[: len(before) - len(before) % 2]:
        assert entry["block"]["started_at"] in starts


def test_a_disk_that_is_full_when_the_tables_are_written_loses_nothing(
    sweep: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = records.write_table

    def full(folder: Path, table: str, rows: Any) -> Path:
        if table == "blocks":
            monkeypatch.setattr(os, "fsync", no_space)
        return real(folder, table, rows)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "write_table", full)
    code, _, complaint = sweep.run(*POINT, "--blocks", "1")
    assert code == 3
    assert "blocks.parquet: No space left on device; finished blocks are kept" in complaint
    assert not (sweep.folder / "run.parquet").exists()
    assert not list(sweep.folder.glob("*.partial"))
    monkeypatch.undo()
    assert sweep.run("--resume", "last")[0] == 0
    assert len(sweep.table("blocks")) == 2
    assert len(sweep.journal) == 2


def test_a_model_that_is_exchanged_during_a_run_fails_its_steps(
    sweep: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(tiny_model("llama").read_bytes())
    real = isolated.call
    calls = 0

    def exchanging(*given: Any, **named: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 3:
            model.write_bytes(tiny_model("qwen2").read_bytes())
        return real(*given, **named)

    monkeypatch.setattr(sweeping, "call", exchanging)
    code, _, complaint = sweep.run(*POINT, "--blocks", "2", "--model", str(model))
    assert (code, complaint) == (0, "")
    reasons = [row["reason"] for row in sweep.table("blocks")]
    assert reasons.count("model.gguf is not the file the run began with") == 2
    assert [row["block"] for row in sweep.table("blocks") if row["status"] == "failed"] == [1, 1]
