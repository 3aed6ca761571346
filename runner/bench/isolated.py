"""Running a job in a process of its own, so that a native crash costs one job and no more.

The child reads its job from a file and writes its answer to one. Its standard input is a pipe that
only the parent holds: when the parent dies, however it dies, the pipe closes and the child ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.errors import LivekvError

Job = dict[str, Any]


class JobFailed(LivekvError):
    """The job said why it could not be done."""


class JobDied(LivekvError):
    """The process ended without an answer: a signal, an abort, a time limit."""


def call(module: str, job: Job, *, limit_s: float | None = None) -> dict[str, Any]:
    """Run ``python -m <module>`` on `job` and return its answer.

    Args:
        module: a module whose main calls `serve`.
        job: anything JSON holds.
        limit_s: kill the job after this many seconds.

    Raises:
        JobFailed: the job raised; the message is its own.
        JobDied: names the signal or the exit code, and the last lines it printed.
    """
    with tempfile.TemporaryDirectory(prefix="livekv-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        with (folder / "output.txt").open("wb") as output:
            code = _run(module, folder, output, limit_s)
        answer = _answer(folder / "answer.json")
        if answer is None:
            raise JobDied(_obituary(module, code, folder / "output.txt"))
    if "error" in answer:
        raise JobFailed(answer["error"])
    result: dict[str, Any] = answer["result"]
    return result


def _run(module: str, folder: Path, output: Any, limit_s: float | None) -> int | None:
    # A session of its own: Ctrl-C reaches the parent, which decides what happens to the child.
    child = subprocess.Popen(
        [sys.executable, "-m", module, str(folder)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    # A timer and not `wait(timeout=...)`, which polls while the child is being measured.
    expired = threading.Event()

    def give_up() -> None:
        expired.set()
        child.kill()

    timer = threading.Timer(limit_s or 0.0, give_up)
    try:
        if limit_s is not None:
            timer.start()
        code = child.wait()
    finally:
        timer.cancel()
        _end_family(child)
        child.wait()
        if child.stdin:
            child.stdin.close()
    return None if expired.is_set() else code


def _end_family(child: subprocess.Popen[bytes]) -> None:
    """The child leads a group of its own: whatever it started ends with it."""
    child.kill()
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def _answer(path: Path) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return answer


def _obituary(module: str, code: int | None, output: Path) -> str:
    name = module.rpartition(".")[2]
    tail = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    said = f"; it last said: {' | '.join(line.strip() for line in tail)}" if tail else ""
    if code is None:
        return f"the {name} process passed its time limit and was stopped{said}"
    if code < 0:
        return f"the {name} process was killed by {_signal_name(-code)}{said}"
    return f"the {name} process ended with exit code {code} and no answer{said}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have none
        return f"signal {number}"


def serve(work: Callable[[Job], dict[str, Any]]) -> None:
    """The child's main: do the job named on the command line and answer."""
    folder = Path(sys.argv[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job: Job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        answer: dict[str, Any] = {"result": work(job)}
    except (LivekvError, MemoryError) as error:
        answer = {"error": str(error) or type(error).__name__}
    partial = folder / "answer.partial"
    partial.write_text(json.dumps(answer), encoding="utf-8")
    partial.replace(folder / "answer.json")


def _end_with_parent() -> None:
    # Not through sys.stdin: its buffer's lock, held by this thread, aborts the interpreter's exit.
    while os.read(0, 1):
        pass
    os._exit(1)
