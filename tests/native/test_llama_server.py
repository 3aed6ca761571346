"""A real llama-server on a tiny model: its life, its settings, its receipts, and its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from runner.arms.llama_server import LlamaServer
from runner.arms.llama_server_cold import LlamaServerCold
from runner.arms.meter import Meter
from runner.arms.served import ServerHost, run_served, shared
from runner.bench.dictation import dictate
from runner.building import EngineBuild
from runner.catalog import Point
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.errors import EnvironmentProblem
from runner.serving.client import UNKNOWN, Client, ServerFailed
from runner.serving.process import ServerProcess
from runner.serving.settings import ServerSettings, SettingsRefused
from runner.workloads.tool_loop import Script, build_script

POINT = Point(prefix=40, hops=3, generate=8, result=6)


@pytest.fixture
def parameters(engine_build: EngineBuild, tiny_model: Callable[[str], Path]) -> LoadParameters:
    return LoadParameters(
        tiny_model("llama"), "0" * 64, engine_build.lib_dir, "0" * 64, n_ctx=512, n_batch=256,
        n_ubatch=256,
    )  # fmt: skip


@pytest.fixture
def script(parameters: LoadParameters) -> Script:
    with closing(LlamaCppBackend(parameters)) as backend:
        return build_script(POINT, backend, 3, dictate(backend, POINT, 3))


@pytest.fixture
def host(parameters: LoadParameters) -> Iterator[ServerHost]:
    with closing(LlamaServer.open(parameters, ServerSettings())) as opened:
        yield opened


def servers() -> list[psutil.Process]:
    """Every llama-server under this process."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if one.is_running() and "llama-server" in " ".join(one.cmdline())]


def until(true: Callable[[], object], limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_a_kept_slot_computes_only_what_is_new(host: ServerHost, script: Script) -> None:
    host.warm_up(16)
    meter = Meter()
    run_served(host, script, meter)
    first, *later = [reading.turn for reading in meter.readings]
    assert (first.n_reused, first.n_evaluated) == (0, POINT.prefix + POINT.generate - 1)
    for reading in meter.readings[1:]:
        assert reading.n_shared is not None
        assert reading.turn.n_reused >= 0.99 * reading.n_shared
    # The model wrote the script: its turns are the server's, but for near-ties.
    agreed = sum(
        a == b for turn in (first, *later) for a, b in zip(turn.sampled, turn.fed, strict=True)
    )
    assert agreed >= 0.9 * len(script.hops) * POINT.generate
    assert meter.wall_s >= sum(reading.turn.wall_s for reading in meter.readings)


def test_a_cold_server_reuses_nothing(parameters: LoadParameters, script: Script) -> None:
    with closing(LlamaServerCold.open(parameters, ServerSettings())) as host:
        meter = Meter()
        run_served(host, script, meter)
    for hop, reading in zip(script.hops, meter.readings, strict=True):
        assert reading.turn.n_reused == 0
        assert reading.turn.n_evaluated == len(hop.context) + POINT.generate - 1


def test_a_second_run_finds_the_slot_empty(host: ServerHost, script: Script) -> None:
    for _ in range(2):
        meter = Meter()
        run_served(host, script, meter)
        assert meter.readings[0].turn.n_reused == 0


def test_facts_tell_requests_transport_and_memory(host: ServerHost, script: Script) -> None:
    run_served(host, script, Meter())
    facts = host.facts
    assert facts["n_requests"] == len(script.hops)
    assert 0 < facts["transport_s"] < 1
    assert facts["peak_rss_bytes"] > 1_000_000


def test_other_settings_than_those_asked_for_are_refused(parameters: LoadParameters) -> None:
    wrapper = (sys.executable, "-c", WITH_TWO_SLOTS, str(parameters.lib_dir / "llama-server"))
    with pytest.raises(SettingsRefused, match="llama-server has slots 2, 1 was asked for"):
        ServerProcess(parameters, ServerSettings(), program=wrapper)
    assert servers() == []


WITH_TWO_SLOTS = """
import os, sys
words = sys.argv[1:]
at = words.index("--parallel")
words[at + 1] = "2"
os.execv(words[0], words)
"""


def test_a_taken_port_is_no_end(parameters: LoadParameters) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        ports = iter([taken.getsockname()[1], free])
        with closing(
            ServerProcess(parameters, ServerSettings(), free_port=lambda: next(ports))
        ) as server:
            assert server.client.is_ready()


def test_a_model_that_cannot_be_loaded_is_said_with_the_servers_words(
    parameters: LoadParameters, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, but not really")
    damaged = LoadParameters(broken, "0" * 64, parameters.lib_dir, "0" * 64)
    with pytest.raises(EnvironmentProblem, match="llama-server ended at its start; it last said: "):
        ServerProcess(damaged, ServerSettings())
    assert servers() == []


def test_a_build_without_a_server_is_named(parameters: LoadParameters, tmp_path: Path) -> None:
    nowhere = LoadParameters(parameters.model_path, "0" * 64, tmp_path, "0" * 64)
    with pytest.raises(EnvironmentProblem, match="llama-server"):
        ServerProcess(nowhere, ServerSettings())


def test_a_crash_in_the_middle_is_a_failure_with_a_reason(host: ServerHost, script: Script) -> None:
    for process in servers():
        if "guard" not in " ".join(process.cmdline()):
            process.send_signal(signal.SIGKILL)
    with pytest.raises(ServerFailed, match="llama-server does not answer"):
        run_served(host, script, Meter())
    until(lambda: _ended(host))


def _ended(host: ServerHost) -> bool:
    try:
        host.check()
    except ServerFailed as error:
        return "ended in the middle" in str(error)
    return False


def test_closing_leaves_no_process(parameters: LoadParameters) -> None:
    host = LlamaServer.open(parameters, ServerSettings())
    assert servers()
    host.close()
    host.close()
    assert servers() == []


HOLDER = """
import sys, time
from pathlib import Path
from runner.arms.llama_server import LlamaServer
from runner.engine.parameters import LoadParameters
from runner.serving.settings import ServerSettings
model, lib = map(Path, sys.argv[1:])
host = LlamaServer.open(LoadParameters(model, "0" * 64, lib, "0" * 64, n_ctx=512), ServerSettings())
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_the_worker_ends_the_server(
    parameters: LoadParameters, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", HOLDER, str(parameters.model_path), str(parameters.lib_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        family = psutil.Process(worker.pid).children(recursive=True)
        assert any("llama-server" in " ".join(one.cmdline()) for one in family)
        os.kill(worker.pid, number)
    until(
        lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family)
    )


class Forgetful(BaseHTTPRequestHandler):
    """Reports success and reuses nothing, or `lost` tokens are in no receipt: no real one does."""

    lost = 0
    held: tuple[int, ...] = ()

    def do_POST(self) -> None:
        """Answer a completion."""
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/slots"):
            self._answer(b"{}")
            return
        n = len(sent.get("prompt", []))
        timings = {"cache_n": 0, "prompt_n": n - self.lost, "prompt_ms": 1.0, "predicted_ms": 1.0}
        n_ids = sent.get("n_predict", 0)
        end = {"tokens": [], "stop": True, "tokens_predicted": n_ids, "timings": timings}
        parts = [{"tokens": [i], "stop": False, "tokens_predicted": i + 1} for i in range(n_ids)]
        parts = [part for part in [*parts, end] if part["tokens_predicted"] not in self.held]
        body = "".join(f"data: {json.dumps(part)}\n\n" for part in parts).encode()
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *given: Any) -> None:
        """Say nothing."""


class Lossy(Forgetful):
    """One token of each prompt is in no receipt."""

    lost = 1


class Holding(Forgetful):
    """Sends nothing for its first and third token, as within a UTF-8 character."""

    held = (1, 3)


class Asked(ServerHost):
    """A host of a server that is none."""

    def __init__(self, url: str) -> None:
        self.client = Client(url)
        self._settings = ServerSettings()
        self._n_requests = 0


@contextmanager
def pretending(handler: type[Forgetful]) -> Iterator[Asked]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = Asked(f"http://127.0.0.1:{server.server_address[1]}")
    try:
        yield host
    finally:
        host.client.close()
        server.shutdown()
        server.server_close()


def test_success_without_reuse_is_seen_in_the_receipts(script: Script) -> None:
    meter = Meter()
    with pretending(Forgetful) as host:
        run_served(host, script, meter)
    for reading in meter.readings[1:]:
        assert reading.turn.n_reused == 0
        assert reading.n_shared is not None
        assert reading.n_shared > 0  # the rule of tuned receipts refuses such a pair


def test_a_receipt_that_does_not_add_up_is_refused(script: Script) -> None:
    with pretending(Lossy) as host, pytest.raises(ServerFailed, match="sent 40 tokens at hop 0"):
        run_served(host, script, Meter())


def test_tokens_that_were_not_sent_are_counted_and_unknown() -> None:
    with pretending(Holding) as host:
        answer = host.complete(np.arange(5, dtype=np.int32), 4)
    assert answer.ids == (UNKNOWN, 1, UNKNOWN, 3)
    assert 0 < answer.ttft_s <= answer.wall_s


@pytest.mark.parametrize(
    ("held", "prompt", "known", "possible"),
    [
        ([], [1, 2], 0, 0),
        ([1, 2, 3], [1, 2, 9, 9], 2, 2),
        ([1, 2], [1, 2, 3], 2, 2),
        ([5], [1], 0, 0),
        ([1, UNKNOWN, 3, 5], [1, 2, 3, 4], 1, 3),
    ],
)
def test_what_two_conversations_share(
    held: list[int], prompt: list[int], known: int, possible: int
) -> None:
    found = shared(np.array(held, dtype=np.int32), np.array(prompt, dtype=np.int32))
    assert found == (known, possible)
