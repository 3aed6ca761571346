"""Does the built library see the device its platform promises?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from runner.catalog import Platform
from runner.errors import EnvironmentProblem

_LINE = re.compile(r"^\s+([A-Za-z]+)(\d+): (.+)$", flags=re.MULTILINE)
# Loading a GPU driver for the first time can take long, but not this long.
_PATIENCE_S = 120


def devices(lib_dir: Path) -> dict[str, str]:
    """Devices the library lists, name to description, such as ``CUDA0``. The CPU is not listed."""
    bench = lib_dir / "llama-bench"
    if not bench.exists():
        raise EnvironmentProblem(f"{lib_dir} has no llama-bench, which lists the devices; build it")
    try:
        said = subprocess.run(
            [str(bench), "--list-devices"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(
            f"{bench} --list-devices gave no answer in {_PATIENCE_S} s; is the driver stuck?"
        ) from error
    if said.returncode != 0:
        reason = (said.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EnvironmentProblem(f"{bench} cannot run ({said.returncode}): {reason}")
    return {name + number: text for name, number, text in _LINE.findall(said.stdout)}


def require_device(platform: Platform, lib_dir: Path) -> None:
    """Refuse when the platform's device is absent.

    Raises:
        EnvironmentProblem: names what the library sees and what to install.
    """
    if platform.device_backend == "CPU":
        return
    seen = devices(lib_dir)
    if not any(name.rstrip("0123456789") == platform.device_backend for name in seen):
        raise EnvironmentProblem(
            f"platform {platform.id} needs a {platform.device_backend} device, the library sees "
            f"{', '.join(seen) or 'none'}; needed: {platform.remedy}"
        )
