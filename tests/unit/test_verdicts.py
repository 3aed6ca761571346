"""From runs to verdicts, through the whole pipeline, in planted worlds."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from synthetic import World, forecast, usual_forecasts, write_expectation, write_run

from pipelines.analysis.ratios import RatioSummary
from pipelines.analysis.verdicts import judge
from pipelines.database import Row, open_database
from pipelines.paths import Layout
from pipelines.report import choose_run, print_ratios
from pipelines.warehouse import build_warehouse
from runner.catalog import Point
from runner.registration import Forecast, load_expectation

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
    row = found["tool_loop-p27-h1"]
    assert (row["verdict"], row["forecast"]) == ("REFUTED", "MISS")
    assert "wholly outside what was claimed, 0.95 to 1.05" in row["sentence"]
    assert row["p"] > 0.975


def test_a_verdict_is_a_sentence_for_who_has_never_seen_this(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, _registered())
    said = found[PRIMARY]["sentence"]
    assert said.startswith(
        "Confirmed: it was claimed that a whole session takes more than 1.5 times as long with"
        " reprefill as with live_kv; it took 5.4"
    )
    assert said.endswith(
        ", 10 blocks), wholly above the threshold 1.5. The forecast of 3 to 9 was met (HIT)."
    )
    control = found["tool_loop-p363-h0"]["sentence"]
    assert "with nothing to reuse, a whole session takes as long" in control
    assert "two one-sided tests" in control


# Nearly all alike, one far below and one far above: here the t interval is the widest of all.
_SPREAD = (-3, -0.3, -0.2, -0.1, -0.05, 0.05, 0.1, 0.2, 0.3, 3)


def _twice_as_long(row: dict[str, Any]) -> None:
    if row["point"] == "tool_loop-p363-h4":
        again = row["arm"] == "reprefill"
        row["wall_s"] = 2 * math.exp(0.01 * _SPREAD[row["block"]]) if again else 1.0


def test_holm_takes_back_what_one_claim_alone_would_have(tmp_path: Path) -> None:
    low = 2 * math.exp(-stats.t.ppf(0.975, 9) * 0.01 * np.std(_SPREAD, ddof=1) / 10**0.5)
    bare = forecast("tool_loop-p363-h4", "secondary", 1.5, 3.5, round(low * 0.9995, 6))
    wrong = forecast("tool_loop-p27-h1", "near_parity", 0.95, 1.05)
    # A registered claim counts whether it was measured or not.
    absent = forecast("tool_loop-p9-h9", "secondary", 2, 3, 1.1)
    control, _, _, primary = usual_forecasts()
    found = [
        _verdicts(tmp_path / str(len(claims)), _registered(edit_block=_twice_as_long), *claims)
        for claims in ((control, primary, bare), (control, primary, bare, wrong, absent))
    ]
    alone, among = (verdicts["tool_loop-p363-h4"] for verdicts in found)
    assert alone["verdict"] == "CONFIRMED" and 0.0125 < alone["p_adjusted"] == alone["p"] < 0.025
    assert among["verdict"] == "UNDECIDED" and among["p"] == alone["p"]
    assert among["p_adjusted"] == pytest.approx(3 * among["p"])
    assert "not among all claims of its kind" in among["sentence"]
    # The primary claim is a family of its own, and a refutation is not softened.
    assert found[1][PRIMARY]["p_adjusted"] == found[1][PRIMARY]["p"]
    assert found[1]["tool_loop-p27-h1"]["verdict"] == "REFUTED"


def _summary(**changes: Any) -> RatioSummary:
    good = {"n_blocks": 10, "ratio": 3.0, "low": 2.5, "high": 3.5, "median_ratio": 3.0}
    good |= {"median_low": 2.4, "median_high": 3.6, "total_ratio": 3.0, "total_low": 2.5}
    good |= {"total_high": 3.5, "saved_s": 1.0, "saved_low_s": 0.5, "saved_high_s": 1.5}
    return RatioSummary(**{**good, "sign_flip_p": 0.01, "reason": None, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"median_low": 1.9}, "exact interval of the median ratio is 1.90 to 3.60"),
        ({"total_low": 1.9}, "interval of the ratio of totals is 1.90 to 3.50"),
        ({"total_low": None, "total_high": None, "reason": "unbounded"}, "disagree: unbounded"),
    ],
)
@pytest.mark.parametrize("threshold", [2.0, None])
def test_every_companion_has_a_say_with_its_whole_interval(
    tmp_path: Path, changes: dict[str, Any], said: str, threshold: float | None
) -> None:
    role: Any = "secondary" if threshold else "near_parity"
    claim = Forecast(model="m", point="p", role=role, low=2, high=4, threshold=threshold)
    name, _ = write_expectation(tmp_path, *usual_forecasts())
    expectation = load_expectation(tmp_path / "expectations" / f"{name}.toml")
    agreed = judge(expectation, claim, _summary(), None, 0.001)
    found = judge(expectation, claim, _summary(**changes), None, 0.001)
    assert (agreed.verdict, found.verdict) == ("CONFIRMED", "UNDECIDED")
    assert "companions disagree" in found.sentence and said in found.sentence


def test_an_invalid_verdict_says_why_on_the_terminal(tmp_path: Path) -> None:
    _verdicts(tmp_path, _registered(slowdown=1.1))
    console = Console(record=True, width=160, quiet=False, file=io.StringIO())
    with open_database(Layout(tmp_path).database) as database:
        print_ratios(database, choose_run(database, None), console)
    assert "Invalid: the parity control failed" in console.export_text()
