"""Lies that one gate alone stands in the way of: with it caught, without it believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from laboratory import ARMS, CLAIM, MODEL, Laboratory
from sabotage import StallsOnce
from simulated import Machine

from runner.records import read_table

Rows = list[dict[str, Any]]
Lie = Callable[[Laboratory], object]

_CLAIM: Final = f"""\
model = "{MODEL}"
point = "{{point}}"
role = "primary"
low = 1.8
high = 2.5
threshold = {{threshold}}
"""


def told_by(machine: type[Machine], **settled: Any) -> Lie:
    """An ordinary run on a machine that cheats."""
    return lambda lab: lab.measure(machine(), **settled)


def rewrite(table: str, change: Callable[[Rows], Rows]) -> Callable[[Path], None]:
    """Change the rows of a written table, past the writer that would have refused."""

    def spoil(folder: Path) -> None:
        path = folder / f"{table}.parquet"
        stored = read_table(path)
        rows = change(stored.to_pylist())
        pq.write_table(pa.Table.from_pylist(rows, schema=stored.schema), path)

    return spoil


def with_nan(rows: Rows) -> Rows:
    """A decode time that is not a number: no ratio is made of it."""
    return [{**rows[0], "decode_s": float("nan")}, *rows[1:]]


def with_a_row_twice(rows: Rows) -> Rows:
    """The first block of the claim's baseline stands twice."""
    twice = (row for row in rows if (row["point"], row["arm"]) == (CLAIM.id, "reprefill"))
    return [*rows, next(twice)]


def aborted(rows: Rows) -> Rows:
    """The run says of itself that it was not finished."""
    return [{**row, "status": "aborted", "status_reason": "killed"} for row in rows]


def without_worst_blocks(rows: Rows) -> Rows:
    """The three blocks in which live KV did worst were never there."""
    return [row for row in rows if row["block"] not in (1, 4, 7)]


def spoilt(*spoils: Callable[[Path], None]) -> Lie:
    """A run whose files were changed before it was entered in the ledger."""

    def tell(lab: Laboratory) -> None:
        def spoil(folder: Path) -> None:
            for one in spoils:
                one(folder)

        lab.measure(Machine(), spoil=spoil)

    return tell


def row_twice(lab: Laboratory) -> None:
    """A measurement that stands twice, where nothing else would notice."""
    lab.register(lambda text: text.replace("unexplained_max = 0.05\n", ""))
    spoilt(rewrite("blocks", with_a_row_twice))(lab)


def dropped_blocks(lab: Laboratory) -> None:
    """A run that leaves out the blocks in which live KV did worst."""
    tables = ("blocks", "hops", "calibration")
    spoilt(*(rewrite(table, without_worst_blocks) for table in tables))(lab)


def changed_afterwards(lab: Laboratory) -> None:
    """A run whose files were changed after it was entered in the ledger."""
    folder = lab.measure(Machine())
    rewrite("blocks", lambda rows: [{**row, "wall_s": _kinder(row)} for row in rows])(folder)


def _kinder(row: dict[str, Any]) -> float:
    seconds: float = row["wall_s"]
    flattered = row["arm"].startswith("live_kv") and row["point"] == CLAIM.id
    return seconds * 0.98 if flattered else seconds


def never_started(lab: Laboratory) -> None:
    """A run that the ledger never heard of."""
    lab.measure(Machine())
    lab.ledger.path.unlink()


def exploratory(lab: Laboratory) -> None:
    """A run for which nothing was registered before it."""
    lab.measure(Machine(), registration_status="exploratory", registration_reason="not committed")


def moved_goalposts(lab: Laboratory) -> None:
    """A refuted claim, and an expectation that is made kinder when the number is known."""
    lab.register(lambda text: text.replace("threshold = 1.5", "threshold = 2.5"))
    lab.measure(Machine())
    lab.register()


def one_block_decides(lab: Laboratory) -> None:
    """Nine blocks say one thing; one that lasted a hundred times as long says another."""
    lab.register(lambda text: text.replace("unexplained_max = 0.05\n", ""))
    lab.measure(StallsOnce())


def one_of_many(lab: Laboratory) -> None:
    """One of ten claims is just about significant, the others were never measured."""
    scout = Laboratory(lab.layout.root / "scout")
    scout.register()
    scout.measure(Machine())
    (row,) = scout.rows(
        "from ratios where measure = 'whole session' and baseline = 'reprefill' and n_hops > 0"
    )
    found = _CLAIM.format(point=CLAIM.id, threshold=row["low"] * 0.9999)
    others = (_CLAIM.format(point=f"other-{i}", threshold=1.5) for i in range(9))
    lab.register(
        lambda text: (
            text.replace(_CLAIM.format(point=CLAIM.id, threshold=1.5), found)
            + "".join(f"\n[[forecast]]\n{other}" for other in others)
        )
    )
    lab.measure(Machine())


def few_blocks(lab: Laboratory) -> None:
    """A run of five blocks where six are registered."""
    lab.measure(Machine(), blocks=5)


def without(arm: str) -> Lie:
    """A run in which `arm` did not take part."""
    arms: Sequence[str] = tuple(one for one in ARMS if one != arm)
    return lambda lab: lab.measure(Machine(), arms=arms)


def without_control(lab: Laboratory) -> None:
    """A run without its parity control."""
    lab.measure(Machine(), points=(CLAIM,))
