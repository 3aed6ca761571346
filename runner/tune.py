"""Tuning: every arm gets the same number of trials over a written grid, on data of its own.

The engine's settings are one for all arms in the end. They are those under which the tuned server
is fastest, so that what is left of a disadvantage is ours. What each arm would have chosen for
itself stands in the table of trials.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.table import Table

from runner import catalog
from runner.arms import ARMS
from runner.bench.isolated import JobDied, JobFailed, call
from runner.bench.machine import default_threads, machine_facts
from runner.bench.schedule import draw_seed
from runner.bench.worker import to_job
from runner.building import ensure_engine
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.errors import RunAborted, UsageError
from runner.loading import parameters_for
from runner.models import ensure_model
from runner.paths import DATA, ROOT
from runner.progress import step_progress
from runner.records import write_tuning
from runner.serving.settings import ServerSettings
from runner.stopping import stop_on_terminate
from runner.trials import TrialLog

GRID: Final = DATA / "tuning.toml"
FOLDER: Final = DATA / "tuning"
TRIALS: Final = ROOT / "build" / "tuning"
REFERENCE: Final = "llama_server"
"""The arm whose best engine settings are everybody's."""

Settings = dict[str, Any]


class Grid(BaseModel):
    """``data/tuning.toml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    point: Point
    trials: int = Field(ge=2, description="of each arm")
    shared: dict[str, tuple[Any, ...]]
    arms: dict[str, dict[str, tuple[Any, ...]]] = Field(min_length=1)

    def combinations(self, arm: str) -> list[Settings]:
        """Every setting of `arm`, engine settings first, in the order of the file."""
        varied = {**self.shared, **self.arms[arm]}
        values = itertools.product(*varied.values())
        return [dict(zip(varied, one, strict=True)) for one in values]


@dataclass(frozen=True)
class Trial:
    """One setting of one arm, to be timed once."""

    arm: str
    number: int
    settings: Settings

    def parameters(self, base: LoadParameters) -> LoadParameters:
        """How the model is loaded in this trial."""
        known = {name: v for name, v in self.settings.items() if hasattr(base, name)}
        return replace(base, **known)

    def server(self) -> Settings:
        """What only a server is told."""
        names = ServerSettings.__dataclass_fields__
        return {name: v for name, v in self.settings.items() if name in names}


def load_grid(path: Path = GRID) -> Grid:
    """Read the grid.

    Raises:
        UsageError: not readable, or it names an unknown arm or setting.
    """
    try:
        grid = Grid.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    known = {*LoadParameters.__dataclass_fields__, *ServerSettings.__dataclass_fields__}
    for arm, own in grid.arms.items():
        catalog.choose("arm", arm, ARMS)
        for name in (*grid.shared, *own):
            catalog.choose("setting", name, known)
    return grid


def trials(grid: Grid, seed: int) -> list[Trial]:
    """Every trial of every arm, settings and order drawn from `seed`: drift favours nobody.

    An arm with more settings than trials is searched at random, as many of them as it has trials;
    one with fewer goes through them again.
    """
    drawn = np.random.default_rng(seed)
    planned = []
    for arm in grid.arms:
        every = grid.combinations(arm)
        some = [every[index] for index in drawn.permutation(len(every))]
        turns = zip(range(grid.trials), itertools.cycle(some), strict=False)
        planned += [Trial(arm, number, settings) for number, settings in turns]
    return [planned[index] for index in drawn.permutation(len(planned))]


@dataclass(frozen=True)
class Tuning:
    """What is asked for; None: the default."""

    platform: str
    model: str
    threads: int | None = None
    llama_cpp: Path | None = None
    seed: int | None = None
    resume: bool = False
    dry_run: bool = False


def run_tuning(asked: Tuning, console: Console) -> Path | None:
    """Search the grid, write the trials and the winner; return the winner's file, None if dry.

    Raises:
        UsageError, EnvironmentProblem: as a sweep; there is nothing to go on with.
        Interrupted: Ctrl-C or SIGTERM; finished trials are kept.
        RunAborted: no trial of the reference arm succeeded.
    """
    grid = load_grid()
    if asked.dry_run:
        _print_plan(grid, trials(grid, asked.seed or 0), console)
        return None
    build = ensure_engine(asked.platform, asked.llama_cpp, console)
    resolved = ensure_model(asked.model, console)
    n_threads, _ = default_threads(asked.threads)
    base = parameters_for(build, resolved, catalog.platform(asked.platform), n_threads)
    head = {
        "platform": asked.platform,
        "machine_key": machine_facts()["machine_key"],
        "model_id": resolved.model.id,
        "library_sha256": build.library_sha256,
        "point": grid.point.id,
    }
    log = _log(asked, {**head, "n_threads": n_threads, "grid": grid.model_dump(mode="json")})
    with stop_on_terminate("finished trials are kept, go on with: nox -s tune -- --resume"):
        _search(log, trials(grid, log.head["seed"]), base, grid.point, console)
    found = {"tuning_id": log.head["tuning_id"], **head}
    return _conclude(log, found, grid, console)


def _log(asked: Tuning, same: Mapping[str, Any]) -> TrialLog:
    folder = TRIALS / asked.platform
    if asked.resume:
        return TrialLog.resume(folder, same)
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{same['model_id'].replace(':', '-')}"
    seed = draw_seed() if asked.seed is None else asked.seed
    return TrialLog.begin(folder / f"{name}.jsonl", {"tuning_id": name, **same, "seed": seed})


def _search(
    log: TrialLog, planned: Sequence[Trial], base: LoadParameters, point: Point, console: Console
) -> None:
    seed = log.head["seed"]
    with step_progress(console, "Trials", len(planned)) as show:
        for position in range(len(log.rows), len(planned)):
            trial = planned[position]
            said = f"{trial.arm} {json.dumps(trial.settings)}"
            console.print(f"trial {position + 1} of {len(planned)}: {said}", highlight=False)
            log.append(_row(trial, position, _run(trial, base, point, seed)))
            show(position + 1)


def _conclude(log: TrialLog, head: Mapping[str, Any], grid: Grid, console: Console) -> Path:
    chosen = choose_settings(log.rows, grid)
    folder: Path = FOLDER / head["platform"]
    write_tuning(folder / f"{head['tuning_id']}.parquet", [{**head, **row} for row in log.rows])
    winner = folder / f"{head['tuning_id']}.json"
    text = json.dumps({**head, "seed": log.head["seed"], "settings": chosen}, indent=1)
    winner.write_text(text + "\n", encoding="utf-8")
    log.remove()
    _print(log.rows, chosen, console)
    return winner


def _print_plan(grid: Grid, planned: Sequence[Trial], console: Console) -> None:
    table = Table(title=f"{len(planned)} trials at {grid.point.id}", title_justify="left")
    for name in ("arm", "trials", "settings there are"):
        table.add_column(name)
    for arm in grid.arms:
        table.add_row(arm, str(grid.trials), str(len(grid.combinations(arm))))
    console.print(table)


def _run(trial: Trial, base: LoadParameters, point: Point, seed: int) -> dict[str, Any]:
    job = {
        "load": to_job(trial.parameters(base)),
        "server": trial.server(),
        "arm": trial.arm,
        "point": point.model_dump(),
        "seed": seed,
        "warmup_tokens": 64,
    }
    try:
        return {"reason": None, **call("runner.bench.worker", job)["block"]}
    except (JobDied, JobFailed) as error:
        return {"reason": str(error)}


def _row(trial: Trial, position: int, block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "arm": trial.arm,
        "trial": trial.number,
        "position": position,
        "settings": json.dumps(trial.settings, sort_keys=True),
        "wall_s": block.get("wall_s"),
        "reason": block["reason"],
        "other_cpu_fraction": block.get("other_cpu_fraction"),
    }


def best(rows: Sequence[Mapping[str, Any]], arm: str) -> tuple[Settings, float]:
    """The settings of `arm` with the least median wall, and that in seconds.

    Raises:
        RunAborted: none of its trials gave a time.
    """
    walls: dict[str, list[float]] = {}
    for row in rows:
        if row["arm"] == arm and row["wall_s"] is not None:
            walls.setdefault(row["settings"], []).append(row["wall_s"])
    if not walls:
        raise RunAborted(f"no trial of {arm} gave a time")
    settings, took = min(((s, median(w)) for s, w in walls.items()), key=lambda pair: pair[1])
    found: Settings = json.loads(settings)
    return found, took


def choose_settings(rows: Sequence[Mapping[str, Any]], grid: Grid) -> dict[str, Settings]:
    """Engine settings for all, those of the reference arm's best; and what is its own."""
    found, _ = best(rows, REFERENCE if REFERENCE in grid.arms else next(iter(grid.arms)))
    shared = {name: value for name, value in found.items() if name in grid.shared}
    own = {name: value for name, value in found.items() if name not in grid.shared}
    return {"shared": shared, "server": own}


def _print(
    rows: Sequence[Mapping[str, Any]], chosen: Mapping[str, Settings], console: Console
) -> None:
    table = Table(title="best of every arm, for itself", title_justify="left")
    for name in ("arm", "trials", "best wall", "settings"):
        table.add_column(name)
    for arm in dict.fromkeys(row["arm"] for row in rows):
        settings, took = best(rows, arm)
        n_trials = sum(row["arm"] == arm for row in rows)
        table.add_row(arm, str(n_trials), f"{took:.3f} s", json.dumps(settings))
    console.print(table)
    console.print(f"for all arms: {json.dumps(chosen['shared'])}", highlight=False)
