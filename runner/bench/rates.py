"""Our prefill and decode rates beside llama-bench's, same build, same depth, interleaved."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from typing import Any, Final

import numpy as np

from runner.bench.isolated import Job, call, serve
from runner.bench.worker import load_parameters, to_job
from runner.engine.engine import Engine
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.engine.symbols import LIBRARY_VARIABLE
from runner.errors import EnvironmentProblem

PREFILL: Final = 512
DECODE: Final = 128
_ALL_LAYERS: Final = 999
Rates = tuple[float, float]
"""Prefill and decode, tokens/s."""


def ours(parameters: LoadParameters, depth: int) -> Rates:
    """Rates of a session on the engine at `depth` tokens of context."""
    sized = replace(parameters, n_ctx=depth + PREFILL + DECODE + 1, n_seq_max=1)
    answer = call("runner.bench.rates", {"load": to_job(sized), "depth": depth})
    return answer["prefill"], answer["decode"]


def measure(job: Job) -> dict[str, Any]:
    """The child's side of `ours`: a warm-up, then one prefill and one run of decodes."""
    backend = LlamaCppBackend(load_parameters(job))
    engine = Engine(backend)
    depth: int = job["depth"]
    tokens = np.arange(1, max(PREFILL, depth) + 1, dtype=np.int32) + 100
    rates: list[float] = []
    for count, generated in ((PREFILL, 1), (1, DECODE + 1)):
        with engine.session() as session:
            if depth:
                session.send(tokens[:depth])
                session.generate(0)
            # As llama-bench does: exactly `count` tokens, starting exactly at `depth`. One cell
            # more would make attention read another 256.
            session.send(tokens[:count])
            turn = session.generate(generated, ignore_end=True)
        # The first token of a turn ends its prefill; the others are pure decode.
        rates.append(count / turn.prefill_s if count > 1 else DECODE / turn.decode_s)
    backend.close()
    return {"prefill": rates[0], "decode": rates[1]}


def llama_bench(parameters: LoadParameters, depth: int) -> Rates:
    """Rates of llama-bench from the same library.

    Raises:
        EnvironmentProblem: the build has no llama-bench, or it failed; with its last line.
    """
    program = parameters.lib_dir / "llama-bench"
    offloaded = _ALL_LAYERS if parameters.n_gpu_layers < 0 else parameters.n_gpu_layers
    command = [
        *(str(program), "-m", str(parameters.model_path), "-o", "json", "-r", "1"),
        *("-t", str(parameters.n_threads), "-ngl", str(offloaded)),
        *("-b", str(parameters.n_batch), "-ub", str(parameters.n_ubatch)),
        *("-p", str(PREFILL), "-n", str(DECODE), "-d", str(depth)),
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
    rows = json.loads(done.stdout)
    by_test = {bool(row["n_gen"]): float(row["avg_ts"]) for row in rows}
    return by_test[False], by_test[True]


if __name__ == "__main__":
    serve(measure)
