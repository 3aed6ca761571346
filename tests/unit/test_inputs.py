"""The files a run measures are the same from its first step to its last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.bench.inputs import changed, identity
from runner.engine.parameters import LoadParameters


@pytest.fixture
def parameters(tmp_path: Path) -> LoadParameters:
    model, libraries = tmp_path / "m.gguf", tmp_path / "bin"
    model.write_bytes(b"weights")
    libraries.mkdir()
    (libraries / "libllama.so.1").write_bytes(b"code")
    (libraries / "llama-bench").write_bytes(b"a program")
    return LoadParameters(model, "0" * 64, libraries, "0" * 64)


def test_what_nobody_touched_is_unchanged(parameters: LoadParameters) -> None:
    before = identity(parameters)
    assert set(before) == {"m.gguf", "libllama.so.1"}
    assert changed(before, parameters) is None


def test_another_model_under_the_same_name_is_named(parameters: LoadParameters) -> None:
    before = identity(parameters)
    stat = parameters.model_path.stat()
    other = parameters.model_path.with_name("other")
    other.write_bytes(b"WEIGHTS")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(parameters.model_path)
    assert changed(before, parameters) == "m.gguf is not the file the run began with"


def test_another_library_is_named_and_so_is_a_new_one(parameters: LoadParameters) -> None:
    before = identity(parameters)
    (parameters.lib_dir / "libggml-cpu.so").write_bytes(b"more")
    assert changed(before, parameters) == "libggml-cpu.so is not the file the run began with"


def test_a_model_that_is_gone_is_named(parameters: LoadParameters) -> None:
    before = identity(parameters)
    parameters.model_path.unlink()
    said = changed(before, parameters)
    assert said is not None
    assert "m.gguf is gone" in said
