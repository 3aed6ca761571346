"""The baseline: a stateless engine reads the whole conversation again at every hop."""

from __future__ import annotations

from typing import ClassVar

from runner.arms.host import EngineHost, open_engine
from runner.arms.meter import Meter
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.serving.settings import ServerSettings
from runner.workloads.tool_loop import Script


class Reprefill:
    """The same engine, session and sampling; only the state is not kept."""

    name: ClassVar[str] = "reprefill"
    about: ClassVar[str] = "No state kept; each hop computes the whole conversation."
    speaks_freely: ClassVar[bool] = False

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """See `Arm`."""
        turn = point.generate + point.result
        return sum(point.prefix + hop * turn for hop in range(point.hops + 1))

    @classmethod
    def open(cls, parameters: LoadParameters, _: ServerSettings) -> EngineHost:
        """See `Arm`."""
        return open_engine(parameters)

    def run(self, host: EngineHost, script: Script, meter: Meter) -> None:
        """See `Arm`."""
        with host.engine.session() as session, meter.session():
            for hop in script.hops:
                meter.start_hop()
                session.reset()
                session.send(hop.context)
                turn = session.generate(len(hop.output), script=hop.output.tolist())
                meter.end_hop(hop.index, len(hop.new), turn, session.tokens)
