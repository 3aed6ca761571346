"""Is this file what it says it is: there, a GGUF, complete, and the one that was pinned?"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UsageError
from runner.fetching import sha256_of
from runner.models.gguf_file import read_header
from runner.paths import cache_dir

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class Checked:
    """What was found in a complete file, or over all the parts of a split one."""

    sha256: str
    bytes: int
    parameters: int
    quantisation: str | None


def parts(path: Path) -> list[Path]:
    """Every file of a model: one, or all those named ``-00001-of-0000N.gguf``."""
    match = _PART.search(path.name)
    if match is None:
        return [path]
    stem, total = path.name[: match.start()], match.group(2)
    return [path.with_name(f"{stem}-{i:05d}-of-{total}.gguf") for i in range(1, int(total) + 1)]


def check(path: Path, sha256: str | None = None) -> Checked:
    """Check a model file and describe it.

    A split model's sha256 is that of its parts' digests, in order.

    Raises:
        UsageError: it is absent, no GGUF, truncated, or has another sha256 than the pinned one.
    """
    files = parts(path)
    headers = []
    for file in files:
        if not file.is_file():
            raise UsageError(f"no such model file: {file}")
        header = read_header(file)
        size = file.stat().st_size
        if size < header.file_size:
            raise UsageError(
                f"{file} is truncated: {size:,} bytes of {header.file_size:,}; fetch it again"
            )
        headers.append(header)
    digests = [known_sha256(file) for file in files]
    found = digests[0] if len(files) == 1 else _joined(digests)
    if sha256 is not None and found != sha256:
        raise UsageError(f"{path} has sha256 {found}, pinned is {sha256}; delete it and try again")
    return Checked(
        sha256=found,
        bytes=sum(file.stat().st_size for file in files),
        parameters=sum(header.parameters for header in headers),
        quantisation=headers[0].quantisation,
    )


def _joined(digests: list[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def known_sha256(path: Path) -> str:
    """The file's sha256, remembered for as long as its size and modification time stay.

    The note lies in the cache, not beside the file: a user's model folder is not ours to write to.
    """
    found = path.stat()
    key = [str(path.resolve()), found.st_size, found.st_mtime_ns]
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = cache_dir() / "sha256" / f"{name}.json"
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
        if noted["key"] == key:
            return str(noted["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no note, or a damaged one: it is only a memory, and is written anew below
    digest = sha256_of(path)
    note.parent.mkdir(parents=True, exist_ok=True)
    scratch = note.with_suffix(".tmp")
    scratch.write_text(json.dumps({"key": key, "sha256": digest}), encoding="utf-8")
    scratch.replace(note)
    return digest
