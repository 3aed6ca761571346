"""A shape file on the real backend: it loads and its random weights give finite logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from runner.building import EngineBuild
from runner.engine.backend import Entry
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.models import shape
from runner.models.check import check
from runner.models.shape import Shape

SMALL = Shape("Small", 8, 512, 1024, 8, 2, 500, tied=True)


def test_a_small_shape_computes(
    engine_build: EngineBuild,
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    console: Console,
) -> None:
    path = tmp_path / "small.gguf"
    shape.write(SMALL, tiny_model("qwen2"), path, console)
    backend = LlamaCppBackend(
        LoadParameters(
            model_path=path,
            model_sha256=check(path).sha256,
            lib_dir=engine_build.lib_dir,
            library_sha256=engine_build.library_sha256,
            n_ctx=256,
            n_batch=256,
        )
    )
    tokens = backend.tokenize(b"the tool result and the agent")
    logits = np.array(backend.decode([Entry(0, 0, tokens, True)]))
    backend.close()
    assert logits.shape == (1, SMALL.vocabulary)
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1
    assert len(np.unique(logits)) > 0.9 * SMALL.vocabulary, "rows must not repeat"
