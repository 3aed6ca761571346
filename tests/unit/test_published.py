"""A registered run is published with its ledger or not at all, and the site counts the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ledgers import MACHINE, ledger_of, lines_of, measure, opening, put, start_run
from synthetic import World, write_run

from pipelines.analysis.rows import insert_table
from pipelines.ledger import Fault, insert_ledger
from pipelines.paths import Layout
from pipelines.sources import read_runs
from runner.entries import LedgerError
from runner.errors import EnvironmentProblem, UsageError
from runner.ledger import file_digests
from runner.publish import publish_run
from runner.records import TABLES, VERSION_KEY

RUN = "20260102T030405Z-reference-small"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where runs are measured."""
    return tmp_path / "build" / "runs"


def published(root: Path) -> Path:
    return root / "data" / "runs"


def flip(folder: Path, table: str, column: str, change: Callable[[Any], Any]) -> None:
    """Change the first value of a column, in a file that is otherwise the same."""
    path = folder / f"{table}.parquet"
    content = pq.read_table(path)
    values = content[column].to_pylist()
    values[0] = change(values[0])
    place = content.schema.get_field_index(column)
    field = content.schema.field(place)
    pq.write_table(content.set_column(place, field, pa.array(values, field.type)), path)


def as_version_1(folder: Path) -> None:
    """Make the files say that they were written when there was no ledger."""
    for path in folder.glob("*.parquet"):
        content = pq.read_table(path)
        metadata = {**(content.schema.metadata or {}), VERSION_KEY: b"1"}
        pq.write_table(content.replace_schema_metadata(metadata), path)


# --- publishing


def test_a_run_that_ended_is_published_with_its_tables_only(tmp_path: Path, out: Path) -> None:
    source = measure(tmp_path, out, RUN)
    (source / "journal.jsonl").write_text("{}")
    target = publish_run(RUN, out, published(tmp_path))
    assert {path.name for path in target.iterdir()} == {f"{table}.parquet" for table in TABLES}
    assert file_digests(target) == file_digests(source)


def test_an_exploratory_run_needs_no_ledger(tmp_path: Path, out: Path) -> None:
    write_run(out, World())
    assert publish_run(World().run_id, out, published(tmp_path)).is_dir()


def test_a_run_is_published_once(tmp_path: Path, out: Path) -> None:
    measure(tmp_path, out, RUN)
    publish_run(RUN, out, published(tmp_path))
    with pytest.raises(UsageError, match="is not written over"):
        publish_run(RUN, out, published(tmp_path))


def never_ended(root: Path, out: Path) -> None:
    start_run(root, out, RUN)


def aborted(root: Path, out: Path) -> None:
    start_run(root, out, RUN)
    ledger_of(root).abort(RUN, "the power went")


def flipped(root: Path, out: Path) -> None:
    flip(measure(root, out, RUN), "blocks", "wall_s", lambda value: value * 0.5)


def table_taken_away(root: Path, out: Path) -> None:
    folder = start_run(root, out, RUN)
    files = file_digests(folder)
    ledger_of(root).end(RUN, {name: files[name] for name in files if name != "checks"})


def never_entered(root: Path, out: Path) -> None:
    write_run(out, World(run_id=RUN, registration_status="registered"))


def another_start(root: Path, out: Path) -> None:
    flip(measure(root, out, RUN), "run", "ledger_start", lambda _: "f" * 64)


def another_seed(root: Path, out: Path) -> None:
    flip(measure(root, out, RUN), "run", "order_seed", lambda seed: seed + 1)


def another_machine(root: Path, out: Path) -> None:
    flip(measure(root, out, RUN), "run", "machine_key", lambda _: "machine1")


def older_schema(root: Path, out: Path) -> None:
    as_version_1(measure(root, out, RUN))


def line_taken_out(root: Path, out: Path) -> None:
    measure(root, out, "another")
    measure(root, out, RUN)
    path = ledger_of(root).path
    put(path, lines_of(path)[1:])


UNFIT: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "never ended": (never_ended, "no end was recorded"),
    "aborted": (aborted, "it was aborted: the power went"),
    "a value flipped": (flipped, r"blocks\.parquet is not the file it ended with"),
    "a table it did not end with": (table_taken_away, r"checks\.parquet is missing, or was not"),
    "never entered": (never_entered, "never started in the ledger of machine machine0"),
    "START of something else": (another_start, "ledger_start is not its START record"),
    "another order": (another_seed, "order_seed is 2, it was started with 1"),
    "another machine": (another_machine, "started on machine machine0 and says machine1: a copied"),
    "no ledger at its time": (older_schema, "before there was a ledger; measure it again"),
    "line taken out": (line_taken_out, "line 1: says it is line 2"),
}


@pytest.mark.parametrize(("make", "said"), UNFIT.values(), ids=UNFIT.keys())
def test_an_unfit_run_is_not_published(
    tmp_path: Path, out: Path, make: Callable[[Path, Path], None], said: str
) -> None:
    make(tmp_path, out)
    with pytest.raises(LedgerError, match=said):
        publish_run(RUN, out, published(tmp_path))
    assert not published(tmp_path).exists()


def test_a_run_measured_elsewhere_brings_its_ledger(tmp_path: Path, out: Path) -> None:
    clone = tmp_path / "clone"
    measure(clone, clone / "build" / "runs", RUN)
    here = published(tmp_path)
    with pytest.raises(LedgerError, match=r"never started.*--ledger-from CHECKOUT"):
        publish_run(RUN, clone / "build" / "runs", here)
    publish_run(RUN, clone / "build" / "runs", here, clone)
    assert ledger_of(tmp_path).path.read_bytes() == ledger_of(clone).path.read_bytes()


def test_a_checkout_without_that_ledger_is_no_remedy(tmp_path: Path, out: Path) -> None:
    measure(tmp_path / "clone", out, RUN)
    with pytest.raises(EnvironmentProblem, match=r"cannot read .*machine0\.jsonl"):
        publish_run(RUN, out, published(tmp_path), tmp_path / "elsewhere")


def test_a_run_of_a_ledger_that_parted_stays_out(tmp_path: Path, out: Path) -> None:
    clone = tmp_path / "clone"
    measure(clone, clone / "build" / "runs", RUN)
    measure(tmp_path, out, "another")
    with pytest.raises(LedgerError, match="part at line 1"):
        publish_run(RUN, clone / "build" / "runs", published(tmp_path), clone)
    assert not published(tmp_path).exists()


# --- the warehouse


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    made.execute("set timezone = 'UTC'")
    return made


def load(con: duckdb.DuckDBPyConnection, root: Path) -> tuple[Fault, ...]:
    """The table ``run`` as the warehouse makes it, and the ledger beside it."""
    layout = Layout(root)
    schema = TABLES["run"].append(pa.field("published", pa.bool_()))
    rows = [
        run.tables["run"].append_column("published", pa.array([run.published]))
        for run in read_runs(layout.published, layout.local, [])
    ]
    insert_table(con, "run", schema.empty_table(), create=True)
    for row in rows:
        insert_table(con, "run", row)
    return insert_ledger(con, layout)


def balance(con: duckdb.DuckDBPyConnection) -> dict[str, tuple[Any, ...]]:
    found = con.execute("from ledger_balance").fetchall()
    return {machine: tuple(rest) for machine, *rest in found}


def test_without_a_ledger_nothing_was_started(
    tmp_path: Path, con: duckdb.DuckDBPyConnection
) -> None:
    assert load(con, tmp_path) == ()
    assert balance(con) == {"all machines": (0, 0, 0, 0, 0, 0, True, [])}


def test_started_is_published_and_aborted(
    tmp_path: Path, out: Path, con: duckdb.DuckDBPyConnection
) -> None:
    measure(tmp_path, published(tmp_path), "r1")
    start_run(tmp_path, out, "r2")
    ledger_of(tmp_path).abort("r2", "the disk was full")
    assert load(con, tmp_path)[0].run_id == "r2"  # an aborted run that is shown all the same
    assert balance(con)["all machines"] == (
        2, 1, 1, 0, 0, 0, True, ["r2 aborted: the disk was full"],
    )  # fmt: skip
    assert con.execute("select seq, event, run_id, reason from ledger").fetchall() == [
        (1, "START", "r1", None), (2, "END", "r1", None), (3, "START", "r2", None),
        (4, "ABORT", "r2", "the disk was full"),
    ]  # fmt: skip


def test_open_runs_and_the_drawer_are_counted_for_each_machine(
    tmp_path: Path, out: Path, con: duckdb.DuckDBPyConnection
) -> None:
    measure(tmp_path, published(tmp_path), "r1", "machine0")
    shutil.rmtree(measure(tmp_path, tmp_path / "drawer", "r2", "machine0"))
    ledger_of(tmp_path, "machine1").start(**opening("r3"))
    ledger_of(tmp_path, "machine1").resume("r3")

    faults = load(con, tmp_path)

    assert faults == (
        Fault("data/ledger/machine0.jsonl", "r2", False, "it ended and was not published"),
    )
    assert balance(con) == {
        "machine0": (2, 1, 0, 0, 1, 0, False, ["r2 unpublished: it ended and was not published"]),
        "machine1": (1, 0, 0, 1, 0, 0, False, ["r3 open: no end was recorded"]),
        "all machines": (
            3, 1, 0, 1, 1, 0, False,
            ["r2 unpublished: it ended and was not published", "r3 open: no end was recorded"],
        ),
    }  # fmt: skip
    resumed = con.execute("select n_resumes from ledger_runs where run_id = 'r3'").fetchall()
    assert resumed == [(1,)]
    assert con.execute("select path, run_id, reason from ledger_faults").fetchall() == [
        (fault.path, fault.run_id, fault.reason) for fault in faults
    ]


def test_contributions_of_two_machines_lie_side_by_side(
    tmp_path: Path, con: duckdb.DuckDBPyConnection
) -> None:
    measure(tmp_path, published(tmp_path), "r1", "machine0")
    measure(tmp_path, published(tmp_path), "r2", "machine1")
    assert load(con, tmp_path) == ()
    assert {machine: row[:2] for machine, row in balance(con).items()} == {
        "machine0": (1, 1), "machine1": (1, 1), "all machines": (2, 2),
    }  # fmt: skip


PUBLISHED_UNFIT = {
    name: case for name, case in UNFIT.items() if name not in ("line taken out",)
} | {"no ledger at its time": (older_schema, "is not the file it ended with")}


@pytest.mark.parametrize(("make", "said"), PUBLISHED_UNFIT.values(), ids=PUBLISHED_UNFIT.keys())
def test_what_could_not_be_published_is_seen_where_it_was(
    tmp_path: Path,
    con: duckdb.DuckDBPyConnection,
    make: Callable[[Path, Path], None],
    said: str,
) -> None:
    make(tmp_path, published(tmp_path))
    voided = [fault for fault in load(con, tmp_path) if fault.voids_run]
    assert {(fault.path, fault.run_id) for fault in voided} == {(f"data/runs/cpu/{RUN}", RUN)}
    reasons = pa.array([fault.reason for fault in voided])
    assert pc.any(pc.match_substring_regex(reasons, said)).as_py(), reasons


def test_a_broken_chain_stops_the_build(tmp_path: Path, con: duckdb.DuckDBPyConnection) -> None:
    line_taken_out(tmp_path, published(tmp_path))
    with pytest.raises(LedgerError, match=r"machine0\.jsonl line 1"):
        load(con, tmp_path)


def test_a_truncated_tail_is_seen_by_the_run_it_was_about(
    tmp_path: Path, con: duckdb.DuckDBPyConnection
) -> None:
    measure(tmp_path, published(tmp_path), RUN)
    path = ledger_of(tmp_path).path
    put(path, lines_of(path)[:-1])
    assert [fault.reason for fault in load(con, tmp_path)] == ["no end was recorded"]


def test_a_tail_cut_in_the_middle_of_a_line_is_said(
    tmp_path: Path, con: duckdb.DuckDBPyConnection
) -> None:
    measure(tmp_path, published(tmp_path), RUN)
    path = ledger_of(tmp_path).path
    path.write_bytes(path.read_bytes()[:-20])
    first, second = load(con, tmp_path)
    assert (first.path, first.run_id) == (f"data/ledger/{MACHINE}.jsonl", None)
    assert "its last line is cut off" in first.reason
    assert (second.run_id, second.reason) == (RUN, "no end was recorded")


def test_a_run_copied_beside_another_machines_ledger(
    tmp_path: Path, con: duckdb.DuckDBPyConnection
) -> None:
    """The files of machine1 under a run id of machine0: the ledger of machine0 ends other files."""
    measure(tmp_path, published(tmp_path), RUN, "machine0")
    elsewhere = measure(tmp_path / "elsewhere", tmp_path / "copy", RUN, "machine1")
    shutil.copytree(elsewhere, published(tmp_path) / "cpu" / RUN, dirs_exist_ok=True)
    (fault,) = [fault for fault in load(con, tmp_path) if fault.voids_run]
    assert fault.reason == f"it was started on machine {MACHINE} and says machine1: a copied run"


def test_runs_of_before_the_ledger_are_listed_and_not_counted(
    tmp_path: Path, con: duckdb.DuckDBPyConnection
) -> None:
    never_entered(tmp_path, published(tmp_path))
    as_version_1(published(tmp_path) / "cpu" / RUN)
    assert load(con, tmp_path) == ()
    assert balance(con)["all machines"] == (0, 0, 0, 0, 0, 1, True, [])
    states = con.execute("select run_id, state from ledger_runs").fetchall()
    assert states == [(RUN, "before the ledger")]


def test_exploratory_runs_are_in_no_ledger(tmp_path: Path, con: duckdb.DuckDBPyConnection) -> None:
    write_run(published(tmp_path), World())
    assert load(con, tmp_path) == ()
    assert balance(con)["all machines"][0] == 0


def test_two_builds_hold_the_same_rows(tmp_path: Path) -> None:
    measure(tmp_path, published(tmp_path), "r1", "machine0")
    ledger_of(tmp_path, "machine1").start(**opening("r3"))
    rows = []
    for _ in range(2):
        with duckdb.connect() as con:
            con.execute("set timezone = 'UTC'")
            load(con, tmp_path)
            tables = ("ledger", "ledger_runs", "ledger_balance", "ledger_faults")
            rows.append([con.execute(f"from {table}").fetchall() for table in tables])
    assert rows[0] == rows[1]
