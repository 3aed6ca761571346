"""Saved states: what is damaged, foreign or half written never reaches the library."""

from __future__ import annotations

import errno
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine.backend import ContextExceeded, StateRefused
from runner.engine.contract import some_tokens
from runner.engine.engine import Engine
from runner.engine.fake import FakeBackend
from runner.engine.states import SavedState, StateStore, freeze, thaw
from runner.errors import EnvironmentProblem

FAKE = FakeBackend()
TOKENS = some_tokens(FAKE, 150)
SAVED = SavedState("f" * 64, TOKENS, 150, np.arange(600, dtype=np.uint16).view(np.uint8))
BLOB = freeze(SAVED)


def flipped(blob: bytes, at: int) -> bytes:
    damaged = bytearray(blob)
    damaged[at] ^= 0x7F
    return bytes(damaged)


DAMAGES = {
    "empty": b"",
    "cut to 4 bytes": BLOB[:4],
    "cut in half": BLOB[: len(BLOB) // 2],
    "last byte missing": BLOB[:-1],
    "one byte flipped near the end": flipped(BLOB, -10),
    "one byte too many": BLOB + b"\0",
    "a flipped token": flipped(BLOB, len(BLOB) - 1200 - 4),
    "a flipped header": flipped(BLOB, 30),
    "another magic": b"GGUF" + BLOB[4:],
}


def test_a_state_comes_back_as_it_was() -> None:
    back = thaw(BLOB, SAVED.fingerprint)
    assert back.tokens.tolist() == TOKENS.tolist()
    assert back.n_past == 150
    assert back.payload.tobytes() == SAVED.payload.tobytes()


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=40), st.binary(max_size=200), st.integers(0, 40)
)
def test_any_state_comes_back_as_it_was(tokens: list[int], payload: bytes, n_past: int) -> None:
    state = SavedState(
        "a" * 64, np.array(tokens, dtype=np.int32), n_past, np.frombuffer(payload, np.uint8)
    )
    back = thaw(freeze(state), "a" * 64)
    assert (back.tokens.tolist(), back.n_past, back.payload.tobytes()) == (tokens, n_past, payload)


@pytest.mark.parametrize("blob", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_frame_is_refused(blob: bytes) -> None:
    with pytest.raises(StateRefused):
        thaw(blob, SAVED.fingerprint)


@given(st.integers(0, len(BLOB) - 1), st.integers(1, 255))
def test_no_single_damaged_byte_passes(at: int, bits: int) -> None:
    damaged = bytearray(BLOB)
    damaged[at] ^= bits
    with pytest.raises(StateRefused):
        thaw(bytes(damaged), SAVED.fingerprint)


@given(st.integers(0, len(BLOB) - 1))
def test_no_cut_frame_passes(length: int) -> None:
    with pytest.raises(StateRefused):
        thaw(BLOB[:length], SAVED.fingerprint)


def test_a_state_of_another_model_is_refused_and_both_are_named() -> None:
    with pytest.raises(StateRefused, match=r"made by ffffffffffff, this is 000000000000"):
        thaw(BLOB, "0" * 64)


def test_another_version_is_refused_even_when_its_checksums_are_right() -> None:
    magic, _, length = struct.unpack_from("<4sHI", BLOB)
    lead = struct.pack("<4sHI", magic, 2, length)
    header = BLOB[10 : 10 + length]
    rest = BLOB[10 + length + 32 :]
    blob = lead + header + hashlib.sha256(lead + header).digest() + rest
    with pytest.raises(StateRefused, match="version 2"):
        thaw(blob, SAVED.fingerprint)
    assert json.loads(header)["n_past"] == 150


class WatchedBackend(FakeBackend):
    """Counts what reaches the library."""

    restored = 0

    def state_set(self, seq: int, state: NDArray[np.uint8]) -> None:
        self.restored += 1
        super().state_set(seq, state)


@pytest.fixture
def saved() -> bytes:
    with Engine(FakeBackend()).session() as session:
        session.send(TOKENS)
        session.generate(4, ignore_end=True)
        return session.save_state()


class TestRestore:
    """BR-01 at the level of sessions."""

    NINE = some_tokens(FAKE, 9, 33)

    @pytest.mark.parametrize(
        "damage",
        [
            lambda blob: b"",
            lambda blob: blob[:4],
            lambda blob: blob[: len(blob) // 2],
            lambda blob: blob[:-1],
            lambda blob: flipped(blob, -10),
        ],
        ids=["empty", "cut to 4 bytes", "cut in half", "last byte missing", "one byte flipped"],
    )
    def test_a_damaged_state_never_reaches_the_library_and_harms_nobody(
        self, saved: bytes, damage: Callable[[bytes], bytes]
    ) -> None:
        backend = WatchedBackend()
        engine = Engine(backend)
        target, neighbour = engine.session(), engine.session()
        target.send(TOKENS[:20])
        target.generate(2)
        with pytest.raises(StateRefused):
            target.load_state(damage(saved))
        assert backend.restored == 0
        assert (len(target.tokens), target.n_past) == (0, 0)
        engine.check()
        neighbour.send(self.NINE)
        target.send(TOKENS)
        cold = Engine(FakeBackend())
        for session, prompt in ((neighbour, self.NINE), (target, TOKENS)):
            with cold.session() as reference:
                reference.send(prompt)
                expected = reference.generate(8, ignore_end=True)
            turn = session.generate(8, ignore_end=True)
            assert turn.sampled == expected.sampled
            assert (turn.n_reused, turn.n_evaluated) == (0, len(prompt) + 7)

    def test_a_restored_session_goes_on_where_it_was(self, saved: bytes) -> None:
        engine = Engine(FakeBackend())
        session = engine.session()
        session.send(TOKENS[:7])
        session.load_state(saved)
        assert (session.n_past, len(session.tokens)) == (153, 154)
        with Engine(FakeBackend()).session() as cold:
            cold.send(session.tokens)
            expected = cold.generate(6, ignore_end=True).sampled
        turn = session.generate(6, ignore_end=True)
        assert turn.sampled == expected
        assert (turn.n_reused, turn.n_evaluated) == (153, 6)
        engine.check()

    def test_a_conversation_that_was_never_computed_is_kept_too(self) -> None:
        session = Engine(FakeBackend()).session()
        session.send(TOKENS[:7])
        blob = session.save_state()
        session.reset()
        session.load_state(blob)
        assert (session.tokens.tolist(), session.n_past) == (TOKENS[:7].tolist(), 0)

    def test_a_state_larger_than_the_context_is_refused_and_leaves_nothing(
        self, saved: bytes
    ) -> None:
        engine = Engine(FakeBackend(n_ctx=128))
        session = engine.session()
        with pytest.raises(ContextExceeded, match="n_ctx >= 154"):
            session.load_state(saved)
        assert (len(session.tokens), session.n_past) == (0, 0)
        engine.check()

    def test_a_payload_that_restores_another_length_is_refused(self) -> None:
        wrong = freeze(SavedState(FAKE.fingerprint, TOKENS, 150, TOKENS[:140].view(np.uint8)))
        engine = Engine(FakeBackend())
        session = engine.session()
        with pytest.raises(StateRefused, match="ends at 140, not at 150"):
            session.load_state(wrong)
        engine.check()
        assert session.n_past == 0


class TestStore:
    @pytest.fixture
    def store(self, tmp_path: Path) -> StateStore:
        return StateStore(tmp_path / "states")

    def test_a_state_is_found_by_what_made_it_and_by_nothing_else(self, store: StateStore) -> None:
        store.put("f", TOKENS, BLOB)
        assert store.get("f", TOKENS) == BLOB
        assert store.get("g", TOKENS) is None
        assert store.get("f", TOKENS[:-1]) is None

    def test_a_newer_state_replaces_the_older_whole(self, store: StateStore) -> None:
        store.put("f", TOKENS, BLOB)
        path = store.put("f", TOKENS, b"newer")
        assert path.read_bytes() == b"newer"
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    def test_a_full_disk_keeps_the_older_state_and_leaves_no_part(
        self, store: StateStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = store.put("f", TOKENS, BLOB)
        real = Path.write_bytes

        def half(self: Path, data: bytes) -> int:
            real(self, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", half)
        with pytest.raises(EnvironmentProblem, match="No space left on device; free space"):
            store.put("f", TOKENS, b"x" * 100)
        assert store.get("f", TOKENS) == BLOB
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    def test_a_folder_that_cannot_be_made_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "states").write_text("a file")
        with pytest.raises(EnvironmentProblem, match="choose another folder"):
            StateStore(tmp_path / "states").put("f", TOKENS, BLOB)
