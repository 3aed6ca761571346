"""The serving engine: continuous batching and stateful sessions over one native backend."""
