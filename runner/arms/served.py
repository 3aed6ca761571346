"""What the arms on a llama-server share: the host, and the tool loop over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.arms.host import WARMUP_TURN
from runner.arms.meter import Meter
from runner.engine.backend import TokenIds
from runner.engine.parameters import LoadParameters
from runner.engine.requests import Turn
from runner.serving.client import UNKNOWN, Completion, ServerFailed
from runner.serving.process import ServerProcess
from runner.serving.settings import ServerSettings
from runner.workloads.tool_loop import Hop, Script


class ServerHost:
    """A llama-server with one slot for one agent, its transport measured."""

    def __init__(self, parameters: LoadParameters, settings: ServerSettings) -> None:
        self._settings = settings
        self._server = ServerProcess(parameters, settings)
        self.client = self._server.client
        self._transport_s = self.client.transport_s()
        self._n_requests = 0

    @property
    def facts(self) -> dict[str, Any]:
        """See `Host`."""
        return {
            "transport_s": self._transport_s,
            "n_requests": self._n_requests,
            "peak_rss_bytes": self._server.peak_rss_bytes,
        }

    def warm_up(self, n_tokens: int) -> None:
        """See `Host`."""
        if n_tokens:
            self.client.complete(range(n_tokens), WARMUP_TURN, cache_prompt=False)
        self.forget()

    def forget(self) -> None:
        """Empty the slot. That it is empty is seen in the receipt of the next prompt."""
        self.client.erase()
        self._n_requests = 0

    def complete(self, prompt: TokenIds, n_predict: int) -> Completion:
        """Generate, and count the request."""
        self._n_requests += 1
        return self.client.complete(prompt, n_predict, cache_prompt=self._settings.cache_prompt)

    def check(self) -> None:
        """See `Host`."""
        self._server.require_alive()

    def close(self) -> None:
        """See `Host`."""
        self._server.close()


def run_served(host: ServerHost, script: Script, meter: Meter) -> None:
    """The tool loop over HTTP: every prompt is the whole conversation, as every agent sends it.

    Raises:
        ServerFailed: the server failed, or its receipts do not add up to what was sent.
    """
    host.forget()
    held = np.empty(0, dtype=np.int32)
    with meter.session():
        for hop in script.hops:
            meter.start_hop()
            answer = host.complete(hop.context, len(hop.output))
            known, possible = shared(held, hop.context)
            if answer.n_cached > possible:
                raise ServerFailed(
                    f"llama-server reused {answer.n_cached} tokens at hop {hop.index}, its slot "
                    f"could hold {possible} of them: it was not empty before"
                )
            n_shared = max(known, answer.n_cached)
            meter.end_hop(hop.index, len(hop.new), _turn(hop, answer), _said(hop), n_shared)
            held = in_kv(hop, answer.ids)


def in_kv(hop: Hop, ids: Sequence[int]) -> TokenIds:
    """What is in KV after a turn: the last token it generated is computed with the next prompt."""
    return np.concatenate([hop.context, np.array(ids[:-1], dtype=np.int32)])


def shared(held: TokenIds, prompt: TokenIds) -> tuple[int, int]:
    """Tokens at the beginning that both have: as many as are known to be equal, and may be."""
    n = min(len(held), len(prompt))
    same, told = held[:n] == prompt[:n], held[:n] != UNKNOWN
    return _until(~same), _until(~same & told)


def _until(differs: npt.NDArray[np.bool_]) -> int:
    found = np.flatnonzero(differs)
    return int(found[0]) if found.size else len(differs)


def _said(hop: Hop) -> TokenIds:
    # What the conversation goes on with is the script; what the slot holds may be longer.
    return np.concatenate([hop.context, hop.output])


def _turn(hop: Hop, answer: Completion) -> Turn:
    sent, told = len(hop.context), answer.n_cached + answer.n_prompt
    if told != sent:
        raise ServerFailed(
            f"llama-server was sent {sent} tokens at hop {hop.index} and tells of {told}: "
            f"{answer.n_cached} reused, {answer.n_prompt} computed"
        )
    if len(answer.ids) != len(hop.output):
        raise ServerFailed(
            f"llama-server generated {len(answer.ids)} tokens at hop {hop.index}, "
            f"{len(hop.output)} were asked for"
        )
    return Turn(
        sampled=answer.ids,
        fed=tuple(hop.output.tolist()),
        n_context=sent,
        n_reused=answer.n_cached,
        n_evaluated=answer.n_prompt + len(answer.ids) - 1,
        wall_s=answer.wall_s,
        ttft_s=answer.ttft_s,
        prefill_s=answer.prefill_s,
        decode_s=answer.decode_s,
        stop_reason="length",
    )
