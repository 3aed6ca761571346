"""Bring-up: a backend on this machine with this model, primitive by primitive.

Each check has a measured value and says what its failure would mean. The checks run in a process
of their own, so that an abort of the library is a failed check and not the end of the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np

from runner.bench.isolated import Job, JobFailed, call, serve
from runner.bench.worker import load_parameters, to_job
from runner.engine import symbols
from runner.engine.backend import Entry, Logits, NativeBackend, TokenIds
from runner.engine.contract import CASES, TOLERANCE, Open, distance, feed, feed_split, some_tokens
from runner.engine.engine import Engine
from runner.engine.fake import FakeBackend
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters

Row = dict[str, Any]
_PREFILL: Final = 512
_DECODE: Final = 32


class Measured(NamedTuple):
    """What a check found; `absent` when the model lacks the capability."""

    value: float | None
    unit: str | None
    detail: str
    absent: bool = False


@dataclass(frozen=True)
class BringUp:
    """All checks of a model, as rows of `records.CHECKS` without the run id."""

    checks: list[Row]
    system_info: str | None
    """What the library says it uses of this machine; None when it could not be loaded."""

    @property
    def failed(self) -> list[Row]:
        """The checks that did not pass, in their order."""
        return [row for row in self.checks if row["status"] == "fail"]

    @property
    def rates(self) -> tuple[float, float]:
        """Prefill in tokens/s and decode in s/token.

        Raises:
            JobFailed: a check that measures them did not pass.
        """
        values = {row["check"]: row["value"] for row in self.checks if row["status"] == "pass"}
        try:
            return float(values["multi-token prefill"]), float(values["single-token decode"]) / 1e3
        except KeyError as missing:
            raise JobFailed(f"bring-up measured no {missing}") from None


class Rig:
    """The loaded model under test and how to open more of it."""

    def __init__(self, parameters: LoadParameters) -> None:
        self.parameters = replace(parameters, n_ctx=2048, n_batch=512, n_ubatch=512, n_seq_max=4)
        self.backend: LlamaCppBackend | None = None

    @property
    def loaded(self) -> LlamaCppBackend:
        """The backend, loaded at the first use."""
        if self.backend is None:
            self.backend = LlamaCppBackend(self.parameters)
        return self.backend

    @property
    def opener(self) -> Open:
        """Opens further backends of the same model with other sizes."""

        def open_backend(
            *, n_ctx: int = 256, n_batch: int = 64, n_seq_max: int = 4, unified_kv: bool = True
        ) -> NativeBackend:
            return LlamaCppBackend(
                replace(
                    self.parameters,
                    n_ctx=n_ctx,
                    n_batch=n_batch,
                    n_seq_max=n_seq_max,
                    unified_kv=unified_kv,
                )
            )

        return open_backend

    def clear(self) -> None:
        """Empty every sequence between two checks."""
        for seq in range(self.loaded.capabilities.n_seq_max):
            self.loaded.seq_remove(seq)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _library(rig: Rig) -> Measured:
    binding = symbols.load_binding(rig.parameters.lib_dir)
    remove = symbols.require(binding, "llama_memory_seq_rm", "llama_kv_self_seq_rm")
    symbols.state_calls(binding)
    name = getattr(remove, "__name__", "llama_memory_seq_rm")
    return Measured(None, None, f"{name} and its family from {rig.parameters.lib_dir.name}")


def _construct(rig: Rig) -> Measured:
    started = time.perf_counter()
    can = rig.loaded.capabilities
    seconds = time.perf_counter() - started
    kind = "recurrent" if can.recurrent else "attention"
    if can.sliding_window:
        kind = f"sliding window of {can.sliding_window}"
    rolls = "rolls back" if can.can_roll_back else "cannot roll back"
    return Measured(
        seconds, "s", f"{kind}, {rolls}, {can.n_seq_max} sequences, {can.n_cells} cells"
    )


def _tokenize(rig: Rig) -> Measured:
    backend = rig.loaded
    text = "def f(x):\n    return [x, 'naïve', '漢字', '🙂']\n".encode() + b" " * 200 + b"X"
    back = backend.detokenize(backend.tokenize(text))
    _require(back in {text, b" " + text}, f"{text!r} came back as {back!r}")
    longest = max(len(backend.detokenize([t])) for t in range(backend.vocabulary.n_tokens))
    n_tokens = backend.vocabulary.n_tokens
    return Measured(
        n_tokens, "entries", f"every entry detokenizes, the longest has {longest} bytes"
    )


def _single_decode(rig: Rig) -> Measured:
    backend = rig.loaded
    tokens = some_tokens(backend, _DECODE + 1)
    feed(backend, 0, tokens[:1])
    started = time.perf_counter()
    for at in range(1, _DECODE + 1):
        row = backend.decode([Entry(0, at, tokens[at : at + 1], want_logits=True)])
    seconds = time.perf_counter() - started
    _require(bool(np.isfinite(row).all()), "logits are not finite")
    return Measured(1e3 * seconds / _DECODE, "ms/token", f"mean of {_DECODE} single-token decodes")


def _prefill(rig: Rig) -> Measured:
    backend = rig.loaded
    n = min(_PREFILL, backend.capabilities.n_batch)
    tokens = some_tokens(backend, n)
    started = time.perf_counter()
    row = feed(backend, 0, tokens)
    seconds = time.perf_counter() - started
    _require(bool(np.isfinite(row).all()), "logits are not finite")
    return Measured(n / seconds, "tokens/s", f"one batch of {n} tokens")


def _long_prefill(rig: Rig) -> Measured:
    small = rig.opener(n_ctx=1024, n_batch=64)
    tokens = some_tokens(small, 300)
    with Engine(small).session() as session:
        session.send(tokens)
        turn = session.generate(1, ignore_end=True)
    small.close()
    cold = feed(rig.loaded, 0, tokens)
    _require(turn.n_evaluated == len(tokens), f"{turn.n_evaluated} of {len(tokens)} evaluated")
    same = "the same" if int(cold.argmax()) == turn.sampled[0] else "another"
    return Measured(len(tokens), "tokens", f"through n_batch 64; {same} next token as one batch")


def _two_sequences(rig: Rig) -> Measured:
    backend = rig.loaded
    a, b, c = (some_tokens(backend, 20, start) for start in (0, 11, 27))
    with_b = backend.decode([Entry(0, 0, a, True), Entry(1, 0, b, True)]).copy()
    with_c = backend.decode([Entry(2, 0, a, True), Entry(3, 0, c, True)])
    _require(distance(with_b[1], with_c[1]) > TOLERANCE, "both sequences gave the same logits")
    return _close_enough(distance(with_b[0], with_c[0]), "one sequence beside two others in turn")


def _close_enough(far: float, what: str) -> Measured:
    _require(far < TOLERANCE, f"{what}: logits differ by {far:.3g} sd, at most {TOLERANCE}")
    return Measured(far, "sd of logits", f"{what}, same batch shapes, at most {TOLERANCE}")


def _cold(rig: Rig, tokens: TokenIds, at: int) -> Logits:
    """The last logits of `tokens` in empty memory, in batches cut at `at`; it is left empty.

    What it is held against must lie in the same cells: without flash attention llama.cpp sums over
    cells in the order of their places, and in other places the same tokens round otherwise.
    """
    row = feed_split(rig.loaded, 0, tokens, at).copy()
    rig.clear()
    return row


def _copy_and_continue(rig: Rig) -> Measured:
    backend = rig.loaded
    tokens = some_tokens(backend, 80)
    cold = _cold(rig, tokens, 60)
    feed(backend, 0, tokens[:60])
    backend.seq_copy(0, 1)
    _require(backend.seq_end(1) == 60, f"the copy ends at {backend.seq_end(1)}, not 60")
    far = distance(cold, feed(backend, 1, tokens[60:]))
    return _close_enough(far, "copy of 60 tokens continued at position 60, against a cold run")


def _roll_back(rig: Rig) -> Measured:
    backend = rig.loaded
    if not backend.capabilities.can_roll_back:
        return Measured(
            None, None, "memory refuses a partial removal; sessions prefill again", True
        )
    tokens = some_tokens(backend, 80)
    cold = _cold(rig, tokens, 50)
    feed_split(backend, 0, np.concatenate([tokens[:50], tokens[:30]]), 50)
    _require(backend.seq_remove(0, 50), "the library refused what it accepted at load")
    _require(backend.seq_end(0) == 50, f"the sequence ends at {backend.seq_end(0)}, not 50")
    far = distance(cold, feed(backend, 0, tokens[50:]))
    return _close_enough(far, "30 tokens taken back, 30 others fed, against a cold run")


def _state_here(rig: Rig) -> Measured:
    backend = rig.loaded
    tokens = some_tokens(backend, 80)
    cold = _cold(rig, tokens, 60)
    feed(backend, 0, tokens[:60])
    state = backend.state_get(0)
    rig.clear()
    backend.state_set(1, state)
    far = distance(cold, feed(backend, 1, tokens[60:]))
    return _close_enough(far, f"{state.size} bytes of state restored, against a cold run")


def _state_elsewhere(rig: Rig) -> Measured:
    with Engine(rig.loaded).session() as session, TemporaryDirectory() as folder:
        session.send(some_tokens(rig.loaded, 60))
        session.generate(4, ignore_end=True)
        blob = session.save_state()
        here = session.generate(8, ignore_end=True).sampled
        path = Path(folder) / "state.lkvs"
        path.write_bytes(blob)
        job = {"restore": str(path), "load": to_job(rig.parameters), "generate": 8}
        there = tuple(call("runner.bringup", job)["sampled"])
    _require(here == there, f"a new process went on with {there}, this one with {here}")
    return Measured(len(blob), "bytes", "framed, restored in a new process, the same 8 tokens")


def _session(rig: Rig) -> Measured:
    with Engine(rig.loaded).session() as session:
        session.send(some_tokens(rig.loaded, 50))
        session.generate(8, ignore_end=True)
        session.append_tool_result(some_tokens(rig.loaded, 20, 9))
        turn = session.generate(8, ignore_end=True)
    expected = 1 + 20 + 7  # the waiting token, the result, all but the last generated
    _require(turn.n_evaluated == expected, f"{turn.n_evaluated} evaluated, {expected} expected")
    return Measured(
        turn.n_evaluated, "tokens", f"computed for a result of 20; {turn.n_reused} reused"
    )


def _contract(rig: Rig) -> Measured:
    def fake(
        *, n_ctx: int = 256, n_batch: int = 64, n_seq_max: int = 4, unified_kv: bool = True
    ) -> NativeBackend:
        return FakeBackend(n_ctx=n_ctx, n_batch=n_batch, n_seq_max=n_seq_max, unified_kv=unified_kv)

    for opener in (fake, rig.opener):
        for case in CASES:
            case(opener)
    return Measured(len(CASES), "cases", "the fake and this backend keep the same contract")


Check = Callable[[Rig], Measured]

CHECKS: Final[tuple[tuple[str, Check, str], ...]] = (
    ("library and symbols", _library, "the binding does not fit the library: build it again"),
    ("construct", _construct, "the model or its context cannot be made on this machine"),
    ("tokenize round trip", _tokenize, "ids and text disagree: prompts would be damaged"),
    ("single-token decode", _single_decode, "the model does not compute"),
    ("multi-token prefill", _prefill, "prompts do not compute"),
    ("prefill over n_batch", _long_prefill, "long prompts are cut or would abort the process"),
    ("two sequences, one batch", _two_sequences, "batching mixes conversations up"),
    ("seq_copy and continue", _copy_and_continue, "a shared prefix would change the answer"),
    ("seq_remove and roll back", _roll_back, "a turn cannot be taken back cleanly"),
    ("state, same process", _state_here, "a saved session would go on differently"),
    ("state, new process", _state_elsewhere, "persistence does not survive a restart"),
    ("session and tool result", _session, "a hop computes more than what is new"),
    ("contract, fake and real", _contract, "tests on the fake say nothing about this backend"),
)


def run_checks(job: Job) -> dict[str, Any]:
    """The child's side of `bring_up`: every check until the model cannot be constructed."""
    rig = Rig(load_parameters(job))
    checks = list(_rows(rig))
    info = rig.backend.system_info if rig.backend else None
    return {"checks": checks, "system_info": info}


def _rows(rig: Rig) -> Iterator[Row]:
    for name, check, meaning in CHECKS:
        started = time.perf_counter()
        try:
            found = check(rig)
            status = "absent" if found.absent else "pass"
        except Exception as error:
            found, status = Measured(None, None, str(error) or type(error).__name__), "fail"
        yield {
            "check": name,
            "status": status,
            "value": None if found.value is None else float(found.value),
            "unit": found.unit,
            "detail": found.detail,
            "meaning": meaning,
            "seconds": time.perf_counter() - started,
        }
        if rig.backend is None and status == "fail":
            return
        if rig.backend is not None:
            rig.clear()


def restore(job: Job) -> dict[str, Any]:
    """The child's side of "state, new process": load a framed state and go on."""
    backend = LlamaCppBackend(load_parameters(job))
    with Engine(backend).session() as session:
        session.load_state(Path(job["restore"]).read_bytes())
        sampled = session.generate(job["generate"], ignore_end=True).sampled
    backend.close()
    return {"sampled": list(sampled)}


def bring_up(parameters: LoadParameters) -> BringUp:
    """Run every check in a process of its own.

    Raises:
        JobDied: the library took the process down; the message names the signal.
        JobFailed: the checks could not be started.
    """
    return BringUp(**call("runner.bringup", {"load": to_job(parameters)}))


if __name__ == "__main__":
    serve(lambda job: restore(job) if "restore" in job else run_checks(job))
