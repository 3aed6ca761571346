"""The physical floor: what llama-bench of the same build takes for the same tokens, nothing else.

Its rows stand beside the calibration of our engine in table ``calibration``, as kinds of their own:
``floor_prefill`` (a full chunk), ``floor_hop`` (what a hop feeds), ``floor_decode`` (single-token
steps), each at depth 0 and at the deepest point, so that a line over depth can be laid through.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from runner.bench.isolated import Job, serve
from runner.bench.rates import run_llama_bench
from runner.bench.worker import load_parameters
from runner.catalog import Point

REPEATS: Final = 3


def floor_job(points: Sequence[Point]) -> Job:
    """The job for `points`, without its ``load``."""
    deepest = max(points, key=lambda point: point.n_tokens)
    return {
        "depth": deepest.n_tokens,
        "n_hop": deepest.result + 1,
        "n_steps": max(1, deepest.generate - 1),
    }


def floor(job: Job) -> dict[str, Any]:
    """Run llama-bench once.

    Args:
        job: ``load`` (LoadParameters), and what `floor_job` gives.

    Returns:
        ``rows`` as `records.CALIBRATION`, without run and block; ``block``: when it started.

    Raises:
        EnvironmentProblem: the build has no llama-bench, or it failed.
    """
    parameters = load_parameters(job)
    chunk, n_hop, n_steps = parameters.n_ubatch, job["n_hop"], job["n_steps"]
    started_at = datetime.now(UTC).isoformat()
    found = run_llama_bench(
        parameters,
        *("-p", f"{n_hop},{chunk}", "-n", str(n_steps)),
        *("-d", f"0,{job['depth']}", "-r", str(REPEATS)),
    )
    kinds = {chunk: "floor_prefill", n_hop: "floor_hop"}
    rows = [row for one in found for row in _rows(one, kinds)]
    return {"rows": rows, "block": {"started_at": started_at}}


def _rows(one: dict[str, Any], kinds: dict[int, str]) -> list[dict[str, Any]]:
    n_tokens = one["n_prompt"] or one["n_gen"]
    kind = kinds[n_tokens] if one["n_prompt"] else "floor_decode"
    head = {"kind": kind, "depth": one["n_depth"], "n_tokens": n_tokens}
    return [
        {**head, "repeat": repeat, "seconds": ns / 1e9}
        for repeat, ns in enumerate(one["samples_ns"])
    ]


if __name__ == "__main__":
    serve(floor)
