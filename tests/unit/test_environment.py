"""Two runs compared by where and with what they were made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipelines.analysis.environment import (
    FIELDS,
    environment_difference,
    environment_fingerprint,
)
from runner.records import RUN


def run(environment: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    stated = {
        "python": "CPython 3.11.2",
        "packages": {"numpy": "2.3.0", "llama-cpp-python": None},
        "variables": {"OMP_NUM_THREADS": "2"},
    }
    row: dict[str, Any] = {name: f"a {name}" for name in RUN.names}
    return row | {"environment": json.dumps(stated | (environment or {}))} | changes


def test_every_field_is_a_column_of_table_run() -> None:
    assert set(FIELDS) <= set(RUN.names)
    assert "environment" not in FIELDS


def test_the_same_environment_has_the_same_fingerprint() -> None:
    other = run(run_id="another", started_at="later", order_seed=7, harness_commit="b" * 40)
    assert environment_difference(run(), other) == []
    assert environment_fingerprint(run()) == environment_fingerprint(other)
    shuffled = json.dumps(dict(reversed(json.loads(run()["environment"]).items())))
    assert environment_fingerprint(run() | {"environment": shuffled}) == (
        environment_fingerprint(run())
    )


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_counts(name: str) -> None:
    other = run() | {name: "another"}
    assert environment_difference(run(), other) == [(name, f"a {name}", "another")]
    assert environment_fingerprint(run()) != environment_fingerprint(other)


def test_packages_and_variables_are_named_one_by_one() -> None:
    other = run(
        {
            "packages": {"numpy": "2.4.0", "llama-cpp-python": None},
            "variables": {"GGML_X": "1"},
        }
    )
    assert environment_difference(run(), other) == [
        ("environment.packages.numpy", "2.3.0", "2.4.0"),
        ("environment.variables.GGML_X", None, "1"),
        ("environment.variables.OMP_NUM_THREADS", "2", None),
    ]
    assert environment_fingerprint(run()) != environment_fingerprint(other)


def test_unset_and_never_asked_for_are_the_same() -> None:
    other = run({"packages": {"numpy": "2.3.0"}})
    assert environment_difference(run(), other) == []
    assert environment_fingerprint(run()) == environment_fingerprint(other)


def test_an_environment_that_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        environment_fingerprint(run() | {"environment": "python 3"})
