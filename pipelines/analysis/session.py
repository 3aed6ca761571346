"""What a whole tool loop should take, from calibrated costs: with live KV and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipelines.analysis.costs import Costs


@dataclass(frozen=True)
class Loop:
    """Sizes of a tool loop in tokens: a prefix, then `hops` results of `result`, turns between."""

    prefix: int
    hops: int
    generate: int
    result: int

    def contexts(self) -> Iterator[int]:
        """Tokens of the conversation when each turn begins to generate; ``hops + 1`` of them."""
        for hop in range(self.hops + 1):
            yield self.prefix + hop * (self.generate + self.result)


def session_s(costs: Costs, loop: Loop, *, kept: bool) -> float:
    """Seconds of the loop; `kept`: the KV stays alive, so a hop computes the result only.

    The last token of a turn is computed with what comes next: a hop that keeps its KV feeds one
    token more than the result, and a turn of g tokens takes g - 1 decode steps.
    """
    contexts = np.array([*loop.contexts()])
    fed = contexts.copy()
    if kept:
        fed[1:] = loop.result + 1
    seconds = costs.prefill_s(fed, contexts - fed) + costs.decode_s(loop.generate - 1, contexts)
    return float(seconds.sum())
