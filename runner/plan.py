"""A plan: everything a run will do, decided before the first measurement and written down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from runner import catalog
from runner.arms import ARMS
from runner.arms.host import WARMUP_TURN
from runner.bench.machine import default_threads
from runner.bench.schedule import (
    BEFORE_BLOCKS,
    DICTATION,
    EQUIVALENCE,
    FLOOR,
    Step,
    draw_seed,
    plan_blocks,
    with_calibration,
    with_dictation,
)
from runner.catalog import Point, choose
from runner.errors import UsageError
from runner.expectations import VoidRule
from runner.models import named
from runner.paths import ROOT
from runner.registration import Registration, check_registration
from runner.tuned import Tuned, load_tuned

WARMUP_TOKENS = 256
EXPLORATORY_VOID = VoidRule(
    steal_fraction_max=0.05, other_cpu_fraction_max=0.10, void_blocks_max=0.10
)


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; None means the default."""

    platform: str
    model: str
    sweep: str
    arms: tuple[str, ...] | None = None
    blocks: int | None = None
    prefix: int | None = None
    hops: int | None = None
    max_prefix: int | None = None
    threads: int | None = None
    n_ctx: int | None = None
    n_batch: int = 2048
    seed: int | None = None
    out: Path | None = None
    calibration: bool = True
    equivalence: bool = True
    floor: bool = False
    tuned: Path | None = None
    wait_quiet: float | None = None
    exploratory: bool = False
    resume: str | None = None
    dry_run: bool = False
    llama_cpp: Path | None = None


class Plan(BaseModel):
    """A run, settled. It is stored beside the journal, so that a resumed run is the same run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    platform: str
    model: str
    sweep: str
    points: tuple[Point, ...]
    arms: tuple[str, ...]
    blocks: int
    order_seed: int
    n_ctx: int
    n_batch: int
    n_threads: int
    threads_reason: str
    warmup_tokens: int
    calibration: bool
    equivalence: bool
    floor: bool
    tuned: Tuned | None
    void: VoidRule
    command: str
    started_at: datetime
    registration_status: Literal["registered", "exploratory", "broken"]
    registration_reason: str | None
    expectation_id: str | None
    expectation_digest: str | None
    expectation_commit: str | None
    harness_commit: str | None
    harness_tree: str | None
    harness_dirty: bool | None
    runner_tree: str | None
    ledger_start: str | None = None
    llama_cpp: Path | None

    @property
    def steps(self) -> list[Step]:
        """Every step in its order, the same whenever it is asked for."""
        ids = [point.id for point in self.points]
        blocks = plan_blocks(ids, self.arms, self.blocks, self.order_seed)
        if self.dictated:
            blocks = with_dictation(blocks)
        if self.calibration:
            blocks = with_calibration(blocks, self.order_seed)
        if self.floor:
            blocks = with_calibration(blocks, self.order_seed, FLOOR)
        before = ids if self.equivalence else []
        return [*(Step(BEFORE_BLOCKS, point, EQUIVALENCE, 0) for point in before), *blocks]

    @property
    def fingerprint(self) -> str:
        """Digest of what two plans must share to be one measurement made twice, 12 hex digits.

        Not in it: who asked, when, from which commit, and whether it is evidence.
        """
        same = ("platform", "model", "sweep", "points", "arms", "blocks", "order_seed", "n_ctx",
                "n_batch", "n_threads", "warmup_tokens", "calibration", "equivalence", "floor",
                "tuned")  # fmt: skip
        stated = json.dumps(self.model_dump(mode="json", include=set(same)), sort_keys=True)
        return hashlib.sha256(stated.encode()).hexdigest()[:12]

    @property
    def dictated(self) -> bool:
        """Whether the model writes the scripts, because an arm cannot be fed one."""
        return any(ARMS[arm].speaks_freely for arm in self.arms)

    def side_by_side(self, step: Step) -> int:
        """How many steps share the block and point of `step`: they count together or not at all."""
        if step.is_arm or step.arm == DICTATION:
            return len(self.arms) + self.dictated
        return 1

    def ledger_entry(self) -> dict[str, Any]:
        """What the ledger says of a run when it starts."""
        return {
            "run_id": self.run_id,
            "expectation_id": self.expectation_id,
            "expectation_digest": self.expectation_digest,
            "expectation_commit": self.expectation_commit,
            "harness_commit": self.harness_commit,
            "runner_tree": self.runner_tree,
            "sweep": self.sweep,
            "model": named(self.model).id,
            "platform": self.platform,
            "blocks": self.blocks,
            "order_seed": self.order_seed,
        }

    def point(self, point_id: str) -> Point:
        """The point of that id."""
        return next(point for point in self.points if point.id == point_id)

    def script_seed(self, step: Step) -> int:
        """What a step's text is made from: the same for every arm of a block, new each block."""
        return self.order_seed * 1000 + step.block


def make_plan(request: Request, root: Path = ROOT) -> Plan:
    """Settle a request.

    Raises:
        UsageError: an unknown name, an impossible combination, a point larger than the context.
    """
    catalog.platform(request.platform)
    sweep = catalog.sweep(request.sweep)
    model = named(request.model)
    points = _points(request, sweep)
    arms = request.arms or sweep.arms
    for arm in arms:
        choose("arm", arm, ARMS)
    if len(set(arms)) < len(arms):
        raise UsageError(f"an arm is named twice in {','.join(arms)}")
    n_ctx = request.n_ctx or sweep.n_ctx
    _require_fit(points, n_ctx)
    n_threads, threads_reason = default_threads(request.threads)
    blocks = request.blocks or sweep.blocks
    registration = _registration(request, root, sweep.id, model.id, points)
    registration = _as_expected(registration, arms, blocks, request.calibration)
    expectation = registration.expectation
    warmup_tokens = expectation.warmup_tokens if expectation else WARMUP_TOKENS
    _require_warm_up(warmup_tokens, n_ctx)
    tuned = load_tuned(request.tuned, model.id) if request.tuned else None
    seed = draw_seed() if request.seed is None else request.seed
    settled = {"blocks": blocks, "threads": n_threads, "seed": seed}
    return Plan(
        run_id=_run_id(sweep.id, model.id),
        platform=request.platform,
        model=request.model,
        sweep=sweep.id,
        points=tuple(points),
        arms=tuple(arms),
        blocks=blocks,
        order_seed=seed,
        n_ctx=n_ctx,
        n_batch=(tuned.settings.shared.n_batch if tuned else None) or request.n_batch,
        calibration=request.calibration,
        equivalence=request.equivalence,
        floor=request.floor,
        tuned=tuned,
        n_threads=n_threads,
        threads_reason=threads_reason,
        warmup_tokens=warmup_tokens,
        void=expectation.void if expectation else EXPLORATORY_VOID,
        command=_command(request, settled),
        started_at=datetime.now(UTC),
        registration_status=registration.status,
        registration_reason=registration.reason,
        expectation_id=expectation.id if expectation else None,
        expectation_digest=registration.expectation_digest,
        expectation_commit=registration.expectation_commit,
        harness_commit=registration.harness_commit,
        harness_tree=registration.harness_tree,
        harness_dirty=registration.harness_dirty,
        runner_tree=registration.runner_tree,
        llama_cpp=request.llama_cpp,
    )


def _points(request: Request, sweep: catalog.Sweep) -> list[Point]:
    if (request.prefix is None) != (request.hops is None):
        raise UsageError("--prefix and --hops name one point together: give both or neither")
    if request.prefix is not None and request.hops is not None:
        return [Point(prefix=request.prefix, hops=request.hops)]
    limit = request.max_prefix
    points = [point for point in sweep.points if limit is None or point.prefix <= limit]
    if not points:
        shortest = min(point.prefix for point in sweep.points)
        raise UsageError(f"--max-prefix {limit} leaves no point; the shortest prefix is {shortest}")
    return points


def _require_fit(points: Sequence[Point], n_ctx: int) -> None:
    largest = max(points, key=lambda point: point.n_tokens)
    if largest.n_tokens > n_ctx:
        raise UsageError(
            f"{largest.id} needs {largest.n_tokens} KV cells and n_ctx is {n_ctx}; "
            f"use --n-ctx {largest.n_tokens} or more, or --max-prefix to leave it out"
        )


def _require_warm_up(warmup_tokens: int, n_ctx: int) -> None:
    needed = warmup_tokens + WARMUP_TURN
    if needed > n_ctx:
        raise UsageError(
            f"the warm-up needs {needed} KV cells and n_ctx is {n_ctx}; "
            f"use --n-ctx {needed} or more"
        )


def _registration(
    request: Request, root: Path, sweep_id: str, model_id: str, points: Sequence[Point]
) -> Registration:
    found = check_registration(root, sweep_id, model_id, [point.id for point in points])
    if found.status == "broken" and not request.exploratory:
        raise UsageError(
            f"the registration is broken: {found.reason}; mend it, "
            "or run with --exploratory, which is never shown as evidence"
        )
    return found


def _as_expected(
    registration: Registration, arms: Sequence[str], blocks: int, calibration: bool
) -> Registration:
    """A run that does less than its expectation says is exploratory, whatever git says."""
    expectation = registration.expectation
    if registration.status != "registered" or expectation is None:
        return registration
    absent = expectation.arms - set(arms)
    reason = None
    if blocks < expectation.blocks_min:
        reason = f"{blocks} blocks, the expectation asks for {expectation.blocks_min}"
    elif absent:
        reason = f"without {' and '.join(sorted(absent))}, which the expectation compares"
    elif expectation.unexplained_max is not None and not calibration:
        reason = "without calibration, by which the expectation explains what was saved"
    return replace(registration, status="exploratory", reason=reason) if reason else registration


def _run_id(sweep_id: str, model_id: str) -> str:
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    safe = "".join(char if char.isalnum() or char in ".-" else "-" for char in model_id)
    return f"{now}-{sweep_id}-{safe}"


def _command(request: Request, settled: dict[str, int]) -> str:
    """The command that makes the same plan again, defaults that were drawn written out."""
    words = ["--platform", request.platform, "--model", _public_model(request.model)]
    words += ["--sweep", request.sweep]
    if request.arms:
        words += ["--arms", ",".join(request.arms)]
    optional = {
        "--prefix": request.prefix,
        "--hops": request.hops,
        "--max-prefix": request.max_prefix,
        "--n-ctx": request.n_ctx,
        "--n-batch": None if request.n_batch == Request.n_batch else request.n_batch,
        "--blocks": settled["blocks"],
        "--threads": settled["threads"],
        "--seed": settled["seed"],
    }
    for flag, value in optional.items():
        if value is not None:
            words += [flag, str(value)]
    if not request.calibration:
        words.append("--no-calibration")
    if not request.equivalence:
        words.append("--no-equivalence")
    if request.floor:
        words.append("--floor")
    if request.tuned:
        words += ["--tuned", _public_path(request.tuned)]
    if request.exploratory:
        words.append("--exploratory")
    return " ".join(["nox -s sweep --", *words])


def _public_path(path: Path) -> str:
    """A path as another checkout has it, or the file's name."""
    whole = path.resolve()
    return whole.relative_to(ROOT).as_posix() if whole.is_relative_to(ROOT) else path.name


def _public_model(name: str) -> str:
    """A model's name as it may be published: of a path, the file's name."""
    return Path(name).name if name.endswith(".gguf") else name
