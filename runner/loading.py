"""How a resolved model is loaded from a build, on a platform."""

from __future__ import annotations

from runner.building import EngineBuild
from runner.catalog import Platform
from runner.engine.parameters import LoadParameters
from runner.models import ResolvedModel


def parameters_for(
    build: EngineBuild, model: ResolvedModel, platform: Platform, n_threads: int
) -> LoadParameters:
    """How a resolved model is loaded on a platform, sizes at their defaults."""
    return LoadParameters(
        model_path=model.path,
        model_sha256=model.sha256,
        lib_dir=build.lib_dir,
        library_sha256=build.library_sha256,
        n_threads=n_threads,
        n_gpu_layers=platform.n_gpu_layers,
    )
