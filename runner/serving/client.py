"""Asking a llama-server: token ids in, token ids out, with the receipts of each answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import httpx

from runner.engine.backend import TokenIds
from runner.engine.scheduler import Clock
from runner.errors import LivekvError

UNKNOWN: Final = -1
"""Stands for a token that was generated and whose id the server did not send."""

_DATA: Final = "data: "
_PROBES: Final = 30
_SOON_S: Final = 2.0
_CLOSE: Final = {"Connection": "close"}
# A prompt of a whole context may take minutes; a server that died closes the connection at once.
_TIMEOUT: Final = httpx.Timeout(10.0, read=3600.0)


class ServerFailed(LivekvError):
    """The server answered an error, something that is no answer, or not at all."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. Seconds on the client's clock but for `prefill_s` and `decode_s`, the server's.

    The server holds a part back while the text so far ends within a UTF-8 character, and a later
    part carries its own token only. Tokens held back are `UNKNOWN` in `ids`, and a first token held
    back makes `ttft_s` the time of the first part that was sent.
    """

    ids: tuple[int, ...]
    n_cached: int
    """Prompt tokens that were in KV."""
    n_prompt: int
    """Prompt tokens that were computed."""
    ttft_s: float
    wall_s: float
    prefill_s: float
    decode_s: float


class Client:
    """Asks a server, on a new connection each time.

    The server closes a connection some time after a streamed answer; one that is kept may be gone
    just when the next request is sent. On loopback a new one costs less than a token.
    """

    def __init__(self, url: str, clock: Clock = time.perf_counter) -> None:
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT, trust_env=False, headers=_CLOSE)
        self._clock = clock

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def is_ready(self) -> bool:
        """Whether the model is loaded; False while nobody listens yet."""
        try:
            # Whoever else listens there may never answer.
            return self._http.get("/health", timeout=_SOON_S).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def props(self) -> dict[str, Any]:
        """The server's settings."""
        found: dict[str, Any] = self._ask("GET", "/props")
        return found

    def slots(self) -> list[Any]:
        """The server's slots."""
        found: list[Any] = self._ask("GET", "/slots")
        return found

    def erase(self, slot: int = 0) -> None:
        """Forget what a slot holds."""
        self._ask("POST", f"/slots/{slot}", params={"action": "erase"}, json={})

    def transport_s(self) -> float:
        """Median seconds of a request that makes the server do nothing: HTTP, JSON, a thread."""
        took = []
        for _ in range(_PROBES):
            started = self._clock()
            self._ask("POST", "/tokenize", json={"content": ""})
            took.append(self._clock() - started)
        return median(took)

    def complete(
        self, prompt: TokenIds | Sequence[int], n_predict: int, *, cache_prompt: bool
    ) -> Completion:
        """Generate `n_predict` tokens after `prompt`, greedily, on slot 0.

        Raises:
            ServerFailed: an error, an answer that breaks off, or one without its receipts.
        """
        body = {
            "prompt": [int(token) for token in prompt],
            "n_predict": n_predict,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": True,
            "cache_prompt": cache_prompt,
            "id_slot": 0,
            "stream": True,
            "return_tokens": True,
        }
        started = self._clock()
        first = None
        sent: dict[int, int] = {}
        last: dict[str, Any] = {}
        for last in self._stream("/completion", body):
            if tokens := last.get("tokens"):
                first = first or self._clock()
                sent[last["tokens_predicted"] - 1] = tokens[-1]
        wall_s = self._clock() - started
        timings = last.get("timings")
        if not last.get("stop") or timings is None:
            raise ServerFailed("llama-server broke an answer off: its last part is missing")
        return Completion(
            ids=tuple(sent.get(place, UNKNOWN) for place in range(last["tokens_predicted"])),
            n_cached=timings["cache_n"],
            n_prompt=timings["prompt_n"],
            ttft_s=(first or started + wall_s) - started,
            wall_s=wall_s,
            prefill_s=timings["prompt_ms"] / 1000,
            decode_s=timings["predicted_ms"] / 1000,
        )

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            with self._http.stream("POST", path, json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise ServerFailed(_refusal(path, answer.status_code, answer.read()))
                for line in answer.iter_lines():
                    if line.startswith(_DATA):
                        yield _parsed(path, line.removeprefix(_DATA))
        except httpx.TransportError as error:
            raise ServerFailed(f"llama-server does not answer {path}: {error}") from error

    def _ask(self, method: str, path: str, **given: Any) -> Any:
        try:
            answer = self._http.request(method, path, **given)
        except httpx.TransportError as error:
            raise ServerFailed(f"llama-server does not answer {path}: {error}") from error
        if answer.status_code != httpx.codes.OK:
            raise ServerFailed(_refusal(path, answer.status_code, answer.content))
        return _parsed(path, answer.text)


def _parsed(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ServerFailed(
            f"llama-server answered {path} with something else: {text[:80]}"
        ) from error


def _refusal(path: str, status: int, content: bytes) -> str:
    try:
        said = json.loads(content)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = content[:120].decode(errors="replace")
    return f"llama-server refuses {path} ({status}): {said}"
