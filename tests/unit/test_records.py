"""The writer refuses what a reader could not trust, and writes whole files or none."""

from __future__ import annotations

import errno
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.errors import EnvironmentProblem
from runner.paths import DATA
from runner.records import (
    BLOCKS,
    SCHEMA_VERSION,
    TABLES,
    VERSION_KEY,
    RecordError,
    check_row,
    leftovers,
    read_run_table,
    read_table,
    write_table,
)

ROW: dict[str, Any] = {
    "run_id": "r",
    "check": "construct",
    "status": "pass",
    "value": 1.5,
    "unit": "s",
    "detail": "seen",
    "meaning": "what it means",
    "seconds": 0.1,
}


def block(**values: Any) -> dict[str, Any]:
    fixed = {
        "run_id": "r",
        "block": 0,
        "point": "p",
        "workload": "tool_loop",
        "arm": "live_kv",
        "position": 0,
        "n_prefix": 27,
        "n_hops": 1,
        "n_generate": 32,
        "n_result": 24,
        "status": "failed",
        "reason": "killed",
        "started_at": datetime(2026, 1, 2, tzinfo=UTC),
    }
    return fixed | values


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = write_table(tmp_path / "new", "checks", [ROW, {**ROW, "value": None, "unit": None}])
    assert path == tmp_path / "new" / "checks.parquet"
    assert read_table(path).to_pylist() == [ROW, {**ROW, "value": None, "unit": None}]
    assert [file.name for file in path.parent.iterdir()] == ["checks.parquet"]


@pytest.mark.parametrize("table", TABLES)
def test_an_empty_table_keeps_its_schema_and_version(table: str, tmp_path: Path) -> None:
    found = read_table(write_table(tmp_path, table, []))
    assert found.schema.equals(TABLES[table])
    assert found.schema.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()


def test_a_failed_block_has_nulls_and_a_reason(tmp_path: Path) -> None:
    written = read_table(write_table(tmp_path, "blocks", [block()])).to_pylist()[0]
    assert (written["wall_s"], written["reason"]) == (None, "killed")
    assert written["started_at"] == datetime(2026, 1, 2, tzinfo=UTC)
    assert set(written) == set(BLOCKS.names)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("column", ["wall_s", "ttft_s", "steal_fraction"])
def test_a_number_that_is_not_finite_is_refused_with_its_column(
    tmp_path: Path, column: str, value: float
) -> None:
    with pytest.raises(RecordError, match=rf"blocks\.{column} is {value}: give NULL and a reason"):
        write_table(tmp_path, "blocks", [block(), block(**{column: value})])
    assert not list(tmp_path.iterdir())


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"checks: unknown column\(s\) \['colour'\]"):
        write_table(tmp_path, "checks", [{**ROW, "colour": "red"}])


@pytest.mark.parametrize("column", [field.name for field in TABLES["checks"] if not field.nullable])
@pytest.mark.parametrize("missing", ["absent", "null"])
def test_a_required_column_without_a_value_is_refused(column: str, missing: str) -> None:
    row: dict[str, Any] = {**ROW, column: None}
    if missing == "absent":
        del row[column]
    with pytest.raises(RecordError, match=rf"checks\.{column} is required and has no value"):
        check_row("checks", row)


def test_a_value_of_another_type_is_one_line_with_its_table(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="checks"):
        write_table(tmp_path, "checks", [{**ROW, "seconds": "soon"}])
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_schema_version_names_both(tmp_path: Path) -> None:
    path = tmp_path / "checks.parquet"
    other = TABLES["checks"].with_metadata({VERSION_KEY: b"99"})
    pq.write_table(pa.Table.from_pylist([ROW], schema=other), path)
    with pytest.raises(RecordError, match=r"has schema version 99, this program reads \d"):
        read_table(path)


def test_a_file_of_somebody_else_has_no_version(tmp_path: Path) -> None:
    path = tmp_path / "checks.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(RecordError, match="has schema version none"):
        read_table(path)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99], ids=["empty", "half", "nearly whole"])
def test_a_half_written_file_is_named(tmp_path: Path, keep: float) -> None:
    path = write_table(tmp_path, "checks", [ROW] * 100)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(RecordError, match=r"checks\.parquet is not a readable Parquet file"):
        read_table(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"blocks\.parquet is not a readable"):
        read_table(tmp_path / "blocks.parquet")


@pytest.mark.parametrize("where", ["fsync", "write"])
def test_a_full_disk_keeps_the_older_file_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path = write_table(tmp_path, "checks", [ROW])

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((os, "fsync", full) if where == "fsync" else (pq, "write_table", full)))
    with pytest.raises(EnvironmentProblem, match=r"No space left on device; .*use --resume"):
        write_table(tmp_path, "checks", [ROW, ROW])
    monkeypatch.undo()
    assert len(read_table(path)) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["checks.parquet"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"cannot write .*Not a directory"):
        write_table(tmp_path / "file" / "run", "checks", [ROW])


def test_what_a_killed_writer_left_is_found_and_no_reader_takes_it_for_a_table(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cpu" / "run"
    folder.mkdir(parents=True)
    (folder / "hops.parquet.partial").write_bytes(b"PAR1")
    assert list(leftovers(tmp_path)) == [folder / "hops.parquet.partial"]
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_published_run_of_the_first_version_is_read_with_nulls_in_later_columns() -> None:
    first = min((DATA / "runs").glob("*/*/run.parquet")).parent

    run = read_run_table(first, "run").to_pylist()[0]

    assert pq.read_schema(first / "run.parquet").metadata[VERSION_KEY] == b"1"
    assert run["run_id"] == first.name
    assert run["ledger_start"] is None
    assert read_run_table(first, "calibration").num_rows == 0
    assert read_run_table(first, "blocks").schema.equals(TABLES["blocks"])


def test_a_table_that_belongs_to_the_runs_version_may_not_be_absent(tmp_path: Path) -> None:
    write_table(tmp_path, "calibration", [])

    with pytest.raises(RecordError, match=r"equivalence.parquet is missing"):
        read_run_table(tmp_path, "equivalence")
