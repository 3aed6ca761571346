"""Jobs for machines of one's own, and what they measured, into one dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runner import catalog
from runner.cli import app
from runner.collect import collect_runs
from runner.errors import UsageError
from runner.matrix import matrix


def test_all_is_every_platform_times_every_sweep() -> None:
    jobs = matrix("all", "all", "smollm2-135m")["include"]
    assert {(job["platform"], job["sweep"]) for job in jobs} == {
        (platform, sweep) for platform in catalog.platforms() for sweep in catalog.sweeps()
    }
    assert {job["runner"] for job in jobs} == {f"livekv-{one}" for one in catalog.platforms()}


def test_a_choice_is_one_job_and_the_command_prints_it() -> None:
    said = CliRunner().invoke(app, ["matrix", "--platform", "cuda", "--sweep", "reference"])
    assert json.loads(said.output) == {
        "include": [
            {"platform": "cuda", "sweep": "reference", "model": "smollm2-135m",
             "runner": "livekv-cuda"}
        ]
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [("tpu", "all", "smollm2-135m"), ("all", "none", "smollm2-135m"),
                                   ("all", "all", "gpt")])  # fmt: skip
def test_an_unknown_name_is_refused(wrong: tuple[str, str, str]) -> None:
    with pytest.raises(UsageError, match=r"unknown (platform|sweep|model)"):
        matrix(*wrong)


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run under"):
        [*collect_runs(tmp_path)]


def test_an_unfinished_run_does_not_keep_the_others(tmp_path: Path) -> None:
    run = tmp_path / "cpu-quick" / "build" / "runs" / "cpu" / "r1"
    run.mkdir(parents=True)
    (run / "plan.json").write_text("{}")
    known = tmp_path / "cpu-quick" / "build" / "runs" / "cpu" / "r2"
    known.mkdir()
    (known / "plan.json").write_text("{}")
    (tmp_path / "published" / "cpu" / "r2").mkdir(parents=True)
    assert [*collect_runs(tmp_path, tmp_path / "published")] == [
        "refused: r1 is not complete",
        "known: r2",
    ]
