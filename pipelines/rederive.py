"""Every published figure once more, from Parquet: the same, to the last page, or said where not.

Five comparisons. The site is built twice and must be the same, byte for byte. The figures must be
those of ``data/figures.csv``, which was committed with the runs. Each primary ratio must come out
of Parquet again without SQL. A site that was built before must be what the data gives now. And git
must still say that each expectation came before its run.
"""

from __future__ import annotations

import csv
import filecmp
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from scipy import stats

from pipelines.database import Database, Row, open_database
from pipelines.paths import Layout
from pipelines.publish.site import build_site
from pipelines.recheck import recheck
from pipelines.warehouse import shown
from runner.errors import EnvironmentProblem, LivekvError

KEYS: Final = ("run_id", "point", "baseline", "measure")
# Another processor may round the last digit of a quantile; no figure is shown to nine.
TOLERANCE: Final = 1e-9
# So the record keeps fewer digits: what a run adds to it is new rows, on whatever machine.
_DIGITS: Final = 12

_FIGURES: Final = """
select q.run_id, q.point, q.baseline, q.measure, q.n_blocks, q.ratio, q.low, q.high,
       q.median_low, q.median_high, q.total_ratio, q.saved_s, q.saved_low_s, q.saved_high_s,
       if(q.measure = 'whole session', v.verdict, null) as verdict,
       if(q.measure = 'whole session', v.forecast, null) as forecast
from ratios q join run r using (run_id)
left join verdicts v using (run_id, point, baseline)
where r.published order by all
"""
_USED: Final = """
select platform, p.run_id, point, baseline, treatment, ratio, low, high,
       list(block order by block) as blocks
from block_pairs p join ratios q using (run_id, point, baseline, treatment)
join run r using (run_id)
where usable and measure = 'whole session' and r.published and low is not null
group by all order by all
"""


class DifferenceError(LivekvError):
    """A published figure is not what the data gives."""

    exit_code = 7


def rederive_all(layout: Layout, console: Console, *, update: bool = False) -> None:
    """Derive everything again and compare; `update` writes the record of figures instead.

    Raises:
        DifferenceError: something differs; each difference is printed before.
    """
    with TemporaryDirectory(prefix="livekv-rederive-") as name:
        first, second = (Layout(layout.root, Path(name) / word) for word in ("first", "second"))
        for build in (first, second):
            build_site(build, Console(quiet=True))
        with open_database(first.database) as database:
            found = figures(database)
            if update:
                write_record(layout.figures, found)
            faults = [
                *_against_record(layout, found),
                *without_sql(database, layout.published),
                *_trees(first.built, second.built, "two builds of the same data differ"),
                # A record that has just changed is older than any site.
                *([] if update else _against_site(layout, first)),
                *_against_history(database, layout.root, console),
            ]
    for fault in faults:
        console.print(f"differs: {fault}", highlight=False, markup=False)
    if faults:
        raise DifferenceError(f"{len(faults)} difference(s), see above; nothing may be published")
    console.print(f"{len(found)} published figures come out of Parquet as they were committed")


def figures(database: Database) -> list[dict[str, str]]:
    """Every published figure as text of `_DIGITS` significant digits, ordered by its keys."""
    return [
        {name: _text_of(value) for name, value in row.items()} for row in database.rows(_FIGURES)
    ]


def _text_of(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    return "" if value is None else str(value)


def write_record(path: Path, found: list[dict[str, str]]) -> None:
    """Write the record of figures.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]) if found else KEYS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror or error}") from error


def _against_record(layout: Layout, found: list[dict[str, str]]) -> Iterator[str]:
    where = shown(layout.figures, layout.root)
    try:
        with layout.figures.open(encoding="utf-8", newline="") as file:
            committed = {_key(row): row for row in csv.DictReader(file)}
    except (OSError, KeyError) as error:
        yield f"{where} cannot be read ({error}); write it with --update and commit it"
        return
    now = {_key(row): row for row in found}
    yield from (f"{where} lacks {' '.join(key)}" for key in now if key not in committed)
    for key, row in committed.items():
        if key not in now:
            yield f"{' '.join(key)} is in {where} and no longer in the data"
            continue
        for name, said in row.items():
            derived = now[key].get(name, "")
            if not _same(said, derived):
                yield f"{' '.join(key)}: {name} was {said or 'absent'}, is {derived or 'absent'}"


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in KEYS)


def _same(said: str, derived: str) -> bool:
    try:
        return math.isclose(float(said), float(derived), rel_tol=TOLERANCE)
    except ValueError:
        return said == derived


def without_sql(database: Database, published: Path) -> Iterator[str]:
    """Differences between the table of ratios and a second derivation straight from Parquet."""
    for row in database.rows(_USED):
        low, ratio, high = _second_derivation(row, published)
        for name, again in (("ratio", ratio), ("low", low), ("high", high)):
            if not math.isclose(row[name], again, rel_tol=TOLERANCE):
                yield (
                    f"{row['run_id']} {row['point']} {row['baseline']}: {name} is {row[name]!r} in"
                    f" DuckDB and {again!r} straight from Parquet"
                )


def _second_derivation(row: Row, published: Path) -> tuple[float, float, float]:
    folder = published / str(row["platform"]) / str(row["run_id"])
    table = pq.read_table(folder / "blocks.parquet", partitioning=None).to_pylist()
    wall = {
        (one["block"], one["arm"]): one["wall_s"] for one in table if one["point"] == row["point"]
    }
    d = np.log([wall[block, row["baseline"]] for block in row["blocks"]])
    d -= np.log([wall[block, row["treatment"]] for block in row["blocks"]])
    interval = stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
    return float(np.exp(interval.low)), float(np.exp(d.mean())), float(np.exp(interval.high))


def _trees(left: Path, right: Path, what: str) -> Iterator[str]:
    names = sorted({path.relative_to(root) for root in (left, right) for path in _files(root)})
    for name in names:
        pair = (left / name, right / name)
        if not all(path.exists() for path in pair) or not filecmp.cmp(*pair, shallow=False):
            yield f"{what}: {name}"


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file())


def _against_history(database: Database, root: Path, console: Console) -> Iterator[str]:
    """What git says now of the runs that were registered; silence of git is no fault of a run."""
    for row in database.rows("from run where published order by run_id"):
        if row["registration_status"] != "registered":
            continue
        said = recheck(root, row)
        if said.status == "cannot be checked":
            console.print(f"{row['run_id']}: {said.reason}", highlight=False, markup=False)
        elif said.status != "registered":
            yield f"{row['run_id']} is {said.status}: {said.reason}"


def _against_site(layout: Layout, fresh: Layout) -> Iterator[str]:
    """A site of other runs or for another address has other pages by right, and is left alone."""
    config = layout.staged.parent / "mkdocs.yml"
    if not layout.built.is_dir() or "site_url" in _text(config):
        return
    # A finished run of this checkout is on the site's pages, an unfinished one among what it skips.
    if not layout.local.is_dir() or not any(layout.local.glob("*/*/")):
        yield from _trees(layout.built, fresh.built, "the built site is not what the data gives")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
