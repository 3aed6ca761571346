"""Registering: the skeleton can be judged, and what could not disappoint is refused."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkouts import Checkout, bare_checkout
from rich.console import Console
from scipy import stats
from synthetic import World, write_run

from runner import catalog
from runner.errors import UsageError
from runner.expectations import Expectation, Forecast, VoidRule, load_expectation
from runner.pilot import read_pilot
from runner.power import (
    ALPHA,
    BLOCKS_MAX,
    PARITY_ALPHA,
    POWER,
    Noise,
    PointPower,
    check_power,
    equivalence_power,
)
from runner.register import check, register
from runner.registration import check_registration
from runner.skeleton import Registering

SWEEP = catalog.sweep("reference")
ASKED = Registering(id="loop-2", sweep="reference", model="smollm2-135m")


def pilot(root: Path, **world: Any) -> Path:
    """A complete exploratory run of the reference sweep."""
    return write_run(root / "build/runs", World(**{"points": SWEEP.points, "n_blocks": 6, **world}))


def said(asked: Registering, root: Path) -> str:
    stream = io.StringIO()
    register(asked, Console(file=stream, width=200), root)
    return stream.getvalue()


def quiet() -> Console:
    return Console(quiet=True)


# --- the skeleton


def test_the_skeleton_can_be_judged_as_it_is(tmp_path: Path) -> None:
    pilot(tmp_path)
    path = register(ASKED, quiet(), tmp_path)
    found = load_expectation(path)
    assert path == tmp_path / "data/expectations/loop-2.toml"
    assert found.missing("smollm2-135m", [point.id for point in SWEEP.points]) == []
    assert (found.sweep, found.treatment, found.baseline) == ("reference", "live_kv", "reprefill")
    assert found.blocks_min == max(10, SWEEP.blocks)
    assert found.repeat_arm in SWEEP.arms
    assert found.unexplained_max == 0.05


def test_forecasts_are_the_pilots_ratios_widened(tmp_path: Path) -> None:
    noise = read_pilot(pilot(tmp_path)).noise
    found = load_expectation(register(replace(ASKED, widen=0.5), quiet(), tmp_path))
    for one in found.forecast:
        ratio = noise[one.point].ratio
        if one.role == "parity":
            assert (one.low, one.high) == (0.97, 1.03)
            continue
        assert one.low == pytest.approx(ratio / 1.5, abs=0.01)
        assert one.high == pytest.approx(ratio * 1.5, abs=0.01)
        assert one.low <= ratio / 1.5 < ratio * 1.5 <= one.high
        if one.role != "near_parity":
            assert one.threshold is not None
            assert one.threshold == pytest.approx(math.sqrt(one.low), abs=0.01)
            assert 1 <= one.threshold < one.low


def test_the_longest_point_is_primary_and_a_small_gain_near_parity(tmp_path: Path) -> None:
    pilot(tmp_path)
    found = load_expectation(register(ASKED, quiet(), tmp_path))
    roles = {one.point: one.role for one in found.forecast}
    longest = max(SWEEP.points, key=lambda point: point.n_tokens)
    assert roles[longest.id] == "primary"
    assert [role for role in roles.values() if role == "primary"] == ["primary"]
    assert {roles[point.id] for point in SWEEP.points if point.hops == 0} == {"parity"}
    slow = load_expectation(register(replace(ASKED, id="x", widen=9.0), quiet(), tmp_path))
    assert {one.role for one in slow.forecast} == {"parity", "near_parity"}


def test_the_newest_complete_run_of_the_sweep_and_model_is_the_pilot(tmp_path: Path) -> None:
    pilot(tmp_path, run_id="20260101T000000Z-a", prefill_s=0.001)
    pilot(tmp_path, run_id="20260102T000000Z-b")
    pilot(tmp_path, run_id="20260103T000000Z-c", model_id="other", prefill_s=0.03)
    pilot(tmp_path, run_id="20260104T000000Z-d", status="aborted", status_reason="x")
    register(ASKED, quiet(), tmp_path)
    named = replace(ASKED, id="named", pilots=(tmp_path / "build/runs/cpu/20260102T000000Z-b",))
    register(named, quiet(), tmp_path)
    texts = [
        (tmp_path / f"data/expectations/{name}.toml").read_text() for name in ("loop-2", "named")
    ]
    assert texts[0] == texts[1].replace('replaces = ["loop-2"]\n', "")


def test_two_models_are_registered_with_a_pilot_each(tmp_path: Path) -> None:
    pilots = (pilot(tmp_path, run_id="a"), pilot(tmp_path, run_id="b", model_id="other"))
    found = load_expectation(register(replace(ASKED, pilots=pilots), quiet(), tmp_path))
    assert {one.model for one in found.forecast} == {"smollm2-135m", "other"}


def test_it_takes_over_from_earlier_expectations_of_the_same_points(tmp_path: Path) -> None:
    pilot(tmp_path)
    register(replace(ASKED, id="first"), quiet(), tmp_path)
    found = load_expectation(register(ASKED, quiet(), tmp_path))
    assert found.replaces == ("first",)


def test_the_next_steps_lead_to_a_registered_run(tmp_path: Path) -> None:
    """The printed git commands, run as they stand, in a repository."""
    checkout: Checkout = bare_checkout(tmp_path)
    pilot(tmp_path)
    lines = [line.strip() for line in said(ASKED, tmp_path).splitlines()]
    for line in (line for line in lines if line.startswith("git ")):
        checkout.git(*split(line))
    points = [point.id for point in SWEEP.points]
    found = check_registration(tmp_path, "reference", "smollm2-135m", points)
    assert found.status == "registered", found.reason
    blocks = max(10, SWEEP.blocks)
    assert f"nox -s sweep -- --sweep reference --blocks {blocks} --model smollm2-135m" in lines


def split(line: str) -> list[str]:
    return [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', line)][1:]


def test_a_dry_run_prints_and_writes_nothing(tmp_path: Path) -> None:
    pilot(tmp_path)
    printed = said(replace(ASKED, dry_run=True), tmp_path)
    assert "[[forecast]]" in printed
    assert not (tmp_path / "data").exists()


def test_an_id_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    pilot(tmp_path)
    path = register(ASKED, quiet(), tmp_path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"loop-2\.toml exists"):
        register(ASKED, quiet(), tmp_path)
    assert path.read_bytes() == before


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "one block": ({"n_blocks": 1}, "has 1 block"),
    "a constant clock": ({"noise": 0.0}, "to tell its noise from"),
    "aborted": ({"status": "aborted", "status_reason": "the power went"}, "the power went"),
    "a point is missing": ({"points": SWEEP.points[1:]}, f"lacks {SWEEP.points[0].id}"),
}


@pytest.mark.parametrize(("world", "words"), UNFIT.values(), ids=UNFIT.keys())
def test_an_unfit_pilot_is_refused(tmp_path: Path, world: dict[str, Any], words: str) -> None:
    folder = pilot(tmp_path, **world)
    with pytest.raises(UsageError, match=words):
        register(replace(ASKED, pilots=(folder,)), quiet(), tmp_path)
    assert not (tmp_path / "data").exists()


def test_without_a_pilot_the_command_that_makes_one_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reference --model smollm2-135m --blocks 6 --expl"):
        register(ASKED, quiet(), tmp_path)


@pytest.mark.parametrize("name", ["../x", "Loop", "", "a b"])
def test_an_id_names_a_file_and_nothing_else(tmp_path: Path, name: str) -> None:
    pilot(tmp_path)
    with pytest.raises(UsageError, match="is no id"):
        register(replace(ASKED, id=name), quiet(), tmp_path)


def test_a_pilot_too_noisy_for_the_parity_margin_is_refused(tmp_path: Path) -> None:
    pilot(tmp_path, noise=0.05)
    with pytest.raises(UsageError, match="could not be disappointed: tool_loop-p363-h0 on smollm2"):
        register(ASKED, quiet(), tmp_path)
    assert not (tmp_path / "data").exists()


def test_void_blocks_of_the_pilot_do_not_count(tmp_path: Path) -> None:
    def disturb(row: dict[str, Any]) -> None:
        if row["block"] == 0 and row["arm"] == "live_kv":
            row.update(status="void", wall_s=row["wall_s"] * 9)

    noise = read_pilot(pilot(tmp_path, edit_block=disturb)).noise
    assert {one.n_blocks for one in noise.values()} == {5}
    assert max(one.sd for one in noise.values()) < 0.05


# --- the power

FORECAST = Forecast(model="m", point="p", role="primary", low=1.2, high=1.5, threshold=1.1)
PARITY = Forecast(model="m", point="c", role="parity", low=0.97, high=1.03)


def expectation(*forecasts: Forecast, blocks: int = 10) -> Expectation:
    text = dict.fromkeys(("id", "title", "claim", "estimand", "workload", "sweep"), "x")
    return Expectation(
        **text,
        treatment="live_kv",
        baseline="reprefill",
        blocks_min=blocks,
        warmup_tokens=0,
        parity_margin=0.05,
        negative="x",
        exclusions="x",
        void=VoidRule(steal_fraction_max=0.1, other_cpu_fraction_max=0.1, void_blocks_max=0.1),
        forecast=(*forecasts, PARITY),
    )


def power_of(forecast: Forecast, sd: float, *, blocks: int = 10, n: int = 10) -> PointPower:
    noise = {("m", "p"): Noise(n, 1.3, sd), ("m", "c"): Noise(n, 1.0, 0.001)}
    return check_power(expectation(forecast, blocks=blocks), noise)[0]


@pytest.mark.parametrize("n", [6, 10, 20])
def test_the_detectable_difference_is_detected_as_often_as_promised(n: int) -> None:
    noise = Noise(10, 1.3, 0.02)
    found = power_of(FORECAST, 0.02, blocks=n)
    assert found.detectable is not None
    d = np.random.default_rng(1).normal(found.detectable, noise.planning_sd, (20_000, n))
    p = stats.ttest_1samp(d, 0.0, axis=1, alternative="greater").pvalue
    assert np.mean(p < ALPHA) == pytest.approx(POWER, abs=0.01)


@pytest.mark.parametrize("n", [6, 10, 20])
@pytest.mark.parametrize("margin", [0.7, 1.0, 2.0])
def test_the_power_of_parity_is_that_of_two_one_sided_tests(n: int, margin: float) -> None:
    d = np.random.default_rng(2).normal(0, 1, (20_000, n))
    above = stats.ttest_1samp(d, -margin, axis=1, alternative="greater").pvalue
    below = stats.ttest_1samp(d, margin, axis=1, alternative="less").pvalue
    shown = np.mean(np.maximum(above, below) < PARITY_ALPHA)
    assert equivalence_power(margin, n, PARITY_ALPHA) == pytest.approx(shown, abs=0.012)


@pytest.mark.parametrize("n", [3, 6, 10])
def test_the_planning_sd_covers_the_true_one_in_four_of_five_pilots(n: int) -> None:
    drawn = np.random.default_rng(3).normal(0, 1, (5_000, n)).std(axis=1, ddof=1)
    factor = Noise(n, 1.0, 1.0).planning_sd
    assert np.mean(drawn * factor > 1) == pytest.approx(0.8, abs=0.02)


def test_a_claim_that_can_be_told_passes() -> None:
    found = power_of(FORECAST, 0.02)
    assert found.refusal is None
    assert found.distance == pytest.approx(math.log(1.2 / 1.1))
    assert found.detectable is not None
    assert found.distance is not None
    assert found.detectable < found.distance


def test_a_claim_that_cannot_be_told_is_refused_with_the_blocks_that_would_do() -> None:
    found = power_of(FORECAST, 0.08)
    assert found.refusal is not None
    assert found.blocks_needed is not None
    assert f"{found.blocks_needed} blocks would do" in found.refusal
    assert "has to tell 9.09%" in found.refusal
    assert power_of(FORECAST, 0.08, blocks=found.blocks_needed).refusal is None
    assert power_of(FORECAST, 0.08, blocks=found.blocks_needed - 1).refusal is not None


def test_a_claim_out_of_reach_says_so() -> None:
    found = power_of(FORECAST, 5.0)
    assert found.blocks_needed is None
    assert f"{BLOCKS_MAX} blocks would not do either" in str(found.refusal)


def changed(**changes: Any) -> Forecast:
    return Forecast(**{**FORECAST.model_dump(), **changes})


def test_a_forecast_from_the_threshold_on_claims_nothing() -> None:
    assert "not above the threshold 1.2" in str(power_of(changed(threshold=1.2), 0.001).refusal)
    assert "not above the threshold 1.3" in str(power_of(changed(threshold=1.3), 0.001).refusal)
    near = power_of(changed(threshold=1.3, role="near_parity"), 0.001)
    assert (near.refusal, near.distance) == (None, None)


def test_a_threshold_under_1_for_a_gain_is_refused() -> None:
    assert "call a loss a success" in str(power_of(changed(threshold=0.9), 0.001).refusal)
    assert power_of(changed(low=0.95, threshold=0.8), 0.001).refusal is None  # a bounded loss


def test_near_parity_without_threshold_must_fit_into_its_forecast() -> None:
    near = changed(role="near_parity", threshold=None, low=1.0, high=1.1)
    assert power_of(near, 0.01).refusal is None
    assert "has to tell 4.88%" in str(power_of(near, 0.08).refusal)


def test_the_parity_control_is_held_to_its_margin() -> None:
    noise = {("m", "p"): Noise(10, 1.3, 0.01), ("m", "c"): Noise(10, 1.0, 0.06)}
    control = check_power(expectation(FORECAST), noise)[1]
    assert control.forecast.role == "parity"
    assert "has to tell 5.00%" in str(control.refusal)
    assert control.blocks_needed is not None
    again = check_power(expectation(FORECAST, blocks=control.blocks_needed), noise)[1]
    assert again.refusal is None


def test_a_point_the_pilot_lacks_is_refused_and_a_model_without_pilot_left_out() -> None:
    other = Forecast(model="other", point="c", role="parity", low=0.9, high=1.1)
    found = check_power(expectation(FORECAST, other), {("m", "c"): Noise(10, 1.0, 0.001)})
    assert [(one.forecast.model, one.forecast.point) for one in found] == [("m", "p"), ("m", "c")]
    assert found[0].refusal == "the pilot did not measure it"


# --- an expectation that is there already


def test_an_existing_expectation_is_checked(tmp_path: Path) -> None:
    folder = pilot(tmp_path)
    path = register(ASKED, quiet(), tmp_path)
    check(path, [folder], quiet())
    noisy = pilot(tmp_path, run_id="noisy", noise=0.2)
    with pytest.raises(UsageError, match=r"loop-2 could not be disappointed: .*blocks would"):
        check(path, [noisy], quiet())


def test_a_check_needs_a_pilot_of_its_models(tmp_path: Path) -> None:
    pilot(tmp_path)
    path = register(ASKED, quiet(), tmp_path)
    with pytest.raises(UsageError, match="give --pilot"):
        check(path, [], quiet())
    with pytest.raises(UsageError, match="forecasts nothing on other"):
        check(path, [pilot(tmp_path, run_id="b", model_id="other")], quiet())
