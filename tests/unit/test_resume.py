"""An unfinished run goes on only from the harness that began it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.git import Repository
from runner.plan import Plan, Request, make_plan
from runner.resume import require_same_harness


def git(root: Path, *arguments: str) -> None:
    who = {f"GIT_{role}_{what}": "t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME",)}
    mail = {f"GIT_{role}_EMAIL": "t@example.org" for role in ("AUTHOR", "COMMITTER")}
    subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, env={**os.environ, **who, **mail}
    )


def commit(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", name)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "runner/harness.py", "one = 1\n")
    return tmp_path


@pytest.fixture
def begun(checkout: Path) -> Plan:
    """A plan made in the checkout as it is now."""
    request = Request(platform="cpu", model="tiny:llama", sweep="quick", threads=1, seed=1)
    return make_plan(request, checkout)


def test_a_plan_knows_the_tree_of_its_harness(checkout: Path, begun: Plan) -> None:
    repository = Repository.open(checkout)
    assert begun.runner_tree == repository.subtree(repository.head(), "runner")
    assert repository.subtree(repository.head(), "absent") is None


def test_data_and_pages_may_change_meanwhile(checkout: Path, begun: Plan) -> None:
    commit(checkout, "site/index.md", "# news\n")
    (checkout / "notes.txt").write_text("not committed")
    require_same_harness(begun, checkout)


def test_another_harness_does_not_finish_what_one_began(checkout: Path, begun: Plan) -> None:
    commit(checkout, "runner/harness.py", "one = 2\n")
    with pytest.raises(
        UsageError, match=r"was begun by commit \w{12}, and runner/ of \w{12} differs"
    ):
        require_same_harness(begun, checkout)


def test_a_harness_edited_by_hand_does_not_either(checkout: Path, begun: Plan) -> None:
    (checkout / "runner/harness.py").write_text("one = 3\n")
    with pytest.raises(UsageError, match=r"runner/harness.py differs from it: restore it to go on"):
        require_same_harness(begun, checkout)


def test_a_checkout_that_is_no_more_is_named(checkout: Path, begun: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot go on with {begun.run_id}"):
        require_same_harness(begun, tmp_path / "elsewhere")


def test_what_was_begun_outside_git_is_held_to_nothing(tmp_path: Path, begun: Plan) -> None:
    require_same_harness(begun.model_copy(update={"runner_tree": None}), tmp_path / "elsewhere")
