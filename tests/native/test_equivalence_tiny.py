"""Free speech on llama.cpp: every kind of memory is put back exactly, and damage is caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from backends import ARCHITECTURES, parameters
from numpy.typing import NDArray

from runner.bench.equivalence import equivalence_rows
from runner.building import EngineBuild
from runner.catalog import Point
from runner.engine.llamacpp import LlamaCppBackend
from runner.workloads.tool_loop import build_script

POINT = Point(prefix=300, hops=4, generate=8)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_equal_batch_shapes_give_equal_bits(
    architecture: str, engine_build: EngineBuild, tiny_model: Callable[[str], Path]
) -> None:
    path = tiny_model(architecture)
    backend = LlamaCppBackend(parameters(engine_build, path, n_seq_max=1))
    rows = equivalence_rows(backend, build_script(POINT, backend, 3))
    backend.close()
    matched = [row for row in rows if row["comparison"] == "matched"]
    assert [row["hop"] for row in matched] == [1, 2, 4]
    for row in matched:
        assert (row["n_agreed"], row["max_logit_difference"]) == (8, 0.0)
    for row in rows:
        # Rounding at most: the wrong conversation moves random weights by whole deviations.
        assert row["max_logit_difference"] < 0.1 * row["logit_sd"]


class Damaging(LlamaCppBackend):
    """Restores states with some bytes of their values flipped: the library takes them."""

    def state_set(self, seq: int, state: NDArray[np.uint8]) -> None:
        """See `NativeBackend`."""
        damaged = state.copy()
        third = damaged.size // 3
        damaged[third : third + 512] ^= 0x10
        super().state_set(seq, damaged)


def test_the_control_catches_a_damaged_state(
    engine_build: EngineBuild, tiny_model: Callable[[str], Path]
) -> None:
    backend = Damaging(parameters(engine_build, tiny_model("llama"), n_seq_max=1))
    rows = equivalence_rows(backend, build_script(POINT, backend, 3))
    backend.close()
    first, *later = [row for row in rows if row["comparison"] == "matched"]
    assert first["max_logit_difference"] == 0.0  # nothing was restored before it
    assert all(row["max_logit_difference"] > 0.01 * row["logit_sd"] for row in later)
