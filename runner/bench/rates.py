"""Our prefill and decode rates beside llama-bench's, same build, same depth, interleaved."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from dataclasses import replace
from typing import Any, Final

import numpy as np

from runner.bench.isolated import Job, call, serve
from runner.bench.worker import load_parameters, to_job
from runner.engine.backend import TokenIds
from runner.engine.engine import Engine
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.engine.session import Session
from runner.engine.symbols import LIBRARY_VARIABLE
from runner.errors import EnvironmentProblem

PREFILL: Final = 512
DECODE: Final = 128
ROUNDS: Final = 3
_ALL_LAYERS: Final = 999
Rates = tuple[float, float]
"""Prefill and decode, tokens/s."""


def ours(parameters: LoadParameters, depth: int) -> Rates:
    """Rates of a session on the engine at `depth` tokens of context."""
    sized = replace(parameters, n_ctx=depth + PREFILL + DECODE + 1, n_seq_max=1)
    answer = call("runner.bench.rates", {"load": to_job(sized), "depth": depth})
    return answer["prefill"], answer["decode"]


def measure(job: Job) -> dict[str, Any]:
    """The child's side of `ours`: a round that does not count, then the mean of the others."""
    backend = LlamaCppBackend(load_parameters(job))
    depth: int = job["depth"]
    tokens = np.arange(1, max(PREFILL, depth) + 1, dtype=np.int32) + 100
    with Engine(backend).session() as session:
        if depth:
            session.send(tokens[:depth])
            session.generate(0)
        rounds = [
            (_prefill(session, tokens[:PREFILL]), _decode(session, tokens[:1]))
            for _ in range(1 + ROUNDS)
        ]
    backend.close()
    counted = rounds[1:]
    return {
        "prefill": statistics.mean(prefill for prefill, _ in counted),
        "decode": statistics.mean(decode for _, decode in counted),
    }


# As llama-bench does, both start exactly at the depth: one cell more would make attention read
# another 256. Then the session is rolled back to it.


def _prefill(session: Session, tokens: TokenIds) -> float:
    depth = len(session.tokens)
    session.send(tokens)
    turn = session.generate(1, ignore_end=True)
    session.roll_back(depth)
    return len(tokens) / turn.prefill_s


def _decode(session: Session, token: TokenIds) -> float:
    depth = len(session.tokens)
    session.send(token)
    # The first token of a turn ends its prefill; the others are pure decode.
    turn = session.generate(DECODE + 1, ignore_end=True)
    session.roll_back(depth)
    return DECODE / turn.decode_s


def llama_bench(parameters: LoadParameters, depth: int) -> Rates:
    """Rates of llama-bench from the same library.

    Raises:
        EnvironmentProblem: the build has no llama-bench, or it failed; with its last line.
    """
    sizes = ("-p", str(PREFILL), "-n", str(DECODE), "-d", str(depth), "-r", str(ROUNDS))
    by_test = {bool(row["n_gen"]): row["avg_ts"] for row in run_llama_bench(parameters, *sizes)}
    return by_test[False], by_test[True]


def run_llama_bench(parameters: LoadParameters, *tests: str) -> list[dict[str, Any]]:
    """What llama-bench reports of `tests`, with the settings that every arm has.

    Raises:
        EnvironmentProblem: the build has no llama-bench, or it failed; with its last line.
    """
    program = parameters.lib_dir / "llama-bench"
    offloaded = _ALL_LAYERS if parameters.n_gpu_layers < 0 else parameters.n_gpu_layers
    command = [
        *(str(program), "-m", str(parameters.model_path), "-o", "json"),
        *("-t", str(parameters.n_threads), "-ngl", str(offloaded)),
        *("-b", str(parameters.n_batch), "-ub", str(parameters.n_ubatch)),
        *("-ctk", parameters.kv_type, "-ctv", parameters.kv_type, *tests),
    ]
    environment = os.environ | {"LD_LIBRARY_PATH": str(parameters.lib_dir)}
    environment.pop(LIBRARY_VARIABLE, None)
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise EnvironmentProblem(f"cannot run {program}: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentProblem(f"llama-bench ended with {done.returncode}: {last}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    serve(measure)
