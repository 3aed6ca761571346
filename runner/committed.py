"""What the history of a checkout says about an expectation, its runs and the ledgers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from runner.entries import Start, parsed
from runner.errors import LivekvError
from runner.git import GitError, Repository

EXPECTATIONS: Final = "data/expectations"
RUNS: Final = "data/runs"
LEDGERS: Final = "data/ledger"


class UnregisteredError(LivekvError):
    """Why a run is exploratory."""


def path_of(expectation_id: str) -> str:
    """Where an expectation stands in the checkout."""
    return f"{EXPECTATIONS}/{expectation_id}.toml"


def require_alone(repository: Repository, commit: str, path: str) -> None:
    """Refuse a commit that brought `path` together with anything else.

    Raises:
        UnregisteredError: it did, or it is a merge.
        GitError: git cannot say.
    """
    parents = repository.parents(commit)
    for parent in parents:
        repository.require_commit(parent)
    if len(parents) > 1:
        raise UnregisteredError(f"{path} was changed in the merge {commit[:12]}, not alone")
    others = [changed for changed in repository.changed(commit) if changed != path]
    if others:
        raise UnregisteredError(
            f"commit {commit[:12]} brought {path} together with {some(others)}; "
            "an expectation is committed alone"
        )


def require_no_result(repository: Repository, commit: str, path: str) -> None:
    """Refuse a commit at which a run of the expectation `path` was there, or had been started.

    Raises:
        UnregisteredError: one was.
        GitError: git cannot say, or something there cannot be read.
    """
    name = Path(path).stem
    for run in repository.files(commit, RUNS):
        if run.endswith("/run.parquet") and name in _expectations_of(repository, commit, run):
            raise UnregisteredError(
                f"{run} was there when commit {commit[:12]} brought {path}; "
                "register anew under another id"
            )
    for ledger in repository.files(commit, LEDGERS):
        for start in _starts(repository, commit, ledger):
            if start.expectation_id == name:
                raise UnregisteredError(
                    f"run {start.run_id} had been started when commit {commit[:12]} brought "
                    f"{path}; register anew under another id"
                )


def _expectations_of(repository: Repository, commit: str, path: str) -> list[str | None]:
    stored = io.BytesIO(repository.content(commit, path))
    try:
        ids: list[str | None] = pq.read_table(stored).column("expectation_id").to_pylist()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise GitError(f"{path} of {commit[:12]} cannot be read: {error}") from error
    return ids


def _starts(repository: Repository, commit: str, path: str) -> list[Start]:
    lines = repository.content(commit, path).splitlines()
    try:
        records = [parsed(line) for line in lines]
    except ValueError as error:
        raise GitError(f"{path} of {commit[:12]} holds a line that {error}") from error
    return [record for record in records if isinstance(record, Start)]


def require_grown(repository: Repository, head: str) -> None:
    """Refuse a ledger on disk that does not begin with every content committed up to `head`.

    Raises:
        GitError: a line was changed or taken out, on this branch or on one that was merged.
    """
    for path, blob in repository.versions(LEDGERS, head):
        here = repository.root / path
        now = here.read_bytes() if here.exists() else b""
        if not now.startswith(repository.blob(blob)):
            raise GitError(
                f"{path} does not begin with all that was committed of it, and a ledger only "
                "grows; restore it"
            )


def dirt_that_counts(repository: Repository) -> list[str]:
    """Dirt, less what measuring and publishing leave: neither can change what is measured."""
    new = repository.new_files()
    return [
        path
        for path in repository.dirt()
        if not (path.startswith(f"{LEDGERS}/") and path.endswith((".jsonl", ".lock")))
        and not (path.startswith(f"{RUNS}/") and path in new)
    ]


def some(paths: Sequence[str]) -> str:
    """The first three of `paths`, and how many more there are."""
    shown = ", ".join(paths[:3])
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown
