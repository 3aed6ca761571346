"""Sessions on the fake: what is computed, what is kept, and never the wrong logits."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.backend import ContextExceeded, InvalidRequest, TokenIds
from runner.engine.contract import some_tokens
from runner.engine.engine import Engine
from runner.engine.fake import FakeBackend
from runner.engine.session import Session

FAKE = FakeBackend()


def prompt(count: int, start: int = 0) -> TokenIds:
    return some_tokens(FAKE, count, start)


def cold(tokens: TokenIds, count: int) -> tuple[int, ...]:
    with Engine(FakeBackend()).session() as session:
        session.send(tokens)
        return session.generate(count, ignore_end=True).sampled


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def session(backend: FakeBackend) -> Session:
    return Engine(backend).session()


class TestToolResult:
    @pytest.mark.parametrize(("result", "count"), [(1, 1), (20, 8), (300, 32)])
    def test_a_hop_computes_the_waiting_token_the_result_and_its_own_output(
        self, session: Session, result: int, count: int
    ) -> None:
        session.send(prompt(50))
        session.generate(8, ignore_end=True)
        session.append_tool_result(prompt(result, 60))

        turn = session.generate(count, ignore_end=True)

        assert turn.n_evaluated == 1 + result + count - 1
        assert turn.n_reused == 50 + 8 - 1
        assert turn.n_context == 58 + result
        assert turn.n_reused + turn.n_evaluated == turn.n_context + count - 1

    def test_it_goes_on_as_a_cold_run_of_the_whole_conversation(self, session: Session) -> None:
        session.send(prompt(50))
        for hop in range(4):
            session.generate(8, ignore_end=True)
            session.append_tool_result(prompt(20, hop * 9))
        whole = session.tokens.copy()
        assert session.generate(8, ignore_end=True).sampled == cold(whole, 8)

    def test_without_a_turn_there_is_nothing_a_tool_could_answer(self, session: Session) -> None:
        session.send(prompt(5))
        session.generate(0)
        with pytest.raises(InvalidRequest, match="generate a turn before"):
            session.append_tool_result([1])
        assert len(session.tokens) == 5


class TestConversation:
    """BR-05: never the logits of an older, longer conversation."""

    LONG = FAKE.tokenize(b"The capital of France is Paris and then Q Q Q Q Q Q Q Q")
    SHORT = FAKE.tokenize(b"The capital of France is")

    def test_a_beginning_of_what_is_cached_is_answered_as_cold(
        self, session: Session, backend: FakeBackend
    ) -> None:
        session.send(self.LONG)
        session.generate(3, ignore_end=True)
        n = len(self.SHORT)

        assert session.set_conversation(self.SHORT) == n - 1
        assert backend.seq_end(0) == n - 1

        turn = session.generate(6, ignore_end=True)
        assert turn.sampled == cold(self.SHORT, 6)
        assert (turn.n_reused, turn.n_evaluated) == (n - 1, 1 + 5)

    def test_the_same_prompt_again_decodes_exactly_one_token(self, session: Session) -> None:
        expected = cold(self.SHORT, 1)
        session.send(self.SHORT)
        for evaluated in (len(self.SHORT), 1, 1):
            session.set_conversation(self.SHORT)
            turn = session.generate(1)
            assert turn.sampled == expected
            assert turn.n_evaluated == evaluated
            assert turn.n_reused == len(self.SHORT) - evaluated

    def test_a_turn_on_a_conversation_that_is_all_in_kv_decodes_its_last_token_again(
        self, session: Session
    ) -> None:
        session.send(self.SHORT)
        session.generate(0)
        assert session.n_past == len(self.SHORT)
        turn = session.generate(4, ignore_end=True)
        assert turn.sampled == cold(self.SHORT, 4)
        assert (turn.n_reused, turn.n_evaluated) == (len(self.SHORT) - 1, 4)

    def test_an_edited_turn_keeps_what_comes_before_it(self, session: Session) -> None:
        session.send(prompt(60))
        session.generate(4, ignore_end=True)
        edited = np.concatenate([prompt(40), prompt(30, 7)])
        differs = int(np.flatnonzero(edited[:60] != prompt(60))[0])
        assert session.set_conversation(edited) == differs
        turn = session.generate(5, ignore_end=True)
        assert turn.sampled == cold(edited, 5)
        assert turn.n_evaluated == len(edited) - differs + 4

    def test_an_empty_conversation_has_nothing_to_go_on_from(self, session: Session) -> None:
        session.send(prompt(5))
        assert session.set_conversation([]) == 0
        with pytest.raises(InvalidRequest, match="send tokens first"):
            session.generate(1)

    def test_a_conversation_beyond_the_context_leaves_the_old_one_in_step(self) -> None:
        engine = Engine(FakeBackend(n_ctx=64))
        session = engine.session()
        session.send(prompt(20))
        session.generate(0)
        with pytest.raises(ContextExceeded, match="n_ctx >= 65"):
            session.set_conversation(prompt(65))
        engine.check()


class TestRefusedRemoval:
    """BR-07: memory that cannot roll back is prefilled again, and the receipt says so."""

    @pytest.fixture
    def session(self) -> Session:
        session = Engine(FakeBackend(can_roll_back=False)).session()
        session.send(prompt(60))
        session.generate(8, ignore_end=True)
        return session

    def test_after_a_roll_back_everything_is_evaluated(self, session: Session) -> None:
        assert not session.roll_back(48)
        turn = session.generate(5, ignore_end=True)
        assert turn.sampled == cold(prompt(60)[:48], 5)
        assert (turn.n_reused, turn.n_evaluated) == (0, 48 + 4)

    def test_after_a_reset_nothing_of_the_old_conversation_is_left(self, session: Session) -> None:
        session.reset()
        session.send(prompt(7, 3))
        turn = session.generate(5, ignore_end=True)
        assert turn.sampled == cold(prompt(7, 3), 5)
        assert turn.n_reused == 0

    def test_after_an_edit_everything_is_evaluated(self, session: Session) -> None:
        edited = np.concatenate([prompt(30), prompt(20, 5)])
        assert session.set_conversation(edited) == 0
        turn = session.generate(5, ignore_end=True)
        assert turn.sampled == cold(edited, 5)
        assert (turn.n_reused, turn.n_evaluated) == (0, 50 + 4)

    def test_a_removal_refused_only_once_is_noticed_too(self, backend: FakeBackend) -> None:
        class RefusesOnce(FakeBackend):
            refused = False

            def seq_remove(self, seq: int, start: int = 0) -> bool:
                if start and not self.refused:
                    self.refused = True
                    return False
                return super().seq_remove(seq, start)

        engine = Engine(RefusesOnce())
        session = engine.session()
        session.send(prompt(60))
        session.generate(8, ignore_end=True)
        assert not session.roll_back(40)
        turn = session.generate(5, ignore_end=True)
        assert turn.sampled == cold(prompt(60)[:40], 5)
        assert (turn.n_reused, turn.n_evaluated) == (0, 44)
        engine.check()

    def test_a_hop_that_takes_nothing_back_still_reuses_everything(self, session: Session) -> None:
        session.append_tool_result(prompt(10, 2))
        assert session.generate(1).n_reused == 67


class TestRollBack:
    def test_what_is_taken_back_is_taken_out_of_memory(
        self, session: Session, backend: FakeBackend
    ) -> None:
        session.send(prompt(60))
        session.generate(8, ignore_end=True)
        assert session.roll_back(40)
        assert backend.seq_end(0) == 40
        session.send(prompt(9, 5))
        whole = session.tokens.copy()
        assert session.generate(5, ignore_end=True).sampled == cold(whole, 5)

    def test_a_waiting_token_is_taken_back_without_touching_memory(self, session: Session) -> None:
        session.send(prompt(60))
        session.generate(8, ignore_end=True)
        assert session.roll_back(67)
        assert session.n_past == 67

    @pytest.mark.parametrize("n_tokens", [-1, 61])
    def test_an_impossible_length_is_refused(self, session: Session, n_tokens: int) -> None:
        session.send(prompt(60))
        with pytest.raises(InvalidRequest, match=f"cannot cut 60 tokens to {n_tokens}"):
            session.roll_back(n_tokens)


class TestScript:
    SCRIPT = (5, 257, 7, 9)  # an end token in the middle: a script is never cut short

    def test_the_scripts_ids_are_fed_and_the_sampled_ones_recorded(self, session: Session) -> None:
        session.send(prompt(20))
        turn = session.generate(4, script=self.SCRIPT)
        assert turn.fed == self.SCRIPT
        assert turn.stop_reason == "length"
        assert session.tokens[20:].tolist() == list(self.SCRIPT)
        for at, sampled in enumerate(turn.sampled):
            context = np.concatenate([prompt(20), self.SCRIPT[:at]]).astype(np.int32)
            assert (sampled,) == cold(context, 1)

    def test_a_script_too_short_is_refused_before_anything_is_computed(
        self, session: Session
    ) -> None:
        session.send(prompt(20))
        with pytest.raises(InvalidRequest, match="the script has 4 ids, max_tokens is 5"):
            session.generate(5, script=self.SCRIPT)
        assert session.n_past == 0


class TestStream:
    def test_it_yields_what_generate_returns(self, session: Session) -> None:
        session.send(prompt(20))
        assert tuple(session.stream(10, ignore_end=True)) == cold(prompt(20), 10)

    def test_each_token_comes_before_the_next_is_computed(
        self, session: Session, backend: FakeBackend
    ) -> None:
        session.send(prompt(20))
        for number, _ in enumerate(session.stream(5, ignore_end=True)):
            assert backend.seq_end(0) == 20 + number

    def test_leaving_early_keeps_what_was_yielded_and_frees_the_session(
        self, session: Session
    ) -> None:
        session.send(prompt(20))
        for number, _ in enumerate(session.stream(10, ignore_end=True), 1):
            if number == 3:
                break
        assert session.tokens[20:].tolist() == list(cold(prompt(20), 3))
        assert session.generate(7, ignore_end=True).sampled == cold(prompt(20), 10)[3:]

    def test_while_it_runs_the_conversation_cannot_be_changed(self, session: Session) -> None:
        session.send(prompt(20))
        tokens = session.stream(5)
        next(tokens)
        for change in (
            lambda: session.send([1]),
            lambda: session.append_tool_result([1]),
            lambda: session.set_conversation([1]),
            lambda: session.roll_back(3),
            session.reset,
            lambda: session.generate(1),
            lambda: session.load_state(b""),
        ):
            with pytest.raises(InvalidRequest, match="a turn is running"):
                change()
        tokens.close()  # type: ignore[attr-defined]
        session.send([1])

    def test_two_streams_take_turns(self) -> None:
        engine = Engine(FakeBackend())
        one, two = engine.session(), engine.session()
        one.send(prompt(20))
        two.send(prompt(11, 3))
        pairs = list(
            zip(one.stream(6, ignore_end=True), two.stream(6, ignore_end=True), strict=True)
        )
        assert tuple(first for first, _ in pairs) == cold(prompt(20), 6)
        assert tuple(second for _, second in pairs) == cold(prompt(11, 3), 6)


class TestFork:
    def test_both_go_on_from_here_and_neither_sees_the_other(
        self, session: Session, backend: FakeBackend
    ) -> None:
        session.send(prompt(30))
        session.generate(4, ignore_end=True)
        cells = backend.cells_used
        other = session.fork()
        assert backend.cells_used == cells
        other.append_tool_result(prompt(9, 5))
        session.append_tool_result(prompt(9, 8))
        wholes = [session.tokens.copy(), other.tokens.copy()]
        assert session.generate(5, ignore_end=True).sampled == cold(wholes[0], 5)
        assert other.generate(5, ignore_end=True).sampled == cold(wholes[1], 5)

    def test_it_outlives_what_it_was_made_from(self, session: Session) -> None:
        session.send(prompt(30))
        session.generate(0)
        other = session.fork()
        session.close()
        assert other.generate(5, ignore_end=True).sampled == cold(prompt(30), 5)

    def test_without_a_free_sequence_it_is_refused_and_nothing_is_taken(self) -> None:
        engine = Engine(FakeBackend(n_seq_max=1))
        session = engine.session()
        session.send(prompt(5))
        with pytest.raises(InvalidRequest, match="all 1 sequences are in use"):
            session.fork()
        engine.check()


class TestLimits:
    def test_a_turn_that_would_not_fit_is_refused_before_anything_is_computed(self) -> None:
        session = Engine(FakeBackend(n_ctx=64)).session()
        session.send(prompt(50))
        with pytest.raises(ContextExceeded, match="n_ctx >= 65, it is 64"):
            session.generate(15)
        assert session.n_past == 0
        assert session.generate(14, ignore_end=True).n_generated == 14

    def test_tokens_past_the_context_name_the_n_ctx_that_would_do(self) -> None:
        session = Engine(FakeBackend(n_ctx=64)).session()
        session.send(prompt(50))
        with pytest.raises(ContextExceeded, match="use n_ctx >= 70"):
            session.send(prompt(20))
        assert len(session.tokens) == 50

    @pytest.mark.parametrize("token", [-1, FAKE.vocabulary.n_tokens])
    def test_ids_outside_the_vocabulary_are_refused(self, session: Session, token: int) -> None:
        with pytest.raises(InvalidRequest, match="are outside 0"):
            session.send([1, token])
        assert len(session.tokens) == 0

    def test_a_closed_session_refuses_everything_but_closing(self, session: Session) -> None:
        session.send(prompt(5))
        session.close()
        session.close()
        for use in (lambda: session.tokens, lambda: session.send([1]), session.save_state):
            with pytest.raises(InvalidRequest, match="the session is closed"):
                use()

    def test_the_conversation_cannot_be_written_to_from_outside(self, session: Session) -> None:
        session.send(prompt(5))
        with pytest.raises(ValueError, match="read-only"):
            session.tokens[0] = 1

    def test_a_running_engine_has_no_books_to_check(self) -> None:
        engine = Engine(FakeBackend())
        session = engine.session()
        session.send(prompt(5))
        session.start(3)
        with pytest.raises(InvalidRequest, match="not idle"):
            engine.check()


@pytest.mark.parametrize(("n_seq_max", "several"), [(1, False), (4, True)])
def test_what_needs_several_sequences_is_offered_only_with_them(
    n_seq_max: int, several: bool
) -> None:
    features = Engine(FakeBackend(n_seq_max=n_seq_max, can_roll_back=several)).features
    assert features.continuous_batching is features.shared_prefix is several
    assert features.roll_back is several
    assert features.streaming
    assert features.stateful_sessions
    assert features.kv_persistence


def test_books_that_disagree_with_memory_are_reported_with_their_numbers() -> None:
    backend = FakeBackend()
    engine = Engine(backend)
    session = engine.session()
    session.send(prompt(5))
    session.generate(0)
    backend.seq_remove(0, 3)
    with pytest.raises(AssertionError, match="sequence 0: memory ends at 3, n_past 5, n_tokens 5"):
        engine.check()
    backend.state_set(4, backend.state_get(0))
    session.close()
    with pytest.raises(AssertionError, match="free sequence 4 holds 3 cells"):
        engine.check()
