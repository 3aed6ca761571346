"""What the arms would say freely, on the fake: same shapes, other shapes, and a state that lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.arms import ARMS
from runner.arms.host import EngineHost
from runner.arms.meter import Meter
from runner.bench.equivalence import (
    Listener,
    Said,
    chosen_hops,
    compare,
    equivalence_rows,
    run_live,
)
from runner.catalog import Point
from runner.engine.backend import Entry, Logits, StateRefused, TokenIds
from runner.engine.engine import Engine
from runner.engine.fake import FakeBackend
from runner.records import check_row
from runner.workloads.tool_loop import Script, build_script

POINT = Point(prefix=40, hops=4, generate=6, result=5)


def script_of(backend: FakeBackend, point: Point = POINT) -> Script:
    return build_script(point, backend, 7)


class Shaped(FakeBackend):
    """Rounds by batch shape: `tilt` moves the logits by how many tokens the batch has."""

    def __init__(self, tilt: float = 0.0, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.tilt = tilt
        self.batches: list[tuple[int, ...]] = []

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        self.batches.append(tuple(len(entry.tokens) for entry in entries))
        rows = super().decode(entries)
        wave = np.cos(np.arange(self.vocabulary.n_tokens, dtype=np.float32))
        rows += np.float32(self.tilt * len(entries[0].tokens)) * wave
        return rows


def by(rows: list[dict[str, Any]], comparison: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["comparison"] == comparison]


@pytest.mark.parametrize(
    ("n_hops", "chosen"),
    [(0, (0,)), (1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (8, (1, 4, 8))],
)
def test_first_middle_and_last_hop_after_a_tool_result(
    n_hops: int, chosen: tuple[int, ...]
) -> None:
    assert chosen_hops(n_hops) == chosen


@pytest.mark.parametrize("can_roll_back", [True, False])
@pytest.mark.parametrize("n_hops", [0, 1, 4])
def test_where_shapes_do_not_matter_all_sides_say_the_same(
    can_roll_back: bool, n_hops: int
) -> None:
    backend = FakeBackend(n_batch=16, n_seq_max=1, can_roll_back=can_roll_back)
    point = POINT.model_copy(update={"hops": n_hops})
    rows = equivalence_rows(backend, script_of(backend, point))
    found = [(row["comparison"], row["hop"]) for row in rows]
    hops = chosen_hops(n_hops)
    assert found == [(name, hop) for name in ("free", "matched") for hop in hops]
    for row in rows:
        check_row("equivalence", {"run_id": "r", "point": "p", **row})
        assert (row["n_tokens"], row["n_agreed"]) == (6, 6)
        assert (row["top2_margin"], row["max_logit_difference"]) == (None, 0.0)
        assert row["logit_sd"] == pytest.approx(1.0, rel=0.2)
    assert backend.cells_used == 0


@pytest.mark.parametrize("can_roll_back", [True, False])
def test_other_shapes_show_in_free_and_not_in_matched(can_roll_back: bool) -> None:
    backend = Shaped(tilt=0.01, n_seq_max=1, can_roll_back=can_roll_back)
    rows = equivalence_rows(backend, script_of(backend))
    assert all(row["max_logit_difference"] > 0 for row in by(rows, "free"))
    for row in by(rows, "matched"):
        assert (row["n_agreed"], row["max_logit_difference"]) == (6, 0.0)
    assert {row["hop"] for row in rows} == {1, 2, 4}


def test_a_strong_tilt_parts_them_and_the_margin_is_that_of_live_kv() -> None:
    backend = Shaped(tilt=1.0, n_seq_max=1)
    rows = by(equivalence_rows(backend, script_of(backend)), "free")
    parted = [row for row in rows if row["n_agreed"] < row["n_tokens"]]
    assert parted
    assert all(row["top2_margin"] > 0 for row in parted)


class Forgetful(FakeBackend):
    """A state that comes back with another last token: kept state that is not what it should be."""

    def state_set(self, seq: int, state: NDArray[np.uint8]) -> None:
        """See `NativeBackend`."""
        ids = state.view("<i4").copy()
        ids[-1] ^= 1
        super().state_set(seq, ids.view(np.uint8))


@pytest.mark.parametrize("can_roll_back", [True, False])
def test_the_control_catches_a_state_that_lies(can_roll_back: bool) -> None:
    backend = Forgetful(n_seq_max=1, can_roll_back=can_roll_back)
    first, *later = by(equivalence_rows(backend, script_of(backend)), "matched")
    assert (first["n_agreed"], first["max_logit_difference"]) == (6, 0.0)
    assert len(later) == 2
    for row in later:
        assert row["n_agreed"] == 0
        assert row["max_logit_difference"] > row["logit_sd"]


class Refusing(FakeBackend):
    def state_set(self, seq: int, state: NDArray[np.uint8]) -> None:
        """See `NativeBackend`."""
        raise StateRefused("no state is taken here")


def test_memory_that_does_not_take_its_state_back_is_said() -> None:
    backend = Refusing(n_seq_max=1)
    with pytest.raises(StateRefused, match="no state is taken here"):
        equivalence_rows(backend, script_of(backend))


@pytest.mark.parametrize("n_batch", [2048, 16])
def test_the_batches_are_those_of_the_arms(n_batch: int) -> None:
    """Live KV's batches are the arm's with free turns between, and the replay is just them."""
    point = POINT.model_copy(update={"hops": 2})
    arm = Shaped(n_batch=n_batch, n_seq_max=1)
    script = script_of(arm, point)
    ARMS["live_kv"]().run(EngineHost(arm), script, Meter())
    backend = Shaped(n_batch=n_batch, n_seq_max=1)
    live = run_live(backend, script, (1, 2))
    turn = [(1 + POINT.result,), *[(1,)] * (POINT.generate - 1)]
    at_hop_1 = len(arm.batches) - 2 * len(turn)
    assert backend.batches == [*arm.batches[:at_hop_1], *turn, *arm.batches[at_hop_1:]]
    assert live.held == [0, 40 + 5, 40 + 5 + 1 + 5 + 5]

    whole = Shaped(n_batch=n_batch, n_seq_max=1)
    equivalence_rows(whole, script)
    n_live = len(backend.batches)
    assert whole.batches[:n_live] == backend.batches
    assert whole.batches[-n_live:] == backend.batches


def test_the_cost_is_one_live_run_one_replay_and_a_re_prefill_at_each_chosen_hop() -> None:
    backend = Shaped(n_seq_max=1)
    script = script_of(backend)
    equivalence_rows(backend, script)
    evaluated = sum(sum(batch) for batch in backend.batches)
    contexts = sum(len(script.hops[hop].context) + 5 for hop in (1, 2, 4))
    loop = len(script.hops[4].context) + 5
    free_turns = 2 * (1 + 5 + 5)  # at the first and the middle hop; the last is the loop's end
    assert evaluated == contexts + 2 * (loop + free_turns)


def test_free_speech_is_the_models_own_and_fed_on() -> None:
    backend = FakeBackend(n_seq_max=1)
    script = script_of(backend)
    live = run_live(backend, script, (1, 2, 4))
    with Engine(FakeBackend(n_seq_max=1)).session() as session:
        session.send(script.hops[2].context)
        assert session.generate(6, ignore_end=True).sampled == tuple(live.said[2].tokens)


def test_a_listener_hears_what_greedy_chooses_and_keeps_copies() -> None:
    backend = FakeBackend(n_seq_max=1)
    tokens: TokenIds = np.arange(9, dtype=np.int32)

    def say(*sampler: Listener) -> tuple[int, ...]:
        with Engine(backend).session() as session:
            session.send(tokens)
            return session.generate(5, *sampler, ignore_end=True).sampled

    listener = Listener()
    assert say() == say(listener)
    assert tuple(Said(np.stack(listener.rows)).tokens) == say()
    assert len({row.tobytes() for row in listener.rows}) == 5


# --- the comparison itself


def said(*rows: Sequence[float]) -> Said:
    return Said(np.array(rows, dtype=np.float32))


def test_two_turns_are_compared_up_to_where_they_part() -> None:
    one = said((3, 1, 0), (0, 5, 4.5), (9, 0, 0))
    other = said((3, 1, 0.25), (0, 5, 5.5), (0, 0, 90))
    assert compare(one, other) == {
        "n_tokens": 3,
        "n_agreed": 1,
        "top2_margin": 0.5,
        "max_logit_difference": 1.0,
        "logit_sd": pytest.approx(np.std([3, 1, 0])),
        "reason": None,
    }


def test_turns_that_never_part_have_no_margin() -> None:
    found = compare(said((3, 1), (0, 5)), said((3, 1), (0, 4)))
    assert (found["n_agreed"], found["top2_margin"], found["max_logit_difference"]) == (2, None, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_a_reason(bad: float) -> None:
    row = compare(said((3, 1)), said((3, bad)))
    assert row == {"n_tokens": 1, "n_agreed": 0, "reason": "logits that are not finite"}
    check_row("equivalence", {"run_id": "r", "point": "p", "comparison": "free", "hop": 1, **row})
