"""The ledgers of every machine, and whether the runs they name are the runs that are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb

from pipelines.paths import Layout
from runner.entries import Contents, Start, read_ledgers
from runner.proof import doubts, is_before_ledger

SQL: Final = Path(__file__).parent / "sql" / "ledger.sql"

_TABLES: Final = """
create or replace table ledger (
    machine_key varchar, seq int, written_at timestamptz, event varchar, run_id varchar,
    expectation_id varchar, model varchar, platform varchar, reason varchar, hash varchar);
create or replace table ledger_faults (
    path varchar, run_id varchar, voids_run boolean, reason varchar);
create or replace temp table before_ledger (run_id varchar);
"""
_REGISTERED: Final = """
from run where registration_status = 'registered' order by platform, run_id
"""
_UNPUBLISHED: Final = """
select machine_key, run_id, reason from ledger_runs where state = 'unpublished'
order by started_at, machine_key, run_id
"""


class Fault(NamedTuple):
    """Something a ledger and the runs do not agree about.

    `path` is relative to the checkout. With `voids_run` the run is no evidence; without, it is
    only missing from what is shown.
    """

    path: str
    run_id: str | None
    voids_run: bool
    reason: str


def insert_ledger(con: duckdb.DuckDBPyConnection, layout: Layout) -> tuple[Fault, ...]:
    """Create tables ``ledger``, ``ledger_faults``, ``ledger_runs`` and view ``ledger_balance``.

    Needs the table ``run``, with its column ``published``. Returns the rows of ``ledger_faults``.

    Raises:
        LedgerError: a ledger is broken; names file, line and what is wrong there.
    """
    ledgers = read_ledgers(layout.data / "ledger")
    con.execute(_TABLES)
    for machine_key, ledger in ledgers.items():
        for row in _rows(machine_key, ledger):
            con.execute(f"insert into ledger values ({', '.join('?' * len(row))})", row)
    faults = [*_cut(ledgers), *_of_runs(con, layout, ledgers)]
    con.execute(SQL.read_text(encoding="utf-8"))
    con.execute("drop table before_ledger")
    for machine_key, run_id, reason in con.execute(_UNPUBLISHED).fetchall():
        faults.append(Fault(_path(machine_key), run_id, False, reason))
    for fault in faults:
        con.execute("insert into ledger_faults values (?, ?, ?, ?)", [*fault])
    return tuple(faults)


def _rows(machine_key: str, ledger: Contents) -> Iterator[list[Any]]:
    for entry in ledger.entries:
        one = entry.record
        start = one if isinstance(one, Start) else None
        yield [
            machine_key,
            one.seq,
            one.at,
            one.event,
            getattr(one, "run_id", None),
            start and start.expectation_id,
            start and start.model,
            start and start.platform,
            getattr(one, "reason", None),
            entry.hash,
        ]


def _cut(ledgers: Mapping[str, Contents]) -> Iterator[Fault]:
    said = "its last line is cut off; what it was to record never took effect"
    for machine_key, ledger in ledgers.items():
        if ledger.cut:
            yield Fault(_path(machine_key), None, False, said)


def _of_runs(
    con: duckdb.DuckDBPyConnection, layout: Layout, ledgers: Mapping[str, Contents]
) -> Iterator[Fault]:
    """Faults of the registered runs; those older than the ledger go into ``before_ledger``."""
    found = con.execute(_REGISTERED)
    names = [column[0] for column in found.description or ()]
    for values in found.fetchall():
        row = dict(zip(names, values, strict=True))
        place = layout.published if row["published"] else layout.local
        folder = place / row["platform"] / row["run_id"]
        ledger = ledgers.get(row["machine_key"], Contents())
        if is_before_ledger(folder) and not _began_before(ledger, row["started_at"]):
            con.execute("insert into before_ledger values (?)", [row["run_id"]])
            continue
        for reason in doubts(ledgers, row, folder):
            yield Fault(_shown(folder, layout.root), row["run_id"], True, reason)


def _began_before(ledger: Contents, at: datetime) -> bool:
    # A file of the older schema is no way around a ledger that was there.
    return bool(ledger.entries) and datetime.fromisoformat(ledger.entries[0].record.at) < at


def _path(machine_key: str) -> str:
    return f"data/ledger/{machine_key}.jsonl"


def _shown(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
