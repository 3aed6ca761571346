"""A simulated machine: its clock, a backend that takes time on it, its weather and its witness.

Everything else is the real thing: what runs here is `runner.bench.worker.measure` with the real
arms, engine, scheduler and meter. `Machine.call` stands where `runner.bench.isolated.call` stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runner.arms import ARMS, Arm
from runner.arms.host import EngineHost
from runner.bench import calibration
from runner.bench.contention import Sample
from runner.bench.isolated import Job, JobDied, JobFailed
from runner.bench.schedule import Step
from runner.bench.worker import measure
from runner.catalog import Point
from runner.engine.backend import Entry, Logits
from runner.engine.fake import FakeBackend
from runner.errors import LivekvError
from runner.workloads.tool_loop import Script, build_script

CORES: Final = 2
N_BATCH: Final = 64


class Clock:
    """Seconds that pass only where work is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Costs:
    """Seconds of a decode: a call, each token of it, each token of KV a token looks back on.

    Powers of two, so that equal work takes equal time to the last bit.
    """

    call_s: float = 2**-7
    token_s: float = 2**-6
    depth_s: float = 2**-16
    n_cold: int = 0
    """The first tokens after loading, which cost three times as much."""

    def of(self, entry: Entry, n_computed: int) -> float:
        """Seconds of `entry`'s tokens, when `n_computed` came before them since loading."""
        n = len(entry.tokens)
        cold = min(n, max(0, self.n_cold - n_computed))
        looked_back = n * entry.start + n * (n - 1) / 2
        return self.token_s * (n + 2 * cold) + self.depth_s * looked_back


class SimulatedBackend(FakeBackend):
    """`FakeBackend` whose decode takes time on a clock."""

    def __init__(self, n_batch: int = N_BATCH) -> None:
        super().__init__(n_ctx=1024, n_batch=n_batch, n_seq_max=4)
        self.load(Clock(), Costs(), 1.0)

    def load(self, clock: Clock, costs: Costs, slowness: float) -> None:
        """Begin as a new process does; the sequences of the last one are empty again."""
        self.clock, self.costs, self.slowness = clock, costs, slowness
        self.n_computed = 0

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        logits = super().decode(entries)
        seconds = self.costs.call_s
        for entry in entries:
            seconds += self.costs.of(entry, self.n_computed)
            self.n_computed += len(entry.tokens)
        self.clock.now += seconds * self.slowness
        return logits


@lru_cache
def backend_of(n_batch: int) -> SimulatedBackend:
    """One for all processes: making its table takes longer than a whole simulated block."""
    return SimulatedBackend(n_batch)


@lru_cache(maxsize=4096)
def usual_script(point: Point, seed: int) -> Script:
    """The real script, made once for all arms of a block."""
    return build_script(point, backend_of(N_BATCH), seed)


@dataclass(frozen=True)
class Weather:
    """What a machine does to processes that run one after another, as factors of their time.

    All but `stalls` are on the log scale, so that faster and slower are the same distance.
    """

    noise: float = 0.01
    """Standard deviation, drawn for each process."""
    drift: float = 0.0
    """Slower or faster by this much from the first process to the last; which is drawn."""
    step: float = 0.0
    """Slower by this much from one moment on; which is drawn."""
    alternation: float = 0.0
    """Every second process is slower by this much."""
    outliers: float = 0.0
    """Share of the processes that take up to three times as long."""

    def slowness(self, n: int, seed: int) -> NDArray[np.float64]:
        """The factor of each of `n` processes, the same for the same seed."""
        rng = np.random.default_rng(seed)
        log = rng.normal(0, self.noise, n) if self.noise else np.zeros(n)
        log += self.drift * rng.choice([-1, 1]) * np.linspace(0, 1, n)
        log += self.step * (np.arange(n) >= rng.integers(n))
        log += self.alternation * (np.arange(n) % 2)
        log += (rng.random(n) < self.outliers) * rng.uniform(0, np.log(3), n)
        factors: NDArray[np.float64] = np.exp(log)
        return factors


class Machine:
    """Runs the steps of a plan as an honest machine would. A sabotage is a small subclass."""

    def __init__(self, weather: Weather | None = None, seed: int = 1) -> None:
        self.weather = weather or Weather()
        self.seed = seed
        self.clock = Clock()
        self.jobs: list[tuple[Step, Job]] = []
        """Every job that was handed over, with the step it belongs to."""
        self._slowness: Mapping[Step, float] = {}
        self._step: Step | None = None

    # --- what a sabotage changes

    def arm(self, step: Step) -> Arm:
        """What runs under the step's name."""
        return ARMS[step.arm]()

    def costs(self, step: Step) -> Costs:
        """What this process's work costs."""
        return Costs()

    def factor(self, step: Step) -> float:
        """How much slower this process is than the weather makes it."""
        return 1.0

    def n_batch(self, step: Step) -> int:
        """Tokens a decode of this process may carry."""
        return N_BATCH

    def warmup(self, step: Step, planned: int) -> int:
        """Tokens this process computes before it is measured."""
        return planned

    def script(self, step: Step, point: Point, seed: int) -> Script:
        """What this process is fed."""
        return usual_script(point, seed)

    def others(self, step: Step) -> float:
        """Share of all cores that other programs take while this process runs."""
        return 0.01

    # --- the machine

    def begin(self, steps: Sequence[Step]) -> None:
        """Draw the weather of a run of `steps`, in the order they will run."""
        factors = self.weather.slowness(len(steps), self.seed)
        self._slowness = dict(zip(steps, factors.tolist(), strict=True))

    def turn_to(self, step: Step) -> None:
        """Say which step the next call belongs to: a job does not tell its block."""
        self._step = step

    def call(self, module: str, job: Job, *, limit_s: float | None = None) -> dict[str, Any]:
        """See `isolated.call`: an error of ours is the job's answer, any other is its death."""
        assert self._step is not None, "turn_to comes first"
        self.jobs.append((self._step, job))
        works = {
            "runner.bench.worker": self.run_arm,
            "runner.bench.calibration": self.run_calibration,
        }
        try:
            return works[module](self._step, job)
        except LivekvError as error:
            raise JobFailed(str(error)) from error
        except Exception as error:
            raise JobDied(f"the process ended without an answer: {error}") from error

    def load(self, step: Step) -> SimulatedBackend:
        """The backend as a new process finds it."""
        backend = backend_of(self.n_batch(step))
        backend.load(self.clock, self.costs(step), self._slowness[step] * self.factor(step))
        return backend

    def sample(self) -> Sample:
        """What the witness reads: one of the cores is ours, others take what they are said to."""
        assert self._step is not None, "turn_to comes first"
        total = CORES * self.clock.now
        busy = self.clock.now + self.others(self._step) * total
        return Sample(total, busy, 0.0, self.clock.now, 0, 1.0)

    def run_arm(self, step: Step, job: Job) -> dict[str, Any]:
        """What ``runner.bench.worker`` does, on the simulated clock."""
        script = self.script(step, Point(**job["point"]), job["seed"])
        warmup = self.warmup(step, job["warmup_tokens"])
        host = EngineHost(self.load(step), self.clock)
        measured = measure(host, self.arm(step), script, warmup, clock=self.clock, read=self.sample)
        measured["block"]["load_s"] = 0.5
        return measured

    def run_calibration(self, step: Step, job: Job) -> dict[str, Any]:
        """What ``runner.bench.calibration`` does, on the simulated clock."""
        return calibration.measure(
            self.load(step), job, N_BATCH, clock=self.clock, read=self.sample
        )
