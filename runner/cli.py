"""The command line: every command says what it does and what went wrong, in a line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from runner import __version__
from runner.errors import LivekvError

app = typer.Typer(
    name="livekv",
    help="What is keeping KV state alive worth to an agent, on this machine, with this model?",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

PlatformOption = Annotated[
    str, typer.Option("--platform", help="Hardware target, a file of data/platforms/.")
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model", help="A name from data/models.toml, tiny:ARCH, or a path to a .gguf file."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="CPU threads. Default: one core is left to the machine."),
]
LlamaCppOption = Annotated[
    Path | None,
    typer.Option("--llama-cpp", help="Folder of your own llama.cpp build, used instead of ours."),
]


@app.command()
def sweep(
    platform: PlatformOption = "cpu",
    model: ModelOption = "smollm2-135m",
    sweep: Annotated[
        str, typer.Option("--sweep", help="Set of points, a file of data/sweeps/.")
    ] = "quick",
    arms: Annotated[
        str | None,
        typer.Option("--arms", help="Comma-separated arms. Default: those of the sweep."),
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option("--blocks", min=1, help="Blocks: rounds in which every arm runs once."),
    ] = None,
    prefix: Annotated[
        int | None,
        typer.Option("--prefix", min=1, help="With --hops: one point of your own; prefix tokens."),
    ] = None,
    hops: Annotated[
        int | None,
        typer.Option("--hops", min=0, help="With --prefix: tool results in the loop."),
    ] = None,
    max_prefix: Annotated[
        int | None,
        typer.Option(
            "--max-prefix", min=1, help="Leave out the sweep's points with a longer prefix."
        ),
    ] = None,
    threads: ThreadsOption = None,
    n_ctx: Annotated[
        int | None, typer.Option("--n-ctx", min=1, help="KV cells. Default: those of the sweep.")
    ] = None,
    n_batch: Annotated[
        int, typer.Option("--n-batch", min=1, help="Tokens one decode may carry.")
    ] = 2048,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Order seed. Default: drawn and recorded.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for runs. Default: build/runs.")
    ] = None,
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration/--no-calibration",
            help="In every block measure the costs that explain what was saved.",
        ),
    ] = True,
    equivalence: Annotated[
        bool,
        typer.Option(
            "--equivalence/--no-equivalence",
            help="Before the blocks compare what the arms would say freely.",
        ),
    ] = True,
    floor: Annotated[
        bool,
        typer.Option(
            "--floor", help="In every block ask llama-bench what the tokens cost at the least."
        ),
    ] = False,
    tuned: Annotated[
        Path | None,
        typer.Option("--tuned", help="Settings that nox -s tune found best, of data/tuning/."),
    ] = None,
    wait_quiet: Annotated[
        float | None,
        typer.Option(
            "--wait-quiet", min=0, help="Wait up to so many seconds until the machine is quiet."
        ),
    ] = None,
    exploratory: Annotated[
        bool,
        typer.Option("--exploratory", help="Run without a registered expectation; not evidence."),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", help="Go on with an unfinished run, by its own plan: its id, or 'last'."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan, its time and its memory; run nothing."),
    ] = False,
    llama_cpp: LlamaCppOption = None,
) -> None:
    """Run a sweep and write Parquet: plan, bring-up, blocks, records.

    Examples:

      livekv sweep

      livekv sweep --sweep reference --model smollm2-135m --blocks 10

      livekv sweep --prefix 2000 --hops 6 --blocks 6 --exploratory

      livekv sweep --sweep reference --wait-quiet 600

      livekv sweep --arms live_kv,reprefill,llama_server,llama_server_cold,llama_cpp_python

      livekv sweep --resume last
    """
    from runner.plan import Request
    from runner.sweep import run_sweep

    run_sweep(
        Request(
            platform=platform,
            model=model,
            sweep=sweep,
            arms=tuple(arms.split(",")) if arms else None,
            blocks=blocks,
            prefix=prefix,
            hops=hops,
            max_prefix=max_prefix,
            threads=threads,
            n_ctx=n_ctx,
            n_batch=n_batch,
            seed=seed,
            out=out,
            calibration=calibration,
            equivalence=equivalence,
            floor=floor,
            tuned=tuned,
            wait_quiet=wait_quiet,
            exploratory=exploratory,
            resume=resume,
            dry_run=dry_run,
            llama_cpp=llama_cpp,
        ),
        Console(),
    )


@app.command()
def validate(
    platform: PlatformOption = "cpu",
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="Model to bring up, repeatable. Default: smollm2-135m and four tiny models.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for checks.parquet. Default: build/validate."),
    ] = None,
    llama_cpp: LlamaCppOption = None,
) -> None:
    """Bring a backend up, primitive by primitive; exit non-zero when one fails.

    Examples:

      livekv validate

      livekv validate --model tiny:mamba
    """
    from runner.validate import validate_models

    validate_models(platform, model, threads, out, llama_cpp, Console())


@app.command()
def engine(
    platform: PlatformOption = "cpu",
    llama_cpp: LlamaCppOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cmake command and the cache folder only.")
    ] = False,
) -> None:
    """Build llama.cpp for a platform once, outside the checkout, and install its binding.

    Examples:

      livekv engine

      livekv engine --platform cuda

      livekv engine --llama-cpp ~/llama.cpp/build/bin
    """
    from runner.building import ensure_engine

    ensure_engine(platform, llama_cpp, Console(), dry_run=dry_run)


@app.command()
def model(
    name: Annotated[str, typer.Argument(help="A name from data/models.toml, tiny:ARCH or a path.")],
) -> None:
    """Fetch or write a model, check it, and print where it is.

    Examples:

      livekv model smollm2-135m

      livekv model shape:qwen2.5-1.5b-q4_k_m
    """
    from runner.models import ensure_model

    found = ensure_model(name, Console(stderr=True))
    typer.echo(found.path)


@app.command()
def bench(
    platform: PlatformOption = "cpu",
    model: ModelOption = "smollm2-135m",
    threads: ThreadsOption = 1,
    llama_cpp: LlamaCppOption = None,
) -> None:
    """Measure the engine's own overhead, and its rates against llama-bench of the same build."""
    from runner.overhead import run_bench

    run_bench(platform, model, threads, llama_cpp, Console())


@app.command()
def tune(
    platform: PlatformOption = "cpu",
    model: ModelOption = "smollm2-135m",
    threads: ThreadsOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of order and text. Default: drawn.")
    ] = None,
    llama_cpp: LlamaCppOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest search that was cut off.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be tried; run nothing.")
    ] = False,
) -> None:
    """Search the grid of data/tuning.toml for every arm, the same number of trials each.

    Examples:

      livekv tune --model smollm2-135m --threads 1

      livekv tune --model smollm2-135m --threads 1 --resume
    """
    from runner.tune import Tuning, run_tuning

    asked = Tuning(platform, model, threads, llama_cpp, seed, resume, dry_run)
    winner = run_tuning(asked, Console())
    if winner is not None:
        typer.echo(winner)


@app.command()
def register(
    id: Annotated[
        str | None, typer.Argument(help="Name of the expectation: data/expectations/ID.toml.")
    ] = None,
    sweep: Annotated[
        str, typer.Option("--sweep", help="Set of points, a file of data/sweeps/.")
    ] = "reference",
    model: ModelOption = "smollm2-135m",
    pilot: Annotated[
        list[Path] | None,
        typer.Option(
            "--pilot", help="Folder of a complete exploratory run, repeatable. Default: the newest."
        ),
    ] = None,
    blocks: Annotated[
        int | None, typer.Option("--blocks", min=6, help="Fewest blocks. Default: the sweep's.")
    ] = None,
    margin: Annotated[
        float, typer.Option("--margin", help="Parity holds within 1 plus or minus this.")
    ] = 0.03,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Check an expectation that is there, write nothing."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the expectation; write nothing.")
    ] = False,
) -> None:
    """Write an expectation from a pilot run, to be committed alone; refuse one that cannot fail.

    Examples:

      livekv register my-loop --sweep reference --model smollm2-135m --dry-run

      livekv register my-loop --pilot build/runs/cpu/RUN --blocks 10

      livekv register --check data/expectations/my-loop.toml --pilot build/runs/cpu/RUN
    """
    from runner.errors import UsageError
    from runner.register import check as check_expectation
    from runner.register import register as write_expectation
    from runner.skeleton import Registering

    pilots = tuple(pilot or ())
    if check is not None:
        check_expectation(check, pilots, Console())
        return
    if id is None:
        raise UsageError("name the expectation: livekv register ID, or give --check FILE")
    asked = Registering(id, sweep, model, pilots, blocks, margin, dry_run=dry_run)
    write_expectation(asked, Console())


@app.command()
def publish(
    run: Annotated[str, typer.Argument(help="Id of a complete run: the name of its folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder the run is in. Default: build/runs.")
    ] = None,
    ledger_from: Annotated[
        Path | None,
        typer.Option("--ledger-from", help="Checkout the run was measured in, if another one."),
    ] = None,
) -> None:
    """Copy a complete run, checked, into data/runs, to be committed.

    Examples:

      livekv publish 20260101T120000Z-reference-smollm2-135m

      livekv publish RUN --out ../measured/build/runs --ledger-from ../measured
    """
    from runner.publish import publish_run
    from runner.sweep import DEFAULT_OUT

    typer.echo(publish_run(run, out or DEFAULT_OUT, ledger_from=ledger_from))


@app.command()
def collect(
    folder: Annotated[
        Path, typer.Argument(help="Folder of checkouts, each with build/runs and data/ledger.")
    ],
) -> None:
    """Publish every complete run of several checkouts, e.g. the artifacts of a workflow.

    Examples:

      livekv collect measured
    """
    from runner.collect import collect_runs

    for line in collect_runs(folder):
        typer.echo(line)


@app.command()
def matrix(
    platform: Annotated[
        str, typer.Option("--platform", help="A file of data/platforms/, or all.")
    ] = "all",
    sweep: Annotated[str, typer.Option("--sweep", help="A file of data/sweeps/, or all.")] = "all",
    model: ModelOption = "smollm2-135m",
) -> None:
    """Print the jobs of a workflow's matrix as JSON: platforms times sweeps.

    Examples:

      livekv matrix

      livekv matrix --platform cuda --sweep reference
    """
    import json

    from runner import matrix as jobs

    typer.echo(json.dumps(jobs.matrix(platform, sweep, model)))


@app.command()
def catalog() -> None:
    """List what can be run: platforms, models, sweeps and their points."""
    from runner.listing import print_catalog

    print_catalog(Console())


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Common entry: the version."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; an expected refusal is one line on standard error."""
    try:
        app()
    except LivekvError as error:
        said = escape("; ".join(line.strip() for line in str(error).splitlines()))
        Console(stderr=True).print(f"[bold red]error:[/] {said}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
