"""The life of a llama-server: a free port, a log, health, settings read back, always an end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

from runner.engine.parameters import LoadParameters
from runner.engine.symbols import LIBRARY_VARIABLE
from runner.errors import EnvironmentProblem
from runner.serving.client import Client, ServerFailed
from runner.serving.settings import HOST, ServerSettings

START_LIMIT_S: Final = 300.0
_ATTEMPTS: Final = 3
_POLL_S: Final = 0.05
_STOP_S: Final = 5.0
_TAKEN: Final = ("couldn't bind", "address already in use", "failed to bind")


class _PortTaken(Exception):
    """Somebody took the port between our asking for it and the server's."""


class ServerProcess:
    """A running server. `client` asks it; `close` ends it, and is safe more than once.

    Raises on construction:
        EnvironmentProblem: there is no such program, or it did not start; with its last line.
        SettingsRefused: it started with other settings.
    """

    def __init__(
        self,
        parameters: LoadParameters,
        settings: ServerSettings,
        *,
        program: tuple[str, ...] | None = None,
        free_port: Callable[[], int] | None = None,
    ) -> None:
        self._command = program or (str(parameters.lib_dir / "llama-server"),)
        self._parameters = parameters
        self._settings = settings
        self._folder = TemporaryDirectory(prefix="livekv-server-")
        self._log = Path(self._folder.name) / "server.log"
        try:
            self._start(free_port or _free_port)
            settings.require(parameters, self.client.props(), self.client.slots())
        except BaseException:
            self.close()
            raise

    def _start(self, free_port: Callable[[], int]) -> None:
        for _ in range(_ATTEMPTS):
            try:
                self._launch(free_port())
            except _PortTaken:
                self._end()
            else:
                return
        raise EnvironmentProblem(
            f"llama-server found its port taken {_ATTEMPTS} times; stop what opens ports, or retry"
        )

    def _launch(self, port: int) -> None:
        arguments = self._settings.arguments(self._parameters, port, Path(self._folder.name))
        environment = os.environ | {"LD_LIBRARY_PATH": str(self._parameters.lib_dir)}
        environment.pop(LIBRARY_VARIABLE, None)
        guard = [sys.executable, "-m", "runner.serving.guard"]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*guard, *self._command, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
        except OSError as error:
            raise EnvironmentProblem(f"cannot run {self._command[0]}: {error.strerror}") from error
        self.client = Client(f"http://{HOST}:{port}")
        self._await_health()

    def _await_health(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.client.is_ready():
            if self._process.poll() is not None:
                self._refuse_end()
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"llama-server is not ready after {START_LIMIT_S:.0f} s; {self.last_words()}"
                )
            time.sleep(_POLL_S)
        # Another server may have answered on a port that ours could not take.
        if self._process.poll() is not None:
            self._refuse_end()

    def _refuse_end(self) -> None:
        said = self.last_words()
        if any(word in self._text().lower() for word in _TAKEN):
            raise _PortTaken
        raise EnvironmentProblem(f"llama-server ended at its start; {said}")

    def last_words(self) -> str:
        """The last lines of the server's log, as part of a sentence."""
        lines = [line.strip() for line in self._text().splitlines() if line.strip()][-3:]
        return f"it last said: {' | '.join(lines)}" if lines else "it said nothing"

    def _text(self) -> str:
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    @property
    def peak_rss_bytes(self) -> int | None:
        """Most memory the server held so far; None where the system does not tell."""
        sizes = [_peak(child) for child in self._family()]
        return max((size for size in sizes if size), default=None)

    def require_alive(self) -> None:
        """Refuse when the server has ended.

        Raises:
            ServerFailed: with the last lines of its log.
        """
        if self._process.poll() is not None:
            raise ServerFailed(f"llama-server ended in the middle; {self.last_words()}")

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.Error:
            return []

    def close(self) -> None:
        """End the server and forget its files."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        process = getattr(self, "_process", None)
        if process is None:
            return
        self.client.close()
        if process.stdin and not process.stdin.closed:
            process.stdin.close()  # the guard kills the server
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        for child in self._family():
            with suppress(psutil.Error):
                child.kill()
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _peak(process: psutil.Process) -> int | None:
    try:
        memory = process.memory_info()
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    except (psutil.Error, OSError):
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return int(memory.rss)
