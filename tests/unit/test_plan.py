"""Plans: settled before anything runs, refused in one line, the same again when read back."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runner import catalog
from runner.bench.schedule import Step
from runner.display import StepProgress, duration, show_plan
from runner.errors import UsageError
from runner.estimates import Rates, estimate, keep_rates, load_rates, step_seconds
from runner.plan import Plan, Request, make_plan

REQUEST = Request(
    platform="cpu", model="tiny:llama", sweep="quick", seed=5, threads=1, exploratory=True
)
BARE = {"calibration": False, "equivalence": False}


def plan(**changes: Any) -> Plan:
    return make_plan(replace(REQUEST, **changes))


def test_a_sweeps_own_points_arms_and_blocks_are_the_defaults() -> None:
    found = plan()
    quick = catalog.sweeps()["quick"]
    assert found.points == quick.points
    assert (found.arms, found.blocks, found.n_ctx) == (quick.arms, quick.blocks, quick.n_ctx)
    measured = [step for step in found.steps if step.is_arm]
    assert len(measured) == len(quick.points) * len(quick.arms) * quick.blocks
    assert plan(**BARE).steps == measured


def test_beside_the_arms_every_block_is_calibrated_and_every_point_compared_once() -> None:
    found = plan(blocks=4)
    aside = [step for step in found.steps if not step.is_arm]
    assert aside[: len(found.points)] == [
        Step(-1, point.id, "equivalence", 0) for point in found.points
    ]
    assert aside[len(found.points) :] == [
        Step(block, "calibration", "calibration", 0) for block in range(4)
    ]


def test_one_command_is_one_fingerprint_and_another_measurement_another() -> None:
    assert plan().fingerprint == plan(exploratory=True, wait_quiet=60.0).fingerprint
    others = ({"blocks": 3}, {"seed": 6}, {"n_batch": 512}, {"arms": ("live_kv",)}, BARE)
    assert len({plan().fingerprint, *(plan(**change).fingerprint for change in others)}) == 6


def test_a_plan_read_back_is_the_same_plan() -> None:
    found = plan(blocks=3)
    back = Plan.model_validate_json(found.model_dump_json())
    assert back == found
    assert back.steps == found.steps


def test_every_arm_of_a_block_reads_the_same_script_and_every_block_another() -> None:
    found = plan(blocks=4)
    seeds = {(step.block, found.script_seed(step)) for step in found.steps if step.is_arm}
    assert len(seeds) == 4
    assert len({seed for _, seed in seeds}) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"platform": "abacus"}, r"unknown platform 'abacus'; choose one of: cpu"),
        (
            {"sweep": "slow"},
            r"unknown sweep 'slow'; choose one of: competitive, quick, reference, two_by_two",
        ),
        ({"model": "gpt"}, r"unknown model 'gpt'; choose one of: "),
        (
            {"arms": ("live_kv", "magic")},
            r"unknown arm 'magic'; choose one of: live_kv, live_kv_again, live_kv_slowed_20, ",
        ),
        ({"arms": ("live_kv", "live_kv")}, r"an arm is named twice in live_kv,live_kv"),
        ({"prefix": 100}, r"--prefix and --hops name one point together"),
        ({"hops": 2}, r"--prefix and --hops name one point together"),
        ({"max_prefix": 10}, r"--max-prefix 10 leaves no point; the shortest prefix is 27"),
        (
            {"prefix": 9000, "hops": 4},
            r"tool_loop-p9000-h4 needs 9256 KV cells and n_ctx is 8192; use --n-ctx 9256 or more",
        ),
        ({"n_ctx": 400}, r"tool_loop-p363-h4 needs 619 KV cells and n_ctx is 400"),
    ],
)
def test_what_cannot_be_met_is_refused_with_what_could(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(**changes)


def test_the_n_ctx_a_refusal_names_is_enough_and_one_less_is_not() -> None:
    assert plan(n_ctx=619).n_ctx == 619
    with pytest.raises(UsageError):
        plan(n_ctx=618)


def test_a_context_too_small_for_the_warm_up_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match=r"the warm-up needs 264 .*use --n-ctx 264 or more"):
        plan(prefix=27, hops=1, n_ctx=200)
    assert plan(prefix=27, hops=1, n_ctx=264).n_ctx == 264


def test_a_point_of_ones_own_replaces_those_of_the_sweep() -> None:
    assert [point.id for point in plan(prefix=100, hops=3).points] == ["tool_loop-p100-h3"]
    assert [point.prefix for point in plan(max_prefix=100).points] == [27]


def test_the_command_makes_the_same_plan_again() -> None:
    found = plan(blocks=3, prefix=100, hops=3, arms=("reprefill",))
    for words in ("--seed 5", "--blocks 3", "--threads 1", "--prefix 100 --hops 3", "--arms repre"):
        assert words in found.command
    assert found.command.startswith("nox -s sweep -- --platform cpu --model tiny:llama")


def test_a_command_that_may_be_published_holds_no_folder_of_the_user() -> None:
    found = plan(model="/home/someone/models/mine.gguf", llama_cpp=Path("/home/someone/build"))
    assert "/home" not in found.command
    assert "--model mine.gguf" in found.command


def test_a_run_with_fewer_blocks_than_expected_is_exploratory() -> None:
    assert plan(model="smollm2-135m", sweep="reference", blocks=1).registration_status != (
        "registered"
    )


class TestEstimate:
    RATES = Rates(prefill_per_s=1000, decode_s=0.01, peak_rss_bytes=2**30)

    def test_before_the_first_bring_up_a_guess_says_it_is_one(self, cache: Path) -> None:
        found = plan(model="smollm2-135m")
        expected = estimate(found)
        assert expected.guessed
        assert expected.seconds is not None
        # 65 GFLOP/s over 2 x 134.5 million operations a token.
        assert 10 < expected.seconds < 600
        assert expected.memory_bytes == catalog.models()["smollm2-135m"].bytes
        assert "a guess from the model's size" in shown(found)

    @pytest.mark.parametrize(
        "unknown", [{"model": "qwen2.5-7b-instruct-q4_k_m"}, {"platform": "cuda"}]
    )
    def test_what_cannot_be_guessed_is_not(self, cache: Path, unknown: dict[str, str]) -> None:
        assert estimate(plan(**unknown)).seconds is None
        assert "not known before the first bring-up" in shown(plan(**unknown))

    def test_rates_are_kept_for_the_next_plan(self, cache: Path) -> None:
        found = plan()
        keep_rates(found, self.RATES)
        assert load_rates(found) == self.RATES
        expected = estimate(found)
        assert not expected.guessed
        assert expected.memory_bytes == 2**30
        assert expected.seconds == pytest.approx(
            sum(step_seconds(found, step, self.RATES) for step in found.steps)
        )

    def test_a_step_costs_its_prefill_its_decodes_and_its_warm_up(self) -> None:
        found = plan(prefix=100, hops=2)
        live, again = (
            step_seconds(found, Step(0, "tool_loop-p100-h2", arm, 0), self.RATES)
            for arm in ("live_kv", "reprefill")
        )
        decoded = 3 * 31 * 0.01
        warm_up = 1 + found.warmup_tokens / 1000
        assert live == pytest.approx(warm_up + decoded + (100 + 2 * 25) / 1000)
        assert again == pytest.approx(warm_up + decoded + (100 + 156 + 212) / 1000)

    def test_repeats_cost_as_often_as_they_run(self) -> None:
        found = plan()
        thrice = tuple(point.model_copy(update={"repeats": 3}) for point in found.points)
        step = next(step for step in found.steps if step.is_arm)
        once, three = (
            step_seconds(one, step, self.RATES)
            for one in (found, found.model_copy(update={"points": thrice}))
        )
        warm_up = 1 + found.warmup_tokens / 1000
        assert three - warm_up == pytest.approx(3 * (once - warm_up))

    def test_damaged_rates_are_no_rates(self, cache: Path) -> None:
        found = plan()
        keep_rates(found, self.RATES)
        (file,) = (cache / "rates").iterdir()
        file.write_text("{")
        assert load_rates(found) is None

    def test_a_cache_that_cannot_be_written_stops_nothing(self, cache: Path) -> None:
        (cache / "rates").write_text("a file")
        keep_rates(plan(), self.RATES)
        assert load_rates(plan()) is None


def shown(found: Plan) -> str:
    console = Console(record=True, width=120, file=StringIO())
    show_plan(found, console)
    return console.export_text()


def test_a_plan_is_shown_with_its_points_order_and_standing(cache: Path) -> None:
    text = shown(plan())
    for words in (
        "tool_loop-p363-h4",
        "order seed 5",
        "exploratory",
        "live_kv, live_kv_again, reprefill",
    ):
        assert words in text
    assert "time and memory: not known" in text


@pytest.mark.parametrize(
    ("seconds", "said"), [(4, "4 s"), (89, "89 s"), (150, "2 min"), (7260, "2 h 01 min")]
)
def test_a_duration_is_said_as_a_person_would(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_reason_with_brackets_is_shown_as_it_is() -> None:
    console = Console(record=True, width=200, file=StringIO())
    step = Step(0, "p", "live_kv", 0)
    with StepProgress(console, {step: 1.0}, 0) as progress:
        progress.begin(step)
        progress.end(step, "it last said: [/bold] in [module]")
    assert "it last said: [/bold] in [module]" in console.export_text()
