"""The one plotly bundle of the site: the small one through npm, else the one in the wheel."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Final

from rich.console import Console

PACKAGE: Final = "plotly.js-basic-dist-min"
_TIMEOUT_S: Final = 120


def write_plotly(root: Path, staged: Path, console: Console) -> None:
    """Put ``plotly.min.js`` into the staged site: 1.2 MB where npm works, else 4.8 MB."""
    target = staged / "assets" / "vendor" / "plotly.min.js"
    target.parent.mkdir(parents=True, exist_ok=True)
    small = _npm_bundle(root)
    if small is not None:
        shutil.copyfile(small, target)
        return
    console.print("plotly: npm gave no small bundle, using the 4.8 MB one of the Python wheel")
    target.write_bytes(files("plotly").joinpath("package_data", "plotly.min.js").read_bytes())


def _npm_bundle(root: Path) -> Path | None:
    lock = root / "package-lock.json"
    npm = shutil.which("npm")
    if not lock.exists():
        return None
    folder = root / "build" / "npm"
    bundle = folder / "node_modules" / PACKAGE / "plotly-basic.min.js"
    wanted = json.loads(lock.read_text(encoding="utf-8"))["packages"][f"node_modules/{PACKAGE}"]
    if _installed(bundle.with_name("package.json")) == wanted["version"]:
        return bundle
    if npm is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(root / name, folder / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return bundle if done.returncode == 0 and bundle.exists() else None


def _installed(package: Path) -> str | None:
    if not package.exists():
        return None
    version: str = json.loads(package.read_text(encoding="utf-8"))["version"]
    return version
