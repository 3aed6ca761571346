"""Continuous batching on the fake: fair, equal to running alone, and in step after a failure."""

from __future__ import annotations

import numpy as np
import pytest
from faults import AsynchronousBackend, FailingBackend, FakeClock
from numpy.typing import NDArray

from runner.engine.backend import (
    BackendError,
    CacheFull,
    DecodeFailed,
    InvalidRequest,
    NativeBackend,
    TokenIds,
)
from runner.engine.contract import some_tokens
from runner.engine.engine import Engine
from runner.engine.fake import FakeBackend
from runner.engine.requests import Turn
from runner.engine.sampling import SamplingParameters, SeededChain
from runner.engine.session import Session

FAKE = FakeBackend()
EOS, EOT = sorted(FAKE.vocabulary.end_ids)


def prompt(count: int, start: int = 0) -> TokenIds:
    return some_tokens(FAKE, count, start)


def alone(tokens: TokenIds, count: int) -> tuple[int, ...]:
    """What a fresh engine generates after `tokens`."""
    with Engine(FakeBackend()).session() as session:
        session.send(tokens)
        return session.generate(count, ignore_end=True).sampled


def started(engine: Engine, tokens: TokenIds) -> Session:
    session = engine.session()
    session.send(tokens)
    return session


@pytest.mark.parametrize("n_batch", [1, 5, 16, 2048])
def test_many_together_give_what_each_gives_alone(n_batch: int) -> None:
    prompts = [prompt(count, start) for start, count in enumerate((1, 7, 30, 64, 3, 41))]
    engine = Engine(FakeBackend(n_batch=n_batch))
    sessions = [started(engine, tokens) for tokens in prompts]

    turns = engine.run([session.start(12, ignore_end=True) for session in sessions])

    assert [turn.sampled for turn in turns] == [alone(tokens, 12) for tokens in prompts]
    assert [turn.n_evaluated for turn in turns] == [len(tokens) + 11 for tokens in prompts]
    engine.check()


def test_a_session_may_join_while_others_run() -> None:
    engine = Engine(FakeBackend(n_batch=8))
    first = started(engine, prompt(20)).start(10, ignore_end=True)
    for _ in range(4):
        engine.step()
    second = started(engine, prompt(13, 5)).start(10, ignore_end=True)

    turns = engine.run([first, second])

    assert [turn.sampled for turn in turns] == [alone(prompt(20), 10), alone(prompt(13, 5), 10)]


def test_greedy_and_seeded_requests_share_a_batch() -> None:
    chain = SamplingParameters(seed=3)
    engine = Engine(FakeBackend())
    greedy = started(engine, prompt(9)).start(8, ignore_end=True)
    drawn = started(engine, prompt(9, 2)).start(8, SeededChain(chain), ignore_end=True)
    turns = engine.run([greedy, drawn])

    with Engine(FakeBackend()).session() as session:
        session.send(prompt(9, 2))
        assert turns[1].sampled == session.generate(8, SeededChain(chain), ignore_end=True).sampled
    assert turns[0].sampled == alone(prompt(9), 8)


def test_a_long_prefill_is_cut_at_n_batch() -> None:
    backend = FailingBackend(n_batch=10)
    with Engine(backend).session() as session:
        session.send(prompt(35))
        session.generate(1, ignore_end=True)
    assert backend.batches == [[(0, 10)], [(0, 10)], [(0, 10)], [(0, 5)]]


def test_a_running_turn_gets_its_token_before_any_older_prefill() -> None:
    backend = FailingBackend(n_batch=10)
    engine = Engine(backend)
    reading = started(engine, prompt(24)).start(1, ignore_end=True)
    speaking = started(engine, prompt(1)).start(6, ignore_end=True)
    engine.run([reading, speaking])
    # Sequence 1 decodes a token every step although sequence 0 could fill every batch.
    assert backend.batches[:3] == [[(1, 1), (0, 9)], [(1, 1), (0, 9)], [(1, 1), (0, 6)]]


def test_more_running_turns_than_n_batch_all_come_to_their_end() -> None:
    engine = Engine(FakeBackend(n_batch=2, n_seq_max=5))
    prompts = [prompt(3, start) for start in range(5)]
    requests = [started(engine, tokens).start(6, ignore_end=True) for tokens in prompts]
    turns = engine.run(requests)
    assert [turn.sampled for turn in turns] == [alone(tokens, 6) for tokens in prompts]


def test_a_full_cache_fails_the_greediest_and_the_others_go_on() -> None:
    engine = Engine(FakeBackend(n_ctx=64, n_seq_max=3))
    small, greedy, other = (
        started(engine, prompt(count, start)) for start, count in ((0, 10), (1, 50), (2, 12))
    )
    requests = [session.start(5, ignore_end=True) for session in (small, greedy, other)]

    with pytest.raises(CacheFull):
        engine.run([requests[1]])

    assert [turn.sampled for turn in engine.run([requests[0], requests[2]])] == [
        alone(prompt(10, 0), 5),
        alone(prompt(12, 2), 5),
    ]
    assert (greedy.n_past, len(greedy.tokens)) == (0, 50)
    engine.check()
    small.close()
    other.close()
    assert greedy.generate(5, ignore_end=True).sampled == alone(prompt(50, 1), 5)


def test_two_turns_on_one_session_are_refused_without_harm_to_others() -> None:
    engine = Engine(FakeBackend())
    session, other = started(engine, prompt(5)), started(engine, prompt(8))
    first, theirs = session.start(3, ignore_end=True), other.start(3, ignore_end=True)
    with pytest.raises(InvalidRequest, match="turn is running"):
        session.start(3)
    assert engine.run([first, theirs])[1].sampled == alone(prompt(8), 3)
    assert session.tokens[5:].tolist() == list(alone(prompt(5), 3))


def test_closing_a_session_ends_its_running_turn_and_no_other() -> None:
    engine = Engine(FakeBackend())
    session, other = started(engine, prompt(5)), started(engine, prompt(8))
    session.start(30, ignore_end=True)
    theirs = other.start(6, ignore_end=True)
    engine.step()
    session.close()
    heir = started(engine, prompt(9, 4))
    assert engine.run([theirs])[0].sampled == alone(prompt(8), 6)
    assert heir.generate(4, ignore_end=True).sampled == alone(prompt(9, 4), 4)
    engine.check()


# BR-04: after a failed decode the books and the cache agree, whatever was left in memory.

FAILURES = (1, 2, -1, -3, KeyboardInterrupt())


def failed_prompt(backend: FailingBackend, failure: int | BaseException) -> tuple[Engine, Session]:
    """9 tokens cached, then a 28-token prompt on top of them whose second chunk fails."""
    engine = Engine(backend)
    session = started(engine, prompt(9))
    session.generate(0)
    session.send(prompt(28, 40))
    backend.fail(failure, after=1)
    expected = KeyboardInterrupt if isinstance(failure, BaseException) else BackendError
    with pytest.raises(expected):
        session.generate(4, ignore_end=True)
    return engine, session


@pytest.mark.parametrize("can_roll_back", [True, False], ids=["rolls back", "recurrent"])
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_after_a_failed_chunk_a_prompt_that_shares_the_prefix_is_answered_as_cold(
    failure: int | BaseException, can_roll_back: bool
) -> None:
    backend = FailingBackend(n_batch=16, can_roll_back=can_roll_back)
    engine, session = failed_prompt(backend, failure)
    engine.check()
    shared = np.concatenate([prompt(9), prompt(13, 90)])

    session.set_conversation(shared)

    assert session.generate(24, ignore_end=True).sampled == alone(shared, 24)
    engine.check()


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_after_a_failed_chunk_the_same_turn_can_be_generated_again(
    failure: int | BaseException,
) -> None:
    _, session = failed_prompt(FailingBackend(n_batch=16), failure)
    whole = np.concatenate([prompt(9), prompt(28, 40)])
    assert session.tokens.tolist() == whole.tolist()
    kept = session.n_past
    assert kept == 9 + 16  # the first chunk and what was cached; nothing of the failed one

    turn = session.generate(24, ignore_end=True)

    assert turn.sampled == alone(whole, 24)
    assert (turn.n_reused, turn.n_evaluated) == (kept, len(whole) - kept + 23)


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_failed_decode_leaves_sessions_outside_the_batch_alone(
    failure: int | BaseException,
) -> None:
    backend = FailingBackend(n_batch=16)
    engine = Engine(backend)
    neighbour = started(engine, prompt(30, 7))
    before = neighbour.generate(3, ignore_end=True).sampled
    session = started(engine, prompt(20))
    backend.fail(failure)
    with pytest.raises((BackendError, KeyboardInterrupt)):
        session.generate(2)
    after = neighbour.generate(5, ignore_end=True).sampled
    assert before + after == alone(prompt(30, 7), 8)


@pytest.mark.parametrize("code", [2, -1, -3])
def test_a_failed_decode_fails_every_turn_of_its_batch_and_each_can_go_on(code: int) -> None:
    backend = FailingBackend()
    engine = Engine(backend)
    sessions = [started(engine, prompt(12, start)) for start in range(3)]
    requests = [session.start(10, ignore_end=True) for session in sessions]
    backend.fail(code, after=3)
    for request in requests:
        with pytest.raises(DecodeFailed, match=f"llama_decode returned {code}"):
            engine.run([request])
    engine.check()
    for start, session in enumerate(sessions):
        session.generate(7, ignore_end=True)
        assert session.tokens[12:].tolist() == list(alone(prompt(12, start), 10))


def test_an_interrupt_between_two_steps_keeps_what_was_generated() -> None:
    backend = FailingBackend()
    engine = Engine(backend)
    session = started(engine, prompt(12))
    backend.fail(KeyboardInterrupt(), after=4)
    with pytest.raises(KeyboardInterrupt):
        session.generate(10, ignore_end=True)
    engine.check()
    assert session.tokens[12:].tolist() == list(alone(prompt(12), 4))
    assert session.generate(6, ignore_end=True).sampled == alone(prompt(12), 10)[4:]


def test_kv_that_cannot_be_rolled_back_is_computed_again_and_not_called_reuse() -> None:
    backend = FailingBackend(can_roll_back=False)
    engine = Engine(backend)
    session = started(engine, prompt(12))
    session.generate(0)
    session.send(prompt(6, 50))
    backend.fail(-3)
    with pytest.raises(DecodeFailed):
        session.generate(1)
    assert session.n_past == 0
    turn = session.generate(1)
    assert (turn.n_reused, turn.n_evaluated) == (0, 18)


def test_a_turn_that_outlives_an_interrupt_does_not_call_lost_kv_reuse() -> None:
    backend = FailingBackend(can_roll_back=False)
    engine = Engine(backend)
    session = started(engine, prompt(12))
    session.generate(0)
    session.send(prompt(6, 50))
    request = session.start(3, ignore_end=True)
    backend.fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.run([request])
    turn = engine.run([request])[0]
    assert (turn.n_reused, turn.n_evaluated) == (0, 18 + 2)
    assert turn.sampled == alone(np.concatenate([prompt(12), prompt(6, 50)]), 3)


# BR-17: time is read only after `synchronize`.


def test_prefill_and_decode_are_charged_for_every_wait_of_their_own() -> None:
    clock = FakeClock()
    engine = Engine(AsynchronousBackend(clock, 0.05, n_batch=16), clock)
    began = clock.now
    with engine.session() as session:
        session.send(prompt(4 * 16))
        turn = session.generate(11, ignore_end=True)

    assert turn.prefill_s == pytest.approx(4 * 0.05)
    assert turn.decode_s == pytest.approx(10 * 0.05)
    assert turn.ttft_s == pytest.approx(turn.prefill_s)
    assert turn.wall_s == pytest.approx(clock.now - began)
    assert turn.prefill_s + turn.decode_s == pytest.approx(turn.wall_s, rel=0.05)


def test_a_turn_that_only_prefills_is_charged_for_it() -> None:
    clock = FakeClock()
    engine = Engine(AsynchronousBackend(clock, 0.05, n_batch=16), clock)
    with engine.session() as session:
        session.send(prompt(40))
        turn = session.generate(0)
    assert (turn.stop_reason, turn.n_evaluated, turn.n_generated) == ("prefilled", 40, 0)
    assert turn.prefill_s == pytest.approx(3 * 0.05)
    assert turn.decode_s == 0


def test_the_first_token_is_known_only_after_it_was_sampled() -> None:
    clock = FakeClock()

    class Slow:
        is_greedy = False

        def sample(self, row: NDArray[np.float32]) -> int:
            clock.now += 0.02
            return int(row.argmax())

    engine = Engine(AsynchronousBackend(clock, 0.05, n_batch=64), clock)
    with engine.session() as session:
        session.send(prompt(40))
        turn = session.generate(3, Slow(), ignore_end=True)
    assert turn.prefill_s == pytest.approx(0.05)
    assert turn.ttft_s == pytest.approx(0.07)
    assert turn.wall_s == pytest.approx(3 * 0.07)


# BR-18: what is counted ends with the first end token.


class Says:
    """A sampler that chooses these ids in turn."""

    is_greedy = False

    def __init__(self, *ids: int) -> None:
        self._ids = iter(ids)

    def sample(self, row: NDArray[np.float32]) -> int:
        return next(self._ids)


def says(backend: NativeBackend, count: int, *ids: int, ignore_end: bool = False) -> Turn:
    with Engine(backend).session() as session:
        session.send([1, 2, 3])
        return session.generate(count, Says(*ids), ignore_end=ignore_end)


def test_nothing_after_the_first_end_token_is_counted() -> None:
    turn = says(FakeBackend(), 6, 7, 4, 9, EOS, EOS, EOS)
    assert turn.fed == turn.sampled == (7, 4, 9, EOS)
    assert (turn.n_generated, turn.stop_reason) == (4, "eos")


@pytest.mark.parametrize("end", [EOS, EOT])
def test_every_end_id_of_the_model_ends_a_turn(end: int) -> None:
    turn = says(FakeBackend(), 128, *[5] * 87, end, *[5] * 40)
    assert (turn.n_generated, turn.stop_reason) == (88, "eos")


@pytest.mark.parametrize("end", [EOS, EOT])
def test_with_ends_ignored_a_turn_has_exactly_the_length_asked_for(end: int) -> None:
    turn = says(FakeBackend(), 128, *[5] * 87, end, *[5] * 40, ignore_end=True)
    assert (turn.n_generated, turn.stop_reason) == (128, "length")


def test_an_end_token_as_the_last_one_asked_for_is_an_end() -> None:
    assert says(FakeBackend(), 3, 5, 5, EOS).stop_reason == "eos"
    assert says(FakeBackend(), 3, 5, 5, 5, EOS).stop_reason == "length"


def test_waiting_for_a_withdrawn_turn_ends_with_an_error() -> None:
    engine = Engine(FakeBackend())
    session = started(engine, prompt(5))
    request = session.start(30, ignore_end=True)
    session.close()
    with pytest.raises(InvalidRequest, match="withdrawn"):
        engine.run([request])
