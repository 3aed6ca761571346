"""The high-level binding with its own prefix matching: what most people use from Python today."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from runner.arms.host import WARMUP_TURN
from runner.arms.meter import Meter
from runner.arms.served import in_kv, shared
from runner.catalog import Point
from runner.engine.backend import TokenIds
from runner.engine.parameters import LoadParameters
from runner.engine.requests import Turn
from runner.engine.symbols import load_high_level
from runner.errors import LivekvError
from runner.serving.settings import ServerSettings
from runner.workloads.tool_loop import Hop, Script

_ALL_LAYERS = -1


class BindingHost:
    """A `llama_cpp.Llama` whose evaluated tokens are counted where it evaluates them."""

    def __init__(self, parameters: LoadParameters) -> None:
        high_level = load_high_level(parameters.lib_dir)
        counts = self

        class Counting(high_level.Llama):  # type: ignore[misc, name-defined]
            """Counts the tokens of every call that reaches the library."""

            def eval(self, tokens: Sequence[int]) -> None:
                counts.n_evaluated += len(tokens)
                super().eval(tokens)

        self.n_evaluated = 0
        self.llama: Any = Counting(
            model_path=str(parameters.model_path),
            n_gpu_layers=_ALL_LAYERS if parameters.n_gpu_layers < 0 else parameters.n_gpu_layers,
            n_ctx=parameters.n_ctx,
            n_batch=parameters.n_batch,
            n_ubatch=parameters.n_ubatch,
            n_threads=parameters.n_threads,
            n_threads_batch=parameters.n_threads,
            flash_attn=parameters.flash_attention != "off",
            verbose=False,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """See `Host`."""
        return {}

    def warm_up(self, n_tokens: int) -> None:
        """See `Host`."""
        if n_tokens:
            self.speak(np.arange(n_tokens, dtype=np.int32), WARMUP_TURN)
        self.forget()

    def forget(self) -> None:
        """Start anew: nothing matches an empty past."""
        self.llama.reset()
        self.n_evaluated = 0

    def speak(self, prompt: TokenIds, n_tokens: int) -> tuple[list[int], float]:
        """Generate greedily; the ids, and the moment the first was known."""
        ids: list[int] = []
        first_at = 0.0
        for token in self.llama.generate(prompt.tolist(), temp=0.0, top_k=1, repeat_penalty=1.0):
            if not ids:
                first_at = time.perf_counter()
            ids.append(int(token))
            if len(ids) == n_tokens:
                break
        return ids, first_at

    def check(self) -> None:
        """See `Host`."""

    def close(self) -> None:
        """See `Host`."""
        self.llama.close()


class LlamaCppPython:
    """State kept by prefix matching, in process, one token at a time through Python."""

    name: ClassVar[str] = "llama_cpp_python"
    about: ClassVar[str] = "The high-level Llama of llama-cpp-python, with its own prefix matching."
    speaks_freely: ClassVar[bool] = True

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """See `Arm`."""
        return point.prefix + point.hops * (1 + point.result)

    @classmethod
    def open(cls, parameters: LoadParameters, _: ServerSettings) -> BindingHost:
        """See `Arm`."""
        return BindingHost(parameters)

    def run(self, host: BindingHost, script: Script, meter: Meter) -> None:
        """See `Arm`."""
        host.forget()
        held = np.empty(0, dtype=np.int32)
        with meter.session():
            for hop in script.hops:
                meter.start_hop()
                turn, ids = _turn(host, hop)
                said = np.concatenate([hop.context, hop.output])
                known, _ = shared(held, hop.context)  # its ids are all known
                meter.end_hop(hop.index, len(hop.new), turn, said, known)
                held = in_kv(hop, ids)


def _turn(host: BindingHost, hop: Hop) -> tuple[Turn, list[int]]:
    before = host.n_evaluated
    started = time.perf_counter()
    ids, first_at = host.speak(hop.context, len(hop.output))
    ended = time.perf_counter()
    if len(ids) != len(hop.output):
        raise LivekvError(f"llama-cpp-python generated {len(ids)} tokens at hop {hop.index}")
    n_evaluated = host.n_evaluated - before
    turn = Turn(
        sampled=tuple(ids),
        fed=tuple(hop.output.tolist()),
        n_context=len(hop.context),
        # What it evaluated beyond its own turn was prompt; the rest of the prompt it had.
        n_reused=len(hop.context) - (n_evaluated - (len(ids) - 1)),
        n_evaluated=n_evaluated,
        wall_s=ended - started,
        ttft_s=first_at - started,
        prefill_s=first_at - started,
        decode_s=ended - first_at,
        stop_reason="length",
    )
    return turn, ids
