"""What the command builder may offer: read from the command line and the catalog themselves."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import typer
from typer.exceptions import TyperException

from pipelines.expectations import load_expectations
from runner import catalog
from runner.arms import ARMS
from runner.cli import app

PREFIX = "nox -s sweep"


# Options in the order a reader meets them; one that is not here comes last, under its own name.
LABELS: Final = {
    "platform": "Platform",
    "model": "Model",
    "sweep": "Sweep",
    "arms": "Arms, instead of the sweep's",
    "prefix": "Prefix of your own point, tokens",
    "hops": "Hops of your own point",
    "max_prefix": "Longest prefix of the sweep, tokens",
    "blocks": "Blocks",
    "threads": "CPU threads",
    "n_ctx": "KV cells",
    "n_batch": "Tokens one decode may carry",
    "seed": "Order seed",
    "wait_quiet": "Wait for a quiet machine, seconds",
    "calibration": "Calibrate costs in every block",
    "equivalence": "Compare free output before the blocks",
    "floor": "Measure the floor with llama-bench",
    "tuned": "Tuned settings, a file of data/tuning/",
    "exploratory": "Exploratory: not evidence",
    "dry_run": "Dry run: print the plan only",
    "out": "Folder for runs",
    "resume": "Go on with a run: its id, or last",
    "llama_cpp": "Folder of your own llama.cpp build",
}
LISTED: Final = ("platform", "model", "sweep")


def choices(data: Path) -> dict[str, Any]:
    """The builder's whole table: options of ``sweep``, and the catalog under `data`."""
    return {
        "command": PREFIX,
        "options": options(),
        "platforms": [_platform(item) for item in catalog.platforms(data).values()],
        "models": [
            {"id": item.id, "title": item.title, "kind": item.kind}
            for item in catalog.models(data).values()
        ],
        "sweeps": [_sweep(item) for item in catalog.sweeps(data).values()],
        "arms": [{"id": arm.name, "title": f"{arm.name}: {arm.about}"} for arm in ARMS.values()],
        "registered": _registered(data),
        "turn": _turn(),
    }


def options() -> dict[str, dict[str, Any]]:
    """Every option of ``sweep`` by its name, in the order of `LABELS`."""
    group = typer.main.get_command(app)
    found: dict[str, dict[str, Any]] = {}
    for param in group.commands["sweep"].params:  # type: ignore[attr-defined]
        flag = next((text for text in param.opts if text.startswith("--")), None)
        if flag is None or param.name in (None, "help"):
            continue
        found[str(param.name)] = _option(param, flag)
    order = [*LABELS, *sorted(found)]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def _option(param: Any, flag: str) -> dict[str, Any]:
    return {
        "flag": flag,
        "off": next(iter(param.secondary_opts), None),
        "kind": _kind(param),
        "label": LABELS.get(param.name, param.name.replace("_", " ")),
        "default": param.default if isinstance(param.default, str | int | bool) else None,
        "min": getattr(param, "min", None),
        "whole": param.type_descriptor.annotation is int,
        "help": param.help,
    }


def _kind(param: Any) -> str:
    """Form control of an option: checkbox, select, many, number or text."""
    if param.is_flag:
        return "checkbox"
    if param.name in LISTED:
        return "select"
    if param.name == "arms":
        return "many"
    return "number" if param.type_descriptor.annotation in (int, float) else "text"


def address(command: str) -> str:
    """The builder's page with the form filled in as `command`, from the root of the site.

    What the form does not have, such as a model that is a file, stays out of it: the page then says
    another command than `command`, which the run page shows in full.
    """
    sweep = typer.main.get_command(app).commands["sweep"]  # type: ignore[attr-defined]
    try:
        words = shlex.split(command)
        arguments = words[words.index("--") + 1 :] if "--" in words else []
        given: dict[str, Any] = sweep.make_context("sweep", arguments).params
    except (ValueError, TyperException):
        return "config/"  # a command of another version
    known = options()
    query = {
        name: "1" if value is True else "0" if value is False else str(value)
        for name, value in given.items()
        if name in known and value is not None and value != known[name]["default"]
    }
    return f"config/?{urlencode(query)}" if query else "config/"


def _platform(item: catalog.Platform) -> dict[str, Any]:
    return {
        "id": item.id,
        "title": item.title,
        "systems": list(item.systems),
        "remedy": item.remedy,
    }


def _sweep(item: catalog.Sweep) -> dict[str, Any]:
    return {
        "id": item.id,
        "title": item.title,
        "blocks": item.blocks,
        "n_ctx": item.n_ctx,
        "arms": list(item.arms),
        "points": [
            {"id": point.id, "prefix": point.prefix, "hops": point.hops, "tokens": point.n_tokens}
            for point in item.points
        ],
    }


def _registered(data: Path) -> list[dict[str, Any]]:
    found = []
    for file in load_expectations(data / "expectations"):
        for model in sorted({item.model for item in file.expectation.forecast}):
            points = [item.point for item in file.expectation.forecast if item.model == model]
            found.append(
                {
                    "sweep": file.expectation.sweep,
                    "model": model,
                    "blocks": file.expectation.blocks_min,
                    "points": points,
                }
            )
    return found


def _turn() -> dict[str, int]:
    # The page adds up as `Point.n_tokens`: prefix + (hops + 1) x generate + hops x result.
    point = catalog.Point(prefix=1, hops=0)
    return {"generate": point.generate, "result": point.result}


def common_commands(data: Path) -> list[tuple[str, str]]:
    """Commands most readers want, with what each does; the table of pages without JavaScript."""
    table = options()
    sweep, model, platform = (table[name]["default"] for name in ("sweep", "model", "platform"))
    points_of_sweeps = [
        (f"{PREFIX} -- --sweep {item.id}", f"{item.title}, {item.blocks} blocks")
        for item in catalog.sweeps(data).values()
        if item.id != sweep
    ]
    other_platforms = [
        (f"{PREFIX} -- --platform {item.id}", f"the same on {item.title}")
        for item in catalog.platforms(data).values()
        if item.id != platform
    ]
    return [
        (PREFIX, f"sweep {sweep}, model {model}, platform {platform}: all defaults"),
        *points_of_sweeps,
        *other_platforms,
        (f"{PREFIX} -- --prefix 2000 --hops 6 --exploratory", "one point of your own"),
        (f"{PREFIX} -- --dry-run", "print plan, time and memory; run nothing"),
        (f"{PREFIX} -- --resume last", "go on with an unfinished run"),
    ]
