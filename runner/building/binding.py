"""The Python binding without a library of its own: it loads ours through LLAMA_CPP_LIB_PATH."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

from filelock import FileLock
from rich.console import Console

from runner.building.source import BINDING, BINDING_VERSION, sdist
from runner.errors import EnvironmentProblem
from runner.paths import cache_dir


def installed() -> str | None:
    """The binding's version in this environment, None when it is not installed."""
    try:
        return importlib.metadata.version(BINDING)
    except importlib.metadata.PackageNotFoundError:
        return None


def ensure_binding(console: Console) -> str:
    """Install the pinned binding into this environment unless it is there.

    Raises:
        EnvironmentProblem: pip cannot install it.
    """
    if installed() == BINDING_VERSION:
        return BINDING_VERSION
    cache_dir().mkdir(parents=True, exist_ok=True)
    with FileLock(cache_dir() / "binding.lock"):
        importlib.invalidate_caches()
        if installed() != BINDING_VERSION:
            _install(console)
    return BINDING_VERSION


def _install(console: Console) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--force-reinstall", "--quiet"]
    if importlib.util.find_spec("scikit_build_core") is not None:
        # The locked build backend is here: pip need not fetch another one.
        command.append("--no-build-isolation")
    archive = sdist(console)
    with console.status(f"installing {BINDING} {BINDING_VERSION} without its library"):
        said = subprocess.run(
            [*command, str(archive)],
            env={**os.environ, "CMAKE_ARGS": "-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"},
            capture_output=True,
            text=True,
            check=False,
        )
    importlib.invalidate_caches()
    if said.returncode != 0 or installed() != BINDING_VERSION:
        reason = (said.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EnvironmentProblem(
            f"pip cannot install {BINDING} {BINDING_VERSION} into {sys.prefix}: {reason}"
        )
