"""The sweep: plan, bring-up, blocks, records."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType

from rich.console import Console

from runner import catalog
from runner.bench.isolated import JobDied, JobFailed, call
from runner.bench.schedule import Step
from runner.bench.worker import to_job
from runner.bringup import BringUp, bring_up
from runner.building import EngineBuild, ensure_engine
from runner.display import StepProgress, show_plan
from runner.engine.parameters import LoadParameters
from runner.errors import Interrupted, RunAborted
from runner.estimates import Rates, keep_rates, load_rates, step_seconds
from runner.harvest import Session, write_run
from runner.journal import Entry, Journal, exclusive, find_unfinished
from runner.loading import parameters_for
from runner.models import ResolvedModel, ensure_model
from runner.paths import ROOT
from runner.plan import Plan, Request, make_plan
from runner.validate import print_checks

_PATIENCE = 20.0
_SHORTEST_LIMIT_S = 600.0
DEFAULT_OUT = ROOT / "build" / "runs"


def run_sweep(request: Request, console: Console) -> None:
    """Run a sweep from its request to its Parquet.

    Raises:
        UsageError: the request cannot be met.
        EnvironmentProblem: the machine lacks something.
        RunAborted: bring-up failed, or no step gave a result.
        Interrupted: Ctrl-C or SIGTERM.
    """
    out = request.out or DEFAULT_OUT
    journal = find_unfinished(out, request.resume) if request.resume else None
    plan = journal.plan() if journal else make_plan(request)
    show_plan(plan, console)
    if request.dry_run:
        return
    with exclusive(out), _stop_on_terminate():
        build = ensure_engine(plan.platform, plan.llama_cpp, console)
        model = ensure_model(plan.model, console)
        parameters = _parameters(plan, build, model)
        if journal is None:
            journal = Journal(out / plan.platform / plan.run_id)
            journal.begin(plan)
        started_at = datetime.now(UTC)
        brought_up = _bring_up(plan, parameters, console)
        _run_blocks(plan, parameters, journal, console)
        session = Session(plan, parameters, build, model, brought_up, started_at)
        folder = write_run(session, journal)
    said = f"run {plan.run_id} is in {folder}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)


def _parameters(plan: Plan, build: EngineBuild, model: ResolvedModel) -> LoadParameters:
    platform = catalog.platform(plan.platform)
    defaults = parameters_for(build, model, platform, plan.n_threads)
    return replace(defaults, n_ctx=plan.n_ctx, n_batch=plan.n_batch)


def _bring_up(plan: Plan, parameters: LoadParameters, console: Console) -> BringUp:
    """Validate the backend before anything is measured; keep its rates for estimates."""
    with console.status("bringing the backend up ..."):
        try:
            found = bring_up(parameters)
        except (JobDied, JobFailed) as error:
            raise RunAborted(f"bring-up failed: {error}") from error
    if found.failed:
        print_checks(plan.model, found.checks, console)
        first = found.failed[0]
        raise RunAborted(
            f"bring-up failed at {first['check']!r}: {first['detail']}; {first['meaning']}"
        )
    prefill_per_s, decode_s = found.rates
    before = load_rates(plan)
    peak = before.peak_rss_bytes if before else None
    keep_rates(plan, Rates(prefill_per_s=prefill_per_s, decode_s=decode_s, peak_rss_bytes=peak))
    console.print(f"bring-up: {len(found.checks)} checks, none failed", highlight=False)
    return found


def _run_blocks(plan: Plan, parameters: LoadParameters, journal: Journal, console: Console) -> None:
    """Run every step that no finished block holds. No ratio is computed or shown on the way."""
    done = journal.finished_blocks(plan)
    todo = [step for step in plan.steps if step not in done]
    known = load_rates(plan)
    costs = {step: step_seconds(plan, step, known) if known else 0.0 for step in todo}
    peak = 0
    with StepProgress(console, costs, len(done)) as progress:
        for step in todo:
            progress.begin(step)
            entry = run_step(plan, step, parameters, _limit_s(costs[step]))
            journal.append(step, entry)
            progress.end(step, entry["reason"])
            peak = max(peak, (entry["block"] or {}).get("peak_rss_bytes") or 0)
    if known and peak:
        keep_rates(plan, known.model_copy(update={"peak_rss_bytes": peak}))


def run_step(
    plan: Plan, step: Step, parameters: LoadParameters, limit_s: float | None = None
) -> Entry:
    """One arm, once, in its own process. What goes wrong there is an entry with a reason."""
    job = {
        "load": to_job(parameters),
        "arm": step.arm,
        "point": plan.point(step.point).model_dump(),
        "seed": plan.script_seed(step),
        "warmup_tokens": plan.warmup_tokens,
    }
    started_at = datetime.now(UTC).isoformat()
    try:
        measured = call("runner.bench.worker", job, limit_s=limit_s)
    except (JobDied, JobFailed) as error:
        failed = {"started_at": started_at}
        return {"status": "failed", "reason": str(error), "block": failed, "hops": []}
    return {"status": "ok", "reason": None, **measured}


def _limit_s(expected_s: float) -> float | None:
    """When a step is given up: far beyond what it should take, and never without an estimate."""
    return max(_SHORTEST_LIMIT_S, _PATIENCE * expected_s) if expected_s else None


@contextmanager
def _stop_on_terminate() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: the worker is stopped, the journal is whole, and that is said."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        # Said here: the command line's own handling of it leaves in silence.
        raise Interrupted(
            "interrupted; finished blocks are kept, go on with --resume last"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)
