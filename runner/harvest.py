"""From journal to Parquet: the rows of a finished run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner import __version__, records
from runner.bench.contention import Contention, void_reason
from runner.bench.machine import machine_facts
from runner.bench.schedule import CALIBRATION, EQUIVALENCE, FLOOR, Step
from runner.bringup import BringUp
from runner.building import EngineBuild
from runner.engine.parameters import LoadParameters
from runner.errors import RunAborted
from runner.journal import Entry, Journal
from runner.models import ResolvedModel
from runner.plan import Plan
from runner.serving.settings import ServerSettings

_WITNESS = tuple(field.name for field in fields(Contention))
_REGISTRATION = {
    "registration_status",
    "registration_reason",
    "expectation_id",
    "expectation_digest",
    "expectation_commit",
    "harness_commit",
    "harness_tree",
    "harness_dirty",
    "runner_tree",
}


@dataclass(frozen=True)
class Session:
    """What a run was made with."""

    plan: Plan
    parameters: LoadParameters
    build: EngineBuild
    model: ResolvedModel
    brought_up: BringUp
    waited_quiet_s: float | None = None


def write_run(session: Session, journal: Journal) -> Path:
    """Write the run's four tables, ``run.parquet`` last.

    Raises:
        RunAborted: every step failed; the journal keeps the reasons.
        EnvironmentProblem: the disk is full; the journal is whole and can be resumed.
    """
    plan = session.plan
    finished = journal.finished_blocks(plan)
    entries = {step: entry for step, entry in finished.items() if step.is_arm}
    good = [entry for entry in entries.values() if entry["status"] == "ok"]
    if not good:
        reasons = {entry["reason"] for entry in entries.values()}
        raise RunAborted(f"no step gave a result: {'; '.join(sorted(reasons))}")
    void = void_blocks(plan, entries)
    blocks = [_block_row(plan, step, entry, void) for step, entry in entries.items()]
    hops = [
        {"run_id": plan.run_id, "block": step.block, "point": step.point, "arm": step.arm, **hop}
        for step, entry in entries.items()
        for hop in entry["hops"]
    ]
    checks = [{"run_id": plan.run_id, **row} for row in session.brought_up.checks]
    folder = journal.folder
    records.write_table(folder, "checks", checks)
    records.write_table(folder, "hops", hops)
    records.write_table(folder, "blocks", blocks)
    records.write_table(folder, "calibration", list(_calibration_rows(plan, finished)))
    records.write_table(folder, "equivalence", list(_equivalence_rows(plan, finished)))
    records.write_table(folder, "run", [_run_row(session, journal.n_resumed)])
    return folder


def void_blocks(plan: Plan, entries: dict[Step, Entry]) -> dict[tuple[int, str], str]:
    """Why a (block, point) is void, for every arm of it, by the rule fixed beforehand."""
    void: dict[tuple[int, str], str] = {}
    for step, entry in entries.items():
        if entry["status"] != "ok":
            continue
        seen = Contention(**{name: entry["block"][name] for name in _WITNESS})
        reason = void_reason(seen, plan.void)
        if reason:
            void.setdefault((step.block, step.point), f"during {step.arm}: {reason}")
    return void


def _block_row(
    plan: Plan, step: Step, entry: Entry, void: dict[tuple[int, str], str]
) -> dict[str, Any]:
    point = plan.point(step.point)
    disturbed = void.get((step.block, step.point))
    is_void = entry["status"] == "ok" and disturbed is not None
    measured = dict(entry["block"])
    started_at = datetime.fromisoformat(measured.pop("started_at"))
    return {
        "run_id": plan.run_id,
        "block": step.block,
        "point": step.point,
        "workload": point.workload,
        "arm": step.arm,
        "position": step.position,
        "n_prefix": point.prefix,
        "n_hops": point.hops,
        "n_generate": point.generate,
        "n_result": point.result,
        "status": "void" if is_void else entry["status"],
        "reason": disturbed if is_void else entry["reason"],
        "started_at": started_at,
        **measured,
    }


def _calibration_rows(plan: Plan, finished: dict[Step, Entry]) -> Iterator[dict[str, Any]]:
    for step, entry in finished.items():
        if step.arm not in (CALIBRATION, FLOOR):
            continue
        head = {"run_id": plan.run_id, "block": step.block}
        if entry["status"] != "ok":
            kind = "prefill" if step.arm == CALIBRATION else "floor_prefill"
            sizes = {"kind": kind, "depth": 0, "n_tokens": 0, "repeat": 0}
            yield {**head, **sizes, "seconds": None, "reason": entry["reason"]}
        yield from ({**head, "reason": None, **row} for row in entry["rows"])


def _equivalence_rows(plan: Plan, finished: dict[Step, Entry]) -> Iterator[dict[str, Any]]:
    for step, entry in finished.items():
        if step.arm != EQUIVALENCE:
            continue
        head = {"run_id": plan.run_id, "point": step.point}
        if entry["status"] != "ok":
            sizes = {"comparison": "free", "hop": 0, "n_tokens": 0, "n_agreed": 0}
            yield {**head, **sizes, "reason": entry["reason"]}
        yield from ({**head, **row} for row in entry["rows"])


def _run_row(session: Session, n_resumed: int) -> dict[str, Any]:
    plan, build, model = session.plan, session.build, session.model
    facts = machine_facts()
    return {
        "run_id": plan.run_id,
        "status": "complete",
        "status_reason": None,
        "started_at": plan.started_at,
        "ended_at": datetime.now(UTC),
        "sweep": plan.sweep,
        "platform": plan.platform,
        "command": plan.command,
        "harness_version": __version__,
        **plan.model_dump(include=_REGISTRATION),
        "binding_version": build.binding_version,
        "llama_cpp_commit": build.llama_cpp_commit,
        "library_sha256": build.library_sha256,
        "cmake_flags": build.cmake_flags,
        "system_info": session.brought_up.system_info,
        "model_id": model.model.id,
        "model_kind": model.model.kind,
        "model_name": model.model.title,
        "model_sha256": model.sha256,
        "model_quantisation": model.quantisation,
        "model_parameters": model.parameters,
        "model_bytes": model.bytes,
        "output_meaningful": model.model.output_meaningful,
        "order_seed": plan.order_seed,
        "blocks_planned": plan.blocks,
        "ledger_start": plan.ledger_start,
        "n_resumed": n_resumed,
        "waited_quiet_s": session.waited_quiet_s,
        **_settings(session),
        **facts,
    }


def _server(plan: Plan) -> str | None:
    """What only a server is told, as JSON."""
    if not any(arm.startswith("llama_server") for arm in plan.arms):
        return None
    settings = plan.tuned.server() if plan.tuned else ServerSettings()
    return json.dumps(settings.columns(), sort_keys=True)


def _settings(session: Session) -> dict[str, Any]:
    plan, parameters = session.plan, session.parameters
    return {
        "n_ctx": parameters.n_ctx,
        "n_batch": parameters.n_batch,
        "n_ubatch": min(parameters.n_ubatch, parameters.n_batch),
        "n_threads": parameters.n_threads,
        "threads_reason": plan.threads_reason,
        "n_gpu_layers": parameters.n_gpu_layers,
        "flash_attention": parameters.flash_attention,
        "kv_type": parameters.kv_type,
        "sampling": "greedy, script ids fed on",
        "server_settings": _server(plan),
        "tuned_by": plan.tuned.tuning_id if plan.tuned else None,
        "scripts": "model" if plan.dictated else "text",
        "warmup_tokens": plan.warmup_tokens,
    }
