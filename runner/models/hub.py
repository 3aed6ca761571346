"""Models from the Hugging Face hub: room checked, resumed, compared with the hub's digest.

The hub's own client starts a broken download from its beginning. A model is gigabytes: here the
part that arrived is kept, under the digest of the file it belongs to, and the rest is asked for.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import httpx2
from filelock import FileLock
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.utils._headers import build_hf_headers
from rich.console import Console

from runner.catalog import Model
from runner.errors import EnvironmentProblem
from runner.fetching import need_space
from runner.models.check import known_sha256, parts
from runner.paths import cache_dir
from runner.progress import Show, byte_progress

_SHA256_DIGITS = 64
_PUBLIC_HUB = "https://huggingface.co"
_TRIES = 5
_CHUNK = 1 << 18
_TIMEOUT_S = 30.0
_PART, _BEYOND = 206, 416


def obtain(model: Model, console: Console) -> Path:
    """The model's first file in the cache; every part of a split model is fetched.

    A download that was cut off, even by a kill, goes on where it stopped. ``HF_ENDPOINT`` names
    another hub.

    Raises:
        EnvironmentProblem: the hub cannot be reached, lacks the file, sends another file than it
            announces, or the disk has no room for it.
    """
    folder = cache_dir() / "models" / "hub" / (model.repo or model.id).replace("/", "--")
    folder.mkdir(parents=True, exist_ok=True)
    first = folder / (model.file or "")
    with FileLock(folder / "fetch.lock"):
        for path in parts(first):
            if not _is_whole(path):
                _fetch(model, path, console)
    return first


def _note(path: Path) -> Path:
    return path.with_suffix(".fetched.json")


def _is_whole(path: Path) -> bool:
    """Was this file fetched to its end and checked, and is it still that file?"""
    try:
        noted = json.loads(_note(path).read_text(encoding="utf-8"))
        return bool(noted["sha256"] == known_sha256(path))
    except (OSError, ValueError, KeyError):
        return False


@dataclass(frozen=True)
class _Remote:
    """What the hub announces about a file."""

    url: str
    etag: str
    size: int


def _fetch(model: Model, path: Path, console: Console) -> None:
    endpoint = os.environ.get("HF_ENDPOINT", _PUBLIC_HUB).rstrip("/")
    repo = model.repo or ""
    try:
        remote = _ask(repo, path.name, model.revision or "main", endpoint)
        partial = path.with_name(f"{path.name}.{remote.etag[:16]}.partial")
        need_space(path.parent, max(remote.size - _size(partial), 0), path.name)
        with byte_progress(console, f"fetching {path.name}", remote.size) as show:
            _download(remote, partial, show)
    except (httpx2.HTTPError, OSError) as error:
        raise EnvironmentProblem(
            f"cannot fetch {path.name} of {repo} from {endpoint}: {_first_line(error)}; try again "
            "(it resumes), set HF_ENDPOINT, or give a local file with --model path.gguf"
        ) from error
    _accept(remote, partial, path)


def _ask(repo: str, file: str, revision: str, endpoint: str) -> _Remote:
    url = hf_hub_url(repo, file, revision=revision, endpoint=endpoint)
    found = get_hf_file_metadata(url, endpoint=endpoint)
    if found.etag is None or found.size is None:
        raise OSError("the hub told neither digest nor size")
    return _Remote(url, found.etag, found.size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _download(remote: _Remote, partial: Path, show: Show) -> None:
    """Fetch what is missing; a connection that breaks is taken up again, as long as bytes come."""
    failures = 0
    while (before := _size(partial)) < remote.size:
        try:
            _stream(remote, partial, show)
        except httpx2.TransportError:
            failures = 0 if _size(partial) > before else failures + 1
            if failures >= _TRIES:
                raise


def _stream(remote: _Remote, partial: Path, show: Show) -> None:
    start = _size(partial)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with httpx2.stream(
        "GET", remote.url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S
    ) as response:
        if response.status_code == _BEYOND:
            partial.unlink()
            raise httpx2.ReadError(f"the hub has no byte {start:,}; starting again")
        response.raise_for_status()
        # A hub that does not do ranges sends the whole file again.
        with partial.open("ab" if response.status_code == _PART else "wb") as out:
            for piece in response.iter_raw(_CHUNK):
                out.write(piece)
                show(out.tell())
    if _size(partial) < remote.size:
        raise httpx2.ReadError(f"the transfer ended at {_size(partial):,} of {remote.size:,} bytes")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _accept(remote: _Remote, partial: Path, path: Path) -> None:
    """Give the file its name, once it is the announced one: a large file's etag is its sha256."""
    digest = known_sha256(partial)
    wrong = len(remote.etag) == _SHA256_DIGITS and remote.etag != digest
    if wrong or _size(partial) != remote.size:
        partial.unlink()
        raise EnvironmentProblem(
            f"{path.name} arrived with sha256 {digest}, the hub announced {remote.etag}; try again"
        )
    partial.replace(path)
    _note(path).write_text(json.dumps({"sha256": digest}), encoding="utf-8")
