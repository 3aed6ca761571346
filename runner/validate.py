"""`validate`: bring-up of several models with a table, ``checks.parquet`` and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner import catalog, records
from runner.bench.isolated import JobDied, JobFailed
from runner.bench.machine import default_threads
from runner.bringup import Row, bring_up
from runner.building import ensure_engine
from runner.engine.parameters import LoadParameters
from runner.errors import LivekvError
from runner.loading import parameters_for
from runner.models import ensure_model
from runner.paths import ROOT

DEFAULT_MODELS: Final = ("smollm2-135m", "tiny:llama", "tiny:qwen2", "tiny:gemma3", "tiny:mamba")
_SIGNS: Final = {
    "pass": "[green]pass[/]",
    "fail": "[bold red]FAIL[/]",
    "absent": "[yellow]absent[/]",
}


class ValidationFailed(LivekvError):
    """At least one check of one model failed."""


def validate_models(
    platform_id: str,
    models: Sequence[str] | None,
    threads: int | None,
    out: Path | None,
    llama_cpp: Path | None,
    console: Console,
) -> None:
    """Bring every model up, print a table each, write ``checks.parquet``.

    Raises:
        ValidationFailed: names the checks that failed; the table and the file are complete.
    """
    platform = catalog.platform(platform_id)
    build = ensure_engine(platform_id, llama_cpp, console)
    n_threads, _ = default_threads(threads)
    failed: list[str] = []
    rows: list[Row] = []
    for name in models or DEFAULT_MODELS:
        model = ensure_model(name, console)
        with console.status(f"bringing {name} up ..."):
            found = _checked(parameters_for(build, model, platform, n_threads))
        print_checks(name, found, console)
        rows += [{"run_id": f"validate-{platform_id}-{name}", **row} for row in found]
        failed += [f"{name}: {row['check']}" for row in found if row["status"] == "fail"]
    folder = out or ROOT / "build" / "validate"
    path = records.write_table(folder, "checks", rows)
    console.print(f"checks are in {path}", highlight=False, markup=False, soft_wrap=True)
    if failed:
        raise ValidationFailed(f"{len(failed)} check(s) failed: {'; '.join(failed)}")


def _checked(parameters: LoadParameters) -> list[Row]:
    try:
        return bring_up(parameters).checks
    except (JobDied, JobFailed) as error:
        return [
            {
                "check": "bring-up process",
                "status": "fail",
                "value": None,
                "unit": None,
                "detail": str(error),
                "meaning": "the library cannot be used here",
                "seconds": 0.0,
            }
        ]


def print_checks(title: str, rows: Sequence[Row], console: Console) -> None:
    """One line a check: status, measured value, what was seen or what the failure means."""
    table = Table(title=f"bring-up of {title}", title_justify="left")
    for heading in ("check", "", "measured", "seen"):
        table.add_column(heading, justify="right" if heading == "measured" else "left")
    for row in rows:
        value = "" if row["value"] is None else f"{row['value']:.4g} {row['unit']}"
        seen = row["detail"]
        if row["status"] == "fail":
            seen = f"{seen} -> {row['meaning']}"
        table.add_row(row["check"], _SIGNS[row["status"]], value, escape(seen))
    console.print(table)
