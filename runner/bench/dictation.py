"""What the model itself says at every hop of a point: a script for arms that speak freely.

A server generates what it likes. Where that leaves a made-up script, its next prompt no longer
begins with what its slot holds, and it computes tokens that no other arm computes. A script of the
model's own greedy turns keeps it on the path of the others, but for near-ties between two tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.bench.isolated import Job, serve
from runner.bench.worker import load_parameters
from runner.catalog import Point
from runner.engine.backend import NativeBackend
from runner.engine.engine import Engine
from runner.engine.llamacpp import LlamaCppBackend
from runner.workloads.tool_loop import build_script


class GreedyWithoutEnd:
    """The most likely token that does not end the turn, as a server with ``ignore_eos`` chooses."""

    is_greedy = False

    def __init__(self, end_ids: frozenset[int]) -> None:
        self._end_ids = sorted(end_ids)

    def sample(self, row: NDArray[np.float32]) -> int:
        """See `Sampler`."""
        best = int(row.argmax())
        if best not in self._end_ids:
            return best
        allowed = row.copy()
        allowed[self._end_ids] = -np.inf
        return int(allowed.argmax())


def dictate(backend: NativeBackend, point: Point, seed: int) -> list[list[int]]:
    """Greedy turns of the whole loop on live KV, one list of ids a hop."""
    script = build_script(point, backend, seed)
    sampler = GreedyWithoutEnd(backend.vocabulary.end_ids)
    outputs = []
    with Engine(backend).session() as session:
        for hop in script.hops:
            if hop.index == 0:
                session.send(hop.new)
            else:
                session.append_tool_result(hop.new)
            turn = session.generate(point.generate, sampler=sampler, ignore_end=True)
            outputs.append(list(turn.sampled))
    return outputs


def dictation(job: Job) -> dict[str, Any]:
    """The job of a process of its own.

    Args:
        job: ``load`` (LoadParameters), ``point``, ``seed``.

    Returns:
        ``outputs``, as `dictate`.
    """
    backend = LlamaCppBackend(load_parameters(job))
    try:
        return {"outputs": dictate(backend, Point(**job["point"]), job["seed"])}
    finally:
        backend.close()


if __name__ == "__main__":
    serve(dictation)
