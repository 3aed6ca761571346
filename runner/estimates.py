"""What a plan will take: by the rates of this machine, or by a guess that says it is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from runner import catalog
from runner.arms import ARMS
from runner.bench.schedule import CALIBRATION, DICTATION, EQUIVALENCE, FLOOR, Step
from runner.catalog import Model
from runner.models import named
from runner.paths import cache_dir
from runner.plan import Plan

# One thread of one server CPU, by SmolLM2-135M Q4_1 there: about 240 tokens/s of prefill are 65
# GFLOP/s at two operations a parameter, 6.5 ms a decoded token are 15 GB/s of weights.
_GUESSED_FLOPS: Final = 65e9
_GUESSED_BYTES_PER_S: Final = 15e9
_CALIBRATED_STEPS: Final = 200
_CALIBRATED_DEPTH: Final = 1100
_CALIBRATED_PARTS: Final = 700
"""About what a calibration takes: single-token steps, its least depth, tokens of short prompts."""


class Rates(BaseModel):
    """What bring-up measured for a model on this machine, kept for the next plan."""

    model_config = ConfigDict(frozen=True)

    prefill_per_s: float
    decode_s: float
    peak_rss_bytes: int | None = None


class Estimate(BaseModel):
    """What a plan will take; None where not even a guess can be made."""

    model_config = ConfigDict(frozen=True)

    seconds: float | None
    memory_bytes: int | None
    guessed: bool
    """No bring-up of this model was done here: sizes of another machine stand in."""


def step_seconds(plan: Plan, step: Step, rates: Rates) -> float:
    """Seconds a step should take: tokens to prefill and tokens to decode at given rates."""
    if step.arm in (CALIBRATION, FLOOR):
        deepest = max(_CALIBRATED_DEPTH, *(point.n_tokens for point in plan.points))
        prefilled = deepest + _CALIBRATED_PARTS
        return prefilled / rates.prefill_per_s + _CALIBRATED_STEPS * rates.decode_s
    point = plan.point(step.point)
    if step.arm == EQUIVALENCE:
        free_turns = (2 * point.hops + 9) * point.generate
        return 5 * point.n_tokens / rates.prefill_per_s + free_turns * rates.decode_s
    if step.arm == DICTATION:
        fed = point.prefix + point.hops * (point.result + 1)
        said = (point.hops + 1) * point.generate
        return fed / rates.prefill_per_s + said * rates.decode_s
    prefilled = ARMS[step.arm].prefill_tokens(point)
    decoded = (point.hops + 1) * (point.generate - 1)
    warm_up = plan.warmup_tokens / rates.prefill_per_s + 1.0
    once = prefilled / rates.prefill_per_s + decoded * rates.decode_s
    return warm_up + point.repeats * once


def estimate(plan: Plan) -> Estimate:
    """What the plan will take, from the rates that bring-up left here or from a guess."""
    measured = load_rates(plan)
    rates = measured or guess_rates(plan)
    if rates is None:
        return Estimate(seconds=None, memory_bytes=None, guessed=True)
    seconds = sum(step_seconds(plan, step, rates) for step in plan.steps)
    return Estimate(seconds=seconds, memory_bytes=rates.peak_rss_bytes, guessed=measured is None)


def guess_rates(plan: Plan) -> Rates | None:
    """Rates from the model's size; None on a GPU, or for a model of unknown size."""
    model = named(plan.model)
    n_bytes = _file_bytes(plan.model, model)
    if catalog.platform(plan.platform).n_gpu_layers or not model.parameters or not n_bytes:
        return None
    return Rates(
        prefill_per_s=plan.n_threads * _GUESSED_FLOPS / (2 * model.parameters),
        decode_s=n_bytes / _GUESSED_BYTES_PER_S,
        # The weights are mapped whole; KV and compute buffers come on top.
        peak_rss_bytes=n_bytes,
    )


def _file_bytes(name: str, model: Model) -> int | None:
    if model.kind == "path":
        path = Path(name).expanduser()
        return path.stat().st_size if path.exists() else None
    # 4.5 to 5 bits a weight: what every quantisation of the catalogue comes to.
    return model.bytes or (model.parameters and int(model.parameters * 5 / 8))


def _rates_file(plan: Plan) -> Path:
    model = named(plan.model).id.replace(":", "-").replace("/", "-")
    return cache_dir() / "rates" / f"{plan.platform}-{model}-{plan.n_threads}.json"


def load_rates(plan: Plan) -> Rates | None:
    """The rates for the plan's platform, model and threads; None before the first bring-up."""
    try:
        return Rates.model_validate_json(_rates_file(plan).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def keep_rates(plan: Plan, rates: Rates) -> None:
    """Keep rates for the next plan; a cache that cannot be written is no reason to stop."""
    path = _rates_file(plan)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rates.model_dump()), encoding="utf-8")
    except OSError:
        return
