"""Ctrl-C and a request to terminate: the work stops, what is finished is kept, and that is said."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from runner.errors import Interrupted


@contextmanager
def stop_on_terminate(said: str) -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, and either as `Interrupted` with what was `said`."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        # Said here: the command line's own handling of it leaves in silence.
        raise Interrupted(f"interrupted; {said}") from None
    finally:
        signal.signal(signal.SIGTERM, before)
