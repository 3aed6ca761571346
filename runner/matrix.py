"""What self-hosted machines are asked to measure: platforms times sweeps, for a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner import catalog
from runner.paths import DATA

ALL = "all"


def matrix(
    platform: str, sweep: str, model: str, data: Path = DATA
) -> dict[str, list[dict[str, str]]]:
    """Jobs of a workflow's matrix, one a platform and sweep; ``all`` takes every one.

    Each job names the label of the self-hosted runners that may take it, ``livekv-PLATFORM``.

    Raises:
        UsageError: no such platform, sweep or model; names those that exist.
    """
    platforms = _chosen("platform", platform, catalog.platforms(data))
    sweeps = _chosen("sweep", sweep, catalog.sweeps(data))
    catalog.choose("model", model, catalog.models(data))
    return {
        "include": [
            {"platform": one, "sweep": other, "model": model, "runner": f"livekv-{one}"}
            for one in platforms
            for other in sweeps
        ]
    }


def _chosen(kind: str, name: str, known: Mapping[str, object]) -> list[str]:
    return [*known] if name == ALL else [catalog.choose(kind, name, known)]
