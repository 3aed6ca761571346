"""The trials of a tuning, a line each, on disk before the next: a search that was killed goes on.

The first line says what is searched, on which machine, from which seed. Trials are drawn from that,
so the ones that are missing are known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.errors import EnvironmentProblem, UsageError

Row = dict[str, Any]


class TrialLog:
    """The log of one tuning; `head` is its first line, `rows` the trials that have ended."""

    def __init__(self, path: Path, head: Row, rows: list[Row]) -> None:
        self.path = path
        self.head = head
        self.rows = rows

    @classmethod
    def begin(cls, path: Path, head: Row) -> TrialLog:
        """Start a log.

        Raises:
            EnvironmentProblem: the folder cannot be written.
        """
        log = cls(path, head, [])
        log._write("w")
        return log

    @classmethod
    def resume(cls, folder: Path, same: Mapping[str, Any]) -> TrialLog:
        """The newest log of `folder`, which must have begun with the values of `same`.

        Raises:
            UsageError: there is none, or it began with something else; names what.
        """
        logs = sorted(folder.glob("*.jsonl"))
        if not logs:
            raise UsageError(f"no unfinished tuning in {folder}; start one without --resume")
        head, *rows = _lines(logs[-1])
        for name, value in same.items():
            if head.get(name) != value:
                raise UsageError(
                    f"{logs[-1]} began with {name} {head.get(name)}, now it is {value};"
                    " start anew without --resume"
                )
        log = cls(logs[-1], head, rows)
        log._write("w")  # whole again, should its last line have been cut
        return log

    def append(self, row: Row) -> None:
        """Add a trial that has ended, flushed to disk.

        Raises:
            EnvironmentProblem: the disk is full; the trials before this one are kept.
        """
        self.rows.append(row)
        self._write("a")

    def remove(self) -> None:
        """Take the log away: what it held has been written elsewhere."""
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _write(self, mode: str) -> None:
        lines = self.rows[-1:] if mode == "a" else [self.head, *self.rows]
        target = self.path if mode == "a" else self.path.with_suffix(".partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with target.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            target.replace(self.path)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot write {self.path}: {error.strerror or error};"
                " free space and go on with --resume"
            ) from error


def _lines(path: Path) -> list[Row]:
    found: list[Row] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # the line a full disk or a power cut left unfinished
    if not found:
        raise UsageError(f"{path} is empty; remove it, and start anew without --resume")
    return found
