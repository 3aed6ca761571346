"""Whatever order sessions, prefixes, forks, saves and failures come in: the books agree with
memory after every step, and every turn is what a cold run of the same conversation gives."""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pytest
from faults import FailingBackend
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from runner.engine.backend import CacheFull, DecodeFailed, InvalidRequest, StateRefused, TokenIds
from runner.engine.contract import some_tokens
from runner.engine.engine import Engine
from runner.engine.fake import FakeBackend
from runner.engine.prefixes import Prefix
from runner.engine.requests import Turn
from runner.engine.session import Session

N_CTX = 4096
N_SEQ = 6
FAKE = FakeBackend()
LENGTHS = st.integers(1, 40)
TURNS = st.integers(0, 6)
STARTS = st.integers(0, 50)


def prompt(count: int, start: int) -> TokenIds:
    return some_tokens(FAKE, count, start)


def cold(tokens: list[int], count: int) -> list[int]:
    with Engine(FakeBackend(n_seq_max=1)).session() as session:
        session.send(tokens)
        return list(session.generate(count, ignore_end=True).sampled)


class Conversations(RuleBasedStateMachine):
    """Drives an engine and keeps, beside it, what each conversation ought to hold."""

    sessions = Bundle("sessions")
    prefixes = Bundle("prefixes")
    states = Bundle("states")

    @initialize(n_batch=st.sampled_from([1, 7, 32]), can_roll_back=st.booleans())
    def open_engine(self, n_batch: int, can_roll_back: bool) -> None:
        self.backend = FailingBackend(
            n_ctx=N_CTX, n_batch=n_batch, n_seq_max=N_SEQ, can_roll_back=can_roll_back
        )
        self.engine = Engine(self.backend)
        self.expected: dict[Session, list[int]] = {}
        self.held: list[Prefix] = []

    @property
    def has_room(self) -> bool:
        open_prefixes = sum(prefix.references > 0 for prefix in self.held)
        return len(self.expected) + open_prefixes < N_SEQ

    def keep(self, session: Session, tokens: list[int]) -> Session:
        self.expected[session] = tokens
        return session

    def accept(self, session: Session, turn: Turn) -> None:
        before = self.expected[session]
        assert list(turn.sampled) == (cold(before, turn.n_generated) if turn.n_generated else [])
        assert turn.n_reused + turn.n_evaluated == len(before) + max(turn.n_generated - 1, 0)
        self.expected[session] = before + list(turn.sampled)

    @precondition(lambda self: self.has_room)
    @rule(target=sessions)
    def new_session(self) -> Session:
        return self.keep(self.engine.session(), [])

    @precondition(lambda self: self.has_room)
    @rule(target=prefixes, count=LENGTHS, start=STARTS)
    def new_prefix(self, count: int, start: int) -> Prefix:
        prefix = self.engine.prefix(prompt(count, start))
        self.held.append(prefix)
        return prefix

    @precondition(lambda self: self.has_room)
    @rule(target=sessions, prefix=prefixes)
    def session_on_a_prefix(self, prefix: Prefix) -> Session | object:
        if not prefix.references:
            with pytest.raises(InvalidRequest):
                self.engine.session(prefix)
            return multiple()
        return self.keep(self.engine.session(prefix), prefix.tokens.tolist())

    @rule(prefix=prefixes)
    def close_prefix(self, prefix: Prefix) -> None:
        prefix.close()

    @rule(session=consumes(sessions))
    def close(self, session: Session) -> None:
        session.close()
        del self.expected[session]

    @rule(session=sessions, count=LENGTHS, start=STARTS)
    def send(self, session: Session, count: int, start: int) -> None:
        session.send(prompt(count, start))
        self.expected[session] = self.expected[session] + prompt(count, start).tolist()

    @rule(session=sessions, count=TURNS)
    def generate(self, session: Session, count: int) -> None:
        if not self.expected[session]:
            with pytest.raises(InvalidRequest):
                session.generate(count)
            return
        self.accept(session, session.generate(count, ignore_end=True))

    @rule(count=st.integers(1, 6))
    def generate_together(self, count: int) -> None:
        ready = [session for session, tokens in self.expected.items() if tokens]
        requests = [session.start(count, ignore_end=True) for session in ready]
        for session, turn in zip(ready, self.engine.run(requests), strict=True):
            self.accept(session, turn)

    @rule(session=sessions, code=st.sampled_from([1, 2, -1, -3]), after=st.integers(0, 3))
    def fail(self, session: Session, code: int, after: int) -> None:
        before = self.expected[session]
        if not before:
            return
        self.backend.fail(code, after=after)
        with suppress(DecodeFailed, CacheFull):
            session.generate(5, ignore_end=True)
        self.backend.failures.clear()
        after_it = session.tokens.tolist()
        new = len(after_it) - len(before)
        assert after_it == before + (cold(before, new) if new else [])
        self.expected[session] = after_it

    @precondition(lambda self: self.has_room)
    @rule(target=sessions, session=sessions)
    def fork(self, session: Session) -> Session:
        return self.keep(session.fork(), self.expected[session])

    @rule(session=sessions, back=st.integers(0, 30))
    def roll_back(self, session: Session, back: int) -> None:
        n = max(0, len(self.expected[session]) - back)
        session.roll_back(n)
        self.expected[session] = self.expected[session][:n]

    @rule(session=sessions, keep=st.integers(0, 60), count=LENGTHS, start=STARTS)
    def edit(self, session: Session, keep: int, count: int, start: int) -> None:
        edited = self.expected[session][:keep] + prompt(count, start).tolist()
        session.set_conversation(edited)
        self.expected[session] = edited

    @rule(session=sessions)
    def reset(self, session: Session) -> None:
        session.reset()
        self.expected[session] = []

    @rule(target=states, session=sessions)
    def save(self, session: Session) -> tuple[bytes, list[int]]:
        return session.save_state(), self.expected[session]

    @rule(session=sessions, state=states)
    def load(self, session: Session, state: tuple[bytes, list[int]]) -> None:
        session.load_state(state[0])
        self.expected[session] = state[1]

    @rule(session=sessions, state=states, at=st.integers(0, 10_000))
    def load_damaged(self, session: Session, state: tuple[bytes, list[int]], at: int) -> None:
        damaged = bytearray(state[0])
        damaged[at % len(damaged)] ^= 0x7F
        with pytest.raises(StateRefused):
            session.load_state(bytes(damaged))
        self.expected[session] = []

    @invariant()
    def books_agree_with_memory(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check()
        for session, tokens in self.expected.items():
            assert session.tokens.tolist() == tokens
            memory = self.backend.state_get(session._open.seq).view("<i4").tolist()
            assert memory == tokens[: session.n_past]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for session in self.expected:
            session.close()
        for prefix in self.held:
            prefix.close()
        assert self.backend.cells_used == 0
        assert np.count_nonzero([self.backend.seq_end(seq) for seq in range(N_SEQ)]) == 0


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
