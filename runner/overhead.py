"""What the engine itself costs, and whether it keeps llama.cpp's own rates: ``nox -s bench``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from runner import catalog
from runner.bench import rates
from runner.building import ensure_engine
from runner.engine import symbols
from runner.engine.backend import Entry, Logits
from runner.engine.batch import Batch
from runner.engine.engine import Engine
from runner.engine.fake import FakeBackend
from runner.engine.parameters import LoadParameters
from runner.errors import LivekvError
from runner.loading import parameters_for
from runner.models import ensure_model

STEP_LIMIT_US: Final = 50.0
SEQUENCE_LIMIT_US: Final = 5.0
FILL_LIMIT_MS: Final = 0.1
RATE_FLOOR: Final = 0.97
_STEPS: Final = 400
_ROUNDS: Final = 7
_MANY: Final = 33
_DEPTHS: Final = (0, 1024)
_BLOCKS: Final = 5


class BenchFailed(LivekvError):
    """A figure missed its bound."""


class _TimedFake(FakeBackend):
    """The fake, its own decode time kept apart from the engine's."""

    def __init__(self, n_seq_max: int) -> None:
        super().__init__(n_ctx=65536, n_seq_max=n_seq_max)
        self.inside_s = 0.0

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        started = time.perf_counter()
        logits = super().decode(entries)
        self.inside_s += time.perf_counter() - started
        return logits


def step_us(n_sequences: int) -> float:
    """Microseconds of scheduler and session in one decode step, the fake's own time left out."""
    backend = _TimedFake(n_sequences)
    engine = Engine(backend)
    sessions = [engine.session() for _ in range(n_sequences)]
    for session in sessions:
        session.send([1, 2, 3])
    requests = [session.start(_STEPS + 1, ignore_end=True) for session in sessions]
    engine.step()
    backend.inside_s = 0.0
    started = time.perf_counter()
    engine.run(requests)
    total = time.perf_counter() - started
    return 1e6 * (total - backend.inside_s) / _STEPS


def fill_ms(lib_dir: Path, n_tokens: int = 3000) -> float:
    """Milliseconds to fill a batch of `n_tokens` of one sequence."""
    batch = Batch(symbols.load_binding(lib_dir), n_tokens, n_tokens)
    entries = [Entry(0, 0, np.arange(n_tokens, dtype=np.int32), want_logits=True)]
    started = time.perf_counter()
    for _ in range(_STEPS):
        batch.fill(entries)
    return 1e3 * (time.perf_counter() - started) / _STEPS


def _best(measure: Callable[[], float]) -> float:
    """The smallest of several rounds: overhead is what is left when nothing disturbs."""
    return min(measure() for _ in range(_ROUNDS))


class Figure(NamedTuple):
    """One measured figure and the bound it has to meet."""

    name: str
    value: float
    unit: str
    bound: float
    is_floor: bool = False
    """True when the bound is the least, false when it is the most the value may be."""

    @property
    def met(self) -> bool:
        """Whether the value keeps its bound."""
        return self.value >= self.bound if self.is_floor else self.value <= self.bound


def run_bench(
    platform_id: str,
    model_name: str,
    threads: int | None,
    llama_cpp: Path | None,
    console: Console,
) -> None:
    """Print every figure beside its bound.

    Raises:
        BenchFailed: names the figures that missed theirs.
    """
    platform = catalog.platform(platform_id)
    build = ensure_engine(platform_id, llama_cpp, console)
    model = ensure_model(model_name, console)
    figures = _overheads(build.lib_dir)
    parameters = parameters_for(build, model, platform, threads or 1)
    for depth in _DEPTHS:
        with console.status(f"our rates and llama-bench's at depth {depth} ..."):
            figures += _rate_ratios(parameters, depth)
    _print(figures, console)


def _overheads(lib_dir: Path) -> list[Figure]:
    one, many = _best(lambda: step_us(1)), _best(lambda: step_us(_MANY))
    further = (many - one) / (_MANY - 1)
    filled = _best(lambda: fill_ms(lib_dir))
    return [
        Figure("decode step, one sequence", one, "us", STEP_LIMIT_US),
        Figure("each further sequence", further, "us", SEQUENCE_LIMIT_US),
        Figure("fill a batch of 3,000 tokens", filled, "ms", FILL_LIMIT_MS),
    ]


def _rate_ratios(parameters: LoadParameters, depth: int) -> list[Figure]:
    """Median over blocks of our rate over llama-bench's, prefill and decode."""
    pairs = [
        (rates.ours(parameters, depth), rates.llama_bench(parameters, depth))
        for _ in range(_BLOCKS)
    ]
    return [
        Figure(
            f"{what} at depth {depth} / llama-bench, {_BLOCKS} blocks",
            statistics.median(mine[index] / theirs[index] for mine, theirs in pairs),
            "",
            RATE_FLOOR,
            is_floor=True,
        )
        for index, what in enumerate(("prefill", "decode"))
    ]


def _print(figures: Sequence[Figure], console: Console) -> None:
    table = Table(title="engine overhead and rates", title_justify="left")
    for heading in ("figure", "measured", "bound", ""):
        table.add_column(heading, justify="right" if heading in {"measured", "bound"} else "left")
    for figure in figures:
        sign = "[green]met[/]" if figure.met else "[bold red]missed[/]"
        measured, bound = f"{figure.value:.3g} {figure.unit}", f"{figure.bound:g} {figure.unit}"
        table.add_row(figure.name, measured, bound, sign)
    console.print(table)
    missed = [figure.name for figure in figures if not figure.met]
    if missed:
        raise BenchFailed(f"missed: {'; '.join(missed)}")
