"""What a llama-server is started with, and what it must say of itself afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from runner.engine.parameters import LoadParameters
from runner.errors import LivekvError

HOST: Final = "127.0.0.1"
_ALL_LAYERS: Final = 999


class SettingsRefused(LivekvError):
    """The server runs with other settings than those asked for."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What only a server has; the rest comes from `LoadParameters`, equal for every arm."""

    n_slots: int = 1
    cache_prompt: bool = True
    """Keep a slot's KV and compute only what a prompt has more."""
    cache_ram_mib: int = 0
    """Room for prompts of other conversations; an agent alone has none."""
    cache_reuse: int = 0
    """Least chunk to reuse by shifting KV; 0: off. A tool loop only ever appends."""
    n_http_threads: int = 2

    def arguments(self, parameters: LoadParameters, port: int, folder: Path) -> list[str]:
        """The command line after the program, complete: no setting is left to a default."""
        layers = _ALL_LAYERS if parameters.n_gpu_layers < 0 else parameters.n_gpu_layers
        named = {
            "--model": parameters.model_path,
            "--host": HOST,
            "--port": port,
            "--ctx-size": parameters.n_ctx * self.n_slots,
            "--batch-size": parameters.n_batch,
            "--ubatch-size": parameters.n_ubatch,
            "--threads": parameters.n_threads,
            "--threads-batch": parameters.n_threads,
            "--n-gpu-layers": layers,
            "--flash-attn": parameters.flash_attention,
            "--cache-type-k": parameters.kv_type,
            "--cache-type-v": parameters.kv_type,
            "--parallel": self.n_slots,
            "--cache-ram": self.cache_ram_mib,
            "--cache-reuse": self.cache_reuse,
            "--threads-http": self.n_http_threads,
            # Erasing a slot is allowed only where slots may be saved.
            "--slot-save-path": folder,
        }
        flags = ["--no-ui", "--offline", "--slots", "--no-context-shift"]
        return [*(str(word) for pair in named.items() for word in pair), *flags]

    def require(
        self, parameters: LoadParameters, props: Mapping[str, Any], slots: list[Any]
    ) -> None:
        """Compare what ``/props`` and ``/slots`` say with what was asked for.

        Raises:
            SettingsRefused: names the first setting that differs, both values and the remedy.
        """
        told = {
            "slots": (props.get("total_slots"), self.n_slots),
            "slots listed": (len(slots), self.n_slots),
            "model": (Path(str(props.get("model_path"))).name, parameters.model_path.name),
        }
        for index, slot in enumerate(slots):
            told[f"context of slot {index}"] = (slot.get("n_ctx"), parameters.n_ctx)
        for what, (found, asked) in told.items():
            if found != asked:
                raise SettingsRefused(
                    f"llama-server has {what} {found}, {asked} was asked for; "
                    "it would not be the baseline that is named: use the build of nox -s engine"
                )

    def columns(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)
