"""Parquet to DuckDB: one file with the runs, what was skipped, and everything derived from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from pipelines.analysis.closure import insert_closure
from pipelines.analysis.derive import insert_order_effects, insert_ratios, insert_replications
from pipelines.analysis.floor import insert_floors
from pipelines.analysis.graded import insert_comparisons
from pipelines.analysis.judging import insert_verdicts
from pipelines.analysis.predictions import insert_predictions
from pipelines.analysis.rows import insert_table
from pipelines.expectations import ExpectationFile, load_expectations
from pipelines.ledger import Fault, insert_ledger
from pipelines.paths import Layout
from pipelines.sources import RunFolder, Skipped, read_runs
from pipelines.targets import Target, load_targets
from runner.errors import EnvironmentProblem
from runner.records import TABLES

SQL: Final = Path(__file__).parent / "sql"

# Small blocks and the oldest storage version that has them: 45 KB instead of half a megabyte, and
# older DuckDB clients can open the file.
STORAGE: Final = "(STORAGE_VERSION 'v1.4.0', BLOCK_SIZE 16384)"

AT_ONCE: Final = 200_000
"""Rows that wait for one statement, or those of one run where it has more."""


@dataclass(frozen=True)
class Warehouse:
    """What a build put into the database file."""

    path: Path
    n_runs: int
    n_published: int
    skipped: tuple[Skipped, ...]
    faults: tuple[Fault, ...]
    """What the ledgers and the runs do not agree about."""


def build_warehouse(layout: Layout, path: Path, *, local: bool = True) -> Warehouse:
    """Build the database at `path`, whole or not at all; `local` adds runs of this checkout.

    Raises:
        UsageError: a target or expectation file is broken.
        LedgerError: a ledger is broken; names file and line.
        EnvironmentProblem: the file cannot be written.
    """
    expectations = load_expectations(layout.data / "expectations")
    targets = load_targets(layout.data / "targets")
    partial = path.with_name(f"{path.name}.building-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        built = _fill(partial, path, layout, local, expectations, targets)
        partial.replace(path)
    except (OSError, duckdb.IOException) as error:
        raise EnvironmentProblem(
            f"cannot write {path}: {error}; free the disk, or close the program that holds the file"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
        Path(f"{partial}.wal").unlink(missing_ok=True)
    return built


def _fill(
    partial: Path,
    path: Path,
    layout: Layout,
    local: bool,
    expectations: Sequence[ExpectationFile],
    targets: Sequence[Target],
) -> Warehouse:
    found: list[Skipped] = []
    with duckdb.connect() as con:
        # One thread: rows keep their order, so that two builds hold the same bytes.
        con.execute("set threads = 1")
        con.execute("set timezone = 'UTC'")
        con.execute(f"attach '{str(partial).replace(chr(39), chr(39) * 2)}' as results {STORAGE}")
        con.execute("use results")
        runs = read_runs(layout.published, layout.local if local else None, found)
        n_runs, n_published = _insert_runs(con, runs)
        skipped = tuple(sorted(found, key=lambda item: str(item.path)))
        _insert_skipped(con, layout.root, skipped)
        _insert_expectations(con, expectations)
        _insert_targets(con, targets)
        faults = insert_ledger(con, layout)
        _derive(con, expectations)
        con.execute("use memory")
        con.execute("detach results")
    return Warehouse(path, n_runs, n_published, skipped, faults)


def _derive(con: duckdb.DuckDBPyConnection, expectations: Sequence[ExpectationFile]) -> None:
    """Everything that is not in a file: each step reads only what the steps before it made."""
    _script(con, "pairs.sql")
    _script(con, "equivalence.sql")
    _script(con, "measures.sql")
    insert_ratios(con)
    insert_closure(con, expectations)
    insert_verdicts(con, expectations)
    insert_order_effects(con)
    insert_floors(con)
    insert_predictions(con)
    insert_comparisons(con)
    _script(con, "replications.sql")
    insert_replications(con)
    _script(con, "targets.sql")


def _script(con: duckdb.DuckDBPyConnection, name: str) -> None:
    con.execute((SQL / name).read_text(encoding="utf-8"))


def _insert_runs(con: duckdb.DuckDBPyConnection, runs: Iterable[RunFolder]) -> tuple[int, int]:
    """Insert the tables of `runs`; return how many there were, and how many are published."""
    waiting: dict[str, list[pa.Table]] = {}
    for name, schema in TABLES.items():
        empty = schema.empty_table().append_column("published", pa.array([], pa.bool_()))
        insert_table(con, name, empty, create=True)
        waiting[name] = []
    n_runs = n_published = n_waiting = 0
    for run in runs:
        n_runs += 1
        n_published += run.published
        for name, rows in run.tables.items():
            flags = pa.array([run.published] * rows.num_rows, pa.bool_())
            waiting[name].append(rows.append_column("published", flags))
            n_waiting += rows.num_rows
        if n_waiting > AT_ONCE:
            _insert_waiting(con, waiting)
            n_waiting = 0
    _insert_waiting(con, waiting)
    return n_runs, n_published


def _insert_waiting(con: duckdb.DuckDBPyConnection, waiting: dict[str, list[pa.Table]]) -> None:
    for name, tables in waiting.items():
        if tables:
            insert_table(con, name, pa.concat_tables(tables))
            tables.clear()


def _insert_skipped(con: duckdb.DuckDBPyConnection, root: Path, skipped: Sequence[Skipped]) -> None:
    kind = pa.schema([("path", pa.string()), ("reason", pa.string())])
    rows = [{"path": shown(item.path, root), "reason": item.reason} for item in skipped]
    insert_table(con, "skipped", pa.Table.from_pylist(rows, schema=kind), create=True)


def shown(path: Path, root: Path) -> str:
    """The path as a reader types it: relative to the checkout, with forward slashes."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _insert_expectations(con: duckdb.DuckDBPyConnection, files: Sequence[ExpectationFile]) -> None:
    con.execute(
        "create table expectations (id varchar, digest varchar, title varchar, claim varchar,"
        " negative varchar, blocks_min int, parity_margin double, steal_fraction_max double,"
        " other_cpu_fraction_max double, void_blocks_max double, gpu_other_processes_max int,"
        " gpu_slowdown_allowed boolean, unexplained_max double)"
    )
    con.execute(
        "create table forecasts (expectation_id varchar, digest varchar, model varchar,"
        " point varchar, baseline varchar, role varchar, low double, high double, threshold double)"
    )
    for file in files:
        one = file.expectation
        limits = one.void
        con.execute(
            "insert into expectations values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                one.id,
                file.digest,
                one.title,
                one.claim,
                one.negative,
                one.blocks_min,
                one.parity_margin,
                limits.steal_fraction_max,
                limits.other_cpu_fraction_max,
                limits.void_blocks_max,
                limits.gpu_other_processes_max,
                limits.gpu_slowdown_allowed,
                one.unexplained_max,
            ],
        )
        for row in one.forecast:
            con.execute(
                "insert into forecasts values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    one.id,
                    file.digest,
                    row.model,
                    row.point,
                    one.baseline_of(row),
                    row.role,
                    row.low,
                    row.high,
                    row.threshold,
                ],
            )


def _insert_targets(con: duckdb.DuckDBPyConnection, targets: Sequence[Target]) -> None:
    kinds = {
        "low": pa.float64(),
        "high": pa.float64(),
        "cited": pa.bool_(),
        "comparable_models": pa.list_(pa.string()),
        "nominal_prefix": pa.int32(),
        "measured_prefix": pa.int32(),
        "hops": pa.int32(),
    }
    fields = [(name, kinds.get(name, pa.string())) for name in Target.model_fields]
    schema = pa.schema([*fields, ("position", pa.int32())])
    rows = [{**target.model_dump(), "position": i} for i, target in enumerate(targets)]
    insert_table(con, "targets", pa.Table.from_pylist(rows, schema=schema), create=True)
