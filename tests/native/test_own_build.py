"""A user's own build, here the one we made: taken when it fits, refused when it does not."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from runner.building import EngineBuild, devices, ensure_engine
from runner.building.layout import require_layout
from runner.building.source import LLAMA_CPP_COMMIT
from runner.errors import EnvironmentProblem, UsageError


def test_a_fitting_build_is_taken(engine_build: EngineBuild, console: Console) -> None:
    own = ensure_engine("cpu", engine_build.lib_dir.parent, console)
    assert own == dataclasses.replace(
        engine_build, source="own", cmake_flags=None, llama_cpp_commit=LLAMA_CPP_COMMIT[:9]
    )


def test_every_program_of_the_arms_is_there(engine_build: EngineBuild) -> None:
    for name in ("llama-server", "llama-bench", "llama-quantize"):
        assert (engine_build.lib_dir / name).is_file()


def test_a_build_without_the_platforms_device_is_refused(
    engine_build: EngineBuild, console: Console
) -> None:
    if devices.devices(engine_build.lib_dir):
        pytest.skip("this build sees a device")
    with pytest.raises(EnvironmentProblem, match="needs a CUDA device, the library sees none"):
        ensure_engine("cuda", engine_build.lib_dir, console)


def test_a_build_that_was_moved_still_finds_its_own_libraries(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    moved = shutil.copytree(engine_build.lib_dir, tmp_path / "moved", symlinks=True)
    require_layout(moved)
    (moved / "libggml-base.so").resolve().unlink(missing_ok=True)
    with pytest.raises(UsageError, match=r"cannot be loaded: .*libggml-base"):
        require_layout(moved)
