"""A/A: the treatment once more, under another name and in a process of its own."""

from __future__ import annotations

from typing import ClassVar

from runner.arms.live_kv import LiveKv


class LiveKvAgain(LiveKv):
    """Nothing differs from `LiveKv`; what the two differ by is what the harness adds."""

    name: ClassVar[str] = "live_kv_again"
    about: ClassVar[str] = "Live KV once more, to see by how much two equal arms differ."
