"""Where things live: the checkout's data, and the cache outside it."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"


def cache_dir() -> Path:
    """The folder for builds and models, outside the checkout; ``LIVEKV_CACHE`` moves it."""
    override = os.environ.get("LIVEKV_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("livekv"))
