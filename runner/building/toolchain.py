"""What compiles llama.cpp on this machine, and what the compiled library depends on."""

from __future__ import annotations

import os
import platform as host
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from runner.catalog import Platform
from runner.errors import EnvironmentProblem

# Programs whose answer decides what comes out of the build: they belong to the cache's key.
_IDENTITY = {
    "nvcc": ("--version",),
    "nvidia-smi": ("--query-gpu=compute_cap", "--format=csv,noheader"),
    "hipcc": ("--version",),
    "glslc": ("--version",),
}


@dataclass(frozen=True)
class Toolchain:
    """Programs found, and the identity of what they produce."""

    cmake: Path
    ninja: Path | None
    identity: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """The environment for cmake: the programs we found must be found by cmake too."""
        folders = [str(self.cmake.parent), *([str(self.ninja.parent)] if self.ninja else [])]
        return {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", ""), *folders])}


def find(platform: Platform) -> Toolchain:
    """Find what `platform` is built with.

    Raises:
        EnvironmentProblem: names the first program that is missing and what to install.
    """
    require_system(platform)
    cmake = _program("cmake")
    if cmake is None:
        raise EnvironmentProblem("no cmake on PATH; `pip install cmake ninja` brings it")
    ninja = _program("ninja")
    if ninja is None and shutil.which("make") is None:
        raise EnvironmentProblem("neither ninja nor make on PATH; `pip install ninja` brings one")
    compilers = [_compiler("CC", "cc", "gcc", "clang"), _compiler("CXX", "c++", "g++", "clang++")]
    for program in platform.needs:
        if shutil.which(program) is None:
            raise EnvironmentProblem(
                f"platform {platform.id} needs {program} on PATH; install {platform.remedy}"
            )
    identity = [_answer([name, "--version"]) for name in compilers]
    identity += [_answer([p, *_IDENTITY[p]]) for p in platform.needs if p in _IDENTITY]
    return Toolchain(cmake, ninja, (host.machine(), *identity))


def require_system(platform: Platform) -> None:
    """Refuse a platform that does not exist on this operating system."""
    if host.system() not in platform.systems:
        raise EnvironmentProblem(
            f"platform {platform.id} exists on {' and '.join(platform.systems)}, this is "
            f"{host.system()}; choose another with --platform"
        )


def _program(name: str) -> Path | None:
    """A program beside this Python (the `cmake` and `ninja` packages) or on PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=str(beside)) or shutil.which(name)
    return Path(found) if found else None


def _compiler(variable: str, *names: str) -> str:
    wanted = os.environ.get(variable)
    for name in [wanted] if wanted else names:
        if shutil.which(name.split()[0]) is not None:
            return name.split()[0]
    raise EnvironmentProblem(
        f"no {'C' if variable == 'CC' else 'C++'} compiler ({wanted or ', '.join(names)}) on PATH; "
        "`apt-get install g++` on Debian or Ubuntu, `xcode-select --install` on macOS"
    )


def _answer(command: list[str]) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join((said.stdout or said.stderr).split())


def cpu_features() -> str:
    """What a library built for the native CPU must meet again, as one line.

    A library built with GGML_NATIVE dies on a CPU that lacks an instruction it was built for.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return _answer(["sysctl", "-n", "machdep.cpu.brand_string"]) or host.processor()
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, flags=re.MULTILINE)
    return " ".join(sorted(match.group(1).split())) if match else host.processor()


def cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
