"""Sessions are made by the hundred here; and at the end the reader is shown what was found."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from laboratory import Findings, Laboratory

_FINDINGS = pytest.StashKey[Findings]()


@pytest.fixture(scope="module", autouse=True)
def _hurry() -> Iterator[None]:
    """Nothing here must survive a power cut, and no rubbish of the imports need be looked for."""
    gc.collect()
    gc.freeze()  # statsmodels collects garbage at every call
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield
    gc.unfreeze()


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    """A laboratory with an expectation of its own."""
    made = Laboratory(tmp_path)
    made.register()
    return made


@pytest.fixture(scope="session")
def findings(pytestconfig: pytest.Config) -> Findings:
    """Where a test notes what it found, for the summary at the end."""
    return pytestconfig.stash.setdefault(_FINDINGS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was tried and what came of it."""
    for heading, lines in terminalreporter.config.stash.get(_FINDINGS, {}).items():
        terminalreporter.write_sep("-", heading)
        width = max(len(tried) for tried, _ in lines)
        for tried, found in lines:
            terminalreporter.write_line(f"{tried:<{width}}  {found}")
