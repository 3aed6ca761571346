"""A/A: the same arm twice must not be told apart, and is never shown as a baseline."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from synthetic import REPEATED, World, usual_forecasts, write_expectation, write_run

from pipelines.analysis.parity import equivalence
from pipelines.analysis.repeat import repeats
from pipelines.database import Row, open_database
from pipelines.paths import Layout
from pipelines.report import choose_run, print_ratios
from pipelines.warehouse import build_warehouse

PRIMARY = "tool_loop-p1491-h8"
AGAIN = "live_kv_again"


def _build(root: Path, *, gate: bool = True, **changes: Any) -> Layout:
    layout = Layout(root)
    name, digest = write_expectation(
        layout.data, *usual_forecasts(), repeat_arm=AGAIN if gate else None
    )
    world = World(registration_status="registered", arms=REPEATED)
    world.expectation_id, world.expectation_digest = name, digest
    for key, value in changes.items():
        setattr(world, key, value)
    write_run(layout.published, world)
    build_warehouse(layout, layout.database)
    return layout


def _rows(layout: Layout, query: str) -> list[Row]:
    with open_database(layout.database) as database:
        return database.rows(query)


def _verdicts(layout: Layout) -> dict[tuple[str, str], Row]:
    return {(row["point"], row["baseline"]): row for row in _rows(layout, "from verdicts")}


def _slower_again(point: str, factor: float) -> Any:
    def edit(row: dict[str, Any]) -> None:
        if row["arm"] == AGAIN and row["point"] == point:
            row["wall_s"] *= factor

    return edit


def test_numbers_are_those_of_plain_tests() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(0.01, 0.01, 10), rng.normal(0, 0.01, 10)
    found = repeats({"a": one, "b": other, "c": np.array([0.5])}, 0.05)
    p = [float(stats.ttest_1samp(d, 0).pvalue) for d in (one, other)]
    assert [found["a"].p, found["b"].p, found["c"].p] == [*map(pytest.approx, p), None]
    # Three points, the untestable one among them.
    assert found["a"].p_adjusted == pytest.approx(min(1, 3 * min(p)))
    assert found["a"].parity == equivalence(one, 0.05)
    assert "not enough blocks: 1" in (found["c"].reason or "")


def test_an_honest_a_a_leaves_the_verdicts_and_says_what_it_found(tmp_path: Path) -> None:
    found = _verdicts(_build(tmp_path))
    claims = [row for row in found.values() if row["baseline"] == "reprefill"]
    repeated = [row for row in found.values() if row["baseline"] == AGAIN]
    assert {row["verdict"] for row in claims} == {"CONFIRMED"}
    assert len(repeated) == 4
    for row in repeated:
        assert (row["role"], row["verdict"], row["evidence"]) == ("a/a", None, False)
        assert row["p_adjusted"] >= row["p"] and row["parity_p"] < 0.05
        assert "no difference was found" in row["sentence"] and "is shown by" in row["sentence"]


def test_a_difference_at_one_point_invalidates_the_run_and_is_named(tmp_path: Path) -> None:
    found = _verdicts(_build(tmp_path, edit_block=_slower_again("tool_loop-p363-h4", 1.05)))
    assert {row["verdict"] for row in found.values()} == {"INVALID"}
    assert not any(row["evidence"] for row in found.values())
    said = found[PRIMARY, "reprefill"]["sentence"]
    assert "A/A gate failed" in said and "at tool_loop-p363-h4 is 1.0" in said
    assert f"p = {found['tool_loop-p363-h4', AGAIN]['p_adjusted']:.2g}" in said


def test_without_the_gate_in_its_expectation_a_run_stands(tmp_path: Path) -> None:
    found = _verdicts(_build(tmp_path, gate=False, edit_block=_slower_again(PRIMARY, 1.05)))
    assert found[PRIMARY, "reprefill"]["verdict"] == "CONFIRMED"
    assert found[PRIMARY, AGAIN]["role"] == "a/a"
    assert "they differ" in found[PRIMARY, AGAIN]["sentence"]


def test_a_run_without_its_a_a_arm_is_invalid(tmp_path: Path) -> None:
    found = _verdicts(_build(tmp_path, arms=("live_kv", "reprefill")))
    assert {row["verdict"] for row in found.values()} == {"INVALID"}
    assert f"{AGAIN} was not measured at" in found[PRIMARY, "reprefill"]["sentence"]


def test_an_a_a_that_cannot_be_tested_is_invalid(tmp_path: Path) -> None:
    def few(row: dict[str, Any]) -> None:
        if row["arm"] == AGAIN and row["point"] == PRIMARY and row["block"] >= 6:
            row["_drop"] = True

    def constant(row: dict[str, Any]) -> None:
        row["wall_s"] = 7.0 if row["arm"] != "reprefill" else 9.0 + row["block"]

    dropped = _verdicts(_build(tmp_path / "few", n_blocks=11, edit_block=few))
    copied = _verdicts(_build(tmp_path / "constant", edit_block=constant))
    assert "of the blocks are void" in dropped[PRIMARY, "reprefill"]["sentence"]
    assert "cannot be tested at" in copied[PRIMARY, "reprefill"]["sentence"]
    assert "zero variance" in copied[PRIMARY, "reprefill"]["sentence"]


def test_fewer_a_a_blocks_than_registered_are_no_test(tmp_path: Path) -> None:
    def one_less(row: dict[str, Any]) -> None:
        if row["arm"] == AGAIN and row["point"] == PRIMARY and row["block"] == 0:
            row["_drop"] = True

    found = _verdicts(_build(tmp_path, n_blocks=6, edit_block=one_less))
    assert "(5 usable, 6 registered)" in found[PRIMARY, "reprefill"]["sentence"]


def test_one_in_twenty_honest_runs_is_lost_to_the_gate() -> None:
    rng = np.random.default_rng(8)
    lost = 0
    for _ in range(120):
        measured = {str(point): rng.normal(0, 0.02, 10) for point in range(4)}
        lost += any(one.differs for one in repeats(measured, 0.05).values())
    # 6 expected of 120; outside 1 to 14 has a chance under one in 250.
    assert 1 <= lost <= 14


def test_a_a_is_a_ratio_and_never_a_baseline_to_a_reader(tmp_path: Path) -> None:
    layout = _build(tmp_path)
    names = {row["baseline"] for row in _rows(layout, "from ratios")}
    assert names == {AGAIN, "reprefill"}
    for view in ("headline", "measured_vs_target"):
        shown = {row["baseline"] for row in _rows(layout, f"from {view}")}
        assert AGAIN not in shown, view
    assert len(_rows(layout, "from chart_points")) == 4


def test_an_exploratory_a_a_is_no_baseline_either(tmp_path: Path) -> None:
    layout = _build(tmp_path, registration_status="exploratory")
    assert {row["baseline"] for row in _rows(layout, "from headline")} == {"reprefill"}
    assert {row["role"] for row in _rows(layout, f"from verdicts where baseline = '{AGAIN}'")} == {
        "a/a"
    }


def test_the_terminal_shows_controls_apart_and_fits_100_columns(tmp_path: Path) -> None:
    layout = _build(tmp_path)
    console = Console(record=True, width=100, quiet=False, file=io.StringIO())
    with open_database(layout.database) as database:
        print_ratios(database, choose_run(database, None), console)
    text = console.export_text()
    claims, controls = text.split("Controls:")
    assert "A/A" not in claims and claims.count("CONFIRMED, HIT") == 3
    assert claims.count("provisional") == 3
    assert controls.count("A/A") == 4 and controls.count("parity") == 1
    assert "…" not in text and max(map(len, text.splitlines())) <= 100
