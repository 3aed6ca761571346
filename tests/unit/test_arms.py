"""The arms on the fake: the same ids, the same answers; only what is computed differs."""

from __future__ import annotations

import pytest
from faults import AsynchronousBackend, FakeClock

from runner.arms import ARMS
from runner.arms.host import EngineHost
from runner.arms.meter import HopReading, Meter
from runner.catalog import Point
from runner.engine.fake import FakeBackend
from runner.workloads.tool_loop import Script, build_script

# Those that run on our engine; the others need a real server or binding: see the native ring.
OURS = [name for name, arm in ARMS.items() if not arm.speaks_freely]

POINTS = [
    Point(prefix=27, hops=1),
    Point(prefix=363, hops=4),
    Point(prefix=363, hops=0),
    Point(prefix=50, hops=3, generate=1, result=1),
]


def run(arm: str, point: Point, backend: FakeBackend | None = None) -> tuple[Script, Meter]:
    backend = backend or FakeBackend()
    script = build_script(point, backend, 11)
    host = EngineHost(backend)
    meter = Meter()
    ARMS[arm]().run(host, script, meter)
    host.check()
    assert backend.cells_used == 0
    return script, meter


def readings(arm: str, point: Point) -> list[HopReading]:
    return run(arm, point)[1].readings


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.id)
@pytest.mark.parametrize("arm", OURS)
def test_an_arm_feeds_the_script_and_nothing_else(arm: str, point: Point) -> None:
    script, meter = run(arm, point)
    assert [reading.index for reading in meter.readings] == list(range(point.hops + 1))
    for hop, reading in zip(script.hops, meter.readings, strict=True):
        assert reading.conversation.tolist() == [*hop.context.tolist(), *hop.output.tolist()]
        assert reading.turn.fed == tuple(hop.output.tolist())
        assert reading.n_new == len(hop.new)
        assert reading.turn.n_generated == point.generate


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.id)
def test_both_arms_get_the_same_answers(point: Point) -> None:
    live, again = readings("live_kv", point), readings("reprefill", point)
    assert [r.turn.sampled for r in live] == [r.turn.sampled for r in again]
    assert [r.conversation.tolist() for r in live] == [r.conversation.tolist() for r in again]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.id)
def test_live_kv_evaluates_only_what_is_new(point: Point) -> None:
    first, *hops = readings("live_kv", point)
    assert (first.turn.n_reused, first.turn.n_evaluated) == (0, point.prefix + point.generate - 1)
    for reading in hops:
        # The last generated token rides with the result: it is no decode of its own.
        assert reading.turn.n_evaluated == 1 + point.result + point.generate - 1
        assert reading.turn.n_reused == reading.turn.n_context - 1 - point.result


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.id)
def test_reprefill_evaluates_the_whole_conversation_every_hop(point: Point) -> None:
    for reading in readings("reprefill", point):
        assert reading.turn.n_reused == 0
        assert reading.turn.n_evaluated == reading.turn.n_context + point.generate - 1


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.id)
@pytest.mark.parametrize("arm", OURS)
def test_a_plans_estimate_counts_the_prefill_the_arm_really_computes(
    arm: str, point: Point
) -> None:
    decoded = (point.hops + 1) * (point.generate - 1)
    evaluated = sum(reading.turn.n_evaluated for reading in readings(arm, point))
    assert ARMS[arm].prefill_tokens(point) == evaluated - decoded


def test_with_nothing_to_reuse_both_arms_do_the_same_work() -> None:
    point = Point(prefix=363, hops=0)
    (live,), (again,) = readings("live_kv", point), readings("reprefill", point)
    assert live.turn.n_evaluated == again.turn.n_evaluated


@pytest.mark.parametrize("arm", OURS)
def test_the_meters_seconds_are_those_of_the_hops(arm: str) -> None:
    clock = FakeClock()
    backend = AsynchronousBackend(clock, 0.05, n_batch=2048)
    script = build_script(Point(prefix=27, hops=2, generate=4), backend, 1)
    meter = Meter(clock)
    ARMS[arm]().run(EngineHost(backend, clock), script, meter)
    # A prefill and three decodes each hop, at 50 ms a call.
    assert [reading.wall_s for reading in meter.readings] == pytest.approx([0.2] * 3)
    assert meter.wall_s == pytest.approx(0.6)
    for reading in meter.readings:
        assert reading.turn.prefill_s == pytest.approx(0.05)
        assert reading.turn.decode_s == pytest.approx(0.15)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_says_what_it_is_about(name: str) -> None:
    assert ARMS[name].name == name
    assert ARMS[name].about.endswith(".")
