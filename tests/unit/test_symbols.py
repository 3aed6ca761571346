"""Symbols over the versions of llama.cpp, with stand-ins for the binding."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.engine import symbols
from runner.engine.backend import BackendError


def binding(*names: str, **values: Any) -> SimpleNamespace:
    """A binding whose functions return their name and what they were called with."""
    made = {name: lambda *given, name=name: (name, *given) for name in names}
    return SimpleNamespace(**made, **values)


FAMILIES = {
    "llama_memory_seq_": "the memory",
    "llama_kv_self_seq_": "the context",
    "llama_kv_cache_seq_": "the context",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_of_memory_calls_is_found(family: str) -> None:
    names = [f"{family}{name}" for name in ("rm", "cp", "pos_max")]
    found: Any = symbols.memory_calls(
        binding(*names, llama_get_memory=lambda context: "the memory"), "the context"
    )
    assert found.handle == FAMILIES[family]
    assert found.remove(1) == (f"{family}rm", 1)
    assert found.copy(1) == (f"{family}cp", 1)
    assert found.last_position is not None
    assert found.last_position(1) == (f"{family}pos_max", 1)


def test_the_newest_family_is_taken_when_an_older_one_is_there_too() -> None:
    names = [f"{family}{name}" for family in FAMILIES for name in ("rm", "cp", "pos_max")]
    found: Any = symbols.memory_calls(
        binding(*names, llama_get_memory=lambda context: "the memory"), "the context"
    )
    assert found.handle == "the memory"
    assert found.remove(1) == ("llama_memory_seq_rm", 1)


def test_a_version_that_cannot_tell_the_last_position_says_so() -> None:
    found: Any = symbols.memory_calls(
        binding("llama_kv_cache_seq_rm", "llama_kv_cache_seq_cp"), "the context"
    )
    assert found.last_position is None


def test_no_known_family_names_them_all() -> None:
    with pytest.raises(BackendError) as refused:
        symbols.memory_calls(SimpleNamespace(), "the context")
    for family in FAMILIES:
        assert f"{family}rm" in str(refused.value)


class Function:
    """A foreign function with as many parameters as its version has."""

    def __init__(self, name: str, parameters: int) -> None:
        self.argtypes = [object] * parameters
        self._name = name

    def __call__(self, *given: object) -> tuple[object, ...]:
        assert len(given) == len(self.argtypes)
        return (self._name, *given)


@pytest.mark.parametrize(
    ("names", "parameters", "passed"),
    [
        (("llama_state_seq_get_data", "llama_state_seq_set_data"), 4, ("context", "data", 100, 2)),
        (("llama_state_seq_get_data", "llama_state_seq_set_data"), 3, ("context", "data", 2)),
        (("llama_get_seq_state_data", "llama_set_seq_state_data"), 3, ("context", "data", 2)),
    ],
    ids=["with a size", "without a size", "old names"],
)
def test_state_calls_have_one_signature_over_the_versions(
    names: tuple[str, str], parameters: int, passed: tuple[object, ...]
) -> None:
    old = names[0] == "llama_get_seq_state_data"
    size = "llama_get_seq_state_size" if old else "llama_state_seq_get_size"
    functions = {name: Function(name, parameters) for name in names}
    found: Any = symbols.state_calls(binding(size, **functions))
    assert found.size("context", 2) == (size, "context", 2)
    assert found.get("context", "data", 100, 2) == (names[0], *passed)
    assert found.set("context", "data", 100, 2) == (names[1], *passed)


def test_no_state_calls_names_those_that_were_looked_for() -> None:
    with pytest.raises(
        BackendError, match="llama_state_seq_get_size, llama_get_seq_state_size: this version"
    ):
        symbols.state_calls(SimpleNamespace())


def test_the_vocabulary_is_asked_of_the_model_where_there_is_one_and_is_the_model_before() -> None:
    assert symbols.vocabulary_handle(binding("llama_model_get_vocab"), "the model") == (
        "llama_model_get_vocab",
        "the model",
    )
    assert symbols.vocabulary_handle(SimpleNamespace(), "the model") == "the model"


def test_a_library_loaded_from_elsewhere_before_is_not_taken_for_the_one_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(symbols.LIBRARY_VARIABLE, "/elsewhere")
    with pytest.raises(BackendError, match=f"is /elsewhere, this run needs {tmp_path}; unset it"):
        symbols.load_binding(tmp_path)
