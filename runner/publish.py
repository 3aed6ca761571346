"""Publishing a run: its four Parquet files, checked, into ``data/runs`` to be committed."""

from __future__ import annotations

import shutil
from pathlib import Path

from runner import records
from runner.errors import EnvironmentProblem, UsageError
from runner.paths import DATA


def publish_run(name: str, out: Path, published: Path = DATA / "runs") -> Path:
    """Copy a complete run from `out` to `published`.

    The journal and the plan stay behind: they may name paths of this machine.

    Raises:
        UsageError: no such run, it is not complete, or it was published before.
        RecordError: one of its files cannot be read or trusted.
        EnvironmentProblem: the target cannot be written.
    """
    folders = [path.parent for path in sorted(out.glob("*/*/run.parquet"))]
    found = [folder for folder in folders if folder.name == name]
    if not found:
        known = ", ".join(folder.name for folder in folders) or "none"
        raise UsageError(f"no complete run {name!r} under {out}; complete: {known}")
    source = found[0]
    for table in records.TABLES:
        records.read_run_table(source, table)
    target = published / source.parent.name / name
    if target.exists():
        raise UsageError(f"{target} exists: a published run is not written over")
    try:
        target.mkdir(parents=True)
        for table in (*(table for table in records.TABLES if table != "run"), "run"):
            shutil.copyfile(source / f"{table}.parquet", target / f"{table}.parquet")
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise EnvironmentProblem(f"cannot write {target}: {error.strerror or error}") from error
    return target
