"""What was written down before the first number: the form of ``data/expectations/*.toml``.

The form is closed and refuses what could not be judged afterwards: an interval upside down, a
claim without a threshold, parity with one, a model without a control.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runner.errors import UsageError

Text = Annotated[str, Field(min_length=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VoidRule(_Closed):
    """A block is void, as a whole and for every arm, when any limit is passed."""

    steal_fraction_max: Fraction
    other_cpu_fraction_max: Fraction
    void_blocks_max: Fraction = Field(
        description="share of void blocks above which a run is INVALID"
    )
    gpu_other_processes_max: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="other processes on the GPU; none: no limit"
    )
    gpu_slowdown_allowed: bool = Field(
        default=True, description="false: heat or the power brake slowing the GPU voids the block"
    )


class Forecast(_Closed):
    """What we expect of one point on one model, written down before it is measured."""

    model: Text
    point: Text
    role: Literal["primary", "secondary", "parity", "near_parity"]
    baseline: Text | None = Field(
        default=None, description="the arm compared with; none: that of the expectation"
    )
    low: Ratio = Field(description="forecast interval of the ratio, lower end")
    high: Ratio = Field(description="forecast interval of the ratio, upper end")
    threshold: Ratio | None = Field(
        default=None,
        description="the ratio at or below which the claim is refuted; none for parity",
    )

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        where = f"{self.model} at {self.point}"
        if self.low > self.high:
            raise ValueError(f"{where}: low {self.low} is above high {self.high}; swap them")
        if self.role == "parity" and self.threshold is not None:
            raise ValueError(
                f"{where}: a parity forecast has no threshold, and this one says {self.threshold}; "
                "remove it, parity is judged by parity_margin"
            )
        if self.role == "parity" and not self.low <= 1 <= self.high:
            raise ValueError(
                f"{where}: parity means 1, outside {self.low} to {self.high}; widen it"
            )
        if self.role in ("primary", "secondary") and self.threshold is None:
            raise ValueError(f"{where}: a {self.role} forecast needs the threshold that refutes it")
        return self


class Expectation(_Closed):
    """One file of ``data/expectations/``."""

    id: Text
    title: Text
    claim: Text
    estimand: Text
    workload: Text
    treatment: Text
    baseline: Text
    sweep: Text
    # 6 blocks are the fewest with an exact 95 % interval of the median.
    blocks_min: Annotated[int, Field(ge=6)]
    warmup_tokens: Annotated[int, Field(ge=0)]
    parity_margin: float = Field(
        gt=0, lt=1, description="parity holds when the ratio is within 1 +- margin"
    )
    negative: Text = Field(description="what would be a real negative result")
    exclusions: Text
    replaces: tuple[Text, ...] = Field(
        default=(), description="earlier expectations of the same points that this one takes over"
    )
    repeat_arm: Text | None = Field(
        default=None, description="the treatment once more under another name (A/A); none: no gate"
    )
    unexplained_max: Fraction | None = Field(
        default=None,
        description="share of the saved time that calibrated costs may leave unexplained",
    )
    void: VoidRule
    forecast: Annotated[tuple[Forecast, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if self.treatment == self.baseline:
            raise ValueError(f"treatment and baseline are both {self.baseline!r}; name two arms")
        named = [(one.model, one.point, self.baseline_of(one)) for one in self.forecast]
        twice = sorted(
            {
                f"{model} at {point} against {arm}"
                for model, point, arm in named
                if named.count((model, point, arm)) > 1
            }
        )
        if twice:
            raise ValueError(f"more than one forecast of {', '.join(twice)}; keep one")
        controlled = {one.model for one in self.forecast if one.role == "parity"}
        # The treatment against itself is a control too, where both baselines are other engines.
        bare = sorted({one.model for one in self.forecast} - controlled)
        bare = [] if self.repeat_arm else bare
        if bare:
            raise ValueError(
                f"no parity forecast for {', '.join(bare)}; every sweep has its control"
            )
        return self

    def baseline_of(self, forecast: Forecast) -> str:
        """The arm that `forecast` compares the treatment with."""
        return forecast.baseline or self.baseline

    @property
    def arms(self) -> frozenset[str]:
        """Every arm that a run of it must have."""
        compared = {self.baseline_of(one) for one in self.forecast}
        return frozenset({self.treatment, *compared, *filter(None, [self.repeat_arm])})

    def missing(self, model: str, points: Sequence[str]) -> list[str]:
        """Those of `points` that have no forecast on `model`."""
        known = {one.point for one in self.forecast if one.model == model}
        return [point for point in points if point not in known]


def load_expectation(path: Path) -> Expectation:
    """Read one expectation; its id is the file's name, and unknown keys are refused.

    Raises:
        UsageError: not readable, not TOML, or not an expectation that can be judged.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        expectation = Expectation.model_validate({"id": path.stem, **content})
    except ValidationError as error:
        raise UsageError(f"{path}: {_first_fault(error)}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if expectation.id != path.stem:
        raise UsageError(f"{path}: id {expectation.id!r} is not the file's name; say {path.stem!r}")
    return expectation


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"]) or "expectation"
    if fault["type"] == "extra_forbidden":
        return f"unknown key {where}; remove it or correct its spelling"
    if fault["type"] == "missing":
        return f"{where} is missing; add it"
    if fault["type"] == "value_error":
        return f"{where}: {fault['ctx']['error']}"
    return f"{where} is {fault['input']!r}: {fault['msg']}"
