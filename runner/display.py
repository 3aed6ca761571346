"""What a sweep shows: its plan before it starts, and how far it is, without disturbing it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from runner.bench.schedule import Step
from runner.estimates import Estimate, estimate
from runner.plan import Plan

_MIB = 1024 * 1024


def show_plan(plan: Plan, console: Console) -> None:
    """The points, the arms, the order, the registration, and what it will take."""
    table = Table(title=f"sweep {plan.sweep} on {plan.platform}", title_justify="left")
    for heading in ("point", "prefix", "hops", "turn", "result", "KV cells"):
        table.add_column(heading, justify="left" if heading == "point" else "right")
    for point in plan.points:
        sizes = (point.prefix, point.hops, point.generate, point.result, point.n_tokens)
        table.add_row(point.id, *(str(size) for size in sizes))
    console.print(table)
    lines = [
        f"model {escape(plan.model)}, n_ctx {plan.n_ctx}, n_batch {plan.n_batch}",
        f"arms {', '.join(plan.arms)}, {plan.blocks} blocks, order seed {plan.order_seed}",
        f"threads {plan.n_threads}: {plan.threads_reason}; plan {plan.fingerprint}",
        f"{plan.registration_status}: {plan.registration_reason or 'as expected beforehand'}",
        _cost(estimate(plan)),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _cost(expected: Estimate) -> str:
    if expected.seconds is None:
        return "time and memory: not known before the first bring-up of this model here"
    memory = expected.memory_bytes
    if expected.guessed:
        size = f", {memory / _MIB:.0f} MiB of weights and the KV cache" if memory else ""
        return (
            f"a guess from the model's size: {duration(expected.seconds)}{size}; "
            "the first bring-up here replaces it"
        )
    at_peak = f", {memory / _MIB:.0f} MiB at the peak" if memory else ""
    return f"estimate from this machine's rates: {duration(expected.seconds)}{at_peak}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class StepProgress:
    """A bar that moves between steps only: a refreshing thread would be a disturbance of ours."""

    def __init__(self, console: Console, costs: Mapping[Step, float], done: int) -> None:
        self._console = console
        self._costs = dict(costs)
        self._started_at = 0.0
        self._spent = 0.0
        self._expected = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task("", total=done + len(costs), completed=done, left="")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def begin(self, step: Step) -> None:
        """A step starts."""
        self._started_at = time.monotonic()
        where = f"block {step.block + 1}" if step.block >= 0 else "before the blocks"
        words = dict.fromkeys((where, step.point, step.arm))
        text = " ".join(words)
        if self._console.is_terminal:
            self._progress.update(self._task, description=text, left=self._left())
            self._progress.refresh()
        else:
            left = self._left()
            self._console.print(f"{text} ({left})" if left else text, highlight=False)

    def end(self, step: Step, reason: str | None) -> None:
        """A step is on disk; `reason` when it failed."""
        self._spent += time.monotonic() - self._started_at
        self._expected += self._costs.pop(step)
        self._progress.advance(self._task)
        if reason:
            said = escape(f"{step.arm} at {step.point}: {reason}")
            self._console.print(f"[yellow]failed:[/] {said}", highlight=False, soft_wrap=True)

    def _left(self) -> str:
        """Remaining estimates, scaled by how the finished steps compared with theirs."""
        if not self._expected:
            known = sum(self._costs.values())
            return f"about {duration(known)} left" if known else ""
        pace = self._spent / self._expected
        return f"about {duration(pace * sum(self._costs.values()))} left"
