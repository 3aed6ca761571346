"""Models from the Hugging Face hub: room checked, resumed, compared with the hub's digest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
from filelock import FileLock
from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from rich.console import Console

from runner.catalog import Model
from runner.errors import EnvironmentProblem
from runner.fetching import need_space
from runner.models.check import known_sha256, parts
from runner.paths import cache_dir

_SHA256_DIGITS = 64
_PUBLIC_HUB = "https://huggingface.co"


def hub(model: Model, console: Console) -> Path:
    """The model's first file in the cache; every part of a split model is fetched.

    A download that was cut off goes on where it stopped. ``HF_ENDPOINT`` names another hub.

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


def _fetch(model: Model, path: Path, console: Console) -> None:
    endpoint = os.environ.get("HF_ENDPOINT", _PUBLIC_HUB).rstrip("/")
    repo, revision = model.repo or "", model.revision or "main"
    url = hf_hub_url(repo, path.name, revision=revision, endpoint=endpoint)
    try:
        found = get_hf_file_metadata(url, endpoint=endpoint)
        need_space(path.parent, _missing(path, found.size or 0), path.name)
        console.print(f"fetching {path.name} of {repo} from {endpoint}", highlight=False)
        hf_hub_download(
            repo, path.name, revision=revision, local_dir=path.parent, endpoint=endpoint
        )
    except (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        httpx.HTTPError,
    ) as error:
        raise EnvironmentProblem(
            f"cannot fetch {path.name} of {repo} from {endpoint}: {_first_line(error)}; try again "
            "(it resumes), set HF_ENDPOINT, or give a local file with --model path.gguf"
        ) from error
    _compare(path, found.etag)


def _missing(path: Path, size: int) -> int:
    """Bytes still to come: a partial download already has its room."""
    partial = (path.parent / ".cache" / "huggingface" / "download").glob("*.incomplete")
    return max(size - max((file.stat().st_size for file in partial), default=0), 0)


def _first_line(error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def _compare(path: Path, etag: str | None) -> None:
    """The hub's etag of a large file is its sha256; of a small one it is another digest."""
    digest = known_sha256(path)
    if etag is not None and len(etag) == _SHA256_DIGITS and etag != digest:
        path.unlink()
        raise EnvironmentProblem(
            f"{path.name} arrived with sha256 {digest}, the hub announced {etag}; try again"
        )
    _note(path).write_text(json.dumps({"sha256": digest}), encoding="utf-8")
