"""What a build of llama.cpp is to the arms, and how a user's own one is taken."""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from runner.building import toolchain
from runner.building.binding import ensure_binding
from runner.building.devices import require_device
from runner.building.layout import require_layout
from runner.catalog import Platform
from runner.errors import UsageError

_COMMIT = re.compile(r"commit ([0-9a-f]{7,40})|\(([0-9a-f]{7,40})\)")


@dataclass(frozen=True)
class EngineBuild:
    """A llama.cpp build that is ready to be loaded.

    Attributes:
        lib_dir: Folder with libllama, llama-server, llama-bench and llama-quantize.
        library_sha256: Over libllama and every libggml file, names and contents, in order.
        llama_cpp_commit: None when a user's own build does not tell.
        cmake_flags: None for a user's own build.
    """

    lib_dir: Path
    binding_version: str
    llama_cpp_commit: str | None
    library_sha256: str
    cmake_flags: str | None
    source: Literal["ours", "own"]


def library_digest(lib_dir: Path) -> str:
    """One sha256 over libllama and the libggml files, each with its name."""
    files = [
        path
        for path in sorted(lib_dir.iterdir())
        if path.name.startswith(("libllama.", "libggml")) and not path.is_symlink()
    ]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def take_own(chosen: Platform, given: Path, console: Console) -> EngineBuild:
    """Take a user's own build, once it is shown to fit.

    What its platform needs to compile is not asked for: it is compiled already.

    Raises:
        UsageError: no libllama there, or its structs are not those of the binding.
        EnvironmentProblem: the platform's device is absent.
    """
    toolchain.require_system(chosen)
    lib_dir = _lib_dir(given.expanduser().resolve())
    binding = ensure_binding(console)
    require_layout(lib_dir)
    require_device(chosen, lib_dir)
    return EngineBuild(
        lib_dir=lib_dir,
        binding_version=binding,
        llama_cpp_commit=_reported_commit(lib_dir),
        library_sha256=library_digest(lib_dir),
        cmake_flags=None,
        source="own",
    )


def _lib_dir(given: Path) -> Path:
    for folder in (given, given / "bin", given / "lib"):
        if any((folder / f"libllama{ending}").exists() for ending in (".so", ".dylib")):
            return folder
    raise UsageError(
        f"no libllama in {given}, {given / 'bin'} or {given / 'lib'}; give --llama-cpp the folder "
        "of a build with shared libraries (-DBUILD_SHARED_LIBS=ON)"
    )


def _reported_commit(lib_dir: Path) -> str | None:
    server = lib_dir / "llama-server"
    if not server.exists():
        return None
    said = subprocess.run([str(server), "--version"], capture_output=True, text=True, check=False)
    match = _COMMIT.search(said.stderr + said.stdout)
    return (match[1] or match[2]) if match else None
