"""A reader's own loop from calibrated costs: the formula, its tables, and what it is worth."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import REFERENCE, World, calibration, readings, write_run

from pipelines.analysis.costs import fit_costs
from pipelines.analysis.session import Loop, session_s
from pipelines.database import open_database
from pipelines.paths import Layout
from pipelines.publish.calculator import machines
from pipelines.warehouse import build_warehouse


def test_a_loop_grows_by_turn_and_result() -> None:
    assert [*Loop(prefix=100, hops=2, generate=8, result=5).contexts()] == [100, 113, 126]


@pytest.mark.parametrize("kept", [True, False])
def test_where_every_token_costs_the_same_seconds_are_tokens_times_cost(kept: bool) -> None:
    costs = fit_costs(readings(prefill_s=0.002, decode_s=0.01))
    loop = Loop(prefix=700, hops=3, generate=32, result=24)
    fed = 700 + 3 * 25 if kept else sum(loop.contexts())
    assert session_s(costs, loop, kept=kept) == pytest.approx(fed * 0.002 + 4 * 31 * 0.01)


def test_predictions_stand_beside_what_was_measured(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    world = World(points=REFERENCE, noise=0.001)
    world.calibration = calibration(world)
    write_run(layout.published, world)
    write_run(layout.published, World(run_id="20260103T030405-bare", days=1))
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        rows = database.rows("from predictions")
        (machine,) = machines(database)
    assert {(row["point"], row["arm"]) for row in rows} == {
        (point.id, arm) for point in REFERENCE for arm in ("live_kv", "reprefill")
    }
    for row in rows:
        assert row["predicted_s"] == pytest.approx(row["measured_s"], rel=0.01)
    assert machine["id"] == world.run_id
    assert -0.01 < machine["error_low"] <= machine["error_high"] < 0.01
    assert machine["hop"]["n_tokens"] == 25
