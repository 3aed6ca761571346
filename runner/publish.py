"""Publishing a run: its Parquet files, checked, into ``data/runs`` to be committed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner import records
from runner.entries import LedgerError, read_ledgers
from runner.errors import EnvironmentProblem, UsageError
from runner.ledger import Ledger
from runner.paths import DATA
from runner.proof import doubts, is_before_ledger


def publish_run(
    name: str, out: Path, published: Path = DATA / "runs", ledger_from: Path | None = None
) -> Path:
    """Copy a complete run from `out` to `published`, beside which the ledgers are.

    The journal and the plan stay behind: they may name paths of this machine. `ledger_from` is the
    checkout in which the run was measured, where that is another one: what its ledger has more of
    than ours is taken over first.

    Raises:
        UsageError: no such run, it is not complete, or it was published before.
        RecordError: one of its files cannot be read or trusted.
        LedgerError: the run is registered and its ledger does not bear it out.
        EnvironmentProblem: the target cannot be written.
    """
    source = _find(name, out)
    for table in records.TABLES:
        records.read_run_table(source, table)
    target = published / source.parent.name / name
    if target.exists():
        raise UsageError(f"{target} exists: a published run is not written over")
    row = records.read_run_table(source, "run").to_pylist()[0]
    if row["registration_status"] == "registered":
        _require_proof(row, source, published.parent / "ledger", ledger_from)
    _copy(source, target)
    return target


def _find(name: str, out: Path) -> Path:
    folders = [path.parent for path in sorted(out.glob("*/*/run.parquet"))]
    found = [folder for folder in folders if folder.name == name]
    if not found:
        known = ", ".join(folder.name for folder in folders) or "none"
        raise UsageError(f"no complete run {name!r} under {out}; complete: {known}")
    return found[0]


def _require_proof(
    row: Mapping[str, Any], source: Path, ledgers: Path, ledger_from: Path | None
) -> None:
    name = row["run_id"]
    if is_before_ledger(source):
        raise LedgerError(f"run {name} was measured before there was a ledger; measure it again")
    ours = Ledger(ledgers, row["machine_key"])
    if ledger_from:
        ours.adopt(ledger_from / "data" / "ledger" / ours.path.name)
    found = doubts(read_ledgers(ledgers), row, source)
    if found:
        raise LedgerError(
            f"run {name} cannot be published: {'; '.join(found)}; publish the files as they were "
            f"measured, and with --ledger-from CHECKOUT bring {ours.path.name} along from where "
            "that was"
        )


def _copy(source: Path, target: Path) -> None:
    tables = [*(table for table in records.TABLES if table != "run"), "run"]
    try:
        target.mkdir(parents=True)
        for file in (source / f"{table}.parquet" for table in tables):
            if file.exists():  # a run of an older schema version has fewer
                shutil.copyfile(file, target / file.name)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise EnvironmentProblem(f"cannot write {target}: {error.strerror or error}") from error
