"""Settings that a tuning chose, read back for a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.errors import UsageError
from runner.serving.settings import ServerSettings


class Shared(BaseModel):
    """Settings of the engine, one for every arm; None: the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_batch: Annotated[int, Field(ge=1)] | None = None
    n_ubatch: Annotated[int, Field(ge=1)] | None = None
    flash_attention: Literal["auto", "on", "off"] | None = None
    kv_type: Literal["f16", "f32", "q8_0"] | None = None

    def given(self) -> dict[str, Any]:
        """Those that are not left to the default."""
        return self.model_dump(exclude_none=True)


class Chosen(BaseModel):
    """What a tuning found best."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shared: Shared = Shared()
    server: dict[str, int] = Field(default_factory=dict)


class Tuned(BaseModel):
    """The winner of a tuning, as `nox -s tune` writes it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tuning_id: str
    model_id: str
    machine_key: str
    settings: Chosen

    def server(self) -> ServerSettings:
        """Settings of a server arm."""
        return ServerSettings(**self.settings.server)  # type: ignore[arg-type]


def load_tuned(path: Path, model_id: str) -> Tuned:
    """Read the winner of a tuning of `model_id`.

    Raises:
        UsageError: not readable, of another model, or with settings that do not exist.
    """
    try:
        found = Tuned.model_validate_json(path.read_text(encoding="utf-8"))
        found.server()
    except (OSError, ValidationError, TypeError) as error:
        raise UsageError(f"cannot read {path}: {error}; write it with: nox -s tune") from error
    if found.model_id != model_id:
        raise UsageError(f"{path} tuned {found.model_id}, this sweep runs {model_id}")
    return found
