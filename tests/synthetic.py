"""Synthetic runs, written through the real writer: what a sweep would leave, with planted times."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.analysis.costs import Reading
from runner.catalog import Point
from runner.ledger import Ledger, file_digests
from runner.records import write_table

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
REFERENCE = (
    Point(prefix=363, hops=0),
    Point(prefix=27, hops=1),
    Point(prefix=363, hops=4),
    Point(prefix=1491, hops=8),
)
# Arms of a sweep with its A/A.
REPEATED = ("live_kv", "live_kv_again", "reprefill")

COMMAND = (
    "nox -s sweep -- --platform cpu --model smollm2-135m --sweep reference --blocks 12"
    " --threads 1 --seed 7"
)

EXPECTATION = """\
title = "Tool loop, synthetic"
claim = "Live KV beats re-prefill."
estimand = "whole session, reprefill / live_kv"
workload = "tool_loop"
treatment = "live_kv"
baseline = "reprefill"
sweep = "reference"
blocks_min = 6
warmup_tokens = 0
parity_margin = 0.05
negative = "a ratio at or below 1"
exclusions = "none"

[void]
steal_fraction_max = 0.05
other_cpu_fraction_max = 0.2
void_blocks_max = 0.1
"""


@dataclass
class World:
    """What is true in a synthetic run. Seconds a token, and the noise of a block (log scale)."""

    run_id: str = "20260102T030405-synthetic"
    platform: str = "cpu"
    model_id: str = "smollm2-135m"
    n_blocks: int = 10
    points: tuple[Point, ...] = REFERENCE
    prefill_s: float = 0.002
    decode_s: float = 0.01
    noise: float = 0.01
    slowdown: float = 1.0  # of live KV: above 1 it is slower than it should be
    seed: int = 1
    days: int = 0
    arms: tuple[str, ...] = ("live_kv", "reprefill")  # `REPEATED` for A/A beside them
    machine_key: str = "machine0"
    calibration: list[dict[str, Any]] = field(default_factory=list)
    registration_status: str = "exploratory"
    expectation_id: str | None = None
    expectation_digest: str | None = None
    status: str = "complete"
    status_reason: str | None = None
    run_extra: dict[str, Any] = field(default_factory=dict)
    edit_block: Callable[[dict[str, Any]], None] = lambda row: None
    edit_hop: Callable[[dict[str, Any]], None] = lambda row: None


def readings(prefill_s: float = 0.002, decode_s: float = 0.01) -> list[Reading]:
    """What a calibration would find where every token costs the same at every depth."""
    parts = [Reading("prefill", 0, n, n * prefill_s) for n in (16, 48, 160, 363)]
    found = [*parts]
    for depth in (0, 648, 1296):
        found.append(Reading("prefill", depth, 512, 512 * prefill_s))
        found.append(Reading("hop", depth + 512, 25, 25 * prefill_s))
        found.append(Reading("decode", depth + 537, 31, 31 * decode_s))
        found.append(Reading("prefill", depth + 568, 80, 80 * prefill_s))
    return found


def calibration(
    world: World, drift: Callable[[int], float] = lambda block: 1.0, n_blocks: int | None = None
) -> list[dict[str, Any]]:
    """Rows of the synthetic world's costs; `drift` multiplies those of a block."""
    return [
        {
            "run_id": world.run_id, "block": block, "kind": one.kind, "depth": one.depth,
            "n_tokens": one.n_tokens, "repeat": 0, "seconds": one.seconds * drift(block),
            "reason": None,
        }
        for block in range(world.n_blocks if n_blocks is None else n_blocks)
        for one in readings(world.prefill_s, world.decode_s)
    ]  # fmt: skip


def write_expectation(
    data: Path, *forecasts: str, name: str = "synthetic", repeat_arm: str | None = None
) -> tuple[str, str]:
    """Write an expectation file, with an A/A gate if `repeat_arm`; return its id and digest."""
    folder = data / "expectations"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    gate = "" if repeat_arm is None else f'repeat_arm = "{repeat_arm}"\n'
    tables = "".join(f"\n[[forecast]]\n{text}\n" for text in forecasts)
    path.write_text(EXPECTATION.replace("\n[void]", f"{gate}\n[void]") + tables)
    return name, hashlib.sha256(path.read_bytes()).hexdigest()


def forecast(
    point: str,
    role: str,
    low: float,
    high: float,
    threshold: float | None = None,
    model: str = "smollm2-135m",
) -> str:
    """One ``[[forecast]]`` table without its head."""
    text = f'model = "{model}"\npoint = "{point}"\nrole = "{role}"\nlow = {low}\nhigh = {high}'
    return text if threshold is None else f"{text}\nthreshold = {threshold}"


def usual_forecasts() -> tuple[str, ...]:
    """Forecasts under which the default world is confirmed."""
    return (
        forecast("tool_loop-p363-h0", "parity", 0.95, 1.05),
        forecast("tool_loop-p27-h1", "near_parity", 0.9, 1.4),
        forecast("tool_loop-p363-h4", "secondary", 1.5, 3.5, 1.1),
        forecast("tool_loop-p1491-h8", "primary", 3.0, 9.0, 1.5),
    )


def write_run(root: Path, world: World) -> Path:
    """Write one run under `root` (a folder of platforms); return its folder."""
    rng = np.random.default_rng(world.seed)
    blocks: list[dict[str, Any]] = []
    hops: list[dict[str, Any]] = []
    for block in range(world.n_blocks):
        for point in world.points:
            for position, arm in enumerate(rng.permutation(list(world.arms))):
                rows = _hops(world, str(arm), point, block, rng)
                blocks.append(_block(world, str(arm), point, block, position, rows))
                hops.extend(rows)
    folder = root / world.platform / world.run_id
    ledger = _ledger(root, world)
    write_table(folder, "checks", [_check(world)])
    write_table(folder, "blocks", [row for row in blocks if not row.pop("_drop", False)])
    write_table(folder, "hops", [row for row in hops if not row.pop("_drop", False)])
    write_table(folder, "calibration", world.calibration)
    write_table(folder, "equivalence", [])
    row = _run(world)
    if ledger:
        row["ledger_start"] = _start(ledger, row)
    write_table(folder, "run", [row])
    if ledger:
        ledger.end(world.run_id, file_digests(folder))
    return folder


def _ledger(root: Path, world: World) -> Ledger | None:
    """The ledger of a registered run, where runs lie as in a checkout."""
    checkout = root.parents[0] if root.parent.name == "data" else root.parents[1] / "data"
    claimed = world.registration_status == "registered" and world.expectation_digest
    return Ledger(checkout / "ledger", world.machine_key) if claimed else None


def _start(ledger: Ledger, row: dict[str, Any]) -> str:
    same = ("run_id", "expectation_id", "expectation_digest", "expectation_commit",
            "harness_commit", "runner_tree", "sweep", "platform", "order_seed")  # fmt: skip
    opening = {name: row[name] for name in same}
    return ledger.start(**opening, model=row["model_id"], blocks=row["blocks_planned"])


def _hops(
    world: World, arm: str, point: Point, block: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    rows = []
    factor = float(np.exp(rng.normal(0, world.noise)))
    factor *= world.slowdown if arm == "live_kv" else 1.0
    context = 0
    for hop in range(point.hops + 1):
        n_new = point.prefix if hop == 0 else point.result
        before = context + (point.generate if hop else 0)
        context = before + n_new
        kept = arm not in ("reprefill", "llama_server_cold")
        fed = n_new + (hop > 0) if kept else context
        prefill = fed * world.prefill_s * factor
        decode = (point.generate - 1) * world.decode_s * factor
        row = {
            "run_id": world.run_id, "block": block, "point": point.id, "arm": arm, "hop": hop,
            "n_new": n_new, "n_context": context,
            "n_evaluated": fed + point.generate - 1,
            "n_reused": context - fed if kept else 0,
            "n_shared": context - fed if kept and arm.startswith("llama") else None,
            "n_generated": point.generate,
            "wall_s": prefill + decode, "ttft_s": prefill, "prefill_s": prefill, "decode_s": decode,
            "digest_in": f"in-{point.id}-{hop}", "digest_out": f"out-{point.id}-{hop}",
            "sampled": [1] * point.generate, "n_agreed": point.generate, "stop_reason": "length",
        }  # fmt: skip
        world.edit_hop(row)
        rows.append(row)
    return rows


def _block(
    world: World, arm: str, point: Point, block: int, position: int, hops: list[dict[str, Any]]
) -> dict[str, Any]:
    def total(name: str) -> Any:
        return sum(row[name] for row in hops)

    row = {
        "run_id": world.run_id, "block": block, "point": point.id, "workload": point.workload,
        "arm": arm, "position": position, "n_prefix": point.prefix, "n_hops": point.hops,
        "n_generate": point.generate, "n_result": point.result, "status": "ok", "reason": None,
        "started_at": START + timedelta(days=world.days, minutes=block),
        "script_digest": f"script-{point.id}",
        "wall_s": total("wall_s"), "ttft_s": hops[0]["ttft_s"], "prefill_s": total("prefill_s"),
        "decode_s": total("decode_s"), "other_s": 0.0, "n_evaluated": total("n_evaluated"),
        "n_reused": total("n_reused"), "n_generated": total("n_generated"),
        "n_agreed": total("n_agreed"), "peak_rss_bytes": 500_000_000, "load_s": 0.5,
        "steal_fraction": 0.0, "other_cpu_fraction": 0.01, "involuntary_switches": 3,
        "load_1m": 1.0,
        "n_requests": len(hops) if arm.startswith("llama_server") else None,
        "transport_s": 0.001 if arm.startswith("llama_server") else None,
    }  # fmt: skip
    world.edit_block(row)
    return row


def _check(world: World) -> dict[str, Any]:
    return {
        "run_id": world.run_id, "check": "decode one token", "status": "pass", "value": 1.0,
        "unit": "token", "detail": "one token decoded", "meaning": "the backend cannot decode",
        "seconds": 0.1,
    }  # fmt: skip


def _run(world: World) -> dict[str, Any]:
    started = START + timedelta(days=world.days)
    return {
        "run_id": world.run_id, "status": world.status, "status_reason": world.status_reason,
        "started_at": started, "ended_at": started + timedelta(hours=1), "sweep": "reference",
        "platform": world.platform, "machine_key": world.machine_key, "command": COMMAND,
        "harness_version": "0.1.0", "harness_commit": "c" * 40, "harness_tree": "t" * 40,
        "harness_dirty": False, "registration_status": world.registration_status,
        "registration_reason": None, "expectation_id": world.expectation_id,
        "expectation_digest": world.expectation_digest, "expectation_commit": "e" * 40,
        "runner_tree": "d" * 40,
        "binding_version": "0.3.36", "llama_cpp_commit": None, "library_sha256": "a" * 64,
        "cmake_flags": None, "system_info": None, "model_id": world.model_id,
        "model_kind": "packaged", "model_name": world.model_id, "model_sha256": "b" * 64,
        "model_quantisation": "Q4_1", "model_parameters": 134_515_008, "model_bytes": 98_362_432,
        "output_meaningful": not world.model_id.startswith("shape:"), "order_seed": world.seed,
        "blocks_planned": world.n_blocks, "n_ctx": 8192, "n_batch": 2048, "n_ubatch": 512,
        "n_threads": 1, "threads_reason": "one core is left to the machine", "n_gpu_layers": 0,
        "flash_attention": "auto", "kv_type": "f16", "sampling": "greedy", "warmup_tokens": 0,
        "os": "Linux", "kernel": "6.1", "cpu": "Synthetic CPU", "physical_cores": 2,
        "logical_cores": 2, "memory_bytes": 8_000_000_000, "gpu": None, "gpu_driver": None,
        "environment": '{"python": "3.11"}', **world.run_extra,
    }  # fmt: skip
