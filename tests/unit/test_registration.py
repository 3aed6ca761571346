"""Attacks on registration, each in a throwaway repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkouts import (
    MODEL,
    NAME,
    POINTS,
    TEXT,
    Checkout,
    bare_checkout,
    registered_checkout,
    shallow,
)
from ledgers import chained, forged, ledger_of, lines_of, opening, put

from runner.errors import UsageError
from runner.git import GitError, Repository
from runner.ledger import Ledger
from runner.registration import check_registration, digest, load_expectation


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    return bare_checkout(tmp_path / "here")


@pytest.fixture
def registered(tmp_path: Path) -> Checkout:
    return registered_checkout(tmp_path / "here")


def test_committed_alone_and_before_the_harness_is_registered(registered: Checkout) -> None:
    found = registered.check()

    assert found.status == "registered", found.reason
    assert found.expectation is not None
    assert found.expectation.id == "loop"
    assert found.expectation_digest == digest(registered.root / NAME)
    assert found.expectation_commit == registered.git("rev-parse", "HEAD~1")
    assert found.harness_commit == registered.git("rev-parse", "HEAD")
    assert found.harness_tree == registered.git("rev-parse", "HEAD^{tree}")
    assert found.runner_tree == registered.git("rev-parse", "HEAD:runner")
    assert found.harness_dirty is False


def test_some_of_the_points_are_registered_too(registered: Checkout) -> None:
    assert registered.check(POINTS[:1]).status == "registered"


def test_what_is_ignored_is_not_dirt(registered: Checkout) -> None:
    registered.write("build/runs/r1/run.parquet", "x")
    assert registered.check().status == "registered"


def test_results_committed_afterwards_do_no_harm(registered: Checkout) -> None:
    registered.add_run("loop")
    registered.commit("publish")
    assert registered.check().status == "registered"


def test_a_run_of_another_expectation_does_no_harm(bare: Checkout) -> None:
    bare.add_run("older")
    bare.add_run(None, "r2")
    bare.commit()
    bare.write(NAME, TEXT)
    bare.commit()
    bare.commit()
    assert bare.check().status == "registered"


def test_variables_cannot_point_git_elsewhere(
    registered: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    found = check_registration(registered.root, "quick", MODEL, POINTS)
    assert found.status == "registered", found.reason


def test_same_commit(bare: Checkout) -> None:
    bare.write(NAME, TEXT)
    head = bare.commit()

    found = bare.check()

    assert found.status == "exploratory"
    assert head[:12] in found.reason
    assert "is itself the harness" in found.reason


def test_not_committed(bare: Checkout) -> None:
    bare.write(NAME, TEXT)
    found = bare.check()
    assert (found.status, found.expectation_commit) == ("exploratory", None)
    assert f"{NAME} is not committed" in found.reason
    assert found.expectation is not None  # its void rule still holds


def test_staged_is_not_committed(bare: Checkout) -> None:
    bare.write(NAME, TEXT)
    bare.git("add", "--all")
    assert "is not committed" in bare.check().reason


def test_edited_by_hand(registered: Checkout) -> None:
    registered.write(NAME, TEXT.replace("threshold = 1.1", "threshold = 1.0"))
    found = registered.check()
    assert found.status == "broken"
    assert "edited by hand" in found.reason


def test_edited_by_hand_and_hidden_from_status(registered: Checkout) -> None:
    registered.git("update-index", "--assume-unchanged", NAME)
    registered.write(NAME, TEXT.replace("threshold = 1.1", "threshold = 1.0"))
    assert registered.check().status == "broken"


def test_digest_changed_after_a_result(registered: Checkout) -> None:
    registered.add_run("loop")
    registered.commit("publish")
    registered.write(NAME, TEXT.replace("threshold = 1.1", "threshold = 1.0"))
    second = registered.commit("move the threshold")
    registered.commit()

    found = registered.check()

    assert found.status == "exploratory"
    assert found.expectation_commit == second
    assert "data/runs/cpu/r1/run.parquet was there" in found.reason


def test_changed_and_changed_back_counts_from_the_way_back(registered: Checkout) -> None:
    registered.write(NAME, TEXT.replace("threshold = 1.1", "threshold = 1.0"))
    registered.commit()
    registered.add_run("loop")
    registered.commit()
    registered.write(NAME, TEXT)
    back = registered.commit()
    registered.commit()

    found = registered.check()

    assert (found.status, found.expectation_commit) == ("exploratory", back)


@pytest.mark.parametrize(
    "name", ["runner/harness.py", "runner/new.py", "data/ledger/notes.md", "data/targets/new.toml"]
)
def test_dirty_tree(registered: Checkout, name: str) -> None:
    registered.write(name, "changed\n")
    found = registered.check()
    assert found.status == "exploratory"
    assert found.harness_dirty is True
    assert name in found.reason


@pytest.mark.parametrize("mark", ["--assume-unchanged", "--skip-worktree"])
def test_a_harness_hidden_from_status_is_dirt(registered: Checkout, mark: str) -> None:
    registered.git("update-index", mark, "runner/harness.py")
    registered.write("runner/harness.py", "cheat = 1\n")
    found = registered.check()
    assert (found.status, found.harness_dirty) == ("exploratory", True)
    assert "runner/harness.py" in found.reason


def test_untracked_files_count_even_when_git_is_told_to_hide_them(registered: Checkout) -> None:
    registered.git("config", "status.showUntrackedFiles", "no")
    registered.write("runner/new.py", "x\n")
    assert registered.check().status == "exploratory"


def test_committed_together_with_others(bare: Checkout) -> None:
    bare.write(NAME, TEXT)
    bare.write("runner/harness.py", "one = 2\n")
    bare.commit()
    bare.commit()
    found = bare.check()
    assert found.status == "exploratory"
    assert "together with runner/harness.py" in found.reason


def test_brought_by_the_first_commit_together_with_others(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "here")
    checkout.git("init", "--quiet")
    checkout.write(NAME, TEXT)
    checkout.write("runner/harness.py", "one = 1\n")
    checkout.commit()
    checkout.commit()
    assert "together with" in checkout.check().reason


def test_renamed_into_place(bare: Checkout) -> None:
    bare.write("notes/draft.toml", TEXT)
    bare.commit()
    bare.git("mv", "notes/draft.toml", "draft.toml")
    (bare.root / "data/expectations").mkdir(parents=True)
    bare.git("mv", "draft.toml", NAME)
    bare.commit()
    bare.commit()
    assert "together with notes/draft.toml" in bare.check().reason


def test_changed_in_a_merge(registered: Checkout) -> None:
    registered.git("checkout", "--quiet", "-b", "side", "HEAD~1")
    registered.write(NAME, TEXT.replace("threshold = 1.1", "threshold = 1.3"))
    registered.commit()
    registered.git("checkout", "--quiet", "main")
    registered.git("merge", "--quiet", "--no-commit", "--no-ff", "side")
    registered.write(NAME, TEXT.replace("threshold = 1.1", "threshold = 1.2"))
    registered.commit("merge")
    registered.commit()
    found = registered.check()
    assert found.status == "exploratory"
    assert "in the merge" in found.reason


def test_squash(registered: Checkout) -> None:
    base = registered.git("rev-parse", "HEAD~2")
    old = registered.check()
    registered.git("reset", "--quiet", "--soft", base)
    registered.commit("squash")

    found = registered.check()

    assert found.status == "exploratory"
    assert "together with" in found.reason
    assert found.harness_commit != old.harness_commit
    assert found.harness_tree == old.harness_tree  # which is how a squash is told


def test_result_present_at_registration(bare: Checkout) -> None:
    bare.add_run("loop")
    bare.commit()
    bare.write(NAME, TEXT)
    bare.commit()
    bare.commit()
    found = bare.check()
    assert found.status == "exploratory"
    assert "data/runs/cpu/r1/run.parquet was there" in found.reason


def test_unreadable_result_at_registration_is_not_taken_for_none(bare: Checkout) -> None:
    bare.write("data/runs/cpu/r1/run.parquet", "PAR1 and then nothing")
    bare.commit()
    bare.write(NAME, TEXT)
    bare.commit()
    bare.commit()
    found = bare.check()
    assert found.status == "broken"
    assert "data/runs/cpu/r1/run.parquet" in found.reason


@pytest.mark.parametrize("depth", [1, 2])
def test_missing_object_in_a_shallow_clone(registered: Checkout, depth: int) -> None:
    found = shallow(registered, depth).check()
    assert found.status == "broken"
    assert "git fetch --unshallow" in found.reason


def test_a_shallow_clone_that_holds_enough_is_registered(registered: Checkout) -> None:
    assert shallow(registered, 3).check().status == "registered"


def test_a_lost_commit_object_is_broken_and_not_a_no(registered: Checkout) -> None:
    parent = registered.git("rev-parse", "HEAD~2")
    (registered.root / ".git/objects" / parent[:2] / parent[2:]).unlink()
    found = registered.check()
    assert found.status == "broken"
    assert parent[:12] in found.reason


def test_the_three_exit_codes_of_ancestry(registered: Checkout) -> None:
    repository = Repository.open(registered.root)
    older, newer = (registered.git("rev-parse", name) for name in ("HEAD~1", "HEAD"))
    assert repository.is_strict_ancestor(older, newer) is True
    assert repository.is_strict_ancestor(newer, older) is False
    assert repository.is_strict_ancestor(newer, newer) is False
    with pytest.raises(GitError, match="exit code 128"):
        repository.is_strict_ancestor("0" * 39 + "1", newer)


def test_a_no_across_a_lost_commit_is_not_believed(registered: Checkout) -> None:
    older = registered.git("rev-parse", "HEAD~2")
    lost = registered.git("rev-parse", "HEAD~1")
    (registered.root / ".git/objects" / lost[:2] / lost[2:]).unlink()
    with pytest.raises(GitError, match=lost):
        Repository.open(registered.root).is_strict_ancestor(
            older, registered.git("rev-parse", "HEAD")
        )


def test_a_no_of_a_shallow_clone_is_not_believed(registered: Checkout) -> None:
    copy = shallow(registered, 1)
    old = registered.git("rev-parse", "HEAD~2")
    copy.git("fetch", "--quiet", "--depth=1", "origin", old)
    with pytest.raises(GitError, match="cut off"):
        Repository.open(copy.root).is_strict_ancestor(old, copy.git("rev-parse", "HEAD"))


def test_a_replaced_commit_changes_nothing(bare: Checkout) -> None:
    bare.write(NAME, TEXT)
    bare.write("runner/harness.py", "one = 2\n")
    together = bare.commit()
    bare.git("checkout", "--quiet", "-b", "fake", "HEAD~1")
    bare.write("runner/harness.py", "one = 2\n")
    bare.commit()
    bare.write(NAME, TEXT)
    alone = bare.commit()
    bare.git("checkout", "--quiet", "main")
    bare.commit()
    bare.git("replace", together, alone)
    assert "together with" in bare.check().reason


def test_a_grafted_commit_changes_nothing(bare: Checkout) -> None:
    base = bare.git("rev-parse", "HEAD")
    bare.write(NAME, TEXT)
    bare.write("runner/harness.py", "one = 2\n")
    together = bare.commit()
    bare.git("checkout", "--quiet", "-b", "fake", base)
    bare.write("runner/harness.py", "one = 2\n")
    harness_only = bare.commit()
    bare.git("checkout", "--quiet", "main")
    bare.commit()
    bare.write(".git/info/grafts", f"{together} {harness_only}\n")
    assert "together with runner/harness.py" in bare.check().reason


def test_not_a_checkout(tmp_path: Path) -> None:
    folder = Checkout(tmp_path)
    folder.write(NAME, TEXT)
    found = folder.check()
    assert found.status == "exploratory"
    assert "is not a git checkout" in found.reason
    assert found.expectation_digest is not None
    assert (found.harness_commit, found.harness_tree, found.harness_dirty) == (None, None, None)


def test_a_folder_inside_another_checkout_does_not_borrow_its_history(bare: Checkout) -> None:
    inside = Checkout(bare.root / "vendor/livekv")
    inside.write(NAME, TEXT)
    (inside.root / ".git").mkdir()  # empty, so that git goes on looking above
    bare.commit()
    bare.commit()
    found = inside.check()
    assert found.status == "exploratory"
    assert "inside another git checkout" in found.reason


def test_no_commit_yet(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.git("init", "--quiet")
    checkout.write(NAME, TEXT)
    found = checkout.check()
    assert found.status == "exploratory"
    assert "no commit yet" in found.reason


def test_git_is_absent(registered: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(registered.root))
    found = check_registration(registered.root, "quick", MODEL, POINTS)
    assert found.status == "exploratory"
    assert "git is not installed" in found.reason


def test_no_forecast_of_the_model(registered: Checkout) -> None:
    found = registered.check(model="large")
    assert found.status == "exploratory"
    assert "sweep quick on large" in found.reason
    assert found.harness_commit is not None  # an exploratory run says what measured it


def test_no_forecast_of_a_point(registered: Checkout) -> None:
    found = registered.check((*POINTS, "tool_loop-p9-h9"))
    assert found.status == "exploratory"
    assert "loop lacks tool_loop-p9-h9" in found.reason


def test_two_expectations_of_the_same_points_are_refused(registered: Checkout) -> None:
    registered.write("data/expectations/again.toml", TEXT)
    registered.commit()
    registered.commit()
    found = registered.check()
    assert found.status == "broken"
    assert "again, loop" in found.reason


def test_a_new_expectation_takes_over_from_the_one_it_replaces(registered: Checkout) -> None:
    registered.write("data/expectations/again.toml", 'replaces = ["loop"]\n' + TEXT)
    registered.commit()
    registered.commit()
    found = registered.check()
    assert found.status == "registered", found.reason
    assert found.expectation is not None
    assert found.expectation.id == "again"


def test_an_expectation_that_cannot_be_read_is_broken(registered: Checkout) -> None:
    registered.write(NAME, TEXT + "typo = 1\n")
    registered.commit()
    registered.commit()
    found = registered.check()
    assert found.status == "broken"
    assert "forecast.1.typo" in found.reason


# --- the ledger


def begin(checkout: Checkout, run_id: str, **changes: str) -> Ledger:
    """A run of the expectation `loop` is started."""
    ledger = ledger_of(checkout.root)
    path = checkout.root / NAME
    text = {"expectation_digest": digest(path)} if path.exists() else {}
    ledger.start(**opening(run_id, **{**text, **changes}))
    return ledger


def test_measuring_and_publishing_do_not_make_the_tree_dirty(registered: Checkout) -> None:
    begin(registered, "r1").abort("r1", "why")
    registered.add_run("loop")
    found = registered.check()
    assert (found.status, found.harness_dirty) == ("registered", False), found.reason
    registered.git("add", "--all")
    assert registered.check().status == "registered"


def test_a_committed_ledger_may_grow(registered: Checkout) -> None:
    ledger = begin(registered, "r1")
    registered.commit()
    ledger.abort("r1", "why")
    assert registered.check().status == "registered"


def test_a_published_run_that_was_changed_is_dirt(registered: Checkout) -> None:
    registered.add_run("loop")
    registered.commit()
    registered.write("data/runs/cpu/r1/run.parquet", "changed")
    found = registered.check()
    assert (found.status, found.harness_dirty) == ("exploratory", True)
    assert "data/runs/cpu/r1/run.parquet" in found.reason


def shorten(path: Path) -> None:
    put(path, lines_of(path)[:-1])


def write_anew(path: Path) -> None:
    lines = lines_of(path)
    put(path, chained([forged(lines[0], order_seed=2), *lines[1:]]))


REWRITTEN: dict[str, Callable[[Path], None]] = {
    "shortened": shorten,
    "written anew, hashes and all": write_anew,
    "deleted": Path.unlink,
}


@pytest.mark.parametrize("attack", REWRITTEN.values(), ids=REWRITTEN.keys())
def test_a_rewritten_ledger_breaks_the_registration(
    registered: Checkout, attack: Callable[[Path], None]
) -> None:
    ledger = begin(registered, "r1")
    ledger.abort("r1", "an ugly number")
    registered.commit()
    attack(ledger.path)
    found = registered.check()
    assert found.status == "broken"
    assert "data/ledger/machine0.jsonl does not begin with all that was committed" in found.reason
    assert str(registered.root) not in found.reason


@pytest.mark.parametrize("attack", REWRITTEN.values(), ids=REWRITTEN.keys())
def test_committing_the_rewritten_ledger_does_not_help(
    registered: Checkout, attack: Callable[[Path], None]
) -> None:
    ledger = begin(registered, "r1")
    ledger.abort("r1", "an ugly number")
    registered.commit()
    attack(ledger.path)
    registered.commit()
    assert registered.check().status == "broken"


def test_a_ledger_that_a_merge_dropped_is_missed(registered: Checkout) -> None:
    registered.git("checkout", "--quiet", "-b", "side")
    begin(registered, "r1")
    registered.commit()
    registered.git("checkout", "--quiet", "main")
    registered.commit()
    registered.git("merge", "--quiet", "--no-edit", "--strategy=ours", "side")
    found = registered.check()
    assert found.status == "broken"
    assert "data/ledger/machine0.jsonl" in found.reason


def test_a_broken_chain_breaks_the_registration(registered: Checkout) -> None:
    ledger = begin(registered, "r1")
    ledger.abort("r1", "why")
    put(ledger.path, lines_of(ledger.path)[1:])
    found = registered.check()
    assert found.status == "broken"
    assert found.reason.startswith("data/ledger/machine0.jsonl line 1: ")


def test_a_run_started_before_the_expectation_was_registered(bare: Checkout) -> None:
    begin(bare, "r1").abort("r1", "ugly")
    bare.commit()
    bare.write(NAME, TEXT)
    bare.commit()
    bare.commit()
    found = bare.check()
    assert found.status == "exploratory"
    assert "run r1 had been started when commit" in found.reason


def test_a_run_started_under_another_text_of_the_expectation(registered: Checkout) -> None:
    begin(registered, "r1").abort("r1", "ugly")  # and its ledger not committed before the change
    registered.write(NAME, TEXT.replace("threshold = 1.1", "threshold = 1.0"))
    registered.git("commit", "--quiet", "--message", "move the threshold", "--", NAME)
    registered.git("commit", "--quiet", "--allow-empty", "--message", "on")
    found = registered.check()
    assert found.status == "exploratory"
    assert "run r1 was started under another text" in found.reason


def test_a_run_of_another_expectation_was_started(registered: Checkout) -> None:
    begin(registered, "r1", expectation_id="other", expectation_digest="d" * 64)
    assert registered.check().status == "registered"


# --- the form


def replace(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


PARITY = TEXT[TEXT.rindex("[[forecast]]") :]

REFUSED: dict[str, tuple[Callable[[str], str], str]] = {
    "unknown key": (replace('title = "', 'titel = "x"\ntitle = "'), "unknown key titel"),
    "missing key": (replace('sweep = "quick"\n', ""), "sweep is missing"),
    "low above high": (replace("low = 1.8", "low = 2.8"), "low 2.8 is above high 2.6"),
    "parity with threshold": (lambda text: text + "threshold = 1.0\n", "this one says 1.0"),
    "parity away from 1": (replace("low = 0.97", "low = 1.01"), "parity means 1"),
    "no threshold": (replace("threshold = 1.1\n", ""), "needs the threshold"),
    "five blocks": (replace("blocks_min = 10", "blocks_min = 5"), "blocks_min is 5"),
    "nan": (replace("high = 2.6", "high = nan"), "forecast.0.high is nan"),
    "infinite": (replace("high = 2.6", "high = inf"), "forecast.0.high is inf"),
    "negative ratio": (replace("low = 1.8", "low = -1.8"), "forecast.0.low is -1.8"),
    "share over 1": (
        replace("void_blocks_max = 0.1", "void_blocks_max = 10"),
        "void_blocks_max is 10",
    ),
    "margin of nothing": (
        replace("parity_margin = 0.05", "parity_margin = 0"),
        "parity_margin is 0",
    ),
    "unknown role": (replace('"primary"', '"main"'), "forecast.0.role is 'main'"),
    "empty claim": (replace('claim = "it is faster"', 'claim = ""'), "claim is ''"),
    "same arm twice": (replace('baseline = "reprefill"', 'baseline = "live_kv"'), "'live_kv'"),
    "same point twice": (lambda text: text + PARITY, "more than one forecast of small at"),
    "no control": (replace(PARITY, ""), "no parity forecast for small"),
    "another id": (lambda text: 'id = "other"\n' + text, "say 'loop'"),
    "not TOML": (lambda text: text + "= 1\n", "cannot read"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_the_form_refuses(tmp_path: Path, change: Callable[[str], str], said: str) -> None:
    path = tmp_path / "loop.toml"
    path.write_text(change(TEXT), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_expectation(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_form_accepts(tmp_path: Path) -> None:
    path = tmp_path / "loop.toml"
    path.write_text(TEXT, encoding="utf-8")
    expectation = load_expectation(path)
    assert expectation.id == "loop"
    assert expectation.missing(MODEL, POINTS) == []
    assert expectation.missing("large", POINTS) == list(POINTS)


def test_six_blocks_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "loop.toml"
    path.write_text(TEXT.replace("blocks_min = 10", "blocks_min = 6"), encoding="utf-8")
    assert load_expectation(path).blocks_min == 6


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.toml"):
        load_expectation(tmp_path / "none.toml")


def test_digest_is_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
