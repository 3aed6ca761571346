"""The contract of the seam, held to a model that people use."""

from __future__ import annotations

import pytest

from runner.building import EngineBuild
from runner.engine.backend import NativeBackend
from runner.engine.contract import CASES, Case
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.models import ResolvedModel


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_smollm2_keeps_the_contract(
    case: Case, engine_build: EngineBuild, smollm2: ResolvedModel
) -> None:
    def open_backend(
        *, n_ctx: int = 256, n_batch: int = 64, n_seq_max: int = 4, unified_kv: bool = True
    ) -> NativeBackend:
        return LlamaCppBackend(
            LoadParameters(
                model_path=smollm2.path,
                model_sha256=smollm2.sha256,
                lib_dir=engine_build.lib_dir,
                library_sha256=engine_build.library_sha256,
                n_ctx=n_ctx,
                n_batch=n_batch,
                n_seq_max=n_seq_max,
                unified_kv=unified_kv,
            )
        )

    case(open_backend)
