"""The ledger: nothing is altered, lost or kept back without being seen."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledgers import MACHINE, Minutes, chained, forged, ledger_of, lines_of, opening, put

from runner.entries import FIRST, Contents, LedgerError, canonical, hash_of, read_ledger
from runner.errors import EnvironmentProblem
from runner.ledger import Ledger

FILES = {"run": "1" * 64, "blocks": "2" * 64}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return ledger_of(tmp_path)


@pytest.fixture
def full(ledger: Ledger) -> Ledger:
    """Six lines: one run ended, one resumed and aborted."""
    ledger.start(**opening("r1"))
    ledger.end("r1", FILES)
    ledger.start(**opening("r2"))
    ledger.resume("r2")
    ledger.abort("r2", "the disk was full")
    ledger.start(**opening("r3"))
    return ledger


def events(ledger: Ledger) -> list[tuple[str, str | None]]:
    return [(e.record.event, getattr(e.record, "run_id", None)) for e in ledger.entries()]


def test_a_ledger_that_was_never_written_is_empty(ledger: Ledger) -> None:
    assert ledger.entries() == ()
    assert not ledger.path.exists()


def test_a_start_says_what_is_about_to_be_measured(ledger: Ledger) -> None:
    written = ledger.start(**opening("r1"))
    (line,) = lines_of(ledger.path)
    assert written == hash_of(line)
    assert json.loads(line) == {
        **opening("r1"), "seq": 1, "previous": FIRST, "at": "2026-01-02T00:01:00.000000+00:00",
        "event": "START", "machine_key": MACHINE,
    }  # fmt: skip
    assert line == canonical(json.loads(line))


def test_each_line_names_the_one_before(full: Ledger) -> None:
    lines = lines_of(full.path)
    for before, line in pairwise(lines):
        assert json.loads(line)["previous"] == hash_of(before)
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [e.hash for e in full.entries()] == [hash_of(line) for line in lines]


def test_events_come_back_in_their_order(full: Ledger) -> None:
    assert events(full) == [
        ("START", "r1"), ("END", "r1"), ("START", "r2"), ("RESUME", "r2"), ("ABORT", "r2"),
        ("START", "r3"),
    ]  # fmt: skip


# --- what a run may do


def test_a_new_run_of_the_same_aborts_the_open_one(ledger: Ledger) -> None:
    ledger.start(**opening("r1"))
    ledger.start(**opening("r2"))
    assert events(ledger) == [("START", "r1"), ("ABORT", "r1"), ("START", "r2")]
    assert json.loads(lines_of(ledger.path)[1])["reason"] == "not finished before r2 was started"
    with pytest.raises(LedgerError, match="which was aborted: not finished before r2"):
        ledger.resume("r1")
    with pytest.raises(LedgerError, match="which was aborted"):
        ledger.end("r1", FILES)


@pytest.mark.parametrize("what", ["expectation_id", "model", "platform"])
def test_runs_of_something_else_stay_open_side_by_side(ledger: Ledger, what: str) -> None:
    ledger.start(**opening("r1"))
    ledger.start(**opening("r2", **{what: "another"}))
    ledger.resume("r1")
    assert events(ledger)[-1] == ("RESUME", "r1")


def test_an_ended_run_leaves_room_for_the_next(ledger: Ledger) -> None:
    ledger.start(**opening("r1"))
    ledger.end("r1", FILES)
    ledger.start(**opening("r2"))
    assert events(ledger) == [("START", "r1"), ("END", "r1"), ("START", "r2")]


def test_an_end_may_be_said_again_and_not_changed(ledger: Ledger) -> None:
    ledger.start(**opening("r1"))
    assert ledger.end("r1", FILES) == ledger.end("r1", FILES)
    assert events(ledger) == [("START", "r1"), ("END", "r1")]
    with pytest.raises(LedgerError, match="END of run r1, which has ended"):
        ledger.end("r1", {**FILES, "run": "3" * 64})


REFUSED: dict[str, tuple[Callable[[Ledger], Any], str]] = {
    "end of an unknown run": (lambda it: it.end("r9", FILES), "r9, which was never started"),
    "resume of an unknown run": (lambda it: it.resume("r9"), "r9, which was never started"),
    "abort of an unknown run": (lambda it: it.abort("r9", "why"), "r9, which was never started"),
    "abort after the end": (lambda it: it.abort("r1", "ugly"), "ABORT of run r1, which has ended"),
    "resume after the end": (lambda it: it.resume("r1"), "RESUME of run r1, which has ended"),
    "started twice": (lambda it: it.start(**opening("r1")), "r1 is started a second time"),
    "open and started again": (lambda it: it.start(**opening("r3")), "started a second time"),
    "no reason": (lambda it: it.abort("r3", ""), "reason"),
    "no files": (lambda it: it.end("r3", {}), "files"),
    "digest of another kind": (lambda it: it.end("r3", {"run": "x"}), "files.run"),
    "no commit": (lambda it: it.start(**opening("r4", harness_commit=None)), "harness_commit"),
    "another field": (lambda it: it.start(**opening("r4", ratio=3.1)), "ratio"),
}


@pytest.mark.parametrize(("act", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_follow_is_refused(
    full: Ledger, act: Callable[[Ledger], Any], said: str
) -> None:
    before = full.path.read_bytes()
    with pytest.raises(LedgerError, match=said) as caught:
        act(full)
    assert str(full.path) in str(caught.value)
    assert full.path.read_bytes().startswith(before)
    read_ledger(full.path)


# --- attacks


def deleted(lines: list[bytes]) -> list[bytes]:
    return lines[:2] + lines[3:]


def edited(lines: list[bytes]) -> list[bytes]:
    return [*lines[:1], forged(lines[1], files={"run": "9" * 64}), *lines[2:]]


def swapped(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[3], lines[2], *lines[4:]]


def duplicated(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[1], *lines[2:]]


def added(**changes: Any) -> Callable[[list[bytes]], list[bytes]]:
    """An END of r3 at the end, right in everything but what is changed."""

    def attack(lines: list[bytes]) -> list[bytes]:
        right = {"seq": 7, "previous": hash_of(lines[-1]), "at": "2026-01-02T01:00:00.000000+00:00"}
        end = {"event": "END", "files": FILES, "machine_key": MACHINE, "run_id": "r3"}
        return [*lines, canonical({**right, **end, **changes})]

    return attack


def rechained(change: Callable[[list[bytes]], list[bytes]]) -> Callable[..., list[bytes]]:
    """The same change by somebody who makes all the hashes fit."""
    return lambda lines: chained(change(lines))


def claiming_a_cut(lines: list[bytes]) -> list[bytes]:
    head = {"seq": 7, "previous": hash_of(lines[-1]), "machine_key": MACHINE, "event": "CUT"}
    return [*lines, canonical({**head, "at": "2026-01-02T01:00:00.000000+00:00", "reason": "x"})]


def unended(lines: list[bytes]) -> list[bytes]:
    return [*lines[:1], *lines[2:]]


ATTACKS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int, str]] = {
    "first line deleted": (lambda lines: lines[1:], 1, "says it is line 2"),
    "line deleted": (deleted, 3, "says it is line 4: lines are missing"),
    "line deleted and renumbered": (
        lambda lines: [*lines[:2], *(forged(x, seq=n) for n, x in enumerate(lines[3:], start=3))],
        3,
        "not the one it was written after",
    ),
    "line edited": (edited, 3, "not the one it was written after"),
    "lines swapped": (swapped, 3, "says it is line 4"),
    "line duplicated": (duplicated, 3, "says it is line 2"),
    "forged with a wrong previous": (added(previous="a" * 64), 7, "not the one it was written"),
    "forged with a wrong number": (added(seq=8), 7, "says it is line 8"),
    "end of an unknown run": (added(run_id="r9"), 7, "END of run r9, which was never started"),
    "end of an aborted run": (added(run_id="r2"), 7, "r2, which was aborted: the disk was full"),
    "second end": (added(run_id="r1"), 7, "END of run r1, which has ended"),
    "of another machine": (added(machine_key="machine1"), 7, "belongs to machine machine1"),
    "unknown event": (added(event="PAUSE"), 7, "PAUSE"),
    "unknown field": (added(note="nice"), 7, "END.note"),
    "claims a cut": (claiming_a_cut, 7, "and that one is whole"),
    "spaces": (lambda lines: [lines[0].replace(b",", b", "), *lines[1:]], 1, "edited by hand"),
    "a key twice": (
        lambda lines: [lines[0].replace(b"{", b'{"at":"x",'), *lines[1:]], 1, "edited by hand"
    ),
    "blank line": (lambda lines: [*lines[:2], b"", *lines[2:]], 4, "no record"),
    "garbage in the middle": (lambda lines: [*lines[:2], b"{", *lines[3:]], 4, "no record"),
    "patient: two open of the same": (
        rechained(unended), 2, "started while r1 of the same is open"
    ),
    "patient: abort moved before its start": (
        rechained(lambda lines: [*lines[:2], lines[4], lines[2], *lines[5:]]), 3, "never started"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("attack", "line", "said"), ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_is_named_with_file_and_line(
    full: Ledger, attack: Callable[[list[bytes]], list[bytes]], line: int, said: str
) -> None:
    put(full.path, attack(lines_of(full.path)))
    with pytest.raises(LedgerError, match=said) as caught:
        full.entries()
    assert f"{full.path} line {line}: " in str(caught.value)


def test_nothing_is_added_to_a_broken_ledger(full: Ledger) -> None:
    put(full.path, deleted(lines_of(full.path)))
    before = full.path.read_bytes()
    with pytest.raises(LedgerError, match="line 3"):
        full.start(**opening("r4"))
    assert full.path.read_bytes() == before


def test_a_file_copied_to_another_machine_is_refused(full: Ledger) -> None:
    other = full.path.with_name("machine1.jsonl")
    other.write_bytes(full.path.read_bytes())
    with pytest.raises(LedgerError, match="belongs to machine machine0, the file to machine1"):
        read_ledger(other)


@given(st.data())
def test_no_byte_of_a_line_before_the_last_can_be_changed(data: st.DataObject) -> None:
    contents = Contents()
    lines = []
    for number in (1, 2, 3):
        fields = {"event": "START", **opening(f"r{number}", model=f"m{number}")}
        head = {"seq": number, "previous": contents.last_hash, "machine_key": MACHINE}
        line = canonical({**head, "at": "2026-01-02T00:01:00.000000+00:00", **fields})
        contents.take(line, MACHINE)
        lines.append(line)
    place = data.draw(st.integers(0, len(lines[0]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != lines[0][place]))
    lines[0] = lines[0][:place] + bytes([byte]) + lines[0][place + 1 :]
    again = Contents()

    def read() -> None:
        for line in lines:
            again.take(line, MACHINE)

    with pytest.raises(ValueError):
        read()


# --- crashes


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_cut_line_never_took_effect_and_is_kept(full: Ledger, kept: int) -> None:
    whole = full.path.read_bytes()
    full.abort("r3", "why")
    cut = full.path.read_bytes()[len(whole) : -1]
    full.path.write_bytes(whole + cut[:kept])

    assert events(full)[-1] == ("START", "r3")
    full.end("r3", FILES)

    assert events(full)[-2:] == [("CUT", None), ("END", "r3")]
    assert full.path.read_bytes().startswith(whole + cut[:kept] + b"\n")
    full.start(**opening("r4"))
    assert events(full)[-1] == ("START", "r4")


def test_a_line_that_lacks_only_its_end_counts(full: Ledger) -> None:
    full.abort("r3", "why")
    before = full.path.read_bytes()
    full.path.write_bytes(before[:-1])
    assert events(full)[-1] == ("ABORT", "r3")
    full.start(**opening("r4"))
    assert events(full)[-2:] == [("ABORT", "r3"), ("START", "r4")]
    assert full.path.read_bytes().startswith(before)


@pytest.mark.parametrize("kept", [0, 1, 2, 40])
def test_a_writer_killed_while_it_marks_a_cut(full: Ledger, kept: int) -> None:
    with full.path.open("ab") as file:
        file.write(b'{"at":"2026')
    before = full.path.read_bytes()
    full.resume("r3")
    added_bytes = full.path.read_bytes()[len(before) :]
    full.path.write_bytes(before + added_bytes[:kept])

    full.resume("r3")

    assert events(full)[-2:] == [("CUT", None), ("RESUME", "r3")]


def test_a_cut_line_cannot_be_altered_afterwards(full: Ledger) -> None:
    with full.path.open("ab") as file:
        file.write(b'{"at":"2026')
    full.resume("r3")
    lines = lines_of(full.path)
    put(full.path, [*lines[:6], b'{"at":"2027', *lines[7:]])
    with pytest.raises(LedgerError, match="line 8: the line before it is not the one"):
        full.entries()


def test_a_full_disk_is_one_line_and_the_ledger_stays_readable(
    full: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(EnvironmentProblem, match=r"cannot write .*No space left"):
        full.abort("r3", "why")
    read_ledger(full.path)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        ledger_of(tmp_path).start(**opening("r1"))


WRITER = """
import sys
from pathlib import Path
from runner.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), "machine0")
fields = {"expectation_digest": "d" * 64, "expectation_commit": "b" * 40, "platform": "cpu",
          "harness_commit": "c" * 40, "runner_tree": "e" * 40, "sweep": "reference", "blocks": 10,
          "order_seed": 1, "model": "m"}
for number in range(int(sys.argv[3])):
    name = f"{sys.argv[2]}-{number}"
    ledger.start(run_id=name, expectation_id=sys.argv[2], **fields)
    print(name, flush=True)
"""


def writer(ledger: Ledger, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(ledger.path.parent), name, str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_two_processes_add_at_once(ledger: Ledger) -> None:
    both = [writer(ledger, name, 20) for name in ("left", "right")]
    assert [one.communicate(timeout=120) and one.returncode for one in both] == [0, 0]
    starts = [run_id for event, run_id in events(ledger) if event == "START"]
    assert len(starts) == 40
    for name in ("left", "right"):
        assert [x for x in starts if x and x.startswith(name)] == [f"{name}-{n}" for n in range(20)]


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is of POSIX")
def test_a_killed_writer_loses_nothing_it_was_told_was_written(ledger: Ledger) -> None:
    process = writer(ledger, "left", 100_000)
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(8)]
    process.send_signal(signal.SIGKILL)
    told += process.communicate(timeout=60)[0].split()
    starts = [run_id for event, run_id in events(ledger) if event == "START"]
    assert starts[: len(told)] == told
    ledger.start(**opening("after"))
    assert events(ledger)[-1] == ("START", "after")


# --- two checkouts


def test_a_longer_ledger_of_the_same_machine_is_taken_over(full: Ledger, tmp_path: Path) -> None:
    clone = ledger_of(tmp_path / "clone")
    assert clone.adopt(full.path) is True
    clone.end("r3", FILES)
    assert full.adopt(clone.path) is True
    assert full.path.read_bytes() == clone.path.read_bytes()
    assert full.adopt(clone.path) is False
    full.start(**opening("r4"))
    assert full.adopt(clone.path) is False


def test_ledgers_that_parted_are_not_merged(full: Ledger, tmp_path: Path) -> None:
    clone = ledger_of(tmp_path / "clone")
    clone.adopt(full.path)
    clone.end("r3", FILES)
    full.abort("r3", "why")
    before = full.path.read_bytes()
    with pytest.raises(LedgerError, match="part at line 7"):
        full.adopt(clone.path)
    assert full.path.read_bytes() == before


def test_a_broken_ledger_is_not_taken_over(full: Ledger, tmp_path: Path) -> None:
    clone = Ledger(tmp_path / "clone", MACHINE, Minutes())
    clone.adopt(full.path)
    put(clone.path, added(run_id="r9")(lines_of(clone.path)))
    with pytest.raises(LedgerError, match="line 7"):
        full.adopt(clone.path)


def test_a_ledger_that_is_not_there_cannot_be_taken_over(full: Ledger, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot read"):
        full.adopt(tmp_path / "none.jsonl")
