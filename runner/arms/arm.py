"""The contract of an arm: the same script, the same engine settings, one meter."""

from __future__ import annotations

from typing import ClassVar, Protocol

from runner.arms.meter import Meter
from runner.catalog import Point
from runner.engine.engine import Engine
from runner.workloads.tool_loop import Script


class Arm(Protocol):
    """Runs a script. Everything but what the arm is about is the caller's and equal for all."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One sentence for readers of a result."""

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """Prompt tokens the arm computes at `point`, for the estimate in a plan."""

    def run(self, engine: Engine, script: Script, meter: Meter) -> None:
        """Run `script` once on an engine without open sessions, and tell the meter each hop.

        Raises:
            BackendError: a turn failed; what the meter holds is not a result.
        """
