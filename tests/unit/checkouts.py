"""Throwaway repositories with an expectation, a harness and runs."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa

from runner.records import RUN, write_table
from runner.registration import Registration, check_registration

MODEL = "small"
POINTS = ("tool_loop-p363-h4", "tool_loop-p363-h0")
NAME = "data/expectations/loop.toml"

TEXT = """\
title = "Live KV beats re-prefill"
claim = "it is faster"
estimand = "geometric mean of baseline / treatment, whole session"
workload = "tool_loop"
treatment = "live_kv"
baseline = "reprefill"
sweep = "quick"
blocks_min = 10
warmup_tokens = 32
parity_margin = 0.05
negative = "a ratio of 1 or less"
exclusions = "none"

[void]
steal_fraction_max = 0.02
other_cpu_fraction_max = 0.05
void_blocks_max = 0.1

[[forecast]]
model = "small"
point = "tool_loop-p363-h4"
role = "primary"
low = 1.8
high = 2.6
threshold = 1.1

[[forecast]]
model = "small"
point = "tool_loop-p363-h0"
role = "parity"
low = 0.97
high = 1.03
"""


class Checkout:
    """A repository with the few verbs the attacks need."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def git(self, *arguments: str) -> str:
        settings = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@example.org",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@example.org",
        }
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def commit(self, message: str = "step") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def add_run(self, expectation: str | None, run_id: str = "r1") -> None:
        write_table(self.root / "data/runs/cpu" / run_id, "run", [run_row(run_id, expectation)])

    def check(self, points: tuple[str, ...] = POINTS, model: str = MODEL) -> Registration:
        return check_registration(self.root, "quick", model, points)


def run_row(run_id: str, expectation: str | None) -> dict[str, Any]:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def value(kind: pa.DataType) -> Any:
        if pa.types.is_timestamp(kind):
            return now
        if pa.types.is_boolean(kind):
            return False
        return "x" if pa.types.is_string(kind) else 1

    row = {field.name: value(field.type) for field in RUN if not field.nullable}
    return {**row, "run_id": run_id, "expectation_id": expectation}


def shallow(origin: Checkout, depth: int) -> Checkout:
    copy = Checkout(origin.root.parent / f"shallow{depth}")
    source = origin.root.as_uri()
    copy.git("clone", "--quiet", f"--depth={depth}", source, ".")
    return copy


def bare_checkout(root: Path) -> Checkout:
    """A repository with a harness and no expectation."""
    checkout = Checkout(root)
    checkout.git("init", "--quiet", "--initial-branch=main")
    checkout.write("runner/harness.py", "one = 1\n")
    checkout.write(".gitignore", "/build/\n")
    checkout.commit()
    return checkout


def registered_checkout(root: Path) -> Checkout:
    """The expectation came alone, and the harness went on."""
    checkout = bare_checkout(root)
    checkout.write(NAME, TEXT)
    checkout.commit("register")
    checkout.write("runner/harness.py", "one = 2\n")
    checkout.commit("harness")
    return checkout
