"""A pilot: a complete run that is no evidence, from which ratios and noise are known beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from runner.errors import UsageError
from runner.power import Noise
from runner.records import read_run_table

TREATMENT: Final = "live_kv"
BASELINE: Final = "reprefill"


@dataclass(frozen=True)
class Pilot:
    """What a pilot run found, by point."""

    model: str
    noise: Mapping[str, Noise]


def read_pilot(folder: Path, treatment: str = TREATMENT, baseline: str = BASELINE) -> Pilot:
    """Ratio and noise of every point of the run in `folder`, from the blocks in which both ran.

    Raises:
        UsageError: not a complete run, or a point has no spread to plan with.
        RecordError: a file cannot be read.
    """
    if not (folder / "run.parquet").exists():
        raise UsageError(f"{folder} is no complete run; give the folder that holds its run.parquet")
    run = read_run_table(folder, "run").to_pylist()[0]
    if run["status"] != "complete":
        raise UsageError(f"{folder} is {run['status']}: {run['status_reason']}; take another pilot")
    rows = [row for row in read_run_table(folder, "blocks").to_pylist() if row["status"] == "ok"]
    wall = {(row["point"], row["block"], row["arm"]): row["wall_s"] for row in rows}
    points = sorted({row["point"] for row in rows})
    return Pilot(run["model_id"], {p: _noise(folder, p, wall, treatment, baseline) for p in points})


def _noise(
    folder: Path,
    point: str,
    wall: Mapping[tuple[str, int, str], float],
    treatment: str,
    baseline: str,
) -> Noise:
    blocks = sorted({block for name, block, _ in wall if name == point})
    pairs = [(wall.get((point, b, baseline)), wall.get((point, b, treatment))) for b in blocks]
    d = np.array([math.log(base / treat) for base, treat in pairs if base and treat])
    if len(d) < 2 or np.ptp(d) == 0:
        raise UsageError(
            f"{folder}: {point} has {len(d)} block(s) with {baseline} and {treatment} to tell its "
            "noise from; run the pilot with --blocks 6 or more"
        )
    return Noise(len(d), math.exp(d.mean()), float(d.std(ddof=1)))


def newest_pilot(out: Path, sweep: str, model: str) -> Path:
    """Folder of the newest complete run of `sweep` on `model` under `out`.

    Raises:
        UsageError: there is none; says how to run one.
    """
    folders = [path.parent for path in sorted(out.glob("*/*/run.parquet"), key=_started)]
    for folder in reversed(folders):
        run = read_run_table(folder, "run").to_pylist()[0]
        if (run["sweep"], run["model_id"], run["status"]) == (sweep, model, "complete"):
            return folder
    raise UsageError(
        f"no pilot of sweep {sweep} on {model} under {out}; run one: "
        f"nox -s sweep -- --sweep {sweep} --model {model} --blocks 6 --exploratory"
    )


def _started(path: Path) -> str:
    return path.parent.name  # a run's name begins with its time
