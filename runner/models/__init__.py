"""Models: a name or a path becomes a checked GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from runner import catalog
from runner.catalog import Model
from runner.models import hub, packaged, shape, tiny
from runner.models.check import check

__all__ = ["ResolvedModel", "ensure_model"]


@dataclass(frozen=True)
class ResolvedModel:
    """A model that is on disk, complete and identified."""

    model: Model
    path: Path
    sha256: str
    bytes: int
    parameters: int | None
    quantisation: str | None


def ensure_model(name: str, console: Console) -> ResolvedModel:
    """Fetch, write or find the model `name` and check it.

    Args:
        name: A name from ``data/models.toml``, or the path of a ``.gguf`` file.
        console: Where progress is shown.

    Raises:
        UsageError: no such model, or the file is not a complete GGUF of the pinned content.
        EnvironmentProblem: no network or no disk space to get it.
    """
    model = named(name)
    path = _obtain(model, name, console)
    found = check(path, model.sha256)
    return ResolvedModel(
        model=model,
        path=path,
        sha256=found.sha256,
        bytes=found.bytes,
        parameters=found.parameters,
        quantisation=found.quantisation or model.quantisation or None,
    )


def named(name: str) -> Model:
    """The catalog's model `name`, or one made up for a path.

    Raises:
        UsageError: it is neither.
    """
    if name.endswith(".gguf") or "/" in name:
        return Model(
            id=Path(name).name,
            kind="path",
            title=Path(name).name,
            licence="unknown",
            source="a local file",
            quantisation="",
        )
    models = catalog.models()
    return models[catalog.choose("model", name, models)]


def _obtain(model: Model, name: str, console: Console) -> Path:
    if model.kind == "path":
        return Path(name).expanduser()
    return _SOURCES[model.kind].obtain(model, console)


class _Source(Protocol):
    """A module that gets one kind of model."""

    def obtain(self, model: Model, console: Console, /) -> Path:
        """The model's file, got if it is not there."""


_SOURCES: dict[str, _Source] = {
    "packaged": packaged,
    "hub": hub,
    "shape": shape,
    "tiny": tiny,
}
