"""Measuring one arm once, on a clock that costs nothing: repeats, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from faults import FakeClock

from runner.arms import ARMS
from runner.arms.host import EngineHost
from runner.arms.slowed import LiveKvSlowed5, LiveKvSlowed20
from runner.bench.worker import measure
from runner.catalog import Point
from runner.engine.backend import Entry, Logits
from runner.engine.fake import FakeBackend
from runner.workloads.tool_loop import build_script


class Weather(FakeBackend):
    """Decodes take `seconds` of the clock, another weather each time a conversation begins anew."""

    def __init__(self, clock: FakeClock, seconds: Sequence[float]) -> None:
        super().__init__()
        self._clock = clock
        self._weather = iter(seconds)
        self._seconds = 0.0

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        if any(entry.start == 0 for entry in entries):
            self._seconds = next(self._weather)
        self._clock.now += self._seconds
        return super().decode(entries)


def measured(repeats: int, seconds: Sequence[float]) -> dict[str, object]:
    clock = FakeClock()
    backend = Weather(clock, seconds)
    point = Point(prefix=20, hops=1, generate=4, result=4, repeats=repeats)
    script = build_script(point, backend, 1)
    answer = measure(EngineHost(backend, clock), ARMS["live_kv"](), script, 0, clock=clock)
    block: dict[str, object] = answer["block"]
    assert len(answer["hops"]) == 2
    assert block["wall_s"] == pytest.approx(sum(hop["wall_s"] for hop in answer["hops"]))
    return block


def test_the_median_of_the_repeats_stands_for_the_block() -> None:
    block = measured(3, (0.1, 0.3, 0.2))
    decodes = 2 * 4  # a prefill and three steps a turn
    assert block["repeat_wall_s"] == pytest.approx([decodes * s for s in (0.1, 0.3, 0.2)])
    assert block["wall_s"] == pytest.approx(decodes * 0.2)
    assert block["n_repeats"] == 3


def test_one_run_is_its_own_median() -> None:
    block = measured(1, (0.5,))
    assert block["repeat_wall_s"] == [block["wall_s"]]


def test_an_even_number_of_repeats_has_no_run_in_the_middle() -> None:
    with pytest.raises(ValueError, match="2 repeats have no median of their own; make it odd"):
        Point(prefix=20, hops=1, repeats=2)


@pytest.mark.parametrize(("arm", "share"), [(LiveKvSlowed5, 0.05), (LiveKvSlowed20, 0.20)])
def test_a_slowdown_on_purpose_is_a_share_of_every_hop(
    arm: type[LiveKvSlowed5], share: float
) -> None:
    clock = FakeClock()
    backend = Weather(clock, (0.1,))
    script = build_script(Point(prefix=20, hops=1, generate=4, result=4), backend, 1)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    answer = measure(EngineHost(backend, clock), arm(sleep), script, 0, clock=clock)
    assert answer["block"]["wall_s"] == pytest.approx(2 * 4 * 0.1 * (1 + share))
    assert answer["block"]["other_s"] == pytest.approx(2 * 4 * 0.1 * share)
