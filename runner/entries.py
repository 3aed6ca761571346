"""The lines of a ledger: their form, their chain, and the order in which they may come."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from runner.errors import EnvironmentProblem, LivekvError

FIRST: Final = "0" * 64
"""What the first line names as the hash of the line before it."""
CLAIM: Final = ("expectation_id", "model", "platform")
"""What only one open run of a machine may be about."""

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Object = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
Instant = Annotated[
    str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00$", description="UTC")
]


class LedgerError(LivekvError):
    """A ledger is not what was written into it, or does not allow what was asked for."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seq: Annotated[int, Field(ge=1, description="number of the line, from 1")]
    previous: Hash
    at: Instant
    machine_key: Text


class Start(_Line):
    """A registered run is about to measure. `model` is the id that forecasts name, no path."""

    event: Literal["START"]
    run_id: Text
    expectation_id: Text
    expectation_digest: Hash
    expectation_commit: Object
    harness_commit: Object
    runner_tree: Object
    sweep: Text
    model: Text
    platform: Text
    blocks: Count
    order_seed: Count


class Resume(_Line):
    """An open run is gone on with."""

    event: Literal["RESUME"]
    run_id: Text


class End(_Line):
    """A run is complete: `files` maps each of its tables to the sha256 of its Parquet."""

    event: Literal["END"]
    run_id: Text
    files: Annotated[dict[Text, Hash], Field(min_length=1)]


class Abort(_Line):
    """A run will never be complete."""

    event: Literal["ABORT"]
    run_id: Text
    reason: Text


class Cut(_Line):
    """The line before is what a writer left that was killed; `previous` is the hash of that."""

    event: Literal["CUT"]
    reason: Text


Record = Start | Resume | End | Abort | Cut
_RECORD: Final[TypeAdapter[Record]] = TypeAdapter(Annotated[Record, Field(discriminator="event")])


@dataclass(frozen=True)
class Entry:
    """One record, and the hash of its line, which the next line must name."""

    record: Record
    hash: str


class Runs:
    """What the records say about each run; refuses one that cannot follow those before it."""

    def __init__(self) -> None:
        self.starts: dict[str, Start] = {}
        self.closed: dict[str, End | Abort] = {}

    @property
    def open(self) -> set[str]:
        """Runs that were started and neither ended nor aborted."""
        return set(self.starts) - set(self.closed)

    def take(self, record: Record) -> None:
        """Add `record`.

        Raises:
            ValueError: it cannot come now.
        """
        if isinstance(record, Start):
            self._take_start(record)
        elif not isinstance(record, Cut):
            self._require_open(record.event, record.run_id)
            if not isinstance(record, Resume):
                self.closed[record.run_id] = record

    def _take_start(self, record: Start) -> None:
        if record.run_id in self.starts:
            raise ValueError(f"run {record.run_id} is started a second time")
        rival = self.rival(*(getattr(record, name) for name in CLAIM))
        if rival:
            raise ValueError(f"run {record.run_id} is started while {rival} of the same is open")
        self.starts[record.run_id] = record

    def _require_open(self, event: str, run_id: str) -> None:
        if run_id not in self.starts:
            raise ValueError(f"{event} of run {run_id}, which was never started")
        closed = self.closed.get(run_id)
        if closed:
            how = f"was aborted: {closed.reason}" if isinstance(closed, Abort) else "has ended"
            raise ValueError(f"{event} of run {run_id}, which {how}")

    def rival(self, *claim: object) -> str | None:
        """The open run whose fields `CLAIM` are these: no other may be started beside it."""
        for run_id, start in self.starts.items():
            if run_id not in self.closed and claim == tuple(getattr(start, n) for n in CLAIM):
                return run_id
        return None


@dataclass
class Contents:
    """A ledger as read so far: every entry in order, and what stands after the last of them."""

    entries: list[Entry] = field(default_factory=list)
    runs: Runs = field(default_factory=Runs)
    cut: list[bytes] = field(default_factory=list)
    """Pieces of a line whose writer was killed; whatever it was to record never took effect."""
    is_ended: bool = True
    """Whether the last line has its end."""

    @property
    def last_hash(self) -> str:
        """What the next line names: the hash of the last line, or of the pieces after it."""
        if self.cut:
            return hash_of(b"\n".join(self.cut))
        return self.entries[-1].hash if self.entries else FIRST

    @property
    def next_seq(self) -> int:
        """Number of the next line."""
        return (self.entries[-1].record.seq if self.entries else 0) + len(self.cut) + 1

    def take(self, line: bytes, machine_key: str) -> None:
        """Add one line.

        Raises:
            ValueError: it is not what can stand there.
        """
        record = parsed(line)
        if record is None:
            self.cut.append(line)
            return
        if self.cut and not isinstance(record, Cut):
            raise ValueError("the line before it is no record, and this one does not say so")
        if isinstance(record, Cut) and not self.cut:
            raise ValueError("says that the line before it was cut off, and that one is whole")
        if record.seq != self.next_seq:
            raise ValueError(f"says it is line {record.seq}: lines are missing, added or swapped")
        if record.previous != self.last_hash:
            raise ValueError("the line before it is not the one it was written after")
        if record.machine_key != machine_key:
            raise ValueError(f"belongs to machine {record.machine_key}, the file to {machine_key}")
        self.runs.take(record)
        self.entries.append(Entry(record, hash_of(line)))
        self.cut.clear()


def read_ledger(path: Path) -> Contents:
    """Read and verify a ledger: numbers, hashes, form, machine, and the order of each run's events.

    Raises:
        LedgerError: names file, line and what is wrong there.
        EnvironmentProblem: the file cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise EnvironmentProblem(f"cannot read {path}: {error.strerror or error}") from error
    contents = Contents(is_ended=lines[-1] == b"")
    for number, line in enumerate(lines[:-1] if contents.is_ended else lines, start=1):
        try:
            contents.take(line, path.stem)
        except ValueError as error:
            raise LedgerError(
                f"{path} line {number}: {error}; a ledger only grows, restore the file"
            ) from error
    return contents


def read_ledgers(folder: Path) -> dict[str, Contents]:
    """Every ledger under `folder` by its machine key, verified; raises as `read_ledger`."""
    return {path.stem: read_ledger(path) for path in sorted(folder.glob("*.jsonl"))}


def parsed(line: bytes) -> Record | None:
    """The record that `line` holds; None for a piece of one, as a killed writer leaves it.

    Raises:
        ValueError: it is JSON, and no record in the one form a record has.
    """
    try:
        content = json.loads(line)
    except ValueError:
        return None
    if canonical(content) != line:
        raise ValueError("is not in the form it is written in: it was edited by hand")
    try:
        return _RECORD.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "record"
        raise ValueError(f"{where}: {first['msg']}") from error


def canonical(content: object) -> bytes:
    """The one form a record is written in: keys sorted, no spaces, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")


def hash_of(data: bytes) -> str:
    """sha256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
