"""Were the model and the library the same files from the first step to the last?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from runner.engine.parameters import LoadParameters

Identity = dict[str, tuple[int, int, int]]
"""Size, time of the last change in ns, and inode by file name."""


def input_files(parameters: LoadParameters) -> Iterable[Path]:
    """The model, and every library a worker may load."""
    yield parameters.model_path
    yield from sorted(path for path in parameters.lib_dir.iterdir() if _is_library(path))


def _is_library(path: Path) -> bool:
    return any(suffix in (".so", ".dylib", ".dll") for suffix in path.suffixes)


def identity(parameters: LoadParameters) -> Identity:
    """What the files are now. Their contents were verified before; this is cheap enough a step."""
    found: Identity = {}
    for path in input_files(parameters):
        stat = path.stat()
        found[path.name] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return found


def changed(before: Identity, parameters: LoadParameters) -> str | None:
    """What is no longer the file it was, in words; None when nothing is."""
    try:
        now = identity(parameters)
    except OSError as error:
        return f"{error.filename} is gone: {error.strerror}"
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return f"{names[0]} is not the file the run began with" if names else None
