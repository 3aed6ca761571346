"""What the arms would say freely, on a model that people use, in a process of its own."""

from __future__ import annotations

from runner.bench.isolated import call
from runner.bench.worker import to_job
from runner.building import EngineBuild
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.models import ResolvedModel
from runner.records import check_row

POINT = Point(prefix=64, hops=2, generate=8)


def test_kept_state_speaks_as_its_tokens_do(
    engine_build: EngineBuild, smollm2: ResolvedModel
) -> None:
    load = LoadParameters(
        model_path=smollm2.path,
        model_sha256=smollm2.sha256,
        lib_dir=engine_build.lib_dir,
        library_sha256=engine_build.library_sha256,
        n_ctx=256,
        n_batch=256,
    )
    job = {"load": to_job(load), "point": POINT.model_dump(), "seed": 5}
    rows = call("runner.bench.equivalence", job)["rows"]
    assert [(row["comparison"], row["hop"]) for row in rows] == [
        ("free", 1),
        ("free", 2),
        ("matched", 1),
        ("matched", 2),
    ]
    for row in rows:
        check_row("equivalence", {"run_id": "r", "point": POINT.id, **row})
        assert row["n_tokens"] == 8
        # Batches of other shapes round otherwise, by less than the logits' own spread.
        assert row["max_logit_difference"] < row["logit_sd"]
    for row in rows[2:]:
        assert (row["n_agreed"], row["max_logit_difference"]) == (8, 0.0)
