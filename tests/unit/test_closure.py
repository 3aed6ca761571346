"""The saving adds up: calibrated costs, what they explain of a point, and what they allow."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import (
    REPEATED,
    World,
    calibration,
    usual_forecasts,
    write_expectation,
    write_run,
)

from pipelines.analysis.costs import CannotPredict, Costs, Reading, fit_costs
from pipelines.database import Database
from pipelines.expectations import load_expectations
from pipelines.paths import Layout
from pipelines.publish.waterfall import waterfalls, write_waterfalls
from pipelines.warehouse import build_warehouse
from runner.catalog import Point

POINT = Point(prefix=363, hops=4)
PARITY = Point(prefix=363, hops=0)
Rows = list[dict[str, Any]]


def calibrated(**changes: Any) -> World:
    world = World(**{"points": (POINT,), "noise": 0.002, **changes})
    world.calibration = calibration(world)
    return world


def closed(root: Path, world: World) -> Database:
    """The database of one published run."""
    layout = Layout(root)
    write_run(layout.published, world)
    con = duckdb.connect(str(build_warehouse(layout, layout.database).path), read_only=True)
    _require_finite(con)
    return Database(con)


def _require_finite(con: duckdb.DuckDBPyConnection) -> None:
    for table in ("calibration_fit", "closure_hops", "closure_points", "ceilings"):
        for row in con.execute(f"from {table}").fetchall():
            assert all(math.isfinite(cell) for cell in row if isinstance(cell, float)), row


def planted(point: Point, prefill_s: float = 0.002, decode_s: float = 0.01) -> tuple[float, float]:
    """Seconds of baseline and treatment in the synthetic world."""
    turns = point.hops + 1
    decode = turns * (point.generate - 1) * decode_s
    contexts = [point.prefix + hop * (point.generate + point.result) for hop in range(turns)]
    live = point.prefix + point.hops * (point.result + 1)
    return sum(contexts) * prefill_s + decode, live * prefill_s + decode


# --- the cost model -------------------------------------------------------------------------------


def machine(n_tokens: int, depth: int) -> float:
    """Seconds of a batch where attention and a fixed overhead cost too."""
    return 0.005 + 0.004 * n_tokens + 1.2e-6 * n_tokens * depth + 4e-5 * depth


def measured() -> list[Reading]:
    found = [Reading("prefill", 0, n, machine(n, 0)) for n in (16, 48, 160, 363)]
    for depth in (0, 568, 1136, 1704):
        found.append(Reading("prefill", depth, 512, machine(512, depth)))
        found.append(Reading("hop", depth + 512, 25, machine(25, depth + 512)))
        steps = [machine(1, depth + 537 + i) for i in range(31)]
        found.append(Reading("decode", depth + 537, 31, sum(steps)))
    return found


@pytest.mark.parametrize("n_tokens", [1, 7, 25, 83, 363, 419, 512])
@pytest.mark.parametrize("depth", [0, 100, 1024, 4096])
def test_a_batch_costs_what_it_cost_where_costs_are_linear(n_tokens: int, depth: int) -> None:
    assert fit_costs(measured()).prefill_s(n_tokens, depth) == pytest.approx(
        machine(n_tokens, depth)
    )


def test_a_long_prompt_is_full_chunks_and_a_last_one() -> None:
    costs = fit_costs(measured())
    # 1547 = 3 * 512 + 11
    expected = sum(machine(512, at) for at in (0, 512, 1024)) + machine(11, 1536)
    assert costs.prefill_s(1547, 0) == pytest.approx(expected)
    assert costs.prefill_s(0, 100) == 0
    assert costs.decode_s(31, 500) == pytest.approx(sum(machine(1, 500 + i) for i in range(31)))


def test_a_line_that_fits_has_no_error_and_a_crooked_one_says_so() -> None:
    assert fit_costs(measured()).chunk.error == pytest.approx(0, abs=1e-9)
    crooked = [
        one._replace(seconds=one.seconds * 1.1)
        if (one.kind, one.depth) == ("prefill", 1136)
        else one
        for one in measured()
    ]
    error = fit_costs(crooked).chunk.error
    assert error is not None
    assert 0.03 < error < 0.2


def test_two_depths_give_a_line_and_nothing_to_check_it_with() -> None:
    few = [one for one in measured() if one.depth < 1110]
    line = fit_costs(few).hop
    assert (line.n_rows, line.error) == (2, None)


@pytest.mark.parametrize("kind", ["prefill", "hop", "decode"])
def test_a_kind_that_is_missing_is_named(kind: str) -> None:
    with pytest.raises(CannotPredict, match=f"{kind} was not measured"):
        fit_costs([one for one in measured() if one.kind != kind])


def test_the_middle_of_repeats_counts() -> None:
    repeated = [Reading("prefill", 0, 16, seconds) for seconds in (0.07, 9.0, 0.06)]
    rest = [one for one in measured() if one.n_tokens != 16]
    assert fit_costs([*repeated, *rest]).prefill_s(16, 0) == pytest.approx(0.07)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.2, 5.0), min_size=16, max_size=16))
def test_noise_that_is_not_even_monotone_gives_finite_costs(factors: list[float]) -> None:
    noisy = [
        one._replace(seconds=one.seconds * factor)
        for one, factor in zip(measured(), factors, strict=True)
    ]
    costs: Costs = fit_costs(noisy)
    found = [costs.prefill_s(n, depth) for n in (1, 25, 600, 3000) for depth in (0, 900)]
    assert np.isfinite([*found, costs.decode_s(31, 900)]).all()
    assert all(low < high for low, high in pairwise(costs.sizes.tolist()))


# --- closure --------------------------------------------------------------------------------------


def test_the_saving_of_the_planted_world_is_explained_to_the_last_digit(tmp_path: Path) -> None:
    database = closed(tmp_path, calibrated(noise=0.0))
    row = database.one("from closure_points")
    base_s, treat_s = planted(POINT)
    assert (row["base_s"], row["treat_s"]) == pytest.approx((base_s, treat_s))
    assert row["avoided_s"] == pytest.approx(base_s - treat_s)
    assert row["decode_s"] == pytest.approx(0)
    assert row["unexplained_share"] == pytest.approx(0, abs=1e-9)
    assert (row["n_blocks"], row["n_uncalibrated"]) == (10, 0)
    contexts = sum(POINT.prefix + hop * 56 for hop in range(1, 5))
    assert row["tokens_not_evaluated"] == contexts - 4 * 25
    one = database.one("from ceilings")
    assert one["ceiling"] == pytest.approx(base_s / treat_s)
    assert one["efficiency"] == pytest.approx(1)
    # Equal to the last bit: a constant clock and no measurement, so there is no interval.
    assert "zero variance" in row["reason"]
    assert (row["explained"], row["within_bound"], one["ceiling_low"]) == (None, None, None)


def test_noise_of_the_machine_leaves_the_saving_explained(tmp_path: Path) -> None:
    row = closed(tmp_path, calibrated()).one("from closure_points")
    assert row["unexplained_low"] < row["unexplained_share"] < row["unexplained_high"]
    assert (row["explained"], row["within_bound"], row["reason"]) == (True, True, None)


def test_hops_add_up_to_the_point(tmp_path: Path) -> None:
    database = closed(tmp_path, calibrated())
    hops = database.rows(
        "select hop, avg(saved_s) as saved_s, avg(avoided_s) as avoided_s from closure_hops"
        " group by hop order by hop"
    )
    row = database.one("from closure_points")
    assert [one["hop"] for one in hops] == [0, 1, 2, 3, 4]
    assert hops[0]["avoided_s"] == 0
    assert sum(one["avoided_s"] for one in hops) == pytest.approx(row["avoided_s"])
    assert sum(one["saved_s"] for one in hops) == pytest.approx(row["saved_s"])
    assert row["saved_s"] == pytest.approx(row["avoided_s"] + row["decode_s"] + row["other_s"])


def _slow_decode(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv":
        row["decode_s"] += 0.1
        row["wall_s"] += 0.1


def _slow_prefill(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["hop"] > 0:
        row["prefill_s"] += 0.15
        row["ttft_s"] += 0.15
        row["wall_s"] += 0.15


def test_a_slower_decode_of_live_kv_is_a_decode_difference(tmp_path: Path) -> None:
    database = closed(tmp_path, calibrated(edit_hop=_slow_decode))
    row = database.one("from closure_points")
    assert row["decode_s"] == pytest.approx(-0.5, abs=0.01)
    assert row["other_s"] == pytest.approx(0, abs=0.01)
    assert row["explained"] and row["within_bound"]
    # Explained, and still lost: no token asks for it.
    _, treat_s = planted(POINT)
    efficiency = database.one("from ceilings")["efficiency"]
    assert efficiency == pytest.approx(treat_s / (treat_s + 0.5), rel=0.005)


def test_prefill_that_no_token_explains_is_unexplained(tmp_path: Path) -> None:
    database = closed(tmp_path, calibrated(edit_hop=_slow_prefill))
    row = database.one("from closure_points")
    base_s, treat_s = planted(POINT)
    share = -0.6 / (base_s - treat_s - 0.6)
    assert row["unexplained_share"] == pytest.approx(share, rel=0.05)
    assert abs(share) > 0.05
    assert (row["explained"], row["within_bound"]) == (False, False)
    one = database.one("from ceilings")
    assert one["ceiling"] == pytest.approx(base_s / treat_s)
    assert one["efficiency_high"] < 1


def _little_more(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["hop"] > 0:
        row["wall_s"] += 0.02


def test_a_small_and_certain_rest_breaks_the_letter_and_not_the_bound(tmp_path: Path) -> None:
    row = closed(tmp_path, calibrated(edit_hop=_little_more)).one("from closure_points")
    assert -0.05 < row["unexplained_low"] < row["unexplained_high"] < 0
    assert (row["explained"], row["within_bound"]) == (False, True)


def test_noise_passes_the_letter_and_not_the_bound(tmp_path: Path) -> None:
    world = calibrated(noise=0.15, n_blocks=3, seed=3)
    row = closed(tmp_path, world).one("from closure_points")
    assert row["unexplained_low"] < -0.05
    assert row["within_bound"] is False


def test_a_block_is_predicted_by_its_own_calibration(tmp_path: Path) -> None:
    """A machine that slows down from block to block, arms and calibration alike."""

    def drift(block: int) -> float:
        return 1 + 0.2 * block

    def slower(row: dict[str, Any]) -> None:
        for name in ("wall_s", "ttft_s", "prefill_s", "decode_s"):
            row[name] *= drift(row["block"])

    world = calibrated(edit_hop=slower)
    honest = world.calibration
    world.calibration = calibration(world, drift)
    row = closed(tmp_path / "own", world).one("from closure_points")
    assert row["within_bound"]
    world.calibration = honest
    assert not closed(tmp_path / "other", world).one("from closure_points")["within_bound"]


def test_the_bound_is_that_of_the_expectation(tmp_path: Path) -> None:
    name, _ = write_expectation(Layout(tmp_path).data, *usual_forecasts())
    path = Layout(tmp_path).data / "expectations" / f"{name}.toml"
    path.write_text(path.read_text().replace("\n[void]", "\nunexplained_max = 0.001\n\n[void]", 1))
    (file,) = load_expectations(path.parent)
    world = calibrated(expectation_id=name, expectation_digest=file.digest)
    row = closed(tmp_path, world).one("from closure_points")
    assert (row["unexplained_max"], row["within_bound"]) == (0.001, False)


# --- where nothing can be said --------------------------------------------------------------------


def _nothing(database: Database, baseline: str = "reprefill") -> str:
    row = database.one("from closure_points where baseline = ?", [baseline])
    said = ("unexplained_share", "unexplained_low", "explained", "within_bound", "avoided_s")
    assert [row[name] for name in said] == [None] * len(said)
    one = database.one("from ceilings where baseline = ?", [baseline])
    assert (one["ceiling"], one["efficiency"], one["reason"]) == (None, None, row["reason"])
    assert database.rows("from closure_hops where baseline = ?", [baseline]) == []
    return str(row["reason"])


def test_a_run_without_calibration_says_so(tmp_path: Path) -> None:
    world = World(points=(POINT,))
    assert _nothing(closed(tmp_path, world)) == "the run has no calibration"


def test_where_both_arms_do_the_same_there_is_nothing_to_explain(tmp_path: Path) -> None:
    reason = _nothing(closed(tmp_path, calibrated(points=(PARITY,))))
    assert reason.startswith("nothing is avoided here")


def test_the_treatment_once_more_avoids_nothing(tmp_path: Path) -> None:
    database = closed(tmp_path, calibrated(arms=REPEATED))
    assert _nothing(database, "live_kv_again").startswith("nothing is avoided here")
    assert database.one("from closure_points where baseline = 'reprefill'")["within_bound"]


def test_a_run_without_blocks_says_so(tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> None:
        row.update(status="failed", reason="it broke")

    assert _nothing(closed(tmp_path, calibrated(edit_block=fail))) == "no usable block"


def test_one_block_has_a_share_and_no_interval(tmp_path: Path) -> None:
    database = closed(tmp_path, calibrated(n_blocks=1))
    row = database.one("from closure_points")
    assert row["unexplained_share"] is not None
    assert (row["explained"], row["within_bound"]) == (None, None)
    assert "not enough blocks" in row["reason"]
    one = database.one("from ceilings")
    assert one["ceiling"] is not None
    assert (one["ceiling_low"], one["efficiency_high"]) == (None, None)
    assert "not enough blocks" in one["reason"]


def test_a_block_whose_calibration_failed_is_left_out_and_counted(tmp_path: Path) -> None:
    world = calibrated()
    world.calibration = [row for row in calibration(world) if row["block"] != 3]
    head = {"run_id": world.run_id, "block": 3, "kind": "prefill", "depth": 0, "n_tokens": 0}
    world.calibration.append({**head, "repeat": 0, "seconds": None, "reason": "the process died"})
    database = closed(tmp_path, world)
    row = database.one("from closure_points")
    assert (row["n_blocks"], row["n_uncalibrated"], row["within_bound"]) == (9, 1, True)
    fits = database.rows("from calibration_fit where block = 3 order by kind")
    assert {fit["reason"] for fit in fits} == {"the process died"}
    assert {fit["kind"] for fit in fits} == {"prefill", "hop", "decode"}


def test_a_run_whose_calibrations_all_failed_names_the_first(tmp_path: Path) -> None:
    world = calibrated(n_blocks=2)
    head = {"run_id": world.run_id, "kind": "prefill", "depth": 0, "n_tokens": 0, "repeat": 0}
    world.calibration = [
        {**head, "block": block, "seconds": None, "reason": f"fault {block}"} for block in range(2)
    ]
    reason = _nothing(closed(tmp_path, world))
    assert reason == "block 0 is not calibrated: fault 0"


def test_blocks_beyond_the_calibrated_ones_are_counted(tmp_path: Path) -> None:
    world = calibrated()
    world.calibration = calibration(world, n_blocks=4)
    row = closed(tmp_path, world).one("from closure_points")
    assert (row["n_blocks"], row["n_uncalibrated"]) == (4, 6)


def test_costs_that_predict_no_time_are_no_prediction(tmp_path: Path) -> None:
    world = calibrated()
    for row in world.calibration:
        if row["kind"] == "decode":
            row["seconds"] *= (row["depth"] / 537) ** 4  # a line far below 0 where points are
    assert "predict a time that is not positive" in _nothing(closed(tmp_path, world))


def test_where_live_kv_loses_there_is_no_saving_to_explain(tmp_path: Path) -> None:
    row = closed(tmp_path, calibrated(slowdown=5.0)).one("from closure_points")
    assert row["reason"] == "live KV saved no time in block 0"
    assert (row["unexplained_share"], row["explained"], row["within_bound"]) == (None, None, None)
    assert row["saved_s"] < 0 < row["avoided_s"]


def test_two_builds_hold_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    first, second = (closed(tmp_path / name, calibrated(seed=7)) for name in ("a", "b"))
    for table in ("calibration_fit", "closure_hops", "closure_points", "ceilings"):
        found = first.rows(f"from {table}")
        assert found
        assert found == second.rows(f"from {table}")


# --- the figure -----------------------------------------------------------------------------------


def test_a_waterfall_goes_from_the_baseline_to_live_kv(tmp_path: Path) -> None:
    world = calibrated(edit_hop=_slow_decode)
    database = closed(tmp_path, world)
    ((row, figure),) = waterfalls(database, world.run_id)
    bars = {bar["x"][0]: (bar["base"][0], bar["y"][0]) for bar in figure["data"]}
    level = 0.0
    for base, height in list(bars.values())[:-1]:
        assert base == pytest.approx(level)
        level = base + height
    assert level == pytest.approx(row["treat_s"])
    assert list(bars.values())[-1] == (0.0, row["treat_s"])
    # A slower decode makes the column climb again.
    assert bars["decode difference"][1] == pytest.approx(0.5, abs=0.01)


def test_fragments_come_with_their_figures(tmp_path: Path) -> None:
    world = calibrated(points=(PARITY, POINT))
    database = closed(tmp_path, world)
    fragments = write_waterfalls(database, world.run_id, "page", tmp_path)
    files = sorted(path.stem for path in tmp_path.glob("waterfall-*.json"))
    assert files == ["waterfall-page-0"]
    assert 'data-figure="figures/waterfall-page-0.json"' in fragments[0]
    assert "nothing is avoided here" in fragments[-1]


def test_a_run_without_calibration_has_a_table_and_no_figure(tmp_path: Path) -> None:
    world = World(points=(POINT,))
    (fragment,) = write_waterfalls(closed(tmp_path, world), world.run_id, "page", tmp_path)
    assert "the run has no calibration" in fragment
    assert list(tmp_path.glob("waterfall-*.json")) == []
