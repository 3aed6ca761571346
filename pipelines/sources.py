"""Which run folders count: a run is read whole or not at all, and what is left out is named."""

from __future__ import annotations

from collections import Counter
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
    """One complete run: its four Arrow tables, and whether its Parquet is committed."""

    path: Path
    published: bool
    tables: dict[str, Any]

    @property
    def order(self) -> tuple[str, str]:
        """Platform and run id: the order in which runs enter the database."""
        return self.path.parent.name, self.path.name


@dataclass(frozen=True)
class Skipped:
    """A file or folder that contributes no row, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Sources:
    """Everything found under the run folders: what counts and what does not."""

    runs: tuple[RunFolder, ...]
    skipped: tuple[Skipped, ...]


def find(published: Path, local: Path | None) -> Sources:
    """Read every run under `published` and, beside them, under `local` (None: published only).

    A run that lies in both places is counted once, as published.
    """
    runs: list[RunFolder] = []
    skipped: list[Skipped] = []
    seen: set[tuple[str, str]] = set()
    for root in (published, local):
        if root is None or not root.is_dir():
            continue
        for folder in _run_folders(root):
            found = _read(folder, root is published, skipped)
            if found is not None and found.order not in seen:
                seen.add(found.order)
                runs.append(found)
        skipped.extend(_strays(root))
    return Sources(
        tuple(sorted(runs, key=lambda run: run.order)),
        tuple(sorted(skipped, key=lambda item: str(item.path))),
    )


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
    columns = [table[key].to_pylist() for key in KEYS[name]]
    # A repeated row would count one measurement twice and narrow the interval.
    for key, count in Counter(zip(*columns, strict=True)).items():
        if count > 1:
            said = ", ".join(f"{k} {v}" for k, v in zip(KEYS[name], key, strict=True))
            raise RecordError(f"holds {count} rows of {said}: a measurement may count once")
