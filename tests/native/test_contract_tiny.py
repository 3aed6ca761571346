"""The contract of the seam, held to llama.cpp on four tiny architectures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from backends import ARCHITECTURES, opener, parameters

from runner.building import EngineBuild
from runner.engine.contract import CASES, Case


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_llama_cpp_keeps_the_contract(
    case: Case,
    architecture: str,
    engine_build: EngineBuild,
    tiny_model: Callable[[str], Path],
) -> None:
    case(opener(parameters(engine_build, tiny_model(architecture))))
