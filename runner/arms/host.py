"""What an arm runs on: our engine in this process, a server beside it, or another binding."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np

from runner.engine.backend import NativeBackend
from runner.engine.engine import Engine
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.engine.scheduler import Clock

WARMUP_TURN = 8
"""Tokens generated at the end of a warm-up."""


class Host(Protocol):
    """Loaded and ready. One caller at a time; `close` is safe at any time and more than once."""

    @property
    def facts(self) -> dict[str, Any]:
        """Columns of the table ``blocks`` that only this host can fill, after the runs."""

    def warm_up(self, n_tokens: int) -> None:
        """Touch weights and KV with ids that are not the script's; nothing of them is left."""

    def check(self) -> None:
        """Refuse a result that the host cannot vouch for.

        Raises:
            LivekvError: says what does not add up.
        """

    def close(self) -> None:
        """Give back what was taken."""


class EngineHost:
    """Our engine over a backend, which is closed with it."""

    def __init__(self, backend: NativeBackend, clock: Clock = time.perf_counter) -> None:
        self.engine = Engine(backend, clock)

    @property
    def facts(self) -> dict[str, Any]:
        """See `Host`."""
        return {}

    def warm_up(self, n_tokens: int) -> None:
        """See `Host`."""
        if not n_tokens:
            return
        with self.engine.session() as session:
            n_vocab = self.engine.backend.vocabulary.n_tokens
            session.send(np.arange(n_tokens, dtype=np.int32) % n_vocab)
            session.generate(WARMUP_TURN, ignore_end=True)

    def check(self) -> None:
        """See `Host`."""
        self.engine.check()

    def close(self) -> None:
        """See `Host`."""
        self.engine.close()


def open_engine(parameters: LoadParameters) -> EngineHost:
    """Our engine over llama.cpp.

    Raises:
        BackendError: the model or the library cannot be loaded.
    """
    return EngineHost(LlamaCppBackend(parameters))
