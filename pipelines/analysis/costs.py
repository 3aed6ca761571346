"""What tokens cost, from the calibration of one block: straight lines over depth, and a curve.

A batch of n tokens that starts at depth d (tokens in KV before it) takes

    f(n) + s(n) * d

`f` is the cost at depth 0, interpolated linearly between the sizes that were measured there. `s` is
what a token of depth adds to a batch of n, interpolated likewise between the sizes that were
measured at several depths: a decode step, a hop (what live KV feeds after a tool's result), partial
chunks and a full chunk, each of which is a straight line over depth. A longer prompt is full chunks
and a last, partial one, as the engine computes it.

Lines are fitted by least squares with equal weights: no measurement is dropped for its value, and
the predicted total of what was measured is what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.analysis.ratios import Floats

KINDS: Final = ("prefill", "hop", "decode")
"""Kinds of calibration rows, each with a line over depth."""

Tokens = int | NDArray[np.int64]
"""One number of tokens, or many of shape (n,): then seconds have that shape too."""


class Reading(NamedTuple):
    """One row of table ``calibration`` that has a time."""

    kind: str
    depth: int
    n_tokens: int
    seconds: float


class CannotPredict(ValueError):
    """The calibration does not hold what a prediction needs; says what is missing."""


@dataclass(frozen=True)
class Line:
    """Seconds = `fixed_s` + `per_depth_s` * depth, of something of `n_tokens` tokens.

    `error` is the root mean square of the relative leave-one-out residuals: how far off the line is
    where it was not fitted. None where a row left out leaves no line.
    """

    n_tokens: int
    n_rows: int
    fixed_s: float
    per_depth_s: float
    error: float | None


@dataclass(frozen=True)
class Costs:
    """Calibrated costs of one block of one run."""

    chunk: Line
    hop: Line
    step: Line
    parts: tuple[Line, ...]
    """Partial chunks that were measured at several depths, rising in tokens."""
    sizes: Floats
    """Batch sizes with a measured cost at depth 0, rising; shape (n,)."""
    seconds: Floats
    """That cost, shape (n,)."""
    parts_error: float | None
    """As `Line.error`, of `f` where it was interpolated."""

    @cached_property
    def lines(self) -> list[Line]:
        """What was measured over depth, one line a size, rising in tokens."""
        found = {line.n_tokens: line for line in (self.step, *self.parts, self.hop, self.chunk)}
        return [found[size] for size in sorted(found)]

    def prefill_s(self, n_tokens: Tokens, depth: Tokens) -> Floats:
        """Seconds to compute `n_tokens` behind `depth` tokens in KV, in chunks."""
        chunk = self.chunk
        full = np.maximum(n_tokens - 1, 0) // chunk.n_tokens
        # Each full chunk lies a chunk deeper than the one before.
        depths = full * depth + chunk.n_tokens * (full * (full - 1) // 2)
        rest = n_tokens - full * chunk.n_tokens
        last = self._at_zero_s(rest) + self._per_depth_s(rest) * (depth + full * chunk.n_tokens)
        found: Floats = full * chunk.fixed_s + depths * chunk.per_depth_s + last * (rest > 0)
        return found

    def decode_s(self, n_steps: Tokens, depth: Tokens) -> Floats:
        """Seconds of `n_steps` single-token steps, the first of them at `depth`."""
        middle = depth + (n_steps - 1) / 2
        return np.asarray(n_steps * (self.step.fixed_s + self.step.per_depth_s * middle), float)

    def _at_zero_s(self, n_tokens: Tokens) -> Floats:
        return np.asarray(np.interp(n_tokens, self.sizes, self.seconds))

    def _per_depth_s(self, n_tokens: Tokens) -> Floats:
        sizes = [line.n_tokens for line in self.lines]
        slopes = [line.per_depth_s for line in self.lines]
        return np.asarray(np.interp(n_tokens, sizes, slopes))


def fit_costs(readings: Sequence[Reading]) -> Costs:
    """Fit the costs of one block.

    Raises:
        CannotPredict: a kind was not measured at two depths.
    """
    chunk = _chunk_line(readings)
    hop = _hop_line(readings)
    step = _step_line(readings)
    deep = tuple(_part_lines(readings, {hop.n_tokens, chunk.n_tokens}))
    parts = _parts(readings, chunk.n_tokens)
    lines = (step, *deep, hop, chunk)
    known = parts | {line.n_tokens: line.fixed_s for line in lines}
    sizes = np.array(sorted(known), float)
    seconds = np.array([known[int(size)] for size in sizes], float)
    return Costs(chunk, hop, step, deep, sizes, seconds, _parts_error(sizes, seconds))


def _chunk_line(readings: Sequence[Reading]) -> Line:
    """Full chunks are those that were measured behind others, and the first of them."""
    found = [one for one in readings if one.kind == "prefill"]
    size = max((one.n_tokens for one in found if one.depth > 0), default=0)
    full = [one for one in found if one.n_tokens == size]
    return _line("prefill", size, [(one.depth, one.seconds) for one in full])


def _part_lines(readings: Sequence[Reading], own: Set[int]) -> Iterator[Line]:
    """Sizes that were measured behind others and are not in `own`, which have lines already."""
    found = [one for one in readings if one.kind == "prefill"]
    sizes = {one.n_tokens for one in found if one.depth > 0} - own
    for size in sorted(sizes):
        pairs = [(one.depth, one.seconds) for one in found if one.n_tokens == size]
        if len({depth for depth, _ in pairs}) > 1:
            yield _line("prefill", size, pairs)


def _hop_line(readings: Sequence[Reading]) -> Line:
    found = [one for one in readings if one.kind == "hop"]
    size = max((one.n_tokens for one in found), default=0)
    same = [one for one in found if one.n_tokens == size]
    return _line("hop", size, [(one.depth, one.seconds) for one in same])


def _step_line(readings: Sequence[Reading]) -> Line:
    """A turn of n steps is one reading of their mean, at the mean of their depths."""
    found = [one for one in readings if one.kind == "decode" and one.n_tokens > 0]
    middle = [(one.depth + (one.n_tokens - 1) / 2, one.seconds / one.n_tokens) for one in found]
    return _line("decode", 1, middle)


def _line(kind: str, n_tokens: int, pairs: Sequence[tuple[float, float]]) -> Line:
    depths, seconds = np.array(pairs, float).reshape(-1, 2).T
    if len(set(depths.tolist())) < 2:
        raise CannotPredict(f"{kind} was not measured at two depths, which a line needs")
    away = depths - depths.mean()
    per_depth = float(away @ seconds / (away @ away))
    fixed = float(seconds.mean()) - per_depth * float(depths.mean())
    return Line(n_tokens, len(pairs), fixed, per_depth, _line_error(depths, seconds))


def _line_error(depths: Floats, seconds: Floats) -> float | None:
    """Leave-one-out residuals in closed form: residual / (1 - leverage)."""
    away = depths - depths.mean()
    leverage = 1 / len(depths) + away**2 / (away @ away)
    if len(depths) < 3 or leverage.max() > 1 - 1e-9:
        return None
    fitted = seconds.mean() + away * (away @ seconds) / (away @ away)
    return _rms((seconds - fitted) / (1 - leverage) / seconds)


def _parts(readings: Sequence[Reading], chunk: int) -> dict[int, float]:
    """Median seconds of prompts shorter than a chunk at depth 0, by their tokens."""
    times: dict[int, list[float]] = {}
    for one in readings:
        if one.kind == "prefill" and one.depth == 0 and one.n_tokens < chunk:
            times.setdefault(one.n_tokens, []).append(one.seconds)
    return {size: float(np.median(times[size])) for size in sorted(times)}


def _parts_error(sizes: Floats, seconds: Floats) -> float | None:
    """What linear interpolation between its neighbours says of each inner size, against it."""
    if len(sizes) < 3:
        return None
    share = (sizes[1:-1] - sizes[:-2]) / (sizes[2:] - sizes[:-2])
    between = seconds[:-2] + share * (seconds[2:] - seconds[:-2])
    return _rms((between - seconds[1:-1]) / seconds[1:-1])


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))
