"""Choosing the next token from a row of logits: greedy, or a seeded chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Sampler(Protocol):
    """Chooses a token. `is_greedy` lets the scheduler take the argmax of a whole batch at once."""

    @property
    def is_greedy(self) -> bool:
        """True when `sample` is the argmax, the lowest id on a tie."""

    def sample(self, row: NDArray[np.float32]) -> int:
        """Choose from one row of logits, shape (n_vocab,); the row is not kept or changed."""


class Greedy:
    """The most likely token, the lowest id on a tie."""

    is_greedy = True

    def sample(self, row: NDArray[np.float32]) -> int:
        """See `Sampler`."""
        return int(row.argmax())


GREEDY = Greedy()


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """A chain in llama.cpp's order: top-k, top-p, min-p, temperature, then one draw.

    Zero or one switch a step off: ``top_k=0``, ``top_p=1``, ``min_p=0``.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} must be > 0; use GREEDY for none")
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ValueError(
                f"top_k {self.top_k}, top_p {self.top_p}, min_p {self.min_p}: out of range"
            )


class SeededChain:
    """Samples by `SamplingParameters` with a generator of its own: same seed, same choices."""

    is_greedy = False

    def __init__(self, parameters: SamplingParameters) -> None:
        self._parameters = parameters
        self._rng = np.random.default_rng(parameters.seed)

    def sample(self, row: NDArray[np.float32]) -> int:
        """See `Sampler`."""
        ids = self._candidates(row)
        weights = _softmax(row[ids].astype(np.float64))
        keep = self._kept(weights)
        scaled = _softmax(row[ids[:keep]].astype(np.float64) / self._parameters.temperature)
        return int(ids[self._rng.choice(keep, p=scaled)])

    def _candidates(self, row: NDArray[np.float32]) -> NDArray[np.intp]:
        """Ids by falling logit, at most top_k of them; ties go to the lower id."""
        k = self._parameters.top_k or row.size
        if k < row.size:
            lowest = np.partition(row, row.size - k)[row.size - k]
            ids = np.flatnonzero(row >= lowest)
            return ids[np.argsort(-row[ids], kind="stable")][:k]
        return np.argsort(-row, kind="stable")

    def _kept(self, weights: NDArray[np.float64]) -> int:
        """How many of the sorted candidates top-p and min-p leave; never none."""
        before = np.cumsum(weights) - weights
        by_top_p = int(np.count_nonzero(before < self._parameters.top_p))
        by_min_p = int(np.count_nonzero(weights >= self._parameters.min_p * weights[0]))
        return max(1, min(by_top_p, by_min_p))


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(values - values.max())
    return np.asarray(weights / weights.sum())
