"""One run is provisional, two agree or they do not, and machines are never mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW
from synthetic import World, forecast, usual_forecasts, write_expectation, write_run

from pipelines.analysis.replication import Measured, replication
from pipelines.database import Row, open_database
from pipelines.paths import Layout
from pipelines.warehouse import build_warehouse

PRIMARY = "tool_loop-p1491-h8"


def _run(name: str, ratio: float, noise: float = 0.01, verdict: str = "CONFIRMED") -> Measured:
    z = np.linspace(-1, 1, 10)
    return Measured(name, verdict, np.log(ratio) + noise * z / z.std(ddof=1))


def test_one_run_is_provisional() -> None:
    found = replication([_run("a", 5)])
    assert (found.state, found.earlier_run, found.p) == ("provisional", None, None)
    assert found.newest_ratio == pytest.approx(5)
    assert found.sentence.startswith("Provisional: measured in one run")


def test_two_runs_compare_as_welch_does() -> None:
    newest, earlier = _run("b", 5, 0.02), _run("a", 5.02, 0.05)
    found = replication([newest, earlier])
    means = CompareMeans(DescrStatsW(newest.d), DescrStatsW(earlier.d))
    assert found.state == "replicated"
    assert found.p == pytest.approx(means.ttest_ind(usevar="unequal")[1], rel=1e-9)
    assert found.difference == pytest.approx(5 / 5.02)
    assert "newest run measured 5.00" in found.sentence and "a 5.02" in found.sentence


@pytest.mark.parametrize(
    ("newest", "earlier", "state"),
    [
        (_run("b", 5.0), _run("a", 5.5), "disagree"),  # apart by more than noise and 1 %
        (_run("b", 5.0, 0.001), _run("a", 5.04, 0.001), "replicated"),  # significant, under 1 %
        (_run("b", 5.0, 0.001), _run("a", 5.06, 0.001), "disagree"),  # significant, over 1 %
        (_run("b", 5.0, 0.5), _run("a", 5.5, 0.5), "replicated"),  # far, but within the scatter
        (_run("b", 5.0), _run("a", 5.0, verdict="UNDECIDED"), "disagree"),  # another verdict
    ],
)
def test_agreement_needs_the_verdict_and_the_ratio(
    newest: Measured, earlier: Measured, state: str
) -> None:
    assert replication([newest, earlier]).state == state


def test_a_disagreement_is_not_cleared_by_measuring_again() -> None:
    found = replication([_run("c", 5), _run("b", 5), _run("a", 6)])
    assert (found.state, found.earlier_run) == ("disagree", "a")
    assert replication([_run("c", 5), _run("b", 5), _run("a", 5)]).earlier_run == "b"


@given(st.floats(0.5, 20), st.floats(0.9, 1.1), st.floats(0.001, 0.3))
def test_which_of_two_is_newer_changes_no_state(ratio: float, factor: float, noise: float) -> None:
    one, other = _run("a", ratio, noise), _run("b", ratio * factor, noise)
    there, back = replication([one, other]), replication([other, one])
    assert there.state == back.state
    assert there.difference is not None and back.difference is not None
    assert there.difference * back.difference == pytest.approx(1)


def _layout(root: Path) -> Layout:
    layout = Layout(root)
    write_expectation(layout.data, *usual_forecasts())
    return layout


def _measure(layout: Layout, run_id: str, *, local: bool = False, **changes: Any) -> None:
    name, digest = write_expectation(layout.data, *usual_forecasts())
    # So little noise that two honest runs are always within 1 % of each other.
    world = World(run_id=run_id, registration_status="registered", noise=0.004)
    world.expectation_id, world.expectation_digest = name, digest
    for key, value in changes.items():
        setattr(world, key, value)
    write_run(layout.local if local else layout.published, world)


def _rows(layout: Layout, query: str) -> list[Row]:
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        return database.rows(query)


def _states(layout: Layout) -> set[tuple[str, int, bool]]:
    rows = _rows(layout, "from replications")
    return {(row["state"], row["n_runs"], row["published"]) for row in rows}


def test_states_of_a_growing_record(tmp_path: Path) -> None:
    layout = _layout(tmp_path)
    _measure(layout, "one")
    assert _states(layout) == {("provisional", 1, True)}
    _measure(layout, "two", seed=2, days=1)
    assert _states(layout) == {("replicated", 2, True)}
    rows = _rows(layout, f"from replications where point = '{PRIMARY}'")
    assert [(row["runs"], row["earlier_run"]) for row in rows] == [(["two", "one"], "one")]
    shown = _rows(layout, "from headline")
    assert {(row["run_id"], row["replication"]) for row in shown} == {("two", "replicated")}


def test_runs_that_differ_disagree_where_they_do(tmp_path: Path) -> None:
    def faster(row: dict[str, Any]) -> None:
        if row["arm"] == "live_kv" and row["point"] == PRIMARY:
            row["wall_s"] *= 0.9

    layout = _layout(tmp_path)
    _measure(layout, "one")
    _measure(layout, "two", seed=2, days=1, edit_block=faster)
    states = {row["point"]: row["state"] for row in _rows(layout, "from replications")}
    assert {point for point, state in states.items() if state == "disagree"} == {PRIMARY}
    (row,) = _rows(layout, f"from headline where point = '{PRIMARY}'")
    assert row["replication"] == "disagree"


@pytest.mark.parametrize(
    "other",
    [
        {"machine_key": "machine1"},
        {"platform": "cuda"},
        {"registration_status": "exploratory"},
        {"status": "aborted", "status_reason": "killed"},
        {"slowdown": 1.2},  # the parity control fails: INVALID
    ],
)
def test_what_is_not_the_same_or_not_valid_is_never_combined(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    layout = _layout(tmp_path)
    _measure(layout, "one")
    _measure(layout, "two", seed=2, days=1, **other)
    assert _states(layout) == {("provisional", 1, True)}


def test_another_expectation_is_another_claim(tmp_path: Path) -> None:
    layout = _layout(tmp_path)
    _measure(layout, "one")
    later = (*usual_forecasts()[:3], forecast(PRIMARY, "primary", 4.0, 9.0, 1.5))
    name, digest = write_expectation(layout.data, *later, name="later")
    _measure(layout, "two", seed=2, days=1, expectation_id=name, expectation_digest=digest)
    assert _states(layout) == {("provisional", 1, True)}


def test_a_local_run_replicates_for_its_owner_and_not_for_readers(tmp_path: Path) -> None:
    layout = _layout(tmp_path)
    _measure(layout, "one")
    _measure(layout, "two", seed=2, days=1, local=True)
    assert _states(layout) == {("provisional", 1, True), ("replicated", 2, False)}
    shown = {(row["run_id"], row["replication"]) for row in _rows(layout, "from headline")}
    assert shown == {("one", "provisional"), ("two", "replicated")}
