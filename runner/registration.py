"""Was the expectation committed before the number?

First form: the expectation file is read, its digest and the commit that brought it are stored,
and the run is `registered` only if that commit is a strict ancestor of the harness commit, the
digest is the same at both, and the tree is clean. Everything else is `exploratory` or `broken`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VoidRule(_Closed):
    """A block is void, as a whole and for every arm, when any limit is passed."""

    steal_fraction_max: float
    other_cpu_fraction_max: float
    void_blocks_max: float = Field(description="share of void blocks above which a run is INVALID")


class Forecast(_Closed):
    """What we expect of one point on one model, written down before it is measured."""

    model: str
    point: str
    role: Literal["primary", "secondary", "parity", "near_parity"]
    low: float = Field(description="forecast interval of the ratio, lower end")
    high: float = Field(description="forecast interval of the ratio, upper end")
    threshold: float | None = Field(
        default=None, description="the ratio at or below which the claim is refuted; none for parity"
    )


class Expectation(_Closed):
    """One file of ``data/expectations/``."""

    id: str
    title: str
    claim: str
    estimand: str
    workload: str
    treatment: str
    baseline: str
    sweep: str
    blocks_min: Annotated[int, Field(ge=2)]
    warmup_tokens: int
    parity_margin: float = Field(description="parity holds when the ratio is within 1 +- margin")
    negative: str = Field(description="what would be a real negative result")
    exclusions: str
    void: VoidRule
    forecast: tuple[Forecast, ...]
