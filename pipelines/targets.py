"""Figures published elsewhere, read from ``data/targets/*.toml``: they orient, none is ours."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runner.errors import UsageError


class Target(BaseModel):
    """One figure, with everything needed to say whether ours may stand beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    mechanism: Literal[
        "tool loop", "shared prefix", "persistence", "all together", "density", "other"
    ]
    workload: str | None = Field(default=None, description="ours that measures the same thing")
    baseline: str = Field(description="arm id of ours if there is one, else words")
    quantity: Literal["ratio", "percent less", "percent more"]
    low: Annotated[float, Field(gt=0)] = Field(description="the figure; lower end if it is a range")
    high: Annotated[float, Field(gt=0)] = Field(description="upper end; equal to low if it is one")
    figure: str = Field(description="the figure as the source gives it")
    times: str = Field(description="what the ratio times")
    setting: str
    platform: str = Field(description="platform id of ours if there is one, else words")
    hardware: str
    model: str
    comparable_models: tuple[str, ...] = ()
    nominal_prefix: int | None = Field(
        default=None, description="tokens, as labelled by the source"
    )
    measured_prefix: int | None = Field(default=None, description="tokens, as counted")
    hops: int | None = None
    source: str
    cited: bool = Field(default=False, description="read in a document that cites it")

    @model_validator(mode="after")
    def _ordered(self) -> Target:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class TargetFile(BaseModel):
    """One file: what its figures share, and the figures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shared: dict[str, object] = {}
    target: list[dict[str, object]]


def load_targets(folder: Path) -> tuple[Target, ...]:
    """Every target under `folder`, in the order of file names and of places in the file.

    Raises:
        UsageError: a file is not TOML, has an unknown key or repeats an id; names file and key.
    """
    found: list[Target] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            content = TargetFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
            found += [
                Target.model_validate({**content.shared, **entry}) for entry in content.target
            ]
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is not TOML: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UsageError(
                f"{path}: {where}: {first['msg']}; see pipelines/targets.py"
            ) from error
    _refuse_repeats(found, folder)
    return tuple(found)


def _refuse_repeats(found: list[Target], folder: Path) -> None:
    seen: set[str] = set()
    for target in found:
        if target.id in seen:
            raise UsageError(f"{folder}: target id {target.id!r} is given twice; ids are unique")
        seen.add(target.id)
