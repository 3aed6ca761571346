"""Registering: an expectation is written from a sweep and a pilot, and refused if it cannot fail.

The ratios of a pilot, widened, become the forecasts; its noise says what the planned blocks can
tell. The form refuses what could not be judged, this what could not be disappointed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from runner import catalog
from runner.catalog import Sweep
from runner.errors import EnvironmentProblem, UsageError
from runner.expectations import Expectation, load_expectation
from runner.paths import ROOT
from runner.pilot import Pilot, newest_pilot, read_pilot
from runner.power import PointPower, check_power
from runner.skeleton import Registering, blocks_of, lines

_ID: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")


def register(asked: Registering, console: Console, root: Path = ROOT) -> Path:
    """Write ``data/expectations/<id>.toml`` for the author to look over, and say what comes next.

    Without pilots the newest complete run of the sweep and model under ``build/runs`` is one.

    Raises:
        UsageError: no fit pilot, an id that is taken, or a forecast that could not be disappointed.
        EnvironmentProblem: the file cannot be written.
    """
    if not _ID.fullmatch(asked.id):
        raise UsageError(f"{asked.id!r} is no id; use small letters, digits, dots and dashes")
    sweep = catalog.sweep(asked.sweep)
    path = root / "data" / "expectations" / f"{asked.id}.toml"
    if path.exists():
        raise UsageError(
            f"{path} exists; register under another id, it can take over with replaces"
        )
    folders = asked.pilots or (newest_pilot(root / "build" / "runs", sweep.id, asked.model),)
    pilots = [read_pilot(folder) for folder in folders]
    text = "\n".join(lines(asked, sweep, pilots, path.parent))
    _require_power(_parsed(text, asked.id), pilots, console)
    if asked.dry_run:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror or error}") from error
    _print_next(path, root, sweep, pilots, asked, console)
    return path


def check(path: Path, pilots: Sequence[Path], console: Console) -> None:
    """Check an expectation that is there already against the noise of `pilots`.

    Raises:
        UsageError: the file or a pilot is unfit, or a forecast could not be disappointed.
    """
    if not pilots:
        raise UsageError("--check needs the noise of a pilot: give --pilot, its run's folder")
    expectation = load_expectation(path)
    found = [read_pilot(folder, expectation.treatment, expectation.baseline) for folder in pilots]
    _require_power(expectation, found, console)


def _require_power(expectation: Expectation, pilots: Sequence[Pilot], console: Console) -> None:
    noise = {(pilot.model, p): found for pilot in pilots for p, found in pilot.noise.items()}
    points = check_power(expectation, noise)
    if not points:
        known = ", ".join(pilot.model for pilot in pilots)
        raise UsageError(f"{expectation.id} forecasts nothing on {known}")
    _print_power(expectation, points, console)
    refused = [
        f"{p.forecast.point} on {p.forecast.model}: {p.refusal}" for p in points if p.refusal
    ]
    if refused:
        raise UsageError(f"{expectation.id} could not be disappointed: {'; '.join(refused)}")


def _print_power(expectation: Expectation, points: Sequence[PointPower], console: Console) -> None:
    table = Table(title=f"{expectation.id}: what {expectation.blocks_min} blocks can tell")
    for name in ("model", "point", "role", "can tell", "has to tell", "blocks that would do"):
        table.add_column(name)
    for one in points:
        forecast = one.forecast
        needed = "" if one.blocks_needed is None else str(one.blocks_needed)
        told = (_percent(one.detectable), _percent(one.distance), needed)
        table.add_row(forecast.model, forecast.point, forecast.role, *told)
    console.print(table)


def _percent(log_ratio: float | None) -> str:
    return "" if log_ratio is None else f"{np.expm1(log_ratio):.2%}"


def _parsed(text: str, name: str) -> Expectation:
    with TemporaryDirectory(prefix="livekv-register-") as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        return load_expectation(path)


def _print_next(
    path: Path,
    root: Path,
    sweep: Sweep,
    pilots: Sequence[Pilot],
    asked: Registering,
    console: Console,
) -> None:
    name = path.relative_to(root).as_posix()
    command = f"nox -s sweep -- --sweep {sweep.id} --blocks {blocks_of(asked, sweep)} --model"
    steps = [
        f"wrote {name}; look it over, then commit it alone, and measure from a later commit:",
        f"  git add {name}",
        f'  git commit --message "Register {asked.id}" -- {name}',
        f'  git commit --allow-empty --message "Measure {asked.id} from here"',
        *(f"  {command} {pilot.model}" for pilot in pilots),
    ]
    for step in steps:
        console.print(step, markup=False, highlight=False, soft_wrap=True)
