"""Serve the built site on this machine."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console

from runner.errors import EnvironmentProblem, UsageError


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and says nothing about each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the address is all a reader needs."""


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of `folder` on the loopback address; port 0 takes a free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(QuietHandler, directory=str(folder)))


def serve_site(folder: Path, port: int, console: Console) -> None:
    """Serve `folder` until interrupted.

    Raises:
        UsageError: the site is not built.
        EnvironmentProblem: the port is taken.
    """
    if not (folder / "index.html").exists():
        raise UsageError(f"{folder} holds no site; build it with: nox -s site")
    try:
        server = make_server(folder, port)
    except OSError as error:
        raise EnvironmentProblem(
            f"port {port} cannot be used: {error.strerror}; choose another with --port"
        ) from error
    with server:
        console.print(f"http://127.0.0.1:{port}/  (stop with Ctrl-C)")
        server.serve_forever()
