"""What the command builder may offer: read from the command line and the catalog themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pipelines.expectations import load_expectations
from runner import catalog
from runner.cli import app

PREFIX = "nox -s sweep"


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
        "registered": _registered(data),
        "turn": _turn(),
    }


def options() -> dict[str, dict[str, Any]]:
    """Every option of ``sweep`` by its name: flag, default, smallest value, help."""
    group = typer.main.get_command(app)
    found: dict[str, dict[str, Any]] = {}
    for param in group.commands["sweep"].params:  # type: ignore[attr-defined]
        flag = next((text for text in param.opts if text.startswith("--")), None)
        if flag is None or param.name in (None, "help"):
            continue
        found[str(param.name)] = {
            "flag": flag,
            "default": param.default if isinstance(param.default, str | int | bool) else None,
            "min": getattr(param, "min", None),
            "switch": bool(param.is_flag),
            "help": param.help,
        }
    return found


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
