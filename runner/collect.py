"""Runs that several checkouts measured, into one dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.errors import LivekvError, UsageError
from runner.paths import DATA
from runner.publish import publish_run


def collect_runs(folder: Path, published: Path = DATA / "runs") -> Iterator[str]:
    """Publish every complete run under `folder`; yield a line a run.

    `folder` holds checkouts, or what is left of them: ``NAME/build/runs/PLATFORM/RUN`` and
    ``NAME/data/ledger``. A run that was published before is passed over; one that is not complete
    or is refused is named, and does not keep the others.

    Raises:
        UsageError: `folder` holds no run, or every run was refused.
    """
    found = sorted(folder.glob("*/build/runs/*/*/plan.json"))
    if not found:
        raise UsageError(f"no run under {folder}: it needs NAME/build/runs/PLATFORM/RUN")
    refused = 0
    for plan in found:
        run, checkout = plan.parent, plan.parents[4]
        said = _publish(run, checkout, published)
        refused += said.startswith("refused")
        yield said
    if refused == len(found):
        raise UsageError(f"none of the {refused} run(s) under {folder} could be published")


def _publish(run: Path, checkout: Path, published: Path) -> str:
    if (published / run.parent.name / run.name).exists():
        return f"known: {run.name}"
    if not (run / "run.parquet").exists():
        return f"refused: {run.name} is not complete"
    try:
        target = publish_run(run.name, checkout / "build" / "runs", published, checkout)
    except LivekvError as error:
        return f"refused: {run.name}: {error}"
    return f"published: {target}"
