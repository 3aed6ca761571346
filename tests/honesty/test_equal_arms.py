"""A/A: two equal arms are told apart as seldom as a 95 % interval promises, and only then.

Every session goes through the real schedule, arms, engine, journal, Parquet and warehouse. The
seeds are fixed, so a session is the same on every machine; the bounds say how far chance alone
would carry a harness that keeps its promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pytest
from laboratory import Findings, Laboratory, Order
from scipy import stats
from simulated import Machine, Weather

from pipelines.database import Row
from runner.bench.schedule import Step
from runner.catalog import Point
from runner.plan import Plan

SMALL: Final = Point(prefix=4, hops=1, generate=2, result=2)
PAIR: Final = ("live_kv", "live_kv_again")
CHANCE: Final = 1e-3
"""How often a harness that keeps its promise would fail a test here, were its seeds drawn."""

ROUGH: Final = Weather(noise=0.05, drift=0.3, step=0.2, outliers=0.03)
DRIFTING: Final = Weather(noise=0.02, drift=0.3)
ALTERNATING: Final = Weather(noise=0.02, alternation=0.1)


def balanced(plan: Plan) -> Sequence[Step]:
    """The order the harness really uses."""
    return plan.steps


def one_after_the_other(plan: Plan) -> Sequence[Step]:
    """All blocks of one arm, then all of the next."""
    return sorted(strict_turns(plan), key=lambda step: plan.arms.index(step.arm))


def strict_turns(plan: Plan) -> Sequence[Step]:
    """The same order of arms in every block: A B A B."""
    fixed = [replace(step, position=plan.arms.index(step.arm)) for step in plan.steps]
    return sorted(fixed, key=lambda step: (step.block, step.position))


@dataclass(frozen=True)
class Campaign:
    """Sessions of one order in one kind of weather."""

    name: str
    order: Order
    weather: Weather
    n: int


CAMPAIGNS: Final = (
    Campaign("rough, balanced", balanced, ROUGH, 200),
    Campaign("drift, balanced", balanced, DRIFTING, 25),
    Campaign("drift, one after the other", one_after_the_other, DRIFTING, 25),
    Campaign("alternation, balanced", balanced, ALTERNATING, 25),
    Campaign("alternation, strict turns", strict_turns, ALTERNATING, 25),
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The A/A ratio of every session of every campaign, all judged in one warehouse."""
    lab = Laboratory(tmp_path_factory.mktemp("equal"))
    for campaign in CAMPAIGNS:
        for seed in range(campaign.n):
            lab.measure(
                Machine(campaign.weather, seed),
                f"{campaign.name}-{seed}",
                order=campaign.order,
                points=(SMALL,),
                arms=PAIR,
                order_seed=seed,
                warmup_tokens=0,
            )
    rows = lab.rows("from ratios where measure = 'whole session'")
    return {
        campaign.name: [row for row in rows if row["run_id"].startswith(f"{campaign.name}-")]
        for campaign in CAMPAIGNS
    }


def misses(rows: list[Row]) -> list[Row]:
    """Sessions whose interval says that two equal arms differ."""
    return [row for row in rows if not row["low"] <= 1 <= row["high"]]


def test_about_one_session_in_twenty_is_missed(found: dict[str, list[Row]]) -> None:
    rows = found["rough, balanced"]
    n_missed = len(misses(rows))
    low, high = stats.binom.interval(1 - CHANCE, len(rows), 0.05)
    assert len(rows) == 200
    assert low <= n_missed <= high, f"{n_missed} of {len(rows)} missed, {low} to {high} is chance"


def test_faster_is_said_as_often_as_slower(found: dict[str, list[Row]]) -> None:
    rows = found["rough, balanced"]
    for some in (rows, misses(rows)):
        n_faster = sum(row["ratio"] > 1 for row in some)
        assert stats.binomtest(n_faster, len(some), 0.5).pvalue > CHANCE, f"{n_faster} faster"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("drift, one after the other", "drift, balanced"),
        ("alternation, strict turns", "alternation, balanced"),
    ],
)
def test_another_order_finds_what_is_not_there(
    found: dict[str, list[Row]], wrong: str, right: str
) -> None:
    n = len(found[wrong])
    assert len(misses(found[wrong])) > 0.9 * n
    assert len(misses(found[right])) <= stats.binom.isf(CHANCE, n, 0.056)


def test_the_reader_is_shown_the_counts(found: dict[str, list[Row]], findings: Findings) -> None:
    lines = findings["two equal arms: sessions that called them different"] = []
    for name, rows in found.items():
        missed = misses(rows)
        n_faster = sum(row["ratio"] > 1 for row in missed)
        said = f"{len(missed):3} of {len(rows)}, {n_faster} of them faster"
        lines.append((name, said))
    assert [name for name, _ in lines] == [campaign.name for campaign in CAMPAIGNS]
