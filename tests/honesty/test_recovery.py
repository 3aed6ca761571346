"""What is put into a world comes out of it: slowdowns, swapped labels, repeats, small biases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import sabotage
from laboratory import ARMS, CLAIM, CONTROL, Findings, Laboratory
from lies import Rows, rewrite
from scipy import stats
from simulated import Machine, Weather

from pipelines.database import Row
from pipelines.publish.fragments import Context, fragment
from runner.bench.schedule import Step

SLOWDOWNS: Final = (0.0, 0.02, 0.05, 0.10, 0.20)
SESSIONS: Final = 10
"""Sessions of each slowdown."""
TIMES: Final = ("wall_s", "ttft_s", "prefill_s", "decode_s", "other_s")


class Slowed(sabotage.Against):
    """Live KV is slower than its double by a known share."""

    arms = ("live_kv",)

    def __init__(self, slowdown: float, weather: Weather, seed: int) -> None:
        super().__init__(weather, seed)
        self.slowdown = slowdown

    def factor(self, step: Step) -> float:
        """See `Machine`."""
        return 1 + self.slowdown if self.hits(step) else 1.0


def ratios(lab: Laboratory, baseline: str = "reprefill", point: str = CLAIM.id) -> dict[str, Row]:
    """The whole-session ratio of every run against `baseline`, by run."""
    rows = lab.rows(
        f"from ratios where measure = 'whole session' and baseline = '{baseline}'"
        f" and point = '{point}'"
    )
    return {row["run_id"]: row for row in rows}


def test_an_injected_slowdown_is_measured(tmp_path: Path, findings: Findings) -> None:
    lab = Laboratory(tmp_path)
    weather = Weather(noise=0.01, drift=0.05)
    for slowdown in SLOWDOWNS:
        for seed in range(SESSIONS):
            machine = Slowed(slowdown, weather, round(1000 * slowdown) + seed)
            name = f"{slowdown}-{seed}"
            lab.measure(machine, name, points=(CLAIM,), arms=ARMS[:2], order_seed=seed)
    found = ratios(lab, "live_kv_again")
    injected = [float(name.split("-")[0]) for name in found]
    measured = [1 / row["ratio"] - 1 for row in found.values()]
    fit = stats.linregress(injected, measured)
    half = stats.t.ppf(0.9995, len(found) - 2)
    findings["injected slowdowns of 2, 5, 10 and 20 %"] = [
        ("slope", f"{fit.slope:.3f} ± {half * fit.stderr:.3f} (99.9 %)"),
        ("intercept", f"{fit.intercept:+.4f} ± {half * fit.intercept_stderr:.4f} (99.9 %)"),
    ]
    assert len(found) == len(SLOWDOWNS) * SESSIONS
    assert abs(fit.slope - 1) < half * fit.stderr < 0.05
    assert abs(fit.intercept) < half * fit.intercept_stderr < 0.005


def test_swapped_labels_give_the_inverse(lab: Laboratory) -> None:
    lab.measure(Machine(), "as it was")
    lab.measure(Machine(), "swapped", spoil=_swap)
    found = ratios(lab)
    one, other = found["as it was"], found["swapped"]
    for value, inverse in (
        ("ratio", "ratio"),
        ("low", "high"),
        ("high", "low"),
        ("median_low", "median_high"),
        ("median_high", "median_low"),
        ("total_ratio", "total_ratio"),
    ):
        assert one[value] * other[inverse] == pytest.approx(1, rel=1e-12), value
    assert one["saved_s"] == pytest.approx(-other["saved_s"], rel=1e-12)


def _swap(folder: Path) -> None:
    """Give each of two arms the times of the other; everything else stays."""
    rewrite("blocks", lambda rows: _swapped(rows, ("block", "point"), TIMES))(folder)
    rewrite("hops", lambda rows: _swapped(rows, ("block", "point", "hop"), TIMES[:-1]))(folder)


def _swapped(rows: Rows, keys: Sequence[str], times: Sequence[str]) -> Rows:
    other = {"live_kv": "reprefill", "reprefill": "live_kv"}
    by_key = {(*(row[key] for key in keys), row["arm"]): row for row in rows}

    def theirs(row: dict[str, Any]) -> dict[str, Any]:
        arm = other.get(row["arm"], row["arm"])
        return by_key[(*(row[key] for key in keys), arm)]

    return [row | {name: theirs(row)[name] for name in times} for row in rows]


def test_repeats_do_not_narrow_the_interval(lab: Laboratory) -> None:
    weather = Weather(noise=0.05)
    for n in (1, 9):
        points = tuple(point.model_copy(update={"repeats": n}) for point in (CLAIM, CONTROL))
        lab.measure(Machine(weather), f"repeated {n}", points=points)
    found = ratios(lab)
    once, often = found["repeated 1"], found["repeated 9"]
    assert once["n_blocks"] == often["n_blocks"] == 10
    for name in ("ratio", "low", "high", "median_low", "median_high"):
        assert often[name] == pytest.approx(once[name], rel=1e-9), name


def test_a_small_bias_under_much_noise_does_not_pass_as_parity(
    tmp_path: Path, findings: Findings
) -> None:
    lab = Laboratory(tmp_path)
    lab.register()
    n = 20
    for seed in range(n):
        machine = _Biased(Weather(noise=0.15), seed)
        lab.measure(
            machine, f"biased {seed}", points=(CONTROL,), order_seed=seed, calibration=False
        )
    rows = lab.rows("from verdicts where role = 'parity'")
    n_passed = sum(row["verdict"] == "CONFIRMED" for row in rows)
    n_blind = sum(row["low"] <= 1 <= row["high"] for row in ratios(lab, point=CONTROL.id).values())
    findings["a control that is off by its margin of 5 %, under 15 % noise"] = [
        ("passed as parity", f"{n_passed} of {n}"),
        ("its interval contains 1", f"{n_blind} of {n}: this is why that is not the rule"),
    ]
    assert len(rows) == n
    assert n_passed <= stats.binom.isf(1e-3, n, 0.05)
    assert n_blind > n / 2


class _Biased(sabotage.Against):
    """The baseline is slower by the margin of the parity control."""

    def factor(self, step: Step) -> float:
        """See `Machine`."""
        return 1.05 if self.hits(step) else 1.0


def test_a_world_in_which_live_kv_is_slower_is_refuted_on_the_page(lab: Laboratory) -> None:
    lab.measure(sabotage.SlowerLiveKv())
    with lab.judged() as database:
        (row,) = database.rows(
            f"from verdicts where point = '{CLAIM.id}' and baseline = 'reprefill'"
        )
        shown = fragment("ours", Context(database, lab.layout.root, ()))
        answer = fragment("answers", Context(database, lab.layout.root, ()))
    assert (row["verdict"], row["forecast"], row["evidence"]) == ("REFUTED", "MISS", True)
    assert "Refuted: it was claimed that" in row["sentence"]
    assert "wholly at or below the threshold 1.5" in row["sentence"]
    assert "REFUTED" in shown
    assert "REFUTED" in answer
    assert row["sentence"] in answer


def test_the_interval_is_as_wide_as_the_noise_says(lab: Laboratory) -> None:
    weather = Weather(noise=0.05)
    lab.measure(Machine(weather), "noisy")
    (row,) = ratios(lab).values()
    expected = stats.t.ppf(0.975, 9) * 0.05 * np.sqrt(2 / 10)
    half = (np.log(row["high"]) - np.log(row["low"])) / 2
    # The standard deviation of ten draws is itself uncertain: its 99.8 % interval.
    low, high = np.sqrt(stats.chi2.ppf([0.001, 0.999], 9) / 9)
    assert low * expected < half < high * expected
