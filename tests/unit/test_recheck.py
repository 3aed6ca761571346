"""Asking git again about a published run, in the repository in hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkouts import NAME, TEXT, Checkout, bare_checkout, registered_checkout, run_row, shallow

from pipelines.recheck import recheck
from runner.records import RUN
from runner.registration import Registration


@pytest.fixture
def registered(tmp_path: Path) -> Checkout:
    return registered_checkout(tmp_path / "here")


def row_of(found: Registration, **changes: Any) -> dict[str, Any]:
    """The row of ``run`` that a run of this registration would store."""
    empty = dict.fromkeys(RUN.names)
    stored = {
        "registration_status": found.status, "registration_reason": found.reason,
        "expectation_digest": found.expectation_digest, "harness_tree": found.harness_tree,
        "expectation_commit": found.expectation_commit, "harness_commit": found.harness_commit,
        "harness_dirty": found.harness_dirty, "runner_tree": found.runner_tree,
    }  # fmt: skip
    return {**empty, **run_row("r1", "loop"), **stored, **changes}


def test_history_that_bears_the_run_out(registered: Checkout) -> None:
    row = row_of(registered.check())
    assert recheck(registered.root, row).status == "registered"
    registered.add_run("loop")
    registered.write("runner/harness.py", "one = 3\n")
    registered.commit("later work")
    status, reason = recheck(registered.root, row)
    assert status == "registered"
    assert row["harness_commit"][:12] in reason


def test_a_run_of_version_1_names_no_runner_tree(registered: Checkout) -> None:
    row = row_of(registered.check(), runner_tree=None)
    assert recheck(registered.root, row).status == "registered"


@pytest.mark.parametrize("status", ["exploratory", "broken"])
def test_what_the_run_did_not_claim_is_not_asked(registered: Checkout, status: str) -> None:
    row = row_of(registered.check(), registration_status=status, registration_reason="said so")
    assert recheck(registered.root, row) == (status, "said so")


def test_a_squash_keeps_the_harness_and_loses_the_proof(registered: Checkout) -> None:
    row = row_of(registered.check())
    registered.git("reset", "--quiet", "--soft", "HEAD~2")
    squashed = registered.commit("squash")
    registered.commit("on")
    status, reason = recheck(registered.root, row)
    assert status == "cannot be checked"
    assert f"commit {row['harness_commit'][:12]} is absent from the history" in reason
    assert "runner/ is the same in commit" in reason
    assert registered.git("rev-parse", "HEAD")[:12] in reason
    assert squashed[:12] not in reason  # the newest is named


def test_a_squash_of_another_harness_names_no_kin(registered: Checkout) -> None:
    row = row_of(registered.check())
    registered.git("reset", "--quiet", "--soft", "HEAD~2")
    registered.write("runner/harness.py", "one = 9\n")
    registered.commit("squash")
    status, reason = recheck(registered.root, row)
    assert status == "cannot be checked"
    assert "runner/ is the same" not in reason


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_clone_is_neither_a_yes_nor_a_no(registered: Checkout, depth: int) -> None:
    row = row_of(registered.check())
    registered.commit("on")
    status, reason = recheck(shallow(registered, depth).root, row)
    assert status == "cannot be checked"
    assert "--unshallow" in reason or "failed with exit code" in reason


def test_a_missing_object_is_neither_a_yes_nor_a_no(registered: Checkout) -> None:
    row = row_of(registered.check())
    parent = registered.git("rev-parse", "HEAD~2")
    (registered.root / ".git/objects" / parent[:2] / parent[2:]).unlink()
    status, reason = recheck(registered.root, row)
    assert status == "cannot be checked"
    assert parent[:12] in reason


def test_no_repository(registered: Checkout, tmp_path: Path) -> None:
    status, reason = recheck(tmp_path, row_of(registered.check()))
    assert (status, "is not a git checkout" in reason) == ("cannot be checked", True)


CONTRADICTED = {
    "another digest": ({"expectation_digest": "0" * 64}, "is not the text that was measured"),
    "another tree": ({"harness_tree": "0" * 40}, "harness_tree is 000000000000"),
    "another runner": ({"runner_tree": "0" * 40}, "runner_tree is 000000000000"),
    "dirty": ({"harness_dirty": True}, "the tree differed"),
    "unknown whether dirty": ({"harness_dirty": None}, "the tree differed"),
    "another expectation": ({"expectation_id": "other"}, "other.toml is not in commit"),
    "no expectation": ({"expectation_commit": None}, "does not name its expectation"),
}


@pytest.mark.parametrize(("changes", "said"), CONTRADICTED.values(), ids=CONTRADICTED.keys())
def test_what_git_contradicts_is_broken(
    registered: Checkout, changes: dict[str, Any], said: str
) -> None:
    status, reason = recheck(registered.root, row_of(registered.check(), **changes))
    assert (status, said in reason) == ("broken", True), reason


def test_the_commit_that_brought_it_cannot_be_the_harness(registered: Checkout) -> None:
    row = row_of(registered.check())
    brought = registered.git("rev-parse", "HEAD~1")
    trees = {
        "harness_tree": registered.git("rev-parse", f"{brought}^{{tree}}"),
        "runner_tree": registered.git("rev-parse", f"{brought}:runner"),
    }
    status, reason = recheck(registered.root, {**row, "harness_commit": brought, **trees})
    assert status == "broken"
    assert "did not come before harness" in reason


def test_a_claim_of_registration_that_came_with_its_harness(tmp_path: Path) -> None:
    checkout = bare_checkout(tmp_path / "here")
    checkout.write(NAME, TEXT)
    checkout.write("runner/harness.py", "one = 2\n")
    checkout.commit()
    checkout.commit()
    found = checkout.check()
    assert found.status == "exploratory"
    row = row_of(found, registration_status="registered")
    status, reason = recheck(checkout.root, row)
    assert status == "broken"
    assert "together with runner/harness.py" in reason


def test_a_claim_of_registration_where_a_result_was_there_before(tmp_path: Path) -> None:
    checkout = bare_checkout(tmp_path / "here")
    checkout.add_run("loop")
    checkout.commit()
    checkout.write(NAME, TEXT)
    checkout.commit()
    checkout.commit()
    row = row_of(checkout.check(), registration_status="registered")
    status, reason = recheck(checkout.root, row)
    assert status == "broken"
    assert "data/runs/cpu/r1/run.parquet was there" in reason
