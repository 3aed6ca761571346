"""The workflows: what GitHub's schema says, what an auditor finds, and that each job is ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]], capture_output=True, text=True, check=False
    )


def test_there_are_three() -> None:
    assert [path.stem for path in WORKFLOWS] == ["pages", "sweep", "tests"]


def test_every_workflow_is_valid() -> None:
    done = ran(
        "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS)
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_invalid_one_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("name: wrong\non: push\njobs:\n  a:\n    steps: none\n")
    done = ran("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(wrong))
    assert done.returncode != 0


def test_the_auditor_finds_nothing() -> None:
    done = ran(
        "zizmor", "--offline", "--no-progress", "--min-severity", "low", *map(str, WORKFLOWS)
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_and_every_session_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
    sessions = set(
        re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    )
    assert set(re.findall(r"nox -s (\w+)", text)) <= sessions
