"""The process between us and a server: it ends the server when we end, however we end.

Its standard input is a pipe that only the worker holds. When the worker dies, by whatever, the pipe
closes, and the server is killed. Its own output is the server's: one log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """Run `command` until it ends or our parent does; the exit code is the command's."""
    # Ctrl-C is for the runner, which ends the worker, which ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    return server.wait()


def _end_with_parent(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        pass
    server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
