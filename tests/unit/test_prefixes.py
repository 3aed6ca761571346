"""A prefix is computed once, read by many, and freed by the last one that lets go."""

from __future__ import annotations

from itertools import permutations

import pytest
from faults import FailingBackend

from runner.engine.backend import ContextExceeded, DecodeFailed, InvalidRequest, TokenIds
from runner.engine.contract import some_tokens
from runner.engine.engine import Engine
from runner.engine.fake import FakeBackend
from runner.engine.prefixes import Prefix
from runner.engine.session import Session

FAKE = FakeBackend()


def prompt(count: int, start: int = 0) -> TokenIds:
    return some_tokens(FAKE, count, start)


def cold(tokens: TokenIds, count: int) -> tuple[int, ...]:
    with Engine(FakeBackend()).session() as session:
        session.send(tokens)
        return session.generate(count, ignore_end=True).sampled


def test_sessions_read_the_prefix_without_computing_it_or_taking_cells() -> None:
    backend = FakeBackend()
    engine = Engine(backend)
    prefix = engine.prefix(prompt(100))
    sessions = [engine.session(prefix) for _ in range(3)]
    assert backend.cells_used == 100
    assert prefix.references == 4
    for start, session in enumerate(sessions):
        session.send(prompt(7, 30 + start))
        whole = session.tokens.copy()
        turn = session.generate(5, ignore_end=True)
        assert turn.sampled == cold(whole, 5)
        assert (turn.n_reused, turn.n_evaluated) == (100, 7 + 4)
    assert backend.cells_used == 100 + 3 * 11
    engine.check()


def test_a_turn_straight_after_the_prefix_decodes_its_last_token_again() -> None:
    engine = Engine(FakeBackend())
    session = engine.session(engine.prefix(prompt(40)))
    turn = session.generate(5, ignore_end=True)
    assert turn.sampled == cold(prompt(40), 5)
    assert (turn.n_reused, turn.n_evaluated) == (39, 5)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_the_last_to_close_frees_the_memory_in_any_order(order: tuple[int, ...]) -> None:
    backend = FakeBackend()
    engine = Engine(backend)
    prefix = engine.prefix(prompt(40))
    holders: list[Prefix | Session] = [prefix, engine.session(prefix), engine.session(prefix)]
    for left, index in zip((2, 1, 0), order, strict=True):
        assert backend.cells_used == 40
        holders[index].close()
        assert prefix.references == left
        engine.check()
    assert backend.cells_used == 0


def test_closing_twice_takes_nobodys_reference() -> None:
    engine = Engine(FakeBackend())
    prefix = engine.prefix(prompt(40))
    session = engine.session(prefix)
    prefix.close()
    prefix.close()
    assert prefix.references == 1
    session.close()
    session.close()
    assert prefix.references == 0
    prefix.close()
    engine.check()


def test_a_prefix_its_owner_closed_still_serves_new_sessions_while_one_reads_it() -> None:
    engine = Engine(FakeBackend())
    prefix = engine.prefix(prompt(40))
    first = engine.session(prefix)
    prefix.close()
    second = engine.session(prefix)
    first.close()
    assert second.generate(3, ignore_end=True).sampled == cold(prompt(40), 3)


def test_a_freed_prefix_refuses_sessions() -> None:
    engine = Engine(FakeBackend())
    prefix = engine.prefix(prompt(40))
    prefix.close()
    with pytest.raises(InvalidRequest, match="the prefix is closed"):
        engine.session(prefix)
    with pytest.raises(InvalidRequest, match="the prefix is closed"):
        prefix.release()


def test_a_prefix_beyond_the_context_holds_nothing() -> None:
    backend = FakeBackend(n_ctx=64, n_seq_max=1)
    engine = Engine(backend)
    with pytest.raises(ContextExceeded, match="use n_ctx >= 65"):
        engine.prefix(prompt(65))
    assert backend.cells_used == 0
    engine.check()
    engine.prefix(prompt(64))  # the only sequence is free again


def test_a_prefix_that_fails_to_decode_holds_nothing() -> None:
    backend = FailingBackend(n_batch=16, n_seq_max=1)
    engine = Engine(backend)
    backend.fail(-3, after=1)
    with pytest.raises(DecodeFailed):
        engine.prefix(prompt(40))
    assert backend.cells_used == 0
    engine.check()
    engine.prefix(prompt(40))


def test_without_a_free_sequence_a_session_takes_no_reference() -> None:
    engine = Engine(FakeBackend(n_seq_max=1))
    prefix = engine.prefix(prompt(40))
    with pytest.raises(InvalidRequest, match="all 1 sequences are in use"):
        engine.session(prefix)
    assert prefix.references == 1


def test_a_prefix_interrupted_while_it_is_computed_holds_nothing() -> None:
    backend = FailingBackend(n_batch=16, n_seq_max=1)
    engine = Engine(backend)
    backend.fail(KeyboardInterrupt(), after=1)
    with pytest.raises(KeyboardInterrupt):
        engine.prefix(prompt(40))
    engine.check()
    with engine.session() as session:
        session.send(prompt(20))
        assert session.generate(3, ignore_end=True).sampled == cold(prompt(20), 3)
