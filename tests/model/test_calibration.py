"""Calibration on a model that people use: as a job of its own, and near what an arm takes."""

from __future__ import annotations

import statistics
from typing import Any

from pipelines.analysis.costs import Reading, fit_costs
from runner.bench.calibration import calibration_job
from runner.bench.isolated import call
from runner.bench.worker import to_job
from runner.building import EngineBuild
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.models import ResolvedModel

POINT = Point(prefix=300, hops=3)
# The machine that runs the tests is not ours alone: this finds a wrong unit or a wrong depth.
NEAR = 0.3


def _prediction(costs_rows: list[dict[str, Any]], hops: list[dict[str, Any]]) -> float:
    costs = fit_costs(
        [Reading(row["kind"], row["depth"], row["n_tokens"], row["seconds"]) for row in costs_rows]
    )
    seconds = [
        costs.prefill_s(hop["n_context"] - hop["n_reused"], hop["n_reused"])
        + costs.decode_s(hop["n_generated"] - 1, hop["n_context"])
        for hop in hops
    ]
    return float(sum(seconds))


def test_a_calibration_predicts_both_arms(
    engine_build: EngineBuild, smollm2: ResolvedModel
) -> None:
    parameters = LoadParameters(
        model_path=smollm2.path,
        model_sha256=smollm2.sha256,
        lib_dir=engine_build.lib_dir,
        library_sha256=engine_build.library_sha256,
        n_ctx=1024,
        n_batch=256,
    )
    load = {"load": to_job(parameters)}
    ratios: dict[str, list[float]] = {"live_kv": [], "reprefill": []}
    for block in range(3):
        rows = call("runner.bench.calibration", {**load, **calibration_job([POINT], block, 64)})
        assert {row["kind"] for row in rows["rows"]} == {"prefill", "hop", "decode"}
        # A batch of this size is the largest chunk there can be.
        deep = [row for row in rows["rows"] if row["kind"] == "prefill" and row["depth"]]
        assert {row["n_tokens"] for row in deep} == {24, 40, 256}
        for arm, found in ratios.items():
            job = {"arm": arm, "point": POINT.model_dump(), "seed": block, "warmup_tokens": 64}
            measured = call("runner.bench.worker", {**load, **job})
            predicted = _prediction(rows["rows"], measured["hops"])
            found.append(predicted / measured["block"]["wall_s"])
    for arm, found in ratios.items():
        assert abs(statistics.median(found) - 1) < NEAR, (arm, found)
