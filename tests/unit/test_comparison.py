"""Two runs side by side: what is refused, what is named, and what noise allows to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from synthetic import REFERENCE, REPEATED, World, write_run

from pipelines.analysis.comparison import compare
from pipelines.comparing import (
    Comparison,
    SlowerError,
    compare_runs,
    print_comparison,
    require_no_slower,
)
from pipelines.database import open_database
from pipelines.paths import Layout
from pipelines.warehouse import build_warehouse
from runner.errors import UsageError

FIRST, SECOND = "20260102T030405-first", "20260103T030405-second"


def seconds(factor: float, noise: float, n: int = 12, seed: int = 1) -> list[float]:
    return list(factor * np.exp(np.random.default_rng(seed).normal(0, noise, n)))


@pytest.mark.parametrize(
    ("factor", "noise", "grade"),
    [
        (1.0, 0.005, "level"),
        (1.01, 0.002, "level"),  # told apart, and nobody acts on it
        (1.10, 0.01, "slower"),
        (0.90, 0.01, "faster"),
        (1.0, 0.2, "unclear"),
        (1.05, 0.2, "unclear"),
    ],
)
def test_a_grade_is_what_the_noise_allows(factor: float, noise: float, grade: str) -> None:
    found = compare(seconds(2.0, noise), seconds(2.0 * factor, noise, seed=2))
    assert found.grade == grade
    assert found.low is not None and found.high is not None
    assert found.low <= found.ratio <= found.high


def test_one_block_says_nothing() -> None:
    found = compare([2.0], [4.0])
    assert (found.ratio, found.low, found.high, found.grade) == (2.0, None, None, "unclear")


def test_equal_blocks_have_no_width() -> None:
    assert compare([2.0, 2.0], [3.0, 3.0]).grade == "slower"
    assert compare([2.0, 2.0], [2.0, 2.0]).grade == "level"


def compared(tmp_path: Path, **second: Any) -> Comparison:
    layout = Layout(tmp_path)
    points = REFERENCE[2:]
    write_run(layout.published, World(run_id=FIRST, points=points, arms=REPEATED))
    told = {"seed": 2, "days": 1, **second}
    write_run(layout.published, World(run_id=SECOND, points=points, arms=REPEATED, **told))
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        return compare_runs(database, FIRST, "20260103")


def test_every_arm_and_point_of_both_has_a_grade(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert found.refused is None
    assert {(line["point"], line["arm"]) for line in found.lines} == {
        (point.id, arm) for point in REFERENCE[2:] for arm in REPEATED
    }
    assert {line["grade"] for line in found.lines} <= {"level", "unclear"}
    require_no_slower(found)


def test_an_arm_that_became_slower_fails(tmp_path: Path) -> None:
    found = compared(tmp_path, slowdown=1.2)
    with pytest.raises(SlowerError, match=r"slower at 2 of 6 .* live_kv at .*: 1\.[12]"):
        require_no_slower(found)
    assert SlowerError.exit_code not in (0, UsageError.exit_code)


def test_machines_are_not_compared(tmp_path: Path) -> None:
    found = compared(tmp_path, machine_key="machine1")
    assert found.refused is not None
    assert "different machines: machine_key is machine0" in found.refused
    assert found.lines == []
    assert ("machine_key", "machine0", "machine1") in found.differences
    with pytest.raises(UsageError, match="different machines"):
        require_no_slower(found)


def test_models_are_not_compared(tmp_path: Path) -> None:
    found = compared(tmp_path, run_extra={"model_sha256": "f" * 64})
    assert found.refused is not None and "different models" in found.refused


def test_another_library_is_named_and_compared(tmp_path: Path) -> None:
    found = compared(tmp_path, run_extra={"library_sha256": "e" * 64, "harness_commit": "9" * 40})
    assert found.refused is None
    assert {"library_sha256", "harness_commit"} <= {name for name, *_ in found.differences}


def test_void_blocks_do_not_count(tmp_path: Path) -> None:
    def disturb(row: dict[str, Any]) -> None:
        if row["block"] == 0:
            row["status"], row["reason"] = "void", "another program ran"

    found = compared(tmp_path, edit_block=disturb)
    assert {line["n_second"] for line in found.lines} == {9}


def test_a_run_is_named_by_a_beginning_of_its_own(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for name in (FIRST, SECOND):
        write_run(layout.published, World(run_id=name, points=REFERENCE[2:]))
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        with pytest.raises(UsageError, match="may be any of"):
            compare_runs(database, "2026", SECOND)
        with pytest.raises(UsageError, match="there is no run nothing"):
            compare_runs(database, FIRST, "nothing")
        with pytest.raises(UsageError, match="are one run"):
            compare_runs(database, FIRST, FIRST)


def test_what_is_printed_has_environment_before_grades(tmp_path: Path) -> None:
    console = Console(record=True, width=160, quiet=False)
    print_comparison(compared(tmp_path, run_extra={"n_batch": 512}), console)
    said = console.export_text()
    assert said.index("n_batch") < said.index("second / first") < said.index("Welch")
