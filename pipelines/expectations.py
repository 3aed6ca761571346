"""Expectation files as they are now, by the digest of their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.registration import Expectation, digest, load_expectation


@dataclass(frozen=True)
class ExpectationFile:
    """One file of ``data/expectations/``; `digest` is the sha256 of its bytes, in hex."""

    path: Path
    digest: str
    expectation: Expectation


def load_expectations(folder: Path) -> tuple[ExpectationFile, ...]:
    """Every expectation under `folder`, in the order of file names.

    Raises:
        UsageError: a file cannot be read or breaks the schema; names file and key.
    """
    files = sorted(folder.glob("*.toml"))
    return tuple(ExpectationFile(path, digest(path), load_expectation(path)) for path in files)
