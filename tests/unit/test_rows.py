"""Rows into DuckDB and out of it: no type changes on the way, groups are what is equal."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.analysis.rows import groups, insert_rows, insert_table

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    made.execute("set timezone = 'UTC'")
    made.execute(
        "create table kinds (a varchar, b int, c double, d boolean, e varchar[], f timestamptz)"
    )
    return made


def test_rows_come_back_as_they_went_in(con: duckdb.DuckDBPyConnection) -> None:
    rows: list[list[Any]] = [
        ["x", 1, 0.1, True, ["p", "q"], MOMENT],
        [None] * 6,
        ["it's", -2, 2.0, False, [], None],
    ]
    insert_rows(con, "kinds", rows)
    assert [list(row) for row in con.execute("from kinds").fetchall()] == rows


def test_no_row_is_no_statement(con: duckdb.DuckDBPyConnection) -> None:
    insert_rows(con, "kinds", [])
    assert con.execute("select count(*) from kinds").fetchall() == [(0,)]


def test_a_value_of_another_kind_is_refused(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(pa.ArrowInvalid):
        insert_rows(con, "kinds", [["x", 1.5, 0.1, True, [], None]])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        insert_rows(con, "kinds", [["x"] * 6, ["x"] * 5])


def test_columns_go_by_name(con: duckdb.DuckDBPyConnection) -> None:
    insert_table(con, "kinds", pa.table({"c": [0.5], "a": ["x"]}))
    assert con.execute("select a, b, c from kinds").fetchall() == [("x", None, 0.5)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=20))
def test_groups_are_stretches_of_equal_rows(rows: list[tuple[str, int]]) -> None:
    table = pa.table({"a": [row[0] for row in rows], "b": [row[1] for row in rows]})
    found = [(key, at.start, at.stop) for key, at in groups(table, ("a", "b"))]
    expected, start = [], 0
    for key, stretch in groupby(rows):
        stop = start + len([*stretch])
        expected.append((key, start, stop))
        start = stop
    assert found == expected
