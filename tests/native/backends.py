"""Real backends on the tiny models, opened as the contract's cases ask for them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.building import EngineBuild
from runner.engine.backend import NativeBackend
from runner.engine.contract import Open
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters

ARCHITECTURES = ("llama", "qwen2", "gemma3", "mamba")


def parameters(build: EngineBuild, path: Path, **sizes: Any) -> LoadParameters:
    """How a model file is loaded here, one thread."""
    known = LoadParameters(
        model_path=path,
        model_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        lib_dir=build.lib_dir,
        library_sha256=build.library_sha256,
        n_ctx=1024,
        n_batch=256,
        n_seq_max=4,
    )
    return replace(known, **sizes)


def opener(base: LoadParameters) -> Open:
    """Opens backends of one model with the sizes a case asks for."""

    def open_backend(
        *, n_ctx: int = 256, n_batch: int = 64, n_seq_max: int = 4, unified_kv: bool = True
    ) -> NativeBackend:
        return LlamaCppBackend(
            replace(base, n_ctx=n_ctx, n_batch=n_batch, n_seq_max=n_seq_max, unified_kv=unified_kv)
        )

    return open_backend
