"""A run that is killed cannot vanish: what it began stands in the ledger, and is shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from laboratory import Laboratory
from simulated import Machine

from pipelines.publish.fragments import Context, fragment
from runner.bench.isolated import Job
from runner.bench.schedule import Step


class Killed(Machine):
    """The runner is killed while its seventh step is measured."""

    def run_arm(self, step: Step, job: Job) -> dict[str, Any]:
        """See `Machine`."""
        if len(self.jobs) == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run_arm(step, job)


def die(root: str) -> None:
    """What the child does."""
    lab = Laboratory(Path(root))
    lab.register()
    lab.measure(Killed(), "killed")


def _kill_one(root: Path) -> None:
    words = (
        f"import sys; sys.path = {sys.path!r}; import test_killed; test_killed.die({str(root)!r})"
    )
    done = subprocess.run([sys.executable, "-c", words], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL


def _balance(lab: Laboratory) -> dict[str, Any]:
    (row,) = lab.rows("from ledger_balance where machine_key = 'all machines'")
    return row


def _page(lab: Laboratory) -> str:
    with lab.judged() as database:
        return fragment("ledger", Context(database, lab.layout.root, ()))


def test_a_killed_run_stays_open_and_is_shown(lab: Laboratory, tmp_path: Path) -> None:
    _kill_one(tmp_path)
    (run,) = lab.rows("from ledger_runs")
    assert (run["run_id"], run["state"]) == ("killed", "open")
    assert _balance(lab)["started"] == 1
    assert not _balance(lab)["balanced"]
    assert lab.rows("from ratios") == []
    assert "no end was recorded" in _page(lab)


def test_the_next_run_aborts_it_and_both_are_counted(lab: Laboratory, tmp_path: Path) -> None:
    _kill_one(tmp_path)
    lab.measure(Machine(), "after")
    states = {row["run_id"]: row["state"] for row in lab.rows("from ledger_runs")}
    assert states == {"killed": "aborted", "after": "published"}
    balance = _balance(lab)
    assert (balance["started"], balance["published"], balance["aborted"]) == (2, 1, 1)
    assert balance["balanced"]
    assert "not finished before after was started" in _page(lab)
