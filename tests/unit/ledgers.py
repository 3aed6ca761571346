"""Ledgers and registered runs for tests: written through the real ledger and the real writer."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from synthetic import World, write_run

from runner.catalog import Point
from runner.entries import canonical, hash_of
from runner.ledger import Ledger, file_digests

MACHINE = "machine0"
POINTS = (Point(prefix=363, hops=4),)
DIGEST, BROUGHT, HARNESS, TREE = "d" * 64, "b" * 40, "c" * 40, "e" * 40


class Minutes:
    """A clock that goes on by a minute whenever it is asked."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(minutes=1)
        return self.now


def ledger_of(root: Path, machine_key: str = MACHINE) -> Ledger:
    """The ledger of a machine in the checkout `root`."""
    return Ledger(root / "data" / "ledger", machine_key, Minutes())


def opening(run_id: str, **changes: Any) -> dict[str, Any]:
    """What START says of a run, with something changed."""
    return {
        "run_id": run_id, "expectation_id": "loop", "expectation_digest": DIGEST,
        "expectation_commit": BROUGHT, "harness_commit": HARNESS, "runner_tree": TREE,
        "sweep": "reference", "model": "smollm2-135m", "platform": "cpu", "blocks": 10,
        "order_seed": 1, **changes,
    }  # fmt: skip


def start_run(root: Path, out: Path, run_id: str, machine_key: str = MACHINE) -> Path:
    """START in the ledger of `root`, and the run's Parquet under `out`; no END."""
    start = ledger_of(root, machine_key).start(**opening(run_id))
    # The digest is given past `write_run`, which would enter the run in a ledger of its own.
    named = {
        "expectation_digest": DIGEST,
        "expectation_commit": BROUGHT,
        "runner_tree": TREE,
        "ledger_start": start,
    }
    world = World(
        run_id=run_id,
        points=POINTS,
        machine_key=machine_key,
        registration_status="registered",
        expectation_id="loop",
        run_extra=named,
    )
    return write_run(out, world)


def measure(root: Path, out: Path, run_id: str, machine_key: str = MACHINE) -> Path:
    """A whole registered run: START, Parquet, END."""
    folder = start_run(root, out, run_id, machine_key)
    ledger_of(root, machine_key).end(run_id, file_digests(folder))
    return folder


def lines_of(path: Path) -> list[bytes]:
    """The lines of a ledger without their ends."""
    return path.read_bytes().splitlines()


def put(path: Path, lines: list[bytes]) -> None:
    """Write a ledger of these lines."""
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def forged(line: bytes, **changes: Any) -> bytes:
    """A line with fields changed, in the form a line must have."""
    return canonical({**json.loads(line), **changes})


def chained(lines: list[bytes]) -> list[bytes]:
    """The same records with numbers and hashes made to fit: what a patient forger writes."""
    made: list[bytes] = []
    for number, line in enumerate(lines, start=1):
        previous = hash_of(made[-1]) if made else "0" * 64
        made.append(forged(line, seq=number, previous=previous))
    return made
