"""Which run folders count: a run is read whole or not at all, and what is left out is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from runner.records import TABLES, RecordError, leftovers, read_run_table

KEYS: Final = {
    "run": ("run_id",),
    "blocks": ("block", "point", "arm"),
    "hops": ("block", "point", "arm", "hop"),
    "checks": ("check",),
    "calibration": ("block", "kind", "depth", "n_tokens", "repeat"),
    "equivalence": ("point", "comparison", "hop"),
}


@dataclass(frozen=True)
class RunFolder:
    """One complete run: its Arrow tables, and whether its Parquet is committed."""

    path: Path
    published: bool
    tables: dict[str, Any]


@dataclass(frozen=True)
class Skipped:
    """A file or folder that contributes no row, and why."""

    path: Path
    reason: str


def read_runs(published: Path, local: Path | None, skipped: list[Skipped]) -> Iterator[RunFolder]:
    """Every run under `published` and, beside them, under `local` (None: published only).

    They come by platform and run id, each read when it is asked for: not all fit into memory. A run
    that lies in both places is counted once, as published. `skipped` gets what does not count, and
    is complete after the last run.
    """
    roots = [root for root in (published, local) if root is not None and root.is_dir()]
    folders = [(folder, root is published) for root in roots for folder in _run_folders(root)]
    last = None
    # A sort that keeps what is equal in its order: published before local.
    for folder, is_published in sorted(folders, key=lambda one: _order(one[0])):
        found = _read(folder, is_published, skipped)
        if found is not None and _order(folder) != last:
            last = _order(folder)
            yield found
    for root in roots:
        skipped.extend(_strays(root))


def _order(folder: Path) -> tuple[str, str]:
    """Platform and run id."""
    return folder.parent.name, folder.name


def _run_folders(root: Path) -> Iterator[Path]:
    for platform in sorted(root.iterdir()):
        if platform.is_dir():
            yield from (path for path in sorted(platform.iterdir()) if path.is_dir())


def _strays(root: Path) -> Iterator[Skipped]:
    expected = {f"{table}.parquet" for table in TABLES}
    for path in root.rglob("*.parquet"):
        if len(path.relative_to(root).parts) != 3 or path.name not in expected:
            yield Skipped(
                path, "not a table of a run: runs are <platform>/<run_id>/<table>.parquet"
            )
    for path in leftovers(root):
        yield Skipped(path, "left by a writer that was killed; delete it, or use --resume")


def _read(folder: Path, published: bool, skipped: list[Skipped]) -> RunFolder | None:
    if not (folder / "run.parquet").exists():
        skipped.append(Skipped(folder, "no run.parquet: unfinished; go on with --resume"))
        return None
    tables: dict[str, Any] = {}
    for name in TABLES:
        path = folder / f"{name}.parquet"
        try:
            tables[name] = _checked(name, folder)
        except RecordError as error:
            skipped.append(Skipped(path, str(error).removeprefix(f"{path} ")))
            return None
    return RunFolder(folder, published, tables)


def _checked(name: str, folder: Path) -> Any:
    table = read_run_table(folder, name)
    _check_schema(table, name)
    _check_finite(table, name)
    _check_identity(table, name, folder)
    _check_unique(table, name)
    return table


def _check_schema(table: Any, name: str) -> None:
    if not table.schema.equals(TABLES[name], check_metadata=False):
        raise RecordError(f"does not have the columns of table {name} in this schema version")


def _check_finite(table: Any, name: str) -> None:
    # On a file DuckDB trusts min/max statistics, which leave NaN out: it must be looked for here.
    for field in table.schema:
        if pa.types.is_floating(field.type):
            finite = pc.all(pc.is_finite(table[field.name])).as_py()
            if finite is False:
                raise RecordError(f"holds NaN or infinity in {name}.{field.name}")


def _check_identity(table: Any, name: str, folder: Path) -> None:
    ids = pc.unique(table["run_id"]).to_pylist()
    if name == "run" and table.num_rows != 1:
        raise RecordError(f"must hold one row, holds {table.num_rows}")
    if ids not in ([folder.name], []):
        raise RecordError(f"belongs to run {ids}, its folder says {folder.name!r}")
    if name == "run" and table["platform"][0].as_py() != folder.parent.name:
        raise RecordError(
            f"was measured on platform {table['platform'][0].as_py()!r}, "
            f"its folder says {folder.parent.name!r}"
        )


def _check_unique(table: Any, name: str) -> None:
    keys = KEYS[name]
    rows = table.group_by(list(keys), use_threads=False).aggregate([([], "count_all")])
    count = pc.max(rows["count_all"]).as_py() or 0
    # A repeated row would count one measurement twice and narrow the interval.
    if count > 1:
        first = rows.filter(pc.equal(rows["count_all"], count)).slice(0, 1).to_pylist()[0]
        said = ", ".join(f"{key} {first[key]}" for key in keys)
        raise RecordError(f"holds {count} rows of {said}: a measurement may count once")
