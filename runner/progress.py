"""Bars with the time left; on a log that is no terminal, a line now and then instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

Show = Callable[[int], None]


def byte_progress(console: Console, title: str, total: int) -> AbstractContextManager[Show]:
    """A bar over bytes; what it yields takes the bytes done so far."""
    return _bar(console, title, total, DownloadColumn())


def step_progress(console: Console, title: str, total: int) -> AbstractContextManager[Show]:
    """A bar over steps; what it yields takes the steps done so far."""
    return _bar(console, title, total, MofNCompleteColumn())


def percent_progress(console: Console, title: str) -> AbstractContextManager[Show]:
    """A bar over a hundred; what it yields takes the percentage done so far."""
    return _bar(console, title, 100, TaskProgressColumn())


@contextmanager
def _bar(console: Console, title: str, total: int, count: ProgressColumn) -> Iterator[Show]:
    if not console.is_terminal:
        yield _lines(console, title, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=min(done, total))


def _lines(console: Console, title: str, total: int) -> Show:
    console.print(f"{title} ...", highlight=False)
    said = 0

    def show(done: int) -> None:
        nonlocal said
        tenth = 10 * done // max(total, 1)
        if tenth > said:
            said = tenth
            console.print(f"{title}: {10 * min(tenth, 10)} %", highlight=False)

    return show
