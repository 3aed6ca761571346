"""Print the catalog: everything the command line can be told to run."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from runner import catalog
from runner.catalog import Model


def print_catalog(console: Console) -> None:
    """Print platforms, models and sweeps with their points as tables."""
    for table in (_platforms(), _models(), _sweeps()):
        console.print(table)


def _platforms() -> Table:
    table = Table("--platform", "title", "exists on", "needs", title="Platforms")
    for found in catalog.platforms().values():
        table.add_row(found.id, found.title, ", ".join(found.systems), found.remedy)
    return table


def _models() -> Table:
    table = Table("--model", "kind", "title", "licence", "size", title="Models")
    for found in catalog.models().values():
        table.add_row(found.id, found.kind, found.title, found.licence, _size(found))
    table.add_row("path/to/model.gguf", "path", "A file of your own", "", "")
    return table


def _size(model: Model) -> str:
    if model.bytes is not None:
        return f"{model.bytes / 1e6:,.0f} MB"
    return f"{model.parameters / 1e9:.1f} B weights" if model.parameters else ""


def _sweeps() -> Table:
    table = Table("--sweep", "point", "prefix", "hops", "tokens", "blocks", title="Sweeps")
    for found in catalog.sweeps().values():
        for point in found.points:
            counts = (point.prefix, point.hops, point.n_tokens, found.blocks)
            table.add_row(found.id, point.label or point.id, *map(str, counts))
        table.add_section()
    return table
