"""llama.cpp's own server, set up well: one slot keeps its KV, the rest of a prompt is computed."""

from __future__ import annotations

from typing import ClassVar

from runner.arms.meter import Meter
from runner.arms.served import ServerHost, run_served
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.serving.settings import ServerSettings
from runner.workloads.tool_loop import Script


class LlamaServer:
    """State kept by another engine: beside live KV it tells engine from state."""

    name: ClassVar[str] = "llama_server"
    about: ClassVar[str] = "llama-server of the same build, its slot kept between hops."
    speaks_freely: ClassVar[bool] = True

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """See `Arm`."""
        return point.prefix + point.hops * (1 + point.result)

    @classmethod
    def open(cls, parameters: LoadParameters, server: ServerSettings) -> ServerHost:
        """See `Arm`."""
        return ServerHost(parameters, server)

    def run(self, host: ServerHost, script: Script, meter: Meter) -> None:
        """See `Arm`."""
        run_served(host, script, meter)
