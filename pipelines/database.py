"""Reading the results database: rows as dicts, and one line when there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from runner.errors import EnvironmentProblem, UsageError

Row = dict[str, Any]


class Database:
    """A results database, opened for reading only."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._by_run: dict[str, dict[str, list[Row]]] = {}

    def rows(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Every row of `query` as a dict by column name; `values` fill its ``?``."""
        cursor = self._connection.execute(query, list(values))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def of_run(self, query: str, run_id: str) -> list[Row]:
        """The rows of `query` that are one run's, in its order; it selects a column ``run_id``.

        Asked once for all runs and kept: a page a run would else ask as often as there are runs.
        """
        if query not in self._by_run:
            groups: dict[str, list[Row]] = {}
            for row in self.rows(query):
                groups.setdefault(row["run_id"], []).append(row)
            self._by_run[query] = groups
        return self._by_run[query].get(run_id, [])

    def one(self, query: str, values: Sequence[object] = ()) -> Row:
        """The single row of `query`."""
        (row,) = self.rows(query, values)
        return row


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open the database at `path` for reading.

    Raises:
        UsageError: there is no such file; says how to build it.
        EnvironmentProblem: the file cannot be opened.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist; build it with: nox -s warehouse")
    try:
        connection = duckdb.connect(str(path), read_only=True)
    except duckdb.Error as error:
        raise EnvironmentProblem(
            f"cannot open {path}: {error}; build it again with: nox -s warehouse"
        ) from error
    try:
        connection.execute("set timezone = 'UTC'")
        yield Database(connection)
    finally:
        connection.close()
