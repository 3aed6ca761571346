"""The contract of an arm: the same script, the same settings, one meter."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from runner.arms.host import Host
from runner.arms.meter import Meter
from runner.catalog import Point
from runner.engine.parameters import LoadParameters
from runner.serving.settings import ServerSettings
from runner.workloads.tool_loop import Script


class Arm(Protocol):
    """Runs a script. Everything but what the arm is about is the caller's and equal for all."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One sentence for readers of a result."""
    speaks_freely: ClassVar[bool]
    """The arm cannot be fed a turn: it goes on with what it generates itself."""

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """Prompt tokens the arm computes at `point`, for the estimate in a plan."""

    @classmethod
    def open(cls, parameters: LoadParameters, server: ServerSettings) -> Host:
        """Load the model as the arm needs it; `server` is for arms that run on one.

        Raises:
            BackendError, EnvironmentProblem: it cannot be loaded or started.
        """

    def run(self, host: Any, script: Script, meter: Meter) -> None:
        """Run `script` once on a host that `open` gave, and tell the meter each hop.

        Raises:
            LivekvError: a turn failed; what the meter holds is not a result.
        """
