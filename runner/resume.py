"""May an unfinished run go on from this checkout?"""

from __future__ import annotations

from pathlib import Path

from runner.errors import LivekvError, UsageError
from runner.git import Repository
from runner.plan import Plan


def require_same_harness(plan: Plan, root: Path) -> None:
    """Blocks of one run come from one harness: the code that began it must finish it.

    A run that was begun outside git, or in a tree that differed from its commit, cannot be held to
    one; it is exploratory, and goes on.

    Raises:
        UsageError: ``runner/`` is another one now; says how to go on.
    """
    if plan.runner_tree is None:
        return
    try:
        repository = Repository.open(root)
        head = repository.head()
        tree = repository.subtree(head, "runner")
        changed = [path for path in repository.dirt() if path.startswith("runner/")]
    except LivekvError as error:
        raise UsageError(f"cannot go on with {plan.run_id}: {error}") from error
    begun = f"run {plan.run_id} was begun by commit {(plan.harness_commit or 'unknown')[:12]}"
    if tree != plan.runner_tree:
        raise UsageError(
            f"{begun}, and runner/ of {head[:12]} differs: check that commit out to go on, "
            "or begin a new run"
        )
    if changed and not plan.harness_dirty:
        raise UsageError(f"{begun} and {changed[0]} differs from it: restore it to go on")
