"""A stand-in for the Hugging Face hub: one file in the hub's layout, over plain HTTP.

It can cut a transfer off, and it answers a range request with the rest, as the hub does.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


@dataclass
class StandIn:
    """What the hub holds, how it behaves, and what it was asked."""

    path: str
    content: bytes
    etag: str = ""
    cut_after: int | None = None
    """Bytes after which the next transfer ends early; None sends it all."""
    stall: threading.Event | None = None
    """The cut transfer stays open until this is set."""
    announced_size: int | None = None
    ranges: list[str | None] = field(default_factory=list)
    address: str = ""

    def __post_init__(self) -> None:
        self.etag = self.etag or hashlib.sha256(self.content).hexdigest()


@contextmanager
def serving(hub: StandIn) -> Iterator[StandIn]:
    """Serve `hub` on a free port while the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: StandIn

    def do_HEAD(self) -> None:
        if self.path == self.hub.path:
            self._head(200, self.hub.announced_size or len(self.hub.content))
        else:
            self._missing()

    def do_GET(self) -> None:
        if self.path != self.hub.path:
            self._missing()
            return
        wanted = self.headers.get("Range")
        self.hub.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        content = self.hub.content[start:]
        self._head(206 if wanted else 200, len(content), start if wanted else None)
        cut, self.hub.cut_after = self.hub.cut_after, None
        self.wfile.write(content[:cut])
        if cut is not None and self.hub.stall is not None:
            self.hub.stall.wait(60)

    def _head(self, status: int, length: int, start: int | None = None) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{self.hub.etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(length))
        if start is not None:
            total = len(self.hub.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.end_headers()

    def _missing(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests read `ranges`."""
