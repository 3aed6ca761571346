"""Does the ledger bear a run out? Asked when a run is published, and at every build of the site."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from runner.entries import Abort, Contents, End, Start
from runner.ledger import file_digests
from runner.records import VERSION_KEY

SINCE: Final = 2
"""Schema version of the first runs that had a ledger to be entered in."""
_FIELDS: Final = {
    **{name: name for name in ("expectation_id", "expectation_digest", "expectation_commit")},
    **{name: name for name in ("harness_commit", "runner_tree", "sweep", "platform", "order_seed")},
    "model": "model_id",
    "blocks": "blocks_planned",
}
"""What START says of a run, by its column in the table ``run``."""


def is_before_ledger(folder: Path) -> bool:
    """Whether the run in `folder` was written when there was no ledger yet."""
    metadata = pq.read_schema(folder / "run.parquet").metadata or {}
    return int(metadata.get(VERSION_KEY, b"0")) < SINCE


def doubts(ledgers: Mapping[str, Contents], row: Mapping[str, Any], folder: Path) -> list[str]:
    """What keeps the registered run in `folder` from being evidence; nothing when it is sound.

    `ledgers` holds verified ledgers by machine key, `row` is the run's row of ``run``.
    """
    run_id, machine_key = row["run_id"], row["machine_key"]
    ledger = ledgers.get(machine_key, Contents())
    start = ledger.runs.starts.get(run_id)
    if start is None:
        return [_absent(ledgers, run_id, machine_key)]
    hashes = {e.hash for e in ledger.entries if e.record == start}
    found = [] if row["ledger_start"] in hashes else ["run: ledger_start is not its START record"]
    found += _differences(start, row)
    closed = ledger.runs.closed.get(run_id)
    if isinstance(closed, Abort):
        found.append(f"it was aborted: {closed.reason}")
    elif closed is None:
        found.append("no end was recorded")
    else:
        found += _altered(closed, folder)
    return found


def _absent(ledgers: Mapping[str, Contents], run_id: str, machine_key: str) -> str:
    others = [key for key, ledger in ledgers.items() if run_id in ledger.runs.starts]
    if others:
        return f"it was started on machine {others[0]} and says {machine_key}: a copied run"
    return f"it was never started in the ledger of machine {machine_key}"


def _differences(start: Start, row: Mapping[str, Any]) -> list[str]:
    return [
        f"run: {column} is {row[column]}, it was started with {getattr(start, name)}"
        for name, column in _FIELDS.items()
        if row[column] != getattr(start, name)
    ]


def _altered(end: End, folder: Path) -> list[str]:
    found = file_digests(folder)
    tables = sorted({*end.files, *found})
    said = {True: "is not the file it ended with", False: "is missing, or was not there at its end"}
    return [
        f"{table}.parquet {said[table in end.files and table in found]}"
        for table in tables
        if end.files.get(table) != found.get(table)
    ]
