"""From runs to verdicts, through the whole pipeline, in planted worlds."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic import World, forecast, usual_forecasts, write_expectation, write_run

from pipelines.database import Row, open_database
from pipelines.paths import Layout
from pipelines.report import choose_run, print_ratios
from pipelines.warehouse import build_warehouse
from runner.catalog import Point

PRIMARY = "tool_loop-p1491-h8"


def _verdicts(root: Path, world: World, *forecasts: str) -> dict[str, Row]:
    layout = Layout(root)
    name, digest = write_expectation(layout.data, *(forecasts or usual_forecasts()))
    if world.registration_status == "registered":
        world.expectation_id = name
        world.expectation_digest = world.expectation_digest or digest
    write_run(layout.published, world)
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        return {row["point"]: row for row in database.rows("from verdicts")}


def _registered(**changes: Any) -> World:
    return World(registration_status="registered", **changes)


def test_an_honest_world_is_confirmed(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered())
    assert {row["verdict"] for row in found.values()} == {"CONFIRMED"}
    assert {row["forecast"] for row in found.values()} == {"HIT"}
    assert all(row["evidence"] for row in found.values())
    assert "10 blocks" in found[PRIMARY]["sentence"]


def test_a_world_where_live_kv_is_slower_is_refuted(tmp_path: Path) -> None:
    slow = Point(prefix=1491, hops=8)

    def slower(row: dict[str, Any]) -> None:
        if row["arm"] == "live_kv" and row["n_hops"] > 0:
            row["wall_s"] *= 8

    found = _verdicts(tmp_path, _registered(edit_block=slower))
    assert found[slow.id]["verdict"] == "REFUTED"
    assert found[slow.id]["forecast"] == "MISS"
    assert "at or below the threshold" in found[slow.id]["sentence"]


def test_an_interval_over_the_threshold_is_undecided(tmp_path: Path) -> None:
    forecasts = [*usual_forecasts()[:3], forecast(PRIMARY, "primary", 3, 9, 5.48)]
    found = _verdicts(tmp_path, _registered(), *forecasts)
    assert found[PRIMARY]["verdict"] == "UNDECIDED"


def test_companions_that_disagree_leave_it_undecided(tmp_path: Path) -> None:
    def one_huge_loss(row: dict[str, Any]) -> None:
        if row["arm"] == "live_kv" and row["point"] == PRIMARY and row["block"] == 0:
            row["wall_s"] *= 3000

    forecasts = [*usual_forecasts()[:3], forecast(PRIMARY, "primary", 0.01, 9, 0.1)]
    found = _verdicts(tmp_path, _registered(edit_block=one_huge_loss), *forecasts)
    assert found[PRIMARY]["verdict"] == "UNDECIDED"
    assert "companions disagree" in found[PRIMARY]["sentence"]


def test_exploratory_runs_are_never_evidence(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, World())
    assert {row["verdict"] for row in found.values()} == {None}
    assert not any(row["evidence"] for row in found.values())
    assert found[PRIMARY]["sentence"].startswith("Exploratory, not evidence")


def test_a_control_off_by_its_margin_invalidates_the_run(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered(slowdown=1.1))
    assert {row["verdict"] for row in found.values()} == {"INVALID"}
    assert "parity control failed" in found[PRIMARY]["sentence"]


def test_a_noisy_control_does_not_pass(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered(noise=0.15))
    assert "parity control failed" in found[PRIMARY]["sentence"]


def test_a_run_without_control_is_invalid(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered(points=(Point(prefix=1491, hops=8),)))
    assert found[PRIMARY]["verdict"] == "INVALID"
    assert "no parity control" in found[PRIMARY]["sentence"]


def test_too_few_blocks_are_invalid(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered(n_blocks=5))
    assert found[PRIMARY]["verdict"] == "INVALID"
    assert "5 usable, 6 registered" in found[PRIMARY]["sentence"]


@pytest.mark.parametrize(("share", "verdict"), [(1, "CONFIRMED"), (2, "INVALID")])
def test_more_void_blocks_than_allowed_invalidate(tmp_path: Path, share: int, verdict: str) -> None:
    def void(row: dict[str, Any]) -> None:
        if row["block"] < share:
            row.update(status="void", reason="machine disturbed")

    found = _verdicts(tmp_path, _registered(edit_block=void))
    assert found[PRIMARY]["verdict"] == verdict


def test_a_disturbed_machine_voids_by_the_rule_of_the_expectation(tmp_path: Path) -> None:
    def stolen(row: dict[str, Any]) -> None:
        if row["block"] < 2 and row["arm"] == "reprefill":
            row["steal_fraction"] = 0.5

    found = _verdicts(tmp_path, _registered(edit_block=stolen))
    assert "20% of the blocks are void" in found[PRIMARY]["sentence"]


def test_an_aborted_run_is_invalid(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered(status="aborted", status_reason="killed"))
    assert "the run is aborted: killed" in found[PRIMARY]["sentence"]


def test_a_changed_expectation_invalidates(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered(expectation_digest="0" * 64))
    assert found[PRIMARY]["verdict"] == "INVALID"
    assert "not the file this run was registered under" in found[PRIMARY]["sentence"]


def test_a_broken_registration_invalidates(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, World(registration_status="broken"))
    assert "registration broken" in found[PRIMARY]["sentence"]


def test_a_point_without_forecast_is_not_evidence(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered(), *usual_forecasts()[:3])
    assert found[PRIMARY]["verdict"] is None
    assert found["tool_loop-p363-h4"]["verdict"] == "CONFIRMED"


def test_near_parity_outside_its_forecast_is_refuted(tmp_path: Path) -> None:
    near = forecast("tool_loop-p27-h1", "near_parity", 0.95, 1.05)
    found = _verdicts(tmp_path, _registered(), usual_forecasts()[0], near)
    assert found["tool_loop-p27-h1"]["verdict"] == "REFUTED"
    assert found["tool_loop-p27-h1"]["forecast"] == "MISS"


def test_an_invalid_verdict_says_why_on_the_terminal(tmp_path: Path) -> None:
    _verdicts(tmp_path, _registered(slowdown=1.1))
    console = Console(record=True, width=160, quiet=False, file=io.StringIO())
    with open_database(Layout(tmp_path).database) as database:
        print_ratios(database, choose_run(database, None), console)
    assert "Invalid: the parity control failed" in console.export_text()
