"""Calibration on a simulated machine: what is measured, and that it predicts what the arms take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from faults import FakeClock

from pipelines.analysis.costs import Costs, Reading, fit_costs
from pipelines.sources import KEYS
from runner.arms import ARMS
from runner.arms.host import EngineHost
from runner.arms.meter import Meter
from runner.bench.calibration import calibration_job, deep_parts, measure, part_sizes
from runner.bench.contention import Sample
from runner.catalog import Point
from runner.engine.backend import Entry, InvalidRequest, Logits, NativeBackend
from runner.engine.fake import FakeBackend
from runner.records import check_row
from runner.workloads.tool_loop import build_script

POINTS = (Point(prefix=27, hops=1), Point(prefix=363, hops=4), Point(prefix=1491, hops=8))
UBATCH = 512


class SimulatedMachine(FakeBackend):
    """Takes a known time for every part of a batch that a library would compute at once."""

    def __init__(self, clock: FakeClock, **sizes: Any) -> None:
        super().__init__(**sizes)
        self._clock = clock
        self.fed: list[list[int]] = []

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        for _, start, tokens, _ in entries:
            self.fed.append(tokens.tolist())
            for at in range(0, len(tokens), UBATCH):
                self._clock.now += seconds(min(UBATCH, len(tokens) - at), start + at)
        return super().decode(entries)


def seconds(n_tokens: int, depth: int) -> float:
    return 0.005 + 0.004 * n_tokens + 1.2e-6 * n_tokens * depth + 4e-5 * depth


def quiet() -> Sample:
    return Sample(0.0, 0.0, 0.0, 0.0, 0, 0.0)


def calibrate(
    backend: NativeBackend, clock: FakeClock, job: dict[str, Any], chunk: int = UBATCH
) -> dict[str, Any]:
    return measure(backend, job, chunk, clock=clock, read=quiet)


def rows_of(warmup_tokens: int = 256, chunk: int = UBATCH, **sizes: Any) -> list[dict[str, Any]]:
    clock = FakeClock()
    job = calibration_job(POINTS, 7, warmup_tokens)
    rows: list[dict[str, Any]] = calibrate(SimulatedMachine(clock, **sizes), clock, job, chunk)[
        "rows"
    ]
    return rows


def costs_of(rows: list[dict[str, Any]]) -> Costs:
    return fit_costs(
        [Reading(row["kind"], row["depth"], row["n_tokens"], row["seconds"]) for row in rows]
    )


def test_a_job_is_sized_by_the_deepest_point() -> None:
    assert calibration_job(POINTS, 7, 256) == {
        "warmup_tokens": 256,
        "depth": POINTS[2].n_tokens,
        "n_hop": 25,
        "n_generate": 32,
        "seed": 7,
        "short": [27, 363, 1491],
    }


def test_a_point_of_one_token_a_turn_still_times_a_step() -> None:
    assert calibration_job([Point(prefix=50, hops=1, generate=1)], 7, 0)["n_generate"] == 2


def test_parts_are_those_of_the_points_and_some_over_the_whole_range() -> None:
    assert part_sizes(512, [27, 363, 1491]) == [16, 27, 48, 80, 160, 363]
    assert part_sizes(512, []) == [16, 48, 80, 160, 352]
    assert part_sizes(8, [3]) == [1, 2, 3, 6]
    assert part_sizes(1, [3]) == []


def test_parts_at_depth_lie_below_and_above_an_eighth_of_a_chunk() -> None:
    assert deep_parts(512, n_hop=25, room=80) == [48, 80]
    assert deep_parts(512, n_hop=48, room=80) == [80]
    assert deep_parts(512, n_hop=25, room=79) == []
    assert deep_parts(8, n_hop=25, room=80) == []


def test_a_kernel_that_changes_with_the_rows_of_a_batch_is_seen() -> None:
    """As flash attention on a CPU does: below 64 rows a token of depth costs more."""

    def machine(n_tokens: int, depth: int) -> float:
        return 0.004 * n_tokens + (2e-5 if n_tokens < 64 else 1e-6) * n_tokens * depth

    found = [Reading("prefill", 0, n, machine(n, 0)) for n in (16, 48, 80, 160)]
    for index, depth in enumerate((0, 648, 1296, 1944)):
        found.append(Reading("prefill", depth, 512, machine(512, depth)))
        found.append(Reading("hop", depth + 512, 25, machine(25, depth + 512)))
        found.append(Reading("decode", depth + 537, 1, machine(1, depth + 537)))
        part = (48, 80)[index % 2]
        found.append(Reading("prefill", depth + 538, part, machine(part, depth + 538)))
    costs = fit_costs(found)
    for n_tokens in (1, 7, 25, 48, 80, 100, 300, 512):
        assert costs.prefill_s(n_tokens, 3000) == pytest.approx(machine(n_tokens, 3000))


def test_every_row_says_its_size_and_the_depth_it_started_at() -> None:
    rows = rows_of()
    chunks = [row["depth"] for row in rows if row["kind"] == "prefill" and row["n_tokens"] == 512]
    hops = [row["depth"] for row in rows if row["kind"] == "hop"]
    steps = [row["depth"] for row in rows if row["kind"] == "decode"]
    parts = [(row["n_tokens"], row["depth"]) for row in rows if row["n_tokens"] in (48, 80)]
    # A round is a chunk, a hop and a turn, and a part that takes the turn's last token with it.
    assert chunks == [0, 616, 1264, 1880]
    assert hops == [0, *(depth + 512 for depth in chunks)]
    assert steps == [depth + 25 for depth in hops]
    assert parts[-4:] == [(48, 568), (80, 1184), (48, 1832), (80, 2448)]
    assert chunks[-1] + 648 >= POINTS[2].n_tokens > chunks[-2] + 648
    assert {row["n_tokens"] for row in rows if row["kind"] == "hop"} == {25}
    assert {row["n_tokens"] for row in rows if row["kind"] == "decode"} == {31}


def test_small_parts_are_timed_again() -> None:
    parts = [
        (row["n_tokens"], row["repeat"])
        for row in rows_of()
        if row["kind"] == "prefill" and row["n_tokens"] < 512 and row["depth"] == 0
    ]
    small = [(size, repeat) for size in (16, 27, 48) for repeat in range(3)]
    assert parts == [*small, (80, 0), (160, 0), (363, 0)]


def test_rows_fit_the_table_and_none_stands_twice() -> None:
    rows = rows_of()
    keys = [tuple(row[name] for name in KEYS["calibration"] if name != "block") for row in rows]
    assert len(set(keys)) == len(rows)
    for row in rows:
        check_row("calibration", {"run_id": "x", "block": 0, "reason": None, **row})


def test_seconds_are_those_of_the_engine_and_of_nothing_else() -> None:
    for row in rows_of():
        expected = seconds(row["n_tokens"], row["depth"])
        if row["kind"] == "decode":
            expected = sum(seconds(1, row["depth"] + i) for i in range(row["n_tokens"]))
        assert row["seconds"] == pytest.approx(expected)


def test_a_model_that_cannot_roll_back_is_measured_like_all_others() -> None:
    assert rows_of(can_roll_back=False) == rows_of()


def test_the_context_limits_how_deep_it_goes() -> None:
    rows = rows_of(n_ctx=1700)
    assert max(row["depth"] for row in rows if row["kind"] == "prefill") == 1184
    rows = rows_of(n_ctx=300)
    assert {row["n_tokens"] for row in rows if row["depth"] and row["kind"] == "prefill"} == {93}


def test_a_context_without_room_for_two_depths_is_refused() -> None:
    rows = rows_of(0, n_ctx=116)
    assert [row["depth"] for row in rows if row["kind"] == "prefill"] == [0, 57]
    with pytest.raises(InvalidRequest, match="n_ctx is 115; use n_ctx >= 116"):
        rows_of(0, n_ctx=115)


def test_chunks_that_need_several_batches_are_timed_whole() -> None:
    chunk = rows_of(n_batch=100)[-4]
    assert (chunk["kind"], chunk["n_tokens"]) == ("prefill", 512)
    parts = [seconds(100, chunk["depth"] + at) for at in range(0, 500, 100)]
    assert chunk["seconds"] == pytest.approx(sum(parts) + seconds(12, chunk["depth"] + 500))


def test_nothing_of_the_workload_is_fed() -> None:
    clock = FakeClock()
    backend = SimulatedMachine(clock)
    calibrate(backend, clock, calibration_job(POINTS, 7, 256))
    script = build_script(POINTS[1], backend, 7)
    fed = {tuple(tokens[:16]) for tokens in backend.fed if len(tokens) >= 16}
    own = {tuple(ids[:16].tolist()) for hop in script.hops for ids in (hop.context, hop.new)}
    assert not fed & own


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.id)
def test_it_predicts_what_the_arms_take(point: Point) -> None:
    """On a machine whose costs are linear nothing is left over."""
    costs = costs_of(rows_of())
    for arm in ("live_kv", "reprefill"):
        clock = FakeClock()
        backend = SimulatedMachine(clock)
        meter = Meter(clock)
        host = EngineHost(backend, clock)
        ARMS[arm]().run(host, build_script(point, backend, 11), meter)
        predicted = np.zeros(())
        for reading in meter.readings:
            turn = reading.turn
            predicted = predicted + costs.prefill_s(turn.n_context - turn.n_reused, turn.n_reused)
            predicted = predicted + costs.decode_s(turn.n_generated - 1, turn.n_context)
        assert predicted == pytest.approx(meter.wall_s)


def test_what_the_witness_saw_is_told() -> None:
    clock = FakeClock()
    answer = calibrate(SimulatedMachine(clock), clock, calibration_job(POINTS, 7, 0))
    assert {"started_at", "other_cpu_fraction", "steal_fraction"} <= set(answer["block"])
