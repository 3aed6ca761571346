"""Rows into DuckDB many at a time and out of it in groups: a statement a row is what takes time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_INCOMING: Final = "incoming"


def insert_table(
    con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table, *, create: bool = False
) -> None:
    """Insert Arrow `rows` into `table` by column name, creating it first if `create`."""
    con.register(_INCOMING, rows)
    try:
        head = f"create table {table} as" if create else f"insert into {table} by name"
        con.execute(f"{head} select * from {_INCOMING}")
    finally:
        con.unregister(_INCOMING)


def insert_rows(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows of values, each in the order of the table's columns."""
    if rows:
        insert_columns(con, table, list(zip(*rows, strict=True)))


def insert_columns(
    con: duckdb.DuckDBPyConnection, table: str, columns: Sequence[Sequence[Any] | pa.Array]
) -> None:
    """Insert columns of equal length, in the order of the table's, None where there is no value."""
    schema = con.sql(f"from {table} limit 0").to_arrow_table().schema
    arrays = [
        # Cast apart: given at once, the type would cut 1.5 to 1 without a word.
        (values if isinstance(values, pa.Array) else pa.array(values)).cast(field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    insert_table(con, table, pa.Table.from_arrays(arrays, schema=schema))


def integers(table: pa.Table, name: str) -> NDArray[np.int64]:
    """A column of whole numbers without gaps, shape (rows,)."""
    found: NDArray[np.int64] = table[name].to_numpy().astype(np.int64)
    return found


def floats(table: pa.Table, name: str) -> NDArray[np.float64]:
    """A column of numbers without gaps, shape (rows,)."""
    found: NDArray[np.float64] = table[name].to_numpy().astype(np.float64)
    return found


def groups(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], slice]]:
    """Stretches of rows equal in `names`, in their order: the values, and where they are."""
    if not table.num_rows:
        return
    changes = np.zeros(table.num_rows, bool)
    changes[0] = True
    for name in names:
        codes = table[name].combine_chunks().dictionary_encode().indices.to_numpy()
        changes[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(changes).tolist()
    keys = table.select(list(names)).take(pa.array(starts)).to_pylist()
    for key, start, end in zip(keys, starts, [*starts[1:], table.num_rows], strict=True):
        yield tuple(key.values()), slice(start, end)
