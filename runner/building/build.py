"""One build of llama.cpp per platform, which every arm runs: made once, outside the checkout."""

from __future__ import annotations

import hashlib
import json
import platform as host
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO, overload

from filelock import FileLock
from rich.console import Console

from runner import catalog
from runner.building import source, toolchain
from runner.building.binding import ensure_binding
from runner.building.devices import require_device
from runner.building.mends import MENDS, mend
from runner.building.ownbuild import EngineBuild, library_digest, take_own
from runner.building.toolchain import Toolchain
from runner.catalog import Platform
from runner.errors import EnvironmentProblem
from runner.fetching import need_space
from runner.paths import cache_dir
from runner.progress import Show, percent_progress

__all__ = ["EngineBuild", "Recipe", "ensure_engine", "library_digest"]

TARGETS = ("llama", "llama-server", "llama-bench", "llama-quantize")
COMMON_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    # No arm fetches anything: without these the build needs no library of the system.
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DGGML_CCACHE=OFF",
    # The tree has no git history, and must not find that of a checkout around the cache.
    "-DCMAKE_DISABLE_FIND_PACKAGE_Git=ON",
    "-DGIT_EXECUTABLE=OFF",
    "-DGIT_EXE=OFF",
    f"-DLLAMA_BUILD_COMMIT={source.LLAMA_CPP_COMMIT[:9]}",
    "-DLLAMA_BUILD_NUMBER=0",
    # Libraries find each other in their own folder, wherever it is moved.
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
)
_RPATH = "-DCMAKE_INSTALL_RPATH=" + ("@loader_path" if host.system() == "Darwin" else "$ORIGIN")
_NATIVE = "-DGGML_NATIVE=ON"
_SPACE = 1_500_000_000
_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")
_RECORD = "build.json"


@overload
def ensure_engine(
    platform: str, llama_cpp: Path | None, console: Console, *, dry_run: Literal[False] = ...
) -> EngineBuild: ...


@overload
def ensure_engine(
    platform: str, llama_cpp: Path | None, console: Console, *, dry_run: bool
) -> EngineBuild | None: ...


def ensure_engine(
    platform: str, llama_cpp: Path | None, console: Console, *, dry_run: bool = False
) -> EngineBuild | None:
    """Build, or find, the engine of a platform and install its binding.

    Args:
        platform: A file of ``data/platforms/``.
        llama_cpp: The user's own build, used instead of ours.
        console: Where progress is shown.
        dry_run: Print the cmake commands and the cache folder and return None, instead of
            building; a user's own build is checked all the same.

    Raises:
        UsageError: no such platform, or the user's build does not fit the binding.
        EnvironmentProblem: a program, the device, the network or disk space is missing.
    """
    chosen = catalog.platform(platform)
    if llama_cpp is not None:
        return _told(take_own(chosen, llama_cpp, console), console)
    recipe = Recipe(chosen, toolchain.find(chosen))
    if dry_run:
        recipe.describe(console)
        return None
    folder = _built(recipe, console)
    binding = ensure_binding(console)
    require_device(chosen, folder / "bin")
    build = EngineBuild(
        lib_dir=folder / "bin",
        binding_version=binding,
        llama_cpp_commit=source.LLAMA_CPP_COMMIT,
        library_sha256=library_digest(folder / "bin"),
        cmake_flags=" ".join(recipe.flags),
        source="ours",
    )
    return _told(build, console)


def _told(build: EngineBuild, console: Console) -> EngineBuild:
    commit = build.llama_cpp_commit[:9] if build.llama_cpp_commit else "of an unknown commit"
    said = f"engine: llama.cpp {commit}, {build.source}, in {build.lib_dir}"
    console.print(said, soft_wrap=True, highlight=False)
    return build


@dataclass(frozen=True)
class Recipe:
    """How a platform's build is made, and the name under which it is kept."""

    platform: Platform
    tools: Toolchain

    @property
    def flags(self) -> tuple[str, ...]:
        """The cmake flags."""
        return (*COMMON_FLAGS, _RPATH, *self.platform.cmake_flags)

    @property
    def folder(self) -> Path:
        """The cache folder; a changed source, mend, flag, compiler or native CPU is another."""
        parts = [source.SDIST.sha256, *self.flags, *self.tools.identity]
        parts += [text for one in MENDS for text in one]
        if _NATIVE in self.flags:
            parts.append(toolchain.cpu_features())
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
        return cache_dir() / "engine" / f"{self.platform.id}-{source.BINDING_VERSION}-{key}"

    def configure(self, tree: Path, build: Path) -> list[str]:
        """The cmake command that configures."""
        generator = ["-G", "Ninja"] if self.tools.ninja else []
        return [str(self.tools.cmake), "-S", str(tree), "-B", str(build), *generator, *self.flags]

    def compile(self, build: Path) -> list[str]:
        """The cmake command that compiles."""
        jobs = str(toolchain.cores())
        return [str(self.tools.cmake), "--build", str(build), "-j", jobs, "--target", *TARGETS]

    def describe(self, console: Console) -> None:
        """Print the commands and the folder."""
        work = _beside(self.folder, ".partial")
        for command in (
            self.configure(work / "source", work / "build"),
            self.compile(work / "build"),
        ):
            console.print(shlex.join(command), soft_wrap=True, highlight=False)
        state = "built" if _is_complete(self.folder) else "not built yet"
        console.print(f"{self.folder} ({state})", soft_wrap=True, highlight=False)


def _is_complete(folder: Path) -> bool:
    """A build is complete when its record is there: it is written last, before the rename."""
    return (folder / _RECORD).is_file() and (folder / "bin" / "llama-server").is_file()


def _built(recipe: Recipe, console: Console) -> Path:
    folder = recipe.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not _is_complete(folder):
        with FileLock(_beside(folder, ".lock")):
            if not _is_complete(folder):
                _build(recipe, folder, console)
    return folder


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(folder.name + ending)


def _build(recipe: Recipe, folder: Path, console: Console) -> None:
    """Build under another name; only a finished build gets the name that is looked for."""
    need_space(folder.parent, _SPACE, f"building llama.cpp for {recipe.platform.id}")
    work = _beside(folder, ".partial")
    for leftover in (work, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    tree, build = work / "source", work / "build"
    with console.status("unpacking llama.cpp"):
        source.unpack_llama_cpp(tree, console)
        mend(tree)
    log = _beside(folder, ".log")
    with (
        log.open("w", encoding="utf-8") as out,
        percent_progress(console, f"building llama.cpp for {recipe.platform.id}") as show,
    ):
        for command in (recipe.configure(tree, build), recipe.compile(build)):
            _run(command, recipe.tools, out, show, log)
    (build / "bin").rename(work / "bin")
    # The sources and object files are twenty times what is needed from now on.
    shutil.rmtree(tree)
    shutil.rmtree(build)
    record = {
        "flags": recipe.flags,
        "toolchain": recipe.tools.identity,
        "source": source.SDIST.file,
        "mended": [one.path for one in MENDS],
    }
    (work / _RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    work.rename(folder)


def _run(command: list[str], tools: Toolchain, out: TextIO, show: Show, log: Path) -> None:
    """Run one step, its output in the log, its progress in the bar."""
    out.write(shlex.join(command) + "\n")
    with subprocess.Popen(
        command,
        env=tools.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as step:
        said: list[str] = []
        for line in step.stdout or ():
            out.write(line)
            said.append(line)
            if match := _STEP.match(line):
                show(100 * int(match[1]) // int(match[2] or 100))
    if step.returncode != 0:
        raise EnvironmentProblem(f"the build failed: {_reason(said)}; the whole log is {log}")


def _reason(said: list[str]) -> str:
    """The line that says why: the first with an error in it, or the last."""
    errors = [line for line in said if re.search(r"\berror\b", line, flags=re.IGNORECASE)]
    wordy = [line for line in said if line.strip()] or ["no output"]
    return (errors[:1] or wordy[-1:])[0].strip()
