"""Where the pipelines read and write, as one value that a test can point elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.paths import ROOT


@dataclass(frozen=True)
class Layout:
    """Inputs and outputs of the pipelines.

    `root` is the checkout. With `out` everything that is built goes there, and runs of the
    checkout that are not published are left out.
    """

    root: Path = ROOT
    out: Path | None = None

    @property
    def _work(self) -> Path:
        return self.out or self.root / "build"

    @property
    def data(self) -> Path:
        """Committed data: platforms, sweeps, expectations, targets, published runs."""
        return self.root / "data"

    @property
    def published(self) -> Path:
        """Committed runs."""
        return self.data / "runs"

    @property
    def local(self) -> Path:
        """Runs of this checkout that are not published."""
        return self._work / "runs"

    @property
    def database(self) -> Path:
        """The DuckDB file a reader opens; built, never committed."""
        return (self.out or self.data) / "results.duckdb"

    @property
    def figures(self) -> Path:
        """Committed record of every published figure."""
        return self.data / "figures.csv"

    @property
    def source(self) -> Path:
        """Hand-written source of the site."""
        return self.root / "site"

    @property
    def staged(self) -> Path:
        """Source of the site with the generated pages laid over it."""
        return self._work / "docs"

    @property
    def built(self) -> Path:
        """The built site."""
        return self._work / "site"
