"""How a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """How a model is loaded. Everything that changes speed is here and goes into the run."""

    model_path: Path
    model_sha256: str
    lib_dir: Path
    library_sha256: str
    n_ctx: int = 8192
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_threads: int = 1
    n_gpu_layers: int = 0
    flash_attention: Literal["auto", "on", "off"] = "auto"
    kv_type: Literal["f16", "f32", "q8_0"] = "f16"
    unified_kv: bool = True
