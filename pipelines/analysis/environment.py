"""What two runs must share before their times are held together: machine, engine, settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

Value = str | int | float | bool | None

# Columns of table ``run`` that decide speed. Not among them: what was measured (sweep, seed,
# blocks), when, and by which commit of the harness.
FIELDS: Final = (
    "machine_key", "platform", "cpu", "physical_cores", "logical_cores", "gpu", "gpu_driver", "os",
    "kernel", "n_threads", "library_sha256", "binding_version", "cmake_flags", "model_sha256",
    "n_ctx", "n_batch", "n_ubatch", "n_gpu_layers", "flash_attention", "kv_type", "sampling",
    "warmup_tokens",
)  # fmt: skip


def environment_fingerprint(run: Mapping[str, Any]) -> str:
    """Hex digest of everything `environment_difference` compares; `run` is a row of table run.

    Raises:
        ValueError: its environment is not JSON.
    """
    stated = json.dumps(environment_facts(run), sort_keys=True)
    return hashlib.sha256(stated.encode()).hexdigest()


def environment_difference(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, Value, Value]]:
    """What differs between two rows of table run: (name, of the first, of the second), by name.

    Raises:
        ValueError: an environment is not JSON.
    """
    first, second = environment_facts(one), environment_facts(other)
    return [
        (name, first.get(name), second.get(name))
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]


def environment_facts(run: Mapping[str, Any]) -> dict[str, Value]:
    """Everything `environment_difference` compares, flat, by name; what is not set is left out.

    Raises:
        ValueError: its environment is not JSON.
    """
    environment = _flat("environment", json.loads(run["environment"]))
    facts = {name: run[name] for name in FIELDS} | environment
    # Unset and never set are the same, so that a newer harness that asks for more agrees.
    return {name: value for name, value in facts.items() if value is not None}


def _flat(prefix: str, nested: Mapping[str, Any]) -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for name, value in nested.items():
        path = f"{prefix}.{name}"
        flat |= _flat(path, value) if isinstance(value, dict) else {path: value}
    return flat
