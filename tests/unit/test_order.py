"""Which arm ran first: a planted effect is found, chance is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW
from synthetic import World, write_run

from pipelines.analysis.order import order_effect, sentence
from pipelines.database import Row, open_database
from pipelines.paths import Layout
from pipelines.warehouse import build_warehouse

GROUP = st.lists(st.floats(-2, 2), min_size=2, max_size=10).filter(lambda d: np.ptp(d) > 1e-6)


def _effects(root: Path, **changes: Any) -> list[Row]:
    layout = Layout(root)
    write_run(layout.published, World(noise=0.005, **changes))
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        return database.rows("from order_effects")


def test_the_interval_and_p_are_those_of_statsmodels() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.1, 0.05, 5), rng.normal(0, 0.1, 7)
    found = order_effect(first, second)
    means = CompareMeans(DescrStatsW(first), DescrStatsW(second))
    low, high = means.tconfint_diff(0.05, usevar="unequal")
    assert (found.low, found.high) == pytest.approx((np.exp(low), np.exp(high)), rel=1e-9)
    assert found.p == pytest.approx(means.ttest_ind(usevar="unequal")[1], rel=1e-9)
    assert found.effect == pytest.approx(np.exp(first.mean() - second.mean()))


@given(GROUP, GROUP)
def test_the_other_order_gives_the_inverse(first: list[float], second: list[float]) -> None:
    one = order_effect(np.array(first), np.array(second))
    other = order_effect(np.array(second), np.array(first))
    assert one.effect is not None and other.effect is not None and one.low is not None
    assert other.high is not None
    assert one.effect * other.effect == pytest.approx(1, rel=1e-9)
    assert one.low * other.high == pytest.approx(1, rel=1e-6)
    assert one.p == pytest.approx(other.p)


def test_one_block_in_an_order_is_not_enough() -> None:
    found = order_effect(np.array([0.1]), np.array([0.1, 0.2, 0.3]))
    assert (found.n_treatment_first, found.n_baseline_first, found.p) == (1, 3, None)
    assert "treatment first: not enough blocks: 1" in (found.reason or "")
    assert "is not known (treatment first" in sentence(found, None, "reprefill", "live_kv")
    same = order_effect(np.array([0.1, 0.2]), np.array([0.3, 0.3]))
    assert "baseline first: zero variance" in (same.reason or "")


def test_a_planted_order_effect_is_found_where_it_is_and_is_no_verdict(tmp_path: Path) -> None:
    def colder(row: dict[str, Any]) -> None:
        if row["arm"] == "live_kv" and row["position"] == 0 and row["n_hops"] == 8:
            row["wall_s"] *= 1.1

    found = {row["point"]: row for row in _effects(tmp_path, edit_block=colder)}
    assert [point for point, row in found.items() if row["significant"]] == ["tool_loop-p1491-h8"]
    planted = found["tool_loop-p1491-h8"]
    assert planted["effect"] == pytest.approx(1 / 1.1, rel=0.02)
    assert planted["low"] < 1 / 1.1 < planted["high"]
    assert planted["p"] < planted["p_adjusted"]
    assert planted["n_treatment_first"] + planted["n_baseline_first"] == 10
    assert planted["sentence"].startswith("The order of the arms matters here")
    assert found["tool_loop-p363-h4"]["sentence"].startswith("No effect of the order")


def test_what_comes_first_is_read_from_the_positions(tmp_path: Path) -> None:
    def always_first(row: dict[str, Any]) -> None:
        row["position"] = 0 if row["arm"] == "live_kv" else 1

    for row in _effects(tmp_path, edit_block=always_first):
        assert (row["n_treatment_first"], row["n_baseline_first"]) == (10, 0)
        assert (row["significant"], row["p_adjusted"]) == (None, None)
