"""One arm, one point, one block, in a process of its own: load, warm up, run, answer."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from runner.arms import ARMS, Arm
from runner.arms.host import Host
from runner.arms.meter import HopReading, Meter
from runner.bench.contention import Reader, Witness, read_sample
from runner.bench.isolated import Job, serve
from runner.catalog import Point, choose
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.engine.scheduler import Clock
from runner.engine.states import token_digest
from runner.serving.settings import ServerSettings
from runner.workloads.tool_loop import Hop, Script, build_script


def load_parameters(job: Job) -> LoadParameters:
    """The job's ``load`` table with its paths as paths."""
    table = dict(job["load"])
    table["model_path"] = Path(table["model_path"])
    table["lib_dir"] = Path(table["lib_dir"])
    return LoadParameters(**table)


def to_job(parameters: LoadParameters) -> dict[str, Any]:
    """The reverse of `load_parameters`, for JSON."""
    return asdict(parameters) | {
        "model_path": str(parameters.model_path),
        "lib_dir": str(parameters.lib_dir),
    }


def run_block(job: Job) -> dict[str, Any]:
    """Run one arm once.

    Args:
        job: ``load`` (LoadParameters), ``arm``, ``point``, ``seed``, ``warmup_tokens``; ``outputs``
            where the script's turns are the model's own, ``server`` (ServerSettings) where an arm
            runs on one.

    Returns:
        ``block`` and ``hops``: the measured columns of `records.BLOCKS` and `records.HOPS`.
    """
    arm = ARMS[choose("arm", job["arm"], ARMS)]()
    parameters = load_parameters(job)
    script = _script(job, parameters)
    started = time.perf_counter()
    host = arm.open(parameters, ServerSettings(**job.get("server") or {}))
    load_s = time.perf_counter() - started
    try:
        measured = measure(host, arm, script, job["warmup_tokens"])
    finally:
        host.close()
    measured["block"]["load_s"] = load_s
    return measured


def _script(job: Job, parameters: LoadParameters) -> Script:
    # Loaded for its tokenizer and closed before the arm loads: equal for every arm.
    backend = LlamaCppBackend(replace(parameters, n_ctx=parameters.n_ubatch))
    try:
        return build_script(Point(**job["point"]), backend, job["seed"], job.get("outputs"))
    finally:
        backend.close()


def measure(
    host: Host,
    arm: Arm,
    script: Script,
    warmup_tokens: int,
    *,
    clock: Clock = time.perf_counter,
    read: Reader = read_sample,
) -> dict[str, Any]:
    """Warm up, run `arm` as often as the point says, and keep the run of median wall.

    Args:
        host: what `arm` opened, fresh; it is not closed.
        arm: what to run.
        script: what it is fed.
        warmup_tokens: tokens computed before, on the same host.
        clock: seconds; the engine of the host and the meter share it.
        read: what the witness reads, before the first run and after the last.

    Returns:
        ``block`` and ``hops`` as `run_block`, without ``load_s``.
    """
    host.warm_up(warmup_tokens)
    started_at = datetime.now(UTC).isoformat()
    meters = [Meter(clock) for _ in range(script.point.repeats)]
    witness = Witness(read)
    with witness:
        for meter in meters:
            arm.run(host, script, meter)
    host.check()
    walls = [meter.wall_s for meter in meters]
    middle = meters[walls.index(statistics.median(walls))]
    repeats = {"n_repeats": len(walls), "repeat_wall_s": walls}
    block = _block(script, middle, witness.readings) | {"started_at": started_at} | repeats
    pairs = zip(script.hops, middle.readings, strict=True)
    return {"block": block | host.facts, "hops": [_hop(*pair) for pair in pairs]}


def _block(script: Script, meter: Meter, witnessed: dict[str, Any]) -> dict[str, Any]:
    turns = [reading.turn for reading in meter.readings]
    prefill_s = sum(turn.prefill_s for turn in turns)
    decode_s = sum(turn.decode_s for turn in turns)
    return {
        "script_digest": script.digest,
        "wall_s": meter.wall_s,
        "ttft_s": turns[0].ttft_s,
        "prefill_s": prefill_s,
        "decode_s": decode_s,
        "other_s": meter.wall_s - prefill_s - decode_s,
        "n_evaluated": sum(turn.n_evaluated for turn in turns),
        "n_reused": sum(turn.n_reused for turn in turns),
        "n_generated": sum(turn.n_generated for turn in turns),
        "n_agreed": sum(_agreed(turn.sampled, turn.fed) for turn in turns),
        "peak_rss_bytes": _peak_rss(),
        **witnessed,
    }


def _hop(hop: Hop, reading: HopReading) -> dict[str, Any]:
    turn = reading.turn
    n_context = len(reading.conversation) - turn.n_generated
    return {
        "hop": hop.index,
        "n_new": reading.n_new,
        "n_context": n_context,
        "n_evaluated": turn.n_evaluated,
        "n_reused": turn.n_reused,
        "n_shared": reading.n_shared,
        "n_generated": turn.n_generated,
        "wall_s": reading.wall_s,
        "ttft_s": turn.ttft_s,
        "prefill_s": turn.prefill_s,
        "decode_s": turn.decode_s,
        "digest_in": token_digest(reading.conversation[:n_context]),
        "digest_out": token_digest(np.array(turn.fed, dtype=np.int32)),
        "sampled": list(turn.sampled),
        "n_agreed": _agreed(turn.sampled, turn.fed),
        "stop_reason": turn.stop_reason,
    }


def _agreed(sampled: tuple[int, ...], fed: tuple[int, ...]) -> int:
    return sum(mine == given for mine, given in zip(sampled, fed, strict=True))


def _peak_rss() -> int:
    memory = psutil.Process().memory_info()
    peak = getattr(memory, "peak_wset", None)  # Windows
    if peak is None:
        import resource  # noqa: PLC0415 - there is none on Windows

        # Linux counts in KiB, macOS in bytes.
        scale = 1 if psutil.MACOS else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    return int(peak)


if __name__ == "__main__":
    serve(run_block)
