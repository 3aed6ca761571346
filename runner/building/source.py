"""The one source of the engine: the pinned ``llama-cpp-python`` sdist, which vendors llama.cpp."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath

from rich.console import Console

from runner.errors import EnvironmentProblem
from runner.fetching import Artefact, fetch
from runner.paths import cache_dir

BINDING = "llama-cpp-python"
BINDING_VERSION = "0.3.36"
SDIST = Artefact(
    requirement=f"{BINDING}=={BINDING_VERSION}",
    file=f"llama_cpp_python-{BINDING_VERSION}.tar.gz",
    sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    bytes=76589250,
    source_form=True,
)
# The sdist's own record, .git/modules/vendor/llama.cpp/HEAD. Its git database is not unpacked, so
# the build is told the commit and the binaries report it.
LLAMA_CPP_COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
_TREE = PurePosixPath(f"llama_cpp_python-{BINDING_VERSION}") / "vendor" / "llama.cpp"


def sdist(console: Console) -> Path:
    """The sdist file in the cache, fetched when it is not there or not whole."""
    return fetch(SDIST, cache_dir() / "downloads", console)


def unpack_llama_cpp(into: Path, console: Console) -> Path:
    """Unpack ``vendor/llama.cpp`` of the sdist, and nothing else, to `into`."""
    with tarfile.open(sdist(console)) as archive:
        wanted = [member for member in archive if _inside(member.name)]
        for member in wanted:
            member.name = str(PurePosixPath(member.name).relative_to(_TREE))
        archive.extractall(into, members=wanted, filter="data")
    return into


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return path != _TREE and path.is_relative_to(_TREE)


def extract(relative: str, to: Path, console: Console) -> Path:
    """Copy one file of the llama.cpp tree to `to`; the archive is read up to that file only."""
    wanted = str(_TREE / relative)
    with tarfile.open(sdist(console), mode="r|gz") as archive:
        for member in archive:
            if member.name == wanted:
                stream = archive.extractfile(member)
                if stream is not None:
                    with to.open("wb") as out:
                        shutil.copyfileobj(stream, out)
                    return to
    raise EnvironmentProblem(f"{SDIST.file} has no {relative}; delete it and try again")
