"""Files a reader takes away: the published runs as Parquet and as one DuckDB file, with digests."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path
from typing import Final

import duckdb
import pyarrow.parquet as pq

from pipelines.database import Row
from pipelines.paths import Layout
from pipelines.warehouse import build_warehouse
from runner.errors import EnvironmentProblem
from runner.records import TABLES

# DuckDB draws a random identity for each file and stores it in the first header, which begins
# with its own checksum: 5381 xor every following 8-byte word times this number.
_HEADER: Final = 4096
_MULTIPLIER: Final = 0xBF58476D1CE4E5B9
_MASK: Final = (1 << 64) - 1
_IDENTITY: Final = slice(124, 140)


def write_downloads(layout: Layout, staged: Path) -> tuple[Row, ...]:
    """Lay the files into ``downloads/`` of the staged site; return path, what, bytes, sha256."""
    folder = staged / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    database = _published(layout, folder / "results.duckdb")
    fix_identity(database)
    files = [
        (database, "every published run and all that is derived from it"),
        (_ratios(database, folder), "every ratio with its run, platform and model"),
    ]
    for platform, run_id in _runs(database):
        place = folder / platform / run_id
        place.mkdir(parents=True)
        for name in TABLES:
            source = layout.published / platform / run_id / f"{name}.parquet"
            if not source.exists():
                continue  # the run is older than the table
            target = place / source.name
            target.write_bytes(source.read_bytes())
            files.append((target, f"{name} of run {run_id}, {platform}"))
    rows = tuple(_row(path, what, staged) for path, what in files)
    sums = "".join(f"{row['sha256']}  {row['path'].split('/', 1)[1]}\n" for row in rows)
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")
    return rows


def _published(layout: Layout, target: Path) -> Path:
    """The database of the published runs: the site's own, where nothing local is in it."""
    if layout.local.is_dir():
        return build_warehouse(layout, target, local=False).path
    shutil.copyfile(layout.database, target)
    return target


def _runs(database: Path) -> list[tuple[str, str]]:
    with duckdb.connect(str(database), read_only=True) as con:
        found = con.execute("select platform, run_id from run order by all").fetchall()
    return [(platform, run_id) for platform, run_id in found]


_RATIOS: Final = """
select r.platform, r.model_id, r.machine_key, r.registration_status, q.*
from ratios q join run r using (run_id)
order by r.platform, r.model_id, q.run_id, q.n_hops, q.n_prefix, q.point, q.baseline, q.measure
"""


def _ratios(database: Path, folder: Path) -> Path:
    target = folder / "ratios.parquet"
    with duckdb.connect(str(database), read_only=True) as con:
        pq.write_table(con.sql(_RATIOS).to_arrow_table(), target)
    return target


def _row(path: Path, what: str, staged: Path) -> Row:
    content = path.read_bytes()
    return {
        "path": path.relative_to(staged).as_posix(),
        "what": what,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def fix_identity(path: Path) -> None:
    """Blank the random identity of a DuckDB file, so that the same data gives the same bytes.

    Raises:
        EnvironmentProblem: this DuckDB writes another header, or cannot open the result.
    """
    content = bytearray(path.read_bytes())
    if _checksum(content) != struct.unpack_from("<Q", content, 0)[0]:
        raise EnvironmentProblem(
            f"{path}: duckdb {duckdb.__version__} writes a header this program does not know;"
            " install the duckdb version of requirements.lock"
        )
    content[_IDENTITY] = bytes(_IDENTITY.stop - _IDENTITY.start)
    struct.pack_into("<Q", content, 0, _checksum(content))
    path.write_bytes(content)
    try:
        duckdb.connect(str(path), read_only=True).close()
    except duckdb.Error as error:
        raise EnvironmentProblem(
            f"{path} does not open after its identity was fixed: {error}"
        ) from error


def _checksum(content: bytearray) -> int:
    result = 5381
    for (word,) in struct.iter_unpack("<Q", content[8:_HEADER]):
        result ^= (word * _MULTIPLIER) & _MASK
    return result
