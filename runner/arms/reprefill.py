"""The baseline: a stateless engine reads the whole conversation again at every hop."""

from __future__ import annotations

from typing import ClassVar

from runner.arms.meter import Meter
from runner.catalog import Point
from runner.engine.engine import Engine
from runner.workloads.tool_loop import Script


class Reprefill:
    """The same engine, session and sampling; only the state is not kept."""

    name: ClassVar[str] = "reprefill"
    about: ClassVar[str] = "No state kept; each hop computes the whole conversation."

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """See `Arm`."""
        turn = point.generate + point.result
        return sum(point.prefix + hop * turn for hop in range(point.hops + 1))

    def run(self, engine: Engine, script: Script, meter: Meter) -> None:
        """See `Arm`."""
        with engine.session() as session, meter.session():
            for hop in script.hops:
                meter.start_hop()
                session.reset()
                session.send(hop.context)
                turn = session.generate(len(hop.output), script=hop.output.tolist())
                meter.end_hop(hop.index, len(hop.new), turn, session.tokens)
