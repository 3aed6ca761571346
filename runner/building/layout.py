"""Does the binding's view of llama.cpp's structs fit a library? A module to run by itself.

The binding describes C structs by hand. Against another llama.cpp version every field may sit
elsewhere, and nothing says so: a wrong context size, or a crash. The library's own defaults tell:
read through the binding they must be the values llama.cpp sets.

It runs in a process of its own, because a library that does not fit may end the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from runner.errors import UsageError
from runner.paths import ROOT

# llama_context_default_params and llama_model_default_params, as llama.cpp 0c1e57098 sets them.
# Fields late in a struct move when anything before them does.
EXPECTED = {
    "context.n_ctx": 512,
    "context.n_batch": 2048,
    "context.n_ubatch": 512,
    "context.n_seq_max": 1,
    "context.rope_scaling_type": -1,
    "context.pooling_type": -1,
    "context.attention_type": -1,
    "context.flash_attn_type": -1,
    "context.yarn_ext_factor": -1.0,
    "context.yarn_attn_factor": -1.0,
    "context.yarn_beta_fast": -1.0,
    "context.yarn_beta_slow": -1.0,
    "context.defrag_thold": -1.0,
    "context.type_k": 1,
    "context.type_v": 1,
    "context.embeddings": False,
    "context.offload_kqv": True,
    "context.no_perf": True,
    "context.op_offload": True,
    "context.swa_full": True,
    "context.kv_unified": False,
    "model.n_gpu_layers": -1,
    "model.split_mode": 1,
    "model.main_gpu": 0,
    "model.vocab_only": False,
    "model.check_tensors": False,
    "model.use_extra_bufts": True,
    "model.no_host": False,
}


def read_defaults() -> dict[str, object]:
    """The library's defaults, seen through the binding."""
    import llama_cpp  # noqa: PLC0415 - it loads the library, and this module is also imported to compare

    structs = {
        "context": llama_cpp.llama_context_default_params(),
        "model": llama_cpp.llama_model_default_params(),
    }
    found: dict[str, object] = {}
    for name in EXPECTED:
        struct, _, field = name.partition(".")
        found[name] = getattr(structs[struct], field, None)
    return found


def require_layout(lib_dir: Path) -> None:
    """Load the library in `lib_dir` with the binding and compare defaults.

    Raises:
        UsageError: the library cannot be loaded, or a field is not where the binding looks.
    """
    said = subprocess.run(
        [sys.executable, "-m", "runner.building.layout"],
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(lib_dir)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode != 0:
        reason = (said.stderr.strip().splitlines() or [f"ended with {said.returncode}"])[-1]
        raise UsageError(f"the llama.cpp library in {lib_dir} cannot be loaded: {reason}")
    wrong = differences(json.loads(said.stdout.splitlines()[-1]))
    if wrong:
        raise UsageError(
            f"the llama.cpp build in {lib_dir} does not fit the binding: {wrong[0]} "
            f"({len(wrong)} of {len(EXPECTED)} fields differ); build the version the binding "
            "was made for, or leave --llama-cpp out"
        )


def differences(found: Mapping[str, object]) -> list[str]:
    """Which defaults are not what llama.cpp sets, one line each."""
    return [
        f"{name} is {found.get(name)!r}, expected {expected!r}"
        for name, expected in EXPECTED.items()
        if found.get(name) != expected
    ]


if __name__ == "__main__":
    print(json.dumps(read_defaults()))
