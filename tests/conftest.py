"""What several rings need: the engine's build, tiny models, and the packaged model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from runner.building import EngineBuild, ensure_engine
from runner.models import ResolvedModel, ensure_model

TINY = ("llama", "qwen2", "gemma3", "mamba")


@pytest.fixture(scope="session")
def console() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="session")
def engine_build(console: Console) -> EngineBuild:
    build = ensure_engine("cpu", None, console)
    # The binding loads its library when it is imported: this must be said before.
    os.environ["LLAMA_CPP_LIB_PATH"] = str(build.lib_dir)
    return build


@pytest.fixture(scope="session")
def tiny_model(console: Console) -> Callable[[str], Path]:
    """``tiny_model(architecture)`` is the path of a tiny random model."""
    return lambda architecture: ensure_model(f"tiny:{architecture}", console).path


@pytest.fixture(scope="session")
def smollm2(console: Console) -> ResolvedModel:
    return ensure_model("smollm2-135m", console)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, for tests that fetch or write."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("LIVEKV_CACHE", str(folder))
    return folder
