"""Was the expectation committed before the number?

A run is `registered` when the commit that brought the expectation's present content changed
nothing else, held no run of that expectation, and is a strict ancestor of the harness commit,
and when the tree is clean. It is `broken` when git cannot say so (a missing object is never a
no) or the expectation was edited by hand. Everything else is `exploratory`.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from runner.errors import LivekvError, UsageError
from runner.expectations import Expectation, Forecast, VoidRule, load_expectation
from runner.git import GitError, NoRepositoryError, Repository

__all__ = [
    "Expectation",
    "Forecast",
    "Registration",
    "VoidRule",
    "check_registration",
    "digest",
    "load_expectation",
]

EXPECTATIONS: Final = "data/expectations"
RUNS: Final = "data/runs"

Status = Literal["registered", "exploratory", "broken"]


@dataclass(frozen=True)
class Registration:
    """What a run stores about its expectation, and about the harness that measures it."""

    status: Status
    reason: str
    expectation: Expectation | None
    expectation_digest: str | None
    expectation_commit: str | None
    harness_commit: str | None
    harness_tree: str | None
    harness_dirty: bool | None


class _UnregisteredError(LivekvError):
    """Why a run is exploratory."""


def digest(path: Path) -> str:
    """sha256 of the bytes of `path`, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_registration(
    root: Path, sweep_id: str, model_id: str, points: Sequence[str]
) -> Registration:
    """Say whether a run of `points` on `model_id`, started now in `root`, would be evidence.

    Never raises for what it finds: the status and its reason go into the run.
    """
    check = _Check(root)
    try:
        check.find_expectation(sweep_id, model_id, points)
        check.require_committed()
        check.require_alone()
        check.require_no_result()
        check.require_before_harness()
        check.require_clean()
    except (_UnregisteredError, NoRepositoryError) as refusal:
        return check.result("exploratory", str(refusal))
    except LivekvError as error:
        return check.result("broken", str(error))
    return check.result("registered", check.summary())


class _Check:
    """The steps of a check, and what they have found so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.expectation: Expectation | None = None
        self.path = ""
        self.digest: str | None = None
        self.commit = ""
        self.head = ""
        self.tree: str | None = None
        self.dirt: list[str] | None = None
        self.no_harness: LivekvError | None = None
        self._read_harness()

    def _read_harness(self) -> None:
        # Kept, not raised: an exploratory run still names its expectation, for the void rule.
        try:
            self.repository = Repository.open(self.root)
            self.head = self.repository.head()
            self.tree = self.repository.tree(self.head)
            self.dirt = self.repository.dirt()
        except LivekvError as error:
            self.no_harness = error

    def find_expectation(self, sweep: str, model: str, points: Sequence[str]) -> None:
        files = sorted((self.root / EXPECTATIONS).glob("*.toml"))
        self.expectation = _covering(
            [load_expectation(file) for file in files], sweep, model, points
        )
        self.path = f"{EXPECTATIONS}/{self.expectation.id}.toml"
        self.digest = digest(self.root / self.path)

    def require_committed(self) -> None:
        if self.no_harness:
            raise self.no_harness
        if not self.repository.files(self.head, self.path):
            raise _UnregisteredError(
                f"{self.path} is not committed; commit it alone, before measuring"
            )
        self.commit = self.repository.brought(self.path, self.head)
        for commit in (self.head, self.commit):
            committed = hashlib.sha256(self.repository.content(commit, self.path)).hexdigest()
            if committed != self.digest:
                raise GitError(
                    f"{self.path} differs from commit {commit[:12]}: it was edited by hand; "
                    "restore it, or register anew under another id"
                )

    def require_alone(self) -> None:
        parents = self.repository.parents(self.commit)
        for parent in parents:
            self.repository.require_commit(parent)
        if len(parents) > 1:
            raise _UnregisteredError(
                f"{self.path} was changed in the merge {self.commit[:12]}, not alone"
            )
        others = [path for path in self.repository.changed(self.commit) if path != self.path]
        if others:
            raise _UnregisteredError(
                f"commit {self.commit[:12]} brought {self.path} together with {_some(others)}; "
                "an expectation is committed alone"
            )

    def require_no_result(self) -> None:
        files = self.repository.files(self.commit, RUNS)
        for path in (file for file in files if file.endswith("/run.parquet")):
            if self._found.id in self.expectations_of(path):
                raise _UnregisteredError(
                    f"{path} was there when commit {self.commit[:12]} brought {self.path}; "
                    "register anew under another id"
                )

    def expectations_of(self, path: str) -> list[str | None]:
        """Ids that the rows of the run at `path` name, as of the registering commit."""
        stored = io.BytesIO(self.repository.content(self.commit, path))
        try:
            ids: list[str | None] = pq.read_table(stored).column("expectation_id").to_pylist()
        except (pa.ArrowException, OSError, KeyError) as error:
            raise GitError(f"{path} of {self.commit[:12]} cannot be read: {error}") from error
        return ids

    def require_before_harness(self) -> None:
        if self.commit == self.head:
            raise _UnregisteredError(
                f"commit {self.head[:12]} brings {self.path} and is itself the harness; "
                "commit once more, then measure"
            )
        if not self.repository.is_strict_ancestor(self.commit, self.head):
            raise _UnregisteredError(
                f"commit {self.commit[:12]} is no ancestor of {self.head[:12]}"
            )

    def require_clean(self) -> None:
        if self.dirt:
            raise _UnregisteredError(
                f"the tree differs from commit {self.head[:12]}: {_some(self.dirt)}; "
                "commit or remove that first"
            )

    def summary(self) -> str:
        return f"{self.path} came alone in {self.commit[:12]}, before harness {self.head[:12]}"

    @property
    def _found(self) -> Expectation:
        assert self.expectation is not None, "find_expectation runs first"
        return self.expectation

    def result(self, status: Status, reason: str) -> Registration:
        return Registration(
            status=status,
            reason=reason,
            expectation=self.expectation,
            expectation_digest=self.digest,
            expectation_commit=self.commit or None,
            harness_commit=self.head or None,
            harness_tree=self.tree,
            harness_dirty=None if self.dirt is None else bool(self.dirt),
        )


def _covering(
    known: Sequence[Expectation], sweep: str, model: str, points: Sequence[str]
) -> Expectation:
    near = [one for one in known if one.sweep == sweep and one.missing(model, points) != [*points]]
    full = [one for one in near if not one.missing(model, points)]
    if not full:
        gaps = [f"{one.id} lacks {', '.join(one.missing(model, points))}" for one in near]
        raise _UnregisteredError(
            f"no expectation in {EXPECTATIONS} forecasts every point of sweep {sweep} on {model}"
            + (f": {'; '.join(gaps)}" if gaps else "")
        )
    taken_over = {name for one in full for name in one.replaces}
    left = [one for one in full if one.id not in taken_over]
    if len(left) != 1:
        names = ", ".join(one.id for one in full)
        raise UsageError(
            f"sweep {sweep} on {model} is forecast by {names}; "
            'the newest of them must say replaces = ["..."]'
        )
    return left[0]


def _some(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:3])
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown
