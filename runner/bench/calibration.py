"""What prefill, a hop and decode cost at which depth, measured beside the arms on other data.

The closure of a run predicts from these rows what tokens that were not evaluated would have cost.
They are taken in every block, on the engine path of the arms, so that drift and the engine's own
overhead are in both. Three kinds of rows, all in seconds on the scheduler's clock:

* ``prefill``: a batch of prompt tokens, to the end of its decode. First some shorter than a chunk
  at depth 0, which tell what the last, partial chunk of a prompt costs; then full chunks, deeper
  and deeper. On a CPU a chunk is ``n_ubatch``, what the library computes at once; where layers
  are offloaded it is ``n_batch``, because there the library overlaps the parts of a batch.
  Behind every chunk's turn stands a partial chunk: a kernel that changes with the rows of a batch
  (llama.cpp's flash attention on a CPU does at 64) makes tokens of a small batch much dearer there.
* ``hop``: what live KV feeds after a tool's result, with its first logits, after every chunk.
* ``decode``: the single-token steps of the turn that follows, timed as a whole.

Nothing is rolled back: a turn stays in KV and the next chunk starts behind it. Models that cannot
roll back are measured like all others, and depths fall on no multiple of the cell granularity.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

import numpy as np

from runner.arms.host import EngineHost
from runner.bench.contention import Reader, Witness, read_sample
from runner.bench.isolated import Job, serve
from runner.bench.worker import load_parameters
from runner.catalog import Point
from runner.engine.backend import InvalidRequest, NativeBackend, TokenIds
from runner.engine.engine import Engine
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.requests import Turn
from runner.engine.scheduler import Clock
from runner.engine.session import Session

Row = dict[str, Any]
"""``kind``, ``depth``, ``n_tokens``, ``repeat``, ``seconds`` as in `records.CALIBRATION`."""

# Kernels work in tiles of 32 or 64 rows: a size in the middle of one flatters nobody.
PARTS: Final = (1 / 32, 3 / 32, 5 / 32, 10 / 32, 22 / 32)
"""Partial chunks that are measured at depth 0, as shares of a chunk."""
DEEP_PARTS: Final = (3 / 32, 5 / 32)
"""Partial chunks that are measured at depth too, in turn: below and above an eighth of a chunk."""
CLOSE: Final = 0.1
"""A part this near to a size that a point uses is left out."""
SMALL: Final = 1 / 8
"""Parts up to this share of a chunk are over too soon to be timed once."""
REPEATS: Final = 3
CHUNKS_MIN: Final = 2
"""A cost that grows with depth needs two depths."""


def calibration_job(points: Sequence[Point], seed: int, warmup_tokens: int) -> Job:
    """The job that calibrates for `points`, without its ``load``.

    ``depth`` is the deepest any of them goes; ``n_hop`` and ``n_generate`` are those of that point,
    as nearly all of the work is there. ``short`` are the prefixes: `calibrate` uses those that are
    shorter than a chunk.
    """
    deepest = max(points, key=lambda point: point.n_tokens)
    return {
        "warmup_tokens": warmup_tokens,
        "depth": deepest.n_tokens,
        "n_hop": deepest.result + 1,
        "n_generate": max(2, deepest.generate),
        "seed": seed,
        "short": sorted({point.prefix for point in points}),
    }


def calibrate(job: Job) -> dict[str, Any]:
    """Load the model and measure.

    Args:
        job: ``load`` (LoadParameters), and what `calibration_job` gives.

    Returns:
        ``rows``, and ``block``: when it started, seconds of loading, what the witness saw.

    Raises:
        InvalidRequest: the context cannot hold two chunks, each with its turn.
    """
    parameters = load_parameters(job)
    started = time.perf_counter()
    backend = LlamaCppBackend(parameters)
    load_s = time.perf_counter() - started
    at_once = parameters.n_batch if parameters.n_gpu_layers else parameters.n_ubatch
    chunk = min(at_once, backend.capabilities.n_batch)
    try:
        measured = measure(backend, job, chunk)
    finally:
        backend.close()
    measured["block"]["load_s"] = load_s
    return measured


def measure(
    backend: NativeBackend,
    job: Job,
    chunk: int,
    *,
    clock: Clock = time.perf_counter,
    read: Reader = read_sample,
) -> dict[str, Any]:
    """Warm up and take every row.

    Args:
        backend: a fresh one; it is not closed.
        job: as `calibrate`; its ``load`` is not read.
        chunk: tokens of a full chunk, made smaller where the context could not hold two.
        clock: seconds.
        read: what the witness reads, before the first row and after the last.

    Returns:
        As `calibrate`, without ``load_s``.

    Raises:
        InvalidRequest: as `calibrate`.
    """
    host = EngineHost(backend, clock)
    host.warm_up(job["warmup_tokens"])
    probe = _Probe(host.engine, job, chunk)
    started_at = datetime.now(UTC).isoformat()
    witness = Witness(read)
    with witness:
        rows = [*probe.parts(), *probe.deeper()]
    probe.engine.check()
    return {"rows": rows, "block": {"started_at": started_at, **asdict(witness.seen)}}


class _Probe:
    """The measurements of one calibration, on one backend."""

    def __init__(self, engine: Engine, job: Job, chunk: int) -> None:
        self.engine = engine
        self._n_hop: int = job["n_hop"]
        self._n_generate: int = job["n_generate"]
        self._round = self._n_hop + self._n_generate
        n_ctx = engine.backend.capabilities.n_ctx
        largest = n_ctx // CHUNKS_MIN - self._round
        if largest < 1:
            raise InvalidRequest(
                f"a calibration needs two chunks and two turns of {self._round} tokens, "
                f"n_ctx is {n_ctx}; use n_ctx >= {CHUNKS_MIN * (self._round + 1)}"
            )
        self._chunk = min(chunk, largest)
        self._round += self._chunk
        self._deep = deep_parts(self._chunk, self._n_hop, n_ctx // CHUNKS_MIN - self._round)
        self._round += max(self._deep, default=0)
        self._depth: int = min(job["depth"], n_ctx - self._round)
        self._sizes = part_sizes(self._chunk, job["short"])
        self._rng = np.random.default_rng(job["seed"])

    def _ids(self, n_tokens: int) -> TokenIds:
        """Ids that are not the workload's; speed does not depend on which they are."""
        n_vocab = self.engine.backend.vocabulary.n_tokens
        return self._rng.integers(0, n_vocab, n_tokens, dtype=np.int32)

    def parts(self) -> Iterator[Row]:
        """Prompts shorter than a chunk, and a turn, from depth 0."""
        with self.engine.session() as session:
            for size in self._sizes:
                for repeat in range(REPEATS if size <= SMALL * self._chunk else 1):
                    session.reset()
                    session.send(self._ids(size))
                    turn = session.generate(1, ignore_end=True)
                    yield _row("prefill", 0, size, turn.prefill_s, repeat)
            session.reset()
            yield from self._turn(session)

    def deeper(self) -> Iterator[Row]:
        """Full chunks as deep as the longest point goes, after each a turn and a partial chunk."""
        with self.engine.session() as session:
            for n_chunks in count():
                if n_chunks >= CHUNKS_MIN and session.n_past >= self._depth:
                    return
                yield self._batch(session, self._chunk)
                yield from self._turn(session)
                if self._deep:
                    yield self._batch(session, self._deep[n_chunks % len(self._deep)])

    def _batch(self, session: Session, n_tokens: int) -> Row:
        depth = session.n_past
        # The last token of the turn before is decoded with the batch, as in a tool loop.
        waiting = len(session.tokens) - depth
        session.send(self._ids(n_tokens - waiting))
        return _row("prefill", depth, n_tokens, session.generate(0).prefill_s)

    def _turn(self, session: Session) -> Iterator[Row]:
        depth = session.n_past
        session.send(self._ids(self._n_hop))
        turn: Turn = session.generate(self._n_generate, script=self._ids(self._n_generate).tolist())
        yield _row("hop", depth, self._n_hop, turn.prefill_s)
        yield _row("decode", depth + self._n_hop, self._n_generate - 1, turn.decode_s)


def deep_parts(chunk: int, n_hop: int, room: int) -> list[int]:
    """Tokens of the partial chunks to measure at depth; none where `room` cannot hold them.

    A hop has rows of its own, and a batch needs a token beside the one that waits.
    """
    wanted = {round(share * chunk) for share in DEEP_PARTS} - {n_hop}
    sizes = sorted(size for size in wanted if 1 < size < chunk)
    return sizes if max(sizes, default=0) <= room else []


def part_sizes(chunk: int, short: Sequence[int]) -> list[int]:
    """Tokens of the partial chunks to measure at depth 0: those of `short`, and a few more."""
    used = {size for size in short if size < chunk}
    parts = {max(1, round(share * chunk)) for share in PARTS}
    far = {part for part in parts if all(abs(part - size) > CLOSE * size for size in used)}
    return sorted(size for size in used | far if size < chunk)


def _row(kind: str, depth: int, n_tokens: int, seconds: float, repeat: int = 0) -> Row:
    return {
        "kind": kind,
        "depth": depth,
        "n_tokens": n_tokens,
        "repeat": repeat,
        "seconds": seconds,
    }


if __name__ == "__main__":
    serve(calibrate)
