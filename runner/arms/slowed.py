"""Live KV made slower on purpose, by a known share: what the harness must find again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from runner.arms.host import EngineHost
from runner.arms.live_kv import LiveKv
from runner.arms.meter import Meter
from runner.workloads.tool_loop import Script


class _Slowed(LiveKv):
    share: ClassVar[float]

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep

    def run(self, host: EngineHost, script: Script, meter: Meter) -> None:
        """See `Arm`."""
        with meter.dawdling(lambda hop_s: self._sleep(self.share * hop_s)):
            super().run(host, script, meter)


class LiveKvSlowed5(_Slowed):
    """5 % slower."""

    name: ClassVar[str] = "live_kv_slowed_5"
    about: ClassVar[str] = "Live KV made 5 % slower on purpose, to see that it is found."
    share: ClassVar[float] = 0.05


class LiveKvSlowed20(_Slowed):
    """20 % slower."""

    name: ClassVar[str] = "live_kv_slowed_20"
    about: ClassVar[str] = "Live KV made 20 % slower on purpose, to see that it is found."
    share: ClassVar[float] = 0.20
