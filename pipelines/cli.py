"""The command line of the pipelines: Parquet to DuckDB, to ratios, to pages."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from pipelines.paths import Layout
from runner.errors import LivekvError

app = typer.Typer(
    name="pipelines",
    help="From the Parquet of runs to DuckDB, ratios and the site.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit non-zero when a file was skipped.")
]


class SkippedFilesError(LivekvError):
    """In strict mode a skipped file is a failure."""

    exit_code = 5


class LedgerFaultsError(LivekvError):
    """A run is not what its ledger says of it."""

    exit_code = 8


@app.command()
def warehouse(strict: StrictOption = False) -> None:
    """Build data/results.duckdb from published and local runs.

    Examples:

      python -m pipelines warehouse

      python -m pipelines warehouse --strict
    """
    from pipelines.warehouse import build_warehouse, shown

    layout = Layout()
    console = Console(soft_wrap=True)
    built = build_warehouse(layout, layout.database)
    local = built.n_runs - built.n_published
    console.print(
        f"{shown(built.path, layout.root)}: {built.n_published} published and {local} local run(s)"
    )
    for item in built.skipped:
        said = escape(f"{shown(item.path, layout.root)}: {item.reason}")
        console.print(f"[yellow]skipped[/] {said}", highlight=False)
    for fault in built.faults:
        said = escape(f"{fault.path}: {fault.reason}")
        console.print(f"[yellow]ledger[/] {said}", highlight=False)
    void = [fault for fault in built.faults if fault.voids_run]
    if void:
        raise LedgerFaultsError(
            f"{len(void)} fault(s) make a run no evidence, see above; "
            f"{void[0].path}: {void[0].reason}"
        )
    if strict and built.skipped:
        raise SkippedFilesError(
            f"{len(built.skipped)} file(s) were skipped, see above; repair or remove them"
        )


@app.command()
def ratios(
    latest: Annotated[
        bool, typer.Option("--latest", help="The run that started last; this is the default.")
    ] = False,
    run: Annotated[str | None, typer.Option("--run", help="Id of the run to show.")] = None,
) -> None:
    """Print the ratios of a run, with blocks, interval, verdict and target.

    Examples:

      python -m pipelines ratios --latest

      python -m pipelines ratios --run RUN_ID
    """
    from pipelines.database import open_database
    from pipelines.report import choose_run, print_ratios
    from pipelines.warehouse import shown
    from runner.errors import UsageError

    if latest and run is not None:
        raise UsageError(f"--latest and --run {run} name two runs; give one of them")
    layout = Layout()
    console = Console()
    with open_database(layout.database) as database:
        chosen = choose_run(database, run)
        print_ratios(database, chosen, console)
    console.print(f"database: {shown(layout.database, layout.root)}  (duckdb, then: from ratios)")
    page = layout.built / "index.html"
    hint = shown(page, layout.root) if page.exists() else "not built yet: nox -s site"
    console.print(f"page:     {hint}")


@app.command()
def site(
    url: Annotated[
        str | None,
        typer.Option("--url", help="Where the site will be served. Default: that of nox -s serve."),
    ] = None,
) -> None:
    """Build the site into build/site from the warehouse, strictly, and check its links.

    Examples:

      python -m pipelines site

      python -m pipelines site --url https://example.org/livekv/
    """
    from pipelines.publish.site import build_site
    from pipelines.warehouse import shown

    layout = Layout()
    console = Console(soft_wrap=True)
    build_site(layout, console, url)
    console.print(f"site: {shown(layout.built / 'index.html', layout.root)}")


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="Id of a run, or its beginning.")],
    second: Annotated[str, typer.Argument(help="Id of another, the later one.")],
) -> None:
    """Compare two runs: environment first, then a grade per arm and point; exit 9 when slower.

    Two runs of different machines or models are refused: their ratio says nothing of the software.

    Examples:

      python -m pipelines compare 20261130T233037Z 20261204T035600Z

      python -m pipelines compare RUN_BEFORE RUN_AFTER
    """
    from pipelines.comparing import compare_runs, print_comparison, require_no_slower
    from pipelines.database import open_database

    with open_database(Layout().database) as database:
        comparison = compare_runs(database, first, second)
        print_comparison(comparison, Console())
    require_no_slower(comparison)


@app.command()
def rederive(
    update: Annotated[
        bool,
        typer.Option("--update", help="Write data/figures.csv anew, to be committed with a run."),
    ] = False,
) -> None:
    """Derive every published figure again from Parquet, twice, and compare; exit 7 on a difference.

    Examples:

      python -m pipelines rederive

      python -m pipelines rederive --update
    """
    from pipelines.rederive import rederive_all

    rederive_all(Layout(), Console(soft_wrap=True), update=update)


@app.command()
def serve(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port.")] = 8000,
) -> None:
    """Serve the built site on this machine until interrupted.

    Examples:

      python -m pipelines serve

      python -m pipelines serve --port 8001
    """
    from pipelines.publish.serve import serve_site

    serve_site(Layout().built, port, Console())


def main() -> None:
    """Run the command line; an expected refusal is one line on standard error."""
    try:
        app()
    except LivekvError as error:
        console = Console(stderr=True)
        console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
