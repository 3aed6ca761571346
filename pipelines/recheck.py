"""Does the repository in hand bear out that a published run was registered?

The site says what the run recorded and never asks git, so that it can be built from an archive.
This asks git again, later, in another clone: history may have been squashed or cut off by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from runner.committed import UnregisteredError, path_of, require_alone, require_no_result
from runner.errors import LivekvError
from runner.git import GitError, NoRepositoryError, Repository

Status = Literal["registered", "exploratory", "broken", "cannot be checked"]


class Recheck(NamedTuple):
    """What git says now, and why."""

    status: Status
    reason: str


class _Contradiction(LivekvError):
    """Git says otherwise than the run."""


def recheck(root: Path, row: Mapping[str, Any]) -> Recheck:
    """Hold what a run recorded (its row of ``run``) against the history of the checkout `root`.

    A commit that is not in that history is never a no and never a yes: the run then cannot be
    checked here, and a commit with the same ``runner/`` is named where there is one.
    """
    claimed = row["registration_status"]
    if claimed != "registered":
        return Recheck(claimed, row["registration_reason"] or "no reason recorded")
    try:
        repository = Repository.open(root)
        head = repository.head()
        absent = _absent(repository, row["harness_commit"], head)
        if absent:
            return Recheck("cannot be checked", absent + _kin(repository, row, head))
        _require_borne_out(repository, row)
    except (_Contradiction, UnregisteredError) as error:
        return Recheck("broken", str(error))
    except (GitError, NoRepositoryError) as error:
        return Recheck("cannot be checked", str(error))
    brought, harness = row["expectation_commit"], row["harness_commit"]
    return Recheck("registered", f"commit {brought[:12]} came before harness {harness[:12]}")


def _absent(repository: Repository, commit: str | None, head: str) -> str | None:
    """Why `commit` cannot be asked about: it is not in the history of `head`."""
    if commit is None:
        return "commit absent: the run names none"
    try:
        if commit == head or repository.is_strict_ancestor(commit, head):
            return None
    except GitError as error:
        return f"commit {commit[:12]} is absent: {error}"
    return f"commit {commit[:12]} is absent from the history of {head[:12]}"


def _kin(repository: Repository, row: Mapping[str, Any], head: str) -> str:
    tree = row["runner_tree"]
    found = repository.holding("runner", tree, head) if tree else None
    return f"; runner/ is the same in commit {found[:12]}" if found else ""


def _require_borne_out(repository: Repository, row: Mapping[str, Any]) -> None:
    brought, harness = row["expectation_commit"], row["harness_commit"]
    if None in (brought, row["expectation_id"], row["expectation_digest"]):
        raise _Contradiction("the run does not name its expectation, digest and commit")
    if row["harness_dirty"] is not False:
        raise _Contradiction(f"the tree differed from commit {harness[:12]}")
    for name, found in (
        ("harness_tree", repository.tree(harness)),
        ("runner_tree", repository.subtree(harness, "runner")),
    ):
        # Runs before version 2 name no runner/ tree.
        if row[name] not in (found, None):
            raise _Contradiction(f"{name} is {row[name][:12]}, in {harness[:12]} it is {found}")
    path = path_of(row["expectation_id"])
    for commit in (brought, harness):
        _require_digest(repository, commit, path, row["expectation_digest"])
    if not repository.is_strict_ancestor(brought, harness):
        raise _Contradiction(f"commit {brought[:12]} did not come before harness {harness[:12]}")
    require_alone(repository, brought, path)
    require_no_result(repository, brought, path)


def _require_digest(repository: Repository, commit: str, path: str, digest: str) -> None:
    if not repository.files(commit, path):
        raise _Contradiction(f"{path} is not in commit {commit[:12]}")
    if hashlib.sha256(repository.content(commit, path)).hexdigest() != digest:
        raise _Contradiction(f"{path} in commit {commit[:12]} is not the text that was measured")
