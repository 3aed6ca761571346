"""The same server, told to reuse nothing: what it costs to be stateless there."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from runner.arms.llama_server import LlamaServer
from runner.arms.reprefill import Reprefill
from runner.arms.served import ServerHost
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.serving.settings import ServerSettings


class LlamaServerCold(LlamaServer):
    """State not kept by another engine."""

    name: ClassVar[str] = "llama_server_cold"
    about: ClassVar[str] = "llama-server of the same build, every prompt computed anew."

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """See `Arm`."""
        return Reprefill.prefill_tokens(point)

    @classmethod
    def open(cls, parameters: LoadParameters, server: ServerSettings) -> ServerHost:
        """See `Arm`."""
        return ServerHost(parameters, replace(server, cache_prompt=False))
