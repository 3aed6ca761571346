"""Was the expectation committed before the number?

A run is `registered` when the commit that brought the expectation's present content changed
nothing else, held no run of that expectation, finished or started, and is a strict ancestor of the
harness commit, and when the tree is clean. It is `broken` when git cannot say so (a missing object
is never a no), when the expectation was edited by hand, or when a ledger lost a line. Everything
else is `exploratory`.

Measuring adds to the ledger and publishing adds runs: neither makes the tree dirty. A ledger that
does not begin with every content it was ever committed with is broken, and so is the registration.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.committed import (
    EXPECTATIONS,
    LEDGERS,
    UnregisteredError,
    dirt_that_counts,
    path_of,
    require_alone,
    require_grown,
    require_no_result,
    some,
)
from runner.entries import Start, read_ledgers
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
    runner_tree: str | None


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
        require_alone(check.repository, check.commit, check.path)
        require_no_result(check.repository, check.commit, check.path)
        check.require_before_harness()
        check.require_whole_ledgers()
        check.require_clean()
    except (UnregisteredError, NoRepositoryError) as refusal:
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
        self.runner_tree: str | None = None
        self.dirt: list[str] | None = None
        self.no_harness: LivekvError | None = None
        self._read_harness()

    def _read_harness(self) -> None:
        # Kept, not raised: an exploratory run still names its expectation, for the void rule.
        try:
            self.repository = Repository.open(self.root)
            self.head = self.repository.head()
            self.tree = self.repository.tree(self.head)
            self.runner_tree = self.repository.subtree(self.head, "runner")
            self.dirt = dirt_that_counts(self.repository)
        except LivekvError as error:
            self.no_harness = error

    def find_expectation(self, sweep: str, model: str, points: Sequence[str]) -> None:
        files = sorted((self.root / EXPECTATIONS).glob("*.toml"))
        self.expectation = _covering(
            [load_expectation(file) for file in files], sweep, model, points
        )
        self.path = path_of(self.expectation.id)
        self.digest = digest(self.root / self.path)

    def require_committed(self) -> None:
        if self.no_harness:
            raise self.no_harness
        if not self.repository.files(self.head, self.path):
            raise UnregisteredError(
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

    def require_before_harness(self) -> None:
        if self.commit == self.head:
            raise UnregisteredError(
                f"commit {self.head[:12]} brings {self.path} and is itself the harness; "
                "commit once more, then measure"
            )
        if not self.repository.is_strict_ancestor(self.commit, self.head):
            raise UnregisteredError(f"commit {self.commit[:12]} is no ancestor of {self.head[:12]}")

    def require_whole_ledgers(self) -> None:
        require_grown(self.repository, self.head)
        for ledger in read_ledgers(self.root / LEDGERS).values():
            for run_id, start in ledger.runs.starts.items():
                if self._changed_since(start):
                    raise UnregisteredError(
                        f"run {run_id} was started under another text of {self.path}; "
                        "register anew under another id"
                    )

    def _changed_since(self, start: Start) -> bool:
        return start.expectation_id == self._found.id and start.expectation_digest != self.digest

    def require_clean(self) -> None:
        if self.dirt:
            raise UnregisteredError(
                f"the tree differs from commit {self.head[:12]}: {some(self.dirt)}; "
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
            reason=reason.replace(f"{self.root}{os.sep}", ""),  # it may be published
            expectation=self.expectation,
            expectation_digest=self.digest,
            expectation_commit=self.commit or None,
            harness_commit=self.head or None,
            harness_tree=self.tree,
            harness_dirty=None if self.dirt is None else bool(self.dirt),
            runner_tree=self.runner_tree,
        )


def _covering(
    known: Sequence[Expectation], sweep: str, model: str, points: Sequence[str]
) -> Expectation:
    near = [one for one in known if one.sweep == sweep and one.missing(model, points) != [*points]]
    full = [one for one in near if not one.missing(model, points)]
    if not full:
        gaps = [f"{one.id} lacks {', '.join(one.missing(model, points))}" for one in near]
        raise UnregisteredError(
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
