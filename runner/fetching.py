"""Fetch a pinned artefact with pip into the cache: whole and right, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from runner.errors import EnvironmentProblem
from runner.progress import Show, byte_progress

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Artefact:
    """A file on the package index, named by its content."""

    requirement: str
    file: str
    sha256: str
    bytes: int
    source_form: bool = False


def sha256_of(path: Path) -> str:
    """The file's sha256 in hex, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def need_space(folder: Path, wanted: int, what: str) -> None:
    """Refuse before a download or a build that would fill the disk.

    Raises:
        EnvironmentProblem: names the free and the wanted size and how to move the cache.
    """
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise EnvironmentProblem(
            f"{what} needs {wanted / 1e6:,.0f} MB in {folder}, {free / 1e6:,.0f} MB are free; "
            "make room or point LIVEKV_CACHE at another disk"
        )


def fetch(artefact: Artefact, folder: Path, console: Console) -> Path:
    """The artefact's file under `folder`; downloaded when it is absent or its content is wrong.

    Raises:
        EnvironmentProblem: the index cannot be reached, or sends something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / artefact.file
    with FileLock(folder / f"{artefact.file}.lock"):
        if target.exists() and sha256_of(target) == artefact.sha256:
            return target
        need_space(folder, artefact.bytes + (64 << 20), artefact.requirement)
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
            fetched = _pip_download(artefact, Path(scratch), console)
            _check(artefact, fetched)
            fetched.replace(target)
    return target


def _pip_download(artefact: Artefact, scratch: Path, console: Console) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    command += ["--progress-bar", "off", "--disable-pip-version-check", "--dest", str(scratch)]
    command += ["--no-binary" if artefact.source_form else "--only-binary", ":all:"]
    # pip streams into its temporary folder first: there the bar can watch the file grow.
    title = f"fetching {artefact.requirement}"
    with (
        subprocess.Popen(
            [*command, artefact.requirement],
            env={**os.environ, "TMPDIR": str(scratch)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as pip,
        byte_progress(console, title, artefact.bytes) as show,
    ):
        said = _watch(pip, scratch, show)
        show(artefact.bytes)
    target = scratch / artefact.file
    if pip.returncode != 0 or not target.exists():
        reason = said.strip().splitlines()[-1:] or ["no reason given"]
        raise EnvironmentProblem(
            f"pip cannot fetch {artefact.requirement}: {reason[0]}; check the network "
            f"and pip's index, or put {artefact.file} into {scratch.parent} yourself"
        )
    return target


def _watch(pip: subprocess.Popen[str], scratch: Path, show: Show) -> str:
    while True:
        try:
            return pip.communicate(timeout=0.5)[0]
        except subprocess.TimeoutExpired:
            show(_largest(scratch))


def _largest(folder: Path) -> int:
    """Bytes of the largest file; pip moves and removes files and folders while we look."""
    largest = 0
    # os.walk passes over a folder that is gone; rglob raises.
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def _check(artefact: Artefact, path: Path) -> None:
    found = sha256_of(path)
    if found != artefact.sha256:
        raise EnvironmentProblem(
            f"{artefact.file} has sha256 {found}, expected {artefact.sha256}; "
            "the index sent another file than the pinned one"
        )
