"""The sweep: plan, bring-up, blocks, records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from runner import catalog, records
from runner.bench.calibration import calibration_job
from runner.bench.contention import wait_quiet
from runner.bench.floor import floor_job
from runner.bench.inputs import changed, identity
from runner.bench.isolated import Job, JobDied, JobFailed, call
from runner.bench.machine import machine_facts
from runner.bench.schedule import CALIBRATION, DICTATION, EQUIVALENCE, FLOOR, Step
from runner.bench.worker import to_job
from runner.bringup import BringUp, bring_up
from runner.building import EngineBuild, ensure_engine
from runner.display import StepProgress, show_plan
from runner.engine.parameters import LoadParameters
from runner.errors import RunAborted
from runner.estimates import Rates, keep_rates, load_rates, step_seconds
from runner.harvest import Session, write_run
from runner.journal import Entry, Journal, exclusive, find_unfinished
from runner.ledger import Ledger, file_digests
from runner.loading import parameters_for
from runner.models import ResolvedModel, ensure_model
from runner.paths import DATA, ROOT
from runner.plan import Plan, Request, make_plan
from runner.resume import require_same_harness
from runner.stopping import stop_on_terminate
from runner.validate import print_checks

_PATIENCE = 20.0
_SHORTEST_LIMIT_S = 600.0
DEFAULT_OUT: Final = ROOT / "build" / "runs"
LEDGERS: Final = DATA / "ledger"


def run_sweep(request: Request, console: Console) -> None:
    """Run a sweep from its request to its Parquet.

    Raises:
        UsageError: the request cannot be met, or a run cannot be gone on with from this checkout.
        EnvironmentProblem: the machine lacks something, or does not become quiet.
        RunAborted: bring-up failed, or no step gave a result.
        Interrupted: Ctrl-C or SIGTERM.
    """
    out = request.out or DEFAULT_OUT
    if request.resume and _say_end(out, request.resume, console):
        return
    journal = find_unfinished(out, request.resume) if request.resume else None
    plan = journal.plan() if journal else make_plan(request)
    if journal:
        require_same_harness(plan, ROOT)
    show_plan(plan, console)
    if request.dry_run:
        return
    said = "finished blocks are kept, go on with --resume last"
    with exclusive(out), stop_on_terminate(said):
        build = ensure_engine(plan.platform, plan.llama_cpp, console)
        model = ensure_model(plan.model, console)
        parameters = _parameters(plan, build, model)
        waited = _wait_quiet(request.wait_quiet, console)
        drawer = _Drawer(plan)
        if journal is None:
            plan = drawer.start()
            journal = Journal(out / plan.platform / plan.run_id)
            journal.begin(plan)
        else:
            drawer.resume()
            journal.note_resume()
        with drawer.aborting():
            brought_up = _bring_up(plan, parameters, console)
            _run_blocks(plan, parameters, journal, console)
            session = Session(plan, parameters, build, model, brought_up, waited)
            folder = write_run(session, journal)
        drawer.end(folder)
    said = f"run {plan.run_id} is in {folder}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)


def _say_end(out: Path, name: str, console: Console) -> bool:
    """Give a complete run the END it lost when its runner was killed in between."""
    for path in out.glob(f"*/{name}/run.parquet"):
        (row,) = records.read_table(path).to_pylist()
        ledger = Ledger(LEDGERS, row["machine_key"])
        if row["registration_status"] == "registered" and name in ledger.contents().runs.open:
            ledger.end(name, file_digests(path.parent))
            console.print(f"run {name} was complete; its ledger says so now", highlight=False)
            return True
    return False


class _Drawer:
    """The ledger, for a registered run; for any other there is nothing that could be hidden."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        registered = plan.registration_status == "registered"
        self._ledger = Ledger(LEDGERS, machine_facts()["machine_key"]) if registered else None

    def start(self) -> Plan:
        """Record that the run starts; the plan with the record's hash in it."""
        if self._ledger is None:
            return self._plan
        written = self._ledger.start(**self._plan.ledger_entry())
        return self._plan.model_copy(update={"ledger_start": written})

    def resume(self) -> None:
        """Record that the run goes on."""
        if self._ledger:
            self._ledger.resume(self._plan.run_id)

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """A run that ends without a result says why. One that was interrupted may go on."""
        try:
            yield
        except RunAborted as reason:
            if self._ledger:
                self._ledger.abort(self._plan.run_id, str(reason))
            raise

    def end(self, folder: Path) -> None:
        """Record that the run ended, and what its files hold."""
        if self._ledger:
            self._ledger.end(self._plan.run_id, file_digests(folder))


def _parameters(plan: Plan, build: EngineBuild, model: ResolvedModel) -> LoadParameters:
    platform = catalog.platform(plan.platform)
    defaults = parameters_for(build, model, platform, plan.n_threads)
    shared = plan.tuned.settings.shared.given() if plan.tuned else {}
    return replace(defaults, **{**shared, "n_ctx": plan.n_ctx, "n_batch": plan.n_batch})


def _wait_quiet(limit_s: float | None, console: Console) -> float | None:
    """Wait until the machine is quiet; the seconds waited, None when nobody asked."""
    if limit_s is None:
        return None
    with console.status("waiting until the machine is quiet ...") as status:

        def show(waited_s: float, share: float) -> None:
            status.update(f"waiting until the machine is quiet: {share:.0%} busy, {waited_s:.0f} s")

        return wait_quiet(limit_s, on_step=show)


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
    files = identity(parameters)
    costs = {step: step_seconds(plan, step, known) if known else 0.0 for step in todo}
    written: dict[tuple[int, str], Outputs | None] = {}
    peak = 0
    with StepProgress(console, costs, len(done)) as progress:
        for step in todo:
            progress.begin(step)
            outputs = written.get((step.block, step.point))
            entry = run_step(plan, step, parameters, _limit_s(costs[step]), outputs)
            entry = _if_unchanged(entry, changed(files, parameters))
            journal.append(step, entry)
            written[step.block, step.point] = entry.get("outputs") or outputs
            progress.end(step, entry["reason"])
            peak = max(peak, (entry["block"] or {}).get("peak_rss_bytes") or 0)
    if known and peak:
        keep_rates(plan, known.model_copy(update={"peak_rss_bytes": peak}))


def run_step(
    plan: Plan,
    step: Step,
    parameters: LoadParameters,
    limit_s: float | None = None,
    outputs: Outputs | None = None,
) -> Entry:
    """One step in its own process. What goes wrong there is an entry with a reason.

    `outputs` is what the model itself said at each hop, where the plan lets it write the script.
    """
    started_at = datetime.now(UTC).isoformat()
    if step.is_arm and plan.dictated and outputs is None:
        return _failed("the model wrote no script for this block: its dictation failed", started_at)
    module, make_job = _JOBS.get(step.arm, ("runner.bench.worker", _arm_job))
    job = {"load": to_job(parameters), "outputs": outputs, **make_job(plan, step)}
    try:
        measured = call(module, job, limit_s=limit_s)
    except (JobDied, JobFailed) as error:
        return _failed(str(error), started_at)
    return {"status": "ok", "reason": None, "block": {}, **measured}


def _if_unchanged(entry: Entry, change: str | None) -> Entry:
    return entry if change is None else _failed(change, entry["block"].get("started_at"))


def _failed(reason: str, started_at: str | None) -> Entry:
    block = {"started_at": started_at}
    return {"status": "failed", "reason": reason, "block": block, "hops": [], "rows": []}


def _arm_job(plan: Plan, step: Step) -> Job:
    return {
        "arm": step.arm,
        "point": plan.point(step.point).model_dump(),
        "seed": plan.script_seed(step),
        "warmup_tokens": plan.warmup_tokens,
        "server": plan.tuned.settings.server if plan.tuned else {},
    }


def _calibration_job(plan: Plan, step: Step) -> Job:
    return calibration_job(plan.points, plan.script_seed(step), plan.warmup_tokens)


def _floor_job(plan: Plan, _: Step) -> Job:
    return floor_job(plan.points)


def _point_job(plan: Plan, step: Step) -> Job:
    return {"point": plan.point(step.point).model_dump(), "seed": plan.script_seed(step)}


Outputs = list[list[int]]
"""Token ids of each turn."""

_JOBS: Final[dict[str, tuple[str, Callable[[Plan, Step], dict[str, Any]]]]] = {
    CALIBRATION: ("runner.bench.calibration", _calibration_job),
    EQUIVALENCE: ("runner.bench.equivalence", _point_job),
    FLOOR: ("runner.bench.floor", _floor_job),
    DICTATION: ("runner.bench.dictation", _point_job),
}


def _limit_s(expected_s: float) -> float | None:
    """When a step is given up: far beyond what it should take, and never without an estimate."""
    return max(_SHORTEST_LIMIT_S, _PATIENCE * expected_s) if expected_s else None
