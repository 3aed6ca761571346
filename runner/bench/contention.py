"""The witness: was the machine ours while we measured?

With as many threads as cores, one other busy process slows decode 25-fold. What the machine did
besides us is therefore evidence, taken before and after the measured part, never during it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import psutil

from runner.bench import thermals
from runner.bench.thermals import SLOWDOWN, MachineState, StateReader, read_state
from runner.errors import EnvironmentProblem
from runner.registration import VoidRule

try:
    import resource
except ImportError:  # Windows has none, and tells no involuntary switches
    resource = None  # type: ignore[assignment]

# The kernel counts CPU time in ticks of 10 ms; in less core time than this a share of it would
# be off by more than 2 %.
SHORTEST_S: Final = 0.5


@dataclass(frozen=True)
class Sample:
    """Counters at one moment. Seconds are CPU seconds, summed over all cores, since start-up."""

    total_s: float
    busy_s: float  # every process of this machine; stolen and idle time are not in it
    steal_s: float | None  # None: the system does not tell
    own_s: float  # this process and its children, living and gone
    involuntary_switches: int | None
    load_1m: float | None


@dataclass(frozen=True)
class Contention:
    """What happened between two samples; the fields are columns of the table ``blocks``.

    The void rule needs nothing else.
    """

    steal_fraction: float | None
    other_cpu_fraction: float | None
    involuntary_switches: int | None
    load_1m: float | None
    gpu_throttle: str | None = None
    gpu_other_processes: int | None = None


Reader = Callable[[], Sample]
_N = TypeVar("_N", int, float)


def read_sample() -> Sample:
    """Read the counters of this machine and process. Takes milliseconds: keep it off the clock."""
    cpu = psutil.cpu_times()
    # Guest time is part of user time on Linux, and is not counted again.
    busy = sum(getattr(cpu, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    steal: float | None = getattr(cpu, "steal", None)
    idle = cpu.idle + getattr(cpu, "iowait", 0.0)
    usage = resource.getrusage(resource.RUSAGE_SELF) if resource else None
    return Sample(
        total_s=busy + idle + (steal or 0.0),
        busy_s=busy,
        steal_s=steal,
        own_s=_own_seconds(),
        involuntary_switches=usage.ru_nivcsw if usage else None,
        load_1m=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _own_seconds() -> float:
    """CPU seconds of this process and everything under it.

    A child that ends moves its seconds to the parent that waits for it, so the sum over the
    living, with the children each has waited for, never loses them.
    """
    me = psutil.Process()
    seconds = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue  # it ended just now; its parent has its seconds
        seconds += used.user + used.system
        seconds += getattr(used, "children_user", 0.0) + getattr(used, "children_system", 0.0)
    return seconds


def contention(start: Sample, stop: Sample) -> Contention:
    """Compare two samples. Fractions are of all cores' time, None where they cannot be told."""
    total = stop.total_s - start.total_s
    told = total >= SHORTEST_S
    others = (stop.busy_s - start.busy_s) - (stop.own_s - start.own_s)
    steal = _difference(start.steal_s, stop.steal_s)
    return Contention(
        steal_fraction=_fraction(steal, total) if told and steal is not None else None,
        other_cpu_fraction=_fraction(others, total) if told else None,
        involuntary_switches=_difference(start.involuntary_switches, stop.involuntary_switches),
        load_1m=stop.load_1m,
    )


def _fraction(part: float, total: float) -> float:
    # Two clocks of 10 ms ticks can differ either way by a tick.
    return min(1.0, max(0.0, part / total))


def _difference(start: _N | None, stop: _N | None) -> _N | None:
    return None if start is None or stop is None else stop - start


class Witness:
    """Watches the machine between `start` and `stop`, or over a ``with`` block."""

    def __init__(self, read: Reader = read_sample, read_state: StateReader = read_state) -> None:
        self._read = read
        self._read_state = read_state
        self._start: tuple[MachineState, Sample] | None = None
        self._seen: Contention | None = None
        self._readings: dict[str, Any] = {}

    def start(self) -> None:
        """Take the first sample; earlier ones are forgotten."""
        self._seen = None
        # The counters last here and first in `stop`: reading the state is not between them.
        self._start = self._read_state(), self._read()

    def stop(self) -> Contention:
        """Take the second sample and return what happened in between."""
        if self._start is None:
            raise RuntimeError("the witness was stopped before it was started")
        state, sample = self._start
        seen = contention(sample, self._read())
        self._readings = thermals.columns(state, self._read_state())
        self._seen = replace(
            seen,
            gpu_throttle=self._readings["gpu_throttle"],
            gpu_other_processes=self._readings["gpu_other_processes"],
        )
        return self._seen

    @property
    def seen(self) -> Contention:
        """What happened, after `stop`."""
        if self._seen is None:
            raise RuntimeError("the witness has not been stopped yet")
        return self._seen

    @property
    def readings(self) -> dict[str, Any]:
        """Every column of the table ``blocks`` that the witness fills, those of `seen` too."""
        return asdict(self.seen) | self._readings

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def void_reason(seen: Contention, rule: VoidRule) -> str | None:
    """Why a block is void by `rule`; None when no limit is passed.

    What the system does not tell passes no limit; it is NULL in the record, for all to see.
    """
    watched = (
        ("other processes used", seen.other_cpu_fraction, rule.other_cpu_fraction_max),
        ("the host took away", seen.steal_fraction, rule.steal_fraction_max),
    )
    passed = [
        f"{what} {share:.1%} of the CPU, the rule allows {limit:.1%}"
        for what, share, limit in watched
        if share is not None and share > limit
    ]
    return "; ".join([*passed, *_gpu_faults(seen, rule)]) or None


def _gpu_faults(seen: Contention, rule: VoidRule) -> list[str]:
    faults = []
    others, limit = seen.gpu_other_processes, rule.gpu_other_processes_max
    if others is not None and limit is not None and others > limit:
        faults.append(f"{others} other process(es) were on the GPU, the rule allows {limit}")
    throttle = seen.gpu_throttle or ""
    if SLOWDOWN in throttle and not rule.gpu_slowdown_allowed:
        faults.append(f"the GPU was slowed: {throttle}")
    return faults


def wait_quiet(
    limit_s: float,
    *,
    bound: float = 0.05,
    quiet_s: float = 3.0,
    step_s: float = 1.0,
    read: Reader = read_sample,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_step: Callable[[float, float], None] | None = None,
) -> float:
    """Wait until others use at most `bound` of the CPU for `quiet_s` without a break.

    Args:
        limit_s: give up when others are still busy after that many seconds.
        bound: share of all cores' time that others and the host together may take.
        quiet_s: how long it must stay quiet.
        step_s: seconds between two samples.
        read: reader of the counters.
        clock: seconds, monotonic.
        sleep: waits that many seconds.
        on_step: told the seconds waited and the share of the last step, to show progress.

    Returns:
        The seconds waited.

    Raises:
        EnvironmentProblem: busy at the limit or after it, or the counters tell nothing.
    """
    began = quiet_since = clock()
    before = read()
    while True:
        sleep(step_s)
        after, now = read(), clock()
        share = _taken(contention(before, after))
        before = after
        if share > bound:
            quiet_since = now
        if on_step:
            on_step(now - began, share)
        if now - quiet_since >= quiet_s:
            return now - began
        # A quiet stretch that began before the limit is watched to its end.
        if share > bound and now - began >= limit_s:
            raise EnvironmentProblem(
                f"the machine is not quiet after {now - began:.0f} s: others take {share:.1%} of "
                f"the CPU, {bound:.1%} is the bound; stop them, or wait longer with --wait-quiet"
            )


def _taken(seen: Contention) -> float:
    if seen.other_cpu_fraction is None:
        raise EnvironmentProblem(
            "this system does not tell how busy its CPUs are; measure without --wait-quiet"
        )
    return seen.other_cpu_fraction + (seen.steal_fraction or 0.0)
