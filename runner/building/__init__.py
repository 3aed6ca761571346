"""One build of llama.cpp per platform, which every arm runs."""

from runner.building.build import EngineBuild, ensure_engine

__all__ = ["EngineBuild", "ensure_engine"]
