"""The journal of a run: the plan, then a line for every finished step, on disk before the next.

Parquet is written once, at the end; until then the journal is the run. A run that was killed goes
on from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout
from pydantic import ValidationError

from runner.bench.schedule import Step
from runner.errors import EnvironmentProblem, UsageError
from runner.plan import Plan

Entry = dict[str, Any]
"""``step``, ``status`` (ok | failed), ``reason`` of one finished step, and what it measured."""


class Journal:
    """One run's folder while it is being made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._plan_file = folder / "plan.json"
        self._steps_file = folder / "journal.jsonl"
        self._resumes_file = folder / "resumes.txt"

    def begin(self, plan: Plan) -> None:
        """Write the plan down, whole or not at all.

        Raises:
            EnvironmentProblem: the folder cannot be written.
        """
        partial = self._plan_file.with_suffix(".partial")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
            partial.replace(self._plan_file)
        except OSError as error:
            with suppress(OSError):  # where the folder itself is the trouble there is no part
                partial.unlink()
            raise EnvironmentProblem(
                f"cannot write {self.folder}: {error.strerror or error}; choose another --out"
            ) from error

    def plan(self) -> Plan:
        """The plan that was begun.

        Raises:
            UsageError: there is none, or another version of this program wrote it.
        """
        try:
            return Plan.model_validate_json(self._plan_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"no run to go on with in {self.folder}") from None
        except ValidationError as error:
            raise UsageError(f"{self._plan_file} is not a plan of this version: {error}") from error

    def note_resume(self) -> None:
        """Remember that the run is gone on with.

        Raises:
            EnvironmentProblem: the folder cannot be written.
        """
        try:
            with self._resumes_file.open("a", encoding="utf-8") as file:
                file.write(datetime.now(UTC).isoformat() + "\n")
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot write {self._resumes_file}: {error.strerror or error}"
            ) from error

    @property
    def n_resumed(self) -> int:
        """How often the run was gone on with."""
        try:
            return len(self._resumes_file.read_text(encoding="utf-8").splitlines())
        except FileNotFoundError:
            return 0

    def append(self, step: Step, entry: Entry) -> None:
        """Add a finished step, flushed to disk.

        Raises:
            EnvironmentProblem: the disk is full; the steps before this one are kept.
        """
        line = json.dumps({"step": asdict(step), **entry}) + "\n"
        try:
            with self._steps_file.open("ab+") as file:
                file.write(b"\n" * _is_cut(file) + line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot write {self._steps_file}: {error.strerror or error}; "
                "free space and go on with --resume"
            ) from error

    def entries(self) -> dict[Step, Entry]:
        """Every finished step, the last entry of a step counting; a cut last line is dropped."""
        found: dict[Step, Entry] = {}
        try:
            text = self._steps_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return found
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line a full disk or a power cut left unfinished
            found[Step(**entry.pop("step"))] = entry
        return found

    def finished_blocks(self, plan: Plan) -> dict[Step, Entry]:
        """Entries of the (block, point) pairs in which everything has run.

        A pair that was cut in the middle is run again as a whole: its arms must run side by side.
        """
        entries = self.entries()
        counts: dict[tuple[int, str], int] = {}
        for step in entries:
            counts[step.block, step.point] = counts.get((step.block, step.point), 0) + 1
        return {
            step: entry
            for step, entry in entries.items()
            if counts[step.block, step.point] == plan.side_by_side(step)
        }


def _is_cut(file: BinaryIO) -> bool:
    """Whether the last line has no end: what comes next must not be read as a part of it."""
    if not file.tell():
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def find_unfinished(out: Path, name: str) -> Journal:
    """The unfinished run called `name`, or the newest one for ``last``.

    Raises:
        UsageError: there is none of that name, or it is complete.
    """
    runs = sorted(
        (path.parent for path in out.glob("*/*/plan.json")), key=lambda folder: folder.name
    )
    unfinished = [folder for folder in runs if not (folder / "run.parquet").exists()]
    if name == "last":
        if not unfinished:
            raise UsageError(f"no unfinished run under {out}")
        return Journal(unfinished[-1])
    for folder in runs:
        if folder.name == name:
            if folder not in unfinished:
                raise UsageError(f"run {name} is complete, there is nothing to go on with")
            return Journal(folder)
    known = ", ".join(folder.name for folder in unfinished) or "none"
    raise UsageError(f"no run {name!r} under {out}; unfinished: {known}")


@contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """One sweep at a time in a folder: two would disturb each other's measurements and files.

    Raises:
        UsageError: another sweep is running there.
        EnvironmentProblem: the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"another sweep is writing into {out}; wait for it, or choose another --out"
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {out}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()
