"""What can be run: platforms, models and sweeps, read from the TOML files under ``data/``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from runner.errors import UsageError
from runner.paths import DATA


class _Closed(BaseModel):
    """Frozen, and unknown keys are refused: a typing error in a data file must not pass."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Platform(_Closed):
    """A hardware target: how llama.cpp is built for it and what the machine must have."""

    id: str
    title: str
    cmake_flags: tuple[str, ...]
    n_gpu_layers: int = Field(description="-1 offloads every layer, 0 none")
    device_backend: str = Field(description="ggml backend name the library must list, e.g. CUDA")
    systems: tuple[str, ...] = Field(description="platform.system() values it exists on")
    needs: tuple[str, ...] = Field(default=(), description="programs that must be on PATH to build")
    remedy: str = Field(description="what to install when the device or a program is absent")


class Model(_Closed):
    """A model that can be named on the command line."""

    id: str
    kind: Literal["packaged", "hub", "shape", "tiny", "path"]
    title: str
    licence: str
    source: str
    quantisation: str
    parameters: int | None = None
    sha256: str | None = Field(default=None, description="None: made locally, or not yet pinned")
    bytes: int | None = None
    package: str | None = Field(default=None, description="packaged: PyPI requirement")
    package_sha256: str | None = None
    member: str | None = Field(default=None, description="packaged: path inside the wheel")
    repo: str | None = Field(default=None, description="hub: owner/name")
    file: str | None = Field(default=None, description="hub: file in the repository")
    revision: str | None = None
    architecture: str | None = Field(default=None, description="shape, tiny: GGUF architecture")
    output_meaningful: bool = True


class Point(_Closed):
    """A workload with its parameters. Every count is in tokens, measured, never nominal."""

    workload: Literal["tool_loop"] = "tool_loop"
    prefix: Annotated[int, Field(ge=1)]
    hops: Annotated[int, Field(ge=0)]
    generate: Annotated[int, Field(ge=1)] = 32
    result: Annotated[int, Field(ge=1)] = 24
    repeats: Annotated[int, Field(ge=1)] = Field(
        default=1, description="runs in one block and process; the median of an odd number counts"
    )
    label: str = ""

    @field_validator("repeats")
    @classmethod
    def _odd(cls, repeats: int) -> int:
        if repeats % 2 == 0:
            raise ValueError(f"{repeats} repeats have no median of their own; make it odd")
        return repeats

    @property
    def id(self) -> str:
        """Stable name, e.g. ``tool_loop-p1491-h8``; defaults of `generate`, `result` left out."""
        extra = "" if self.generate == 32 else f"-g{self.generate}"
        extra += "" if self.result == 24 else f"-r{self.result}"
        return f"{self.workload}-p{self.prefix}-h{self.hops}{extra}"

    @property
    def n_tokens(self) -> int:
        """KV cells the whole session needs: prefix, every turn's output, every tool result."""
        return self.prefix + (self.hops + 1) * self.generate + self.hops * self.result


class Sweep(_Closed):
    """A named set of points and arms."""

    id: str
    title: str
    description: str
    arms: tuple[str, ...]
    blocks: int
    n_ctx: int = 8192
    points: tuple[Point, ...]


_T = TypeVar("_T", bound=BaseModel)


def _load(kind: type[_T], path: Path, content: object) -> _T:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: {where}: {first['msg']}") from error


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error


def _folder(kind: type[_T], folder: Path) -> dict[str, _T]:
    files = sorted(folder.glob("*.toml"))
    return {path.stem: _load(kind, path, {"id": path.stem, **_toml(path)}) for path in files}


@lru_cache
def platforms(data: Path = DATA) -> dict[str, Platform]:
    """Every platform by its id (the file's name)."""
    return _folder(Platform, data / "platforms")


@lru_cache
def sweeps(data: Path = DATA) -> dict[str, Sweep]:
    """Every sweep by its id (the file's name)."""
    return _folder(Sweep, data / "sweeps")


@lru_cache
def models(data: Path = DATA) -> dict[str, Model]:
    """Every named model by its id (the table's name in ``models.toml``)."""
    path = data / "models.toml"
    tables = _toml(path)
    return {
        name: _load(Model, path, {"id": name, **_dict(table)}) for name, table in tables.items()
    }


def platform(name: str) -> Platform:
    """The platform of that id.

    Raises:
        UsageError: there is none; names those there are.
    """
    return platforms()[choose("platform", name, platforms())]


def sweep(name: str) -> Sweep:
    """The sweep of that id.

    Raises:
        UsageError: there is none; names those there are.
    """
    return sweeps()[choose("sweep", name, sweeps())]


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def choose(what: str, name: str, known: Iterable[str]) -> str:
    """Return `name` if it is known.

    Raises:
        UsageError: names the value and what could have been said instead.
    """
    names = sorted(known)
    if name not in names:
        raise UsageError(f"unknown {what} {name!r}; choose one of: {', '.join(names)}")
    return name
