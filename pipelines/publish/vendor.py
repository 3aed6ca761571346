"""What the site takes from npm and serves itself: the chart library, and SQL for the browser."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Final

from filelock import FileLock
from rich.console import Console

from runner.paths import cache_dir

PLOTLY: Final = "plotly.js-basic-dist-min"
DUCKDB: Final = "@duckdb/duckdb-wasm"
ENGINE_BYTES: Final = 36_000_000
"""About what a reader's browser loads for SQL, uncompressed; a page names it before the click."""

_NAMES: Final = ("package.json", "package-lock.json")
_ENGINE: Final = ("duckdb-eh.wasm", "duckdb-browser-eh.worker.js")
_BUNDLE: Final = "duckdb.js"
_TIMEOUT_S: Final = 300


def write_vendor(root: Path, staged: Path, console: Console) -> None:
    """Put the libraries into ``assets/vendor/`` of the staged site.

    Where npm cannot bring them, charts use the larger bundle of the Python wheel, and the page that
    asks the database says that this build has no engine.
    """
    vendor = staged / "assets" / "vendor"
    vendor.mkdir(parents=True, exist_ok=True)
    modules = _modules(root)
    if modules is None:
        console.print("npm brought nothing: charts use the 4.8 MB bundle of the wheel, no SQL page")
        bundle = files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
        (vendor / "plotly.min.js").write_bytes(bundle)
        return
    shutil.copyfile(modules / PLOTLY / "plotly-basic.min.js", vendor / "plotly.min.js")
    _write_duckdb(modules, vendor / "duckdb")


def _write_duckdb(modules: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for name in _ENGINE:
        shutil.copyfile(modules / DUCKDB / "dist" / name, target / name)
    shutil.copyfile(modules.parent / _BUNDLE, target / _BUNDLE)


def _modules(root: Path) -> Path | None:
    """The folder ``node_modules`` of the lock file, outside the checkout; None: npm cannot."""
    if not (root / "package-lock.json").exists():
        return None
    locked = b"".join((root / name).read_bytes() for name in _NAMES)
    folder = cache_dir() / "npm" / hashlib.sha256(locked).hexdigest()[:12]
    modules = folder / "node_modules"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        # The bundle is written last: without it the installation broke off.
        if (folder / _BUNDLE).exists():
            return modules
        npm = shutil.which("npm")
        return modules if npm is not None and _install(npm, root, folder) else None


def _install(npm: str, root: Path, folder: Path) -> bool:
    """Install as locked, and make one module of the engine's interface and what it imports."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _NAMES:
        shutil.copyfile(root / name, folder / name)
    (folder / "entry.js").write_text(f'export * from "{DUCKDB}";\n', encoding="utf-8")
    install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0"]
    esbuild = str(folder / "node_modules" / ".bin" / "esbuild")
    bundle = [esbuild, "entry.js", "--bundle", "--format=esm", "--minify", "--log-level=error",
              f"--outfile={_BUNDLE}"]  # fmt: skip
    return all(_ran(command, folder) for command in (install, bundle))


def _ran(command: list[str], folder: Path) -> bool:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
