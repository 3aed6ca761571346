"""The ledger: what every registered run wrote down before its first measurement, and at its end.

``data/ledger/<machine_key>.jsonl``, a file for each machine, a line for each event. A line holds
the hash of the line before it and is never changed or taken out: the file only grows. The chain
shows what was altered in the middle; a tail that was taken off shows against the committed file
(`runner.registration`) and against the published runs (`runner.proof`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from runner.entries import CLAIM, Contents, End, Entry, LedgerError, canonical, hash_of, read_ledger
from runner.errors import EnvironmentProblem
from runner.paths import DATA
from runner.records import TABLES

FOLDER: Final = DATA / "ledger"
PATIENCE_S: Final = 60.0
_CUT: Final = "the line before was cut off while it was written; it never took effect"


class Ledger:
    """The ledger of one machine. Every method but `contents` and `entries` adds to the file.

    A line is on disk when its method returns. Two processes may add at once. What a killed writer
    left is kept, and the next line says so. Everything that adds raises LedgerError when the
    ledger is broken or does not allow it, EnvironmentProblem when the file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        machine_key: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path = folder / f"{machine_key}.jsonl"
        self.machine_key = machine_key
        self._clock = clock

    def contents(self) -> Contents:
        """The whole file, verified; empty where there is none.

        Raises:
            LedgerError: names file, line and what is wrong there.
            EnvironmentProblem: the file cannot be read.
        """
        return read_ledger(self.path) if self.path.exists() else Contents()

    def entries(self) -> tuple[Entry, ...]:
        """Every entry, verified; raises as `contents`."""
        return tuple(self.contents().entries)

    def start(self, **opening: Any) -> str:
        """Write START before anything is measured; return the hash that the run carries.

        `opening` are the fields of `runner.entries.Start` that follow its event. An open run of
        the same expectation, model and platform is aborted first: nobody keeps three open and
        finishes the nicest.
        """
        with self._locked():
            rival = self.contents().runs.rival(*(opening.get(name) for name in CLAIM))
            if rival and rival != opening["run_id"]:
                why = f"not finished before {opening['run_id']} was started"
                self._append("ABORT", run_id=rival, reason=why)
            return self._append("START", **opening)

    def resume(self, run_id: str) -> str:
        """Write that an open run is gone on with; one that ended or was aborted is refused."""
        with self._locked():
            return self._append("RESUME", run_id=run_id)

    def end(self, run_id: str, files: Mapping[str, str]) -> str:
        """Write that the run is complete; `files` is `file_digests` of its folder.

        The same END may be said again: a caller that was killed cannot know whether it was heard.
        """
        with self._locked():
            for entry in self.entries():
                record = entry.record
                if isinstance(record, End) and (record.run_id, record.files) == (run_id, {**files}):
                    return entry.hash
            return self._append("END", run_id=run_id, files={**files})

    def abort(self, run_id: str, reason: str) -> str:
        """Write that the run will never be complete, and why."""
        with self._locked():
            return self._append("ABORT", run_id=run_id, reason=reason)

    def adopt(self, theirs: Path) -> bool:
        """Take over what another checkout of this machine added; False: there was nothing new.

        Raises:
            LedgerError: `theirs` is missing or broken, or the two went on differently.
            EnvironmentProblem: the file cannot be written.
        """
        read_ledger(theirs)
        with self._locked():
            ours = self.path.read_bytes() if self.path.exists() else b""
            new = theirs.read_bytes()
            if ours.startswith(new):
                return False
            if not new.startswith(ours):
                raise LedgerError(
                    f"{self.path} and {theirs} part at line {_parting(ours, new)}: this machine was"
                    " at work in two checkouts; keep the ledger that is committed, and measure what"
                    " the other holds anew"
                )
            self._write(new[len(ours) :])
        return True

    def _append(self, event: str, **fields: Any) -> str:
        contents = self.contents()
        lead = b"" if contents.is_ended else b"\n"
        if contents.cut:
            mark = self._line(contents, "CUT", reason=_CUT)
            contents.take(mark, self.machine_key)
            lead += mark + b"\n"
        line = self._line(contents, event, **fields)
        try:
            contents.take(line, self.machine_key)
        except ValueError as error:
            raise LedgerError(f"{self.path} takes no such line: {error}") from error
        self._write(lead + line + b"\n")
        return hash_of(line)

    def _line(self, contents: Contents, event: str, **fields: Any) -> bytes:
        return canonical(
            {
                "seq": contents.next_seq,
                "previous": contents.last_hash,
                "at": self._clock().astimezone(UTC).isoformat(timespec="microseconds"),
                "machine_key": self.machine_key,
                "event": event,
                **fields,
            }
        )

    def _write(self, data: bytes) -> None:
        is_new = not self.path.exists()
        try:
            with self.path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        if is_new:
            _sync_folder(self.path.parent)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self.path.with_suffix(".lock"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=PATIENCE_S)
        except Timeout:
            raise EnvironmentProblem(
                f"another process held {lock.lock_file} for {PATIENCE_S:.0f} s; wait for it"
            ) from None
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            yield
        finally:
            lock.release()


def file_digests(folder: Path) -> dict[str, str]:
    """sha256 of each Parquet file of the run in `folder`, by its table."""
    files = {table: folder / f"{table}.parquet" for table in TABLES}
    return {table: hash_of(path.read_bytes()) for table, path in files.items() if path.exists()}


def _parting(ours: bytes, theirs: bytes) -> int:
    pairs = zip(ours.split(b"\n"), theirs.split(b"\n"), strict=False)
    return next(number for number, (one, other) in enumerate(pairs, start=1) if one != other)


def _unwritable(path: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"cannot write {path}: {error.strerror or error}; a registered run needs its ledger"
    )


def _sync_folder(folder: Path) -> None:
    # A new file is safe once its folder is on disk; a system that opens no folder does it itself.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
