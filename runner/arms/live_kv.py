"""The treatment: KV state stays alive, a hop computes only the tool's result."""

from __future__ import annotations

from typing import ClassVar

from runner.arms.host import EngineHost, open_engine
from runner.arms.meter import Meter
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.serving.settings import ServerSettings
from runner.workloads.tool_loop import Script


class LiveKv:
    """One session for the whole loop."""

    name: ClassVar[str] = "live_kv"
    about: ClassVar[str] = "KV kept between hops; each hop computes the tool result only."
    speaks_freely: ClassVar[bool] = False

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """See `Arm`."""
        return point.prefix + point.hops * (1 + point.result)

    @classmethod
    def open(cls, parameters: LoadParameters, _: ServerSettings) -> EngineHost:
        """See `Arm`."""
        return open_engine(parameters)

    def run(self, host: EngineHost, script: Script, meter: Meter) -> None:
        """See `Arm`."""
        with host.engine.session() as session, meter.session():
            for hop in script.hops:
                meter.start_hop()
                if hop.index == 0:
                    session.send(hop.new)
                else:
                    session.append_tool_result(hop.new)
                turn = session.generate(len(hop.output), script=hop.output.tolist())
                meter.end_hop(hop.index, len(hop.new), turn, session.tokens)
