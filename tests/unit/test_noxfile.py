from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from runner.paths import ROOT

sys.path.insert(0, str(ROOT))
import noxfile

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


class Refused(Exception):
    """What a session's error becomes."""


class Session:
    """A nox session that writes down what it was told to run."""

    def __init__(self) -> None:
        self.posargs: list[str] = []
        self.ran: list[str] = []

    def run(self, *command: str, **_options: object) -> None:
        self.ran.append(" ".join(command))

    def log(self, _message: str) -> None: ...

    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def test_every_session_says_what_it_does() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "--list", "-f", str(ROOT / "noxfile.py")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = dict(re.findall(r"^[*-] (\w+) -> (.+)$", listed, flags=re.MULTILINE))
    wanted = {"sweep", "tests", "validate", "warehouse", "site", "serve", "lint", "types", "engine"}
    assert wanted <= set(found)
    assert "* sweep" in listed, "the main job is what plain nox does"


def test_the_lock_names_a_hash_for_everything_and_no_index() -> None:
    pinned = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==", LOCK, flags=re.MULTILINE)
    blocks = re.split(r"^(?=[\w.-]+(?:\[[\w,]+\])?==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(pinned) == len(blocks) > 50
    assert [b.splitlines()[0] for b in blocks if "--hash=sha256:" not in b] == []
    assert "://" not in LOCK
    assert "--find-links" not in LOCK


def test_the_lock_holds_what_the_builds_require() -> None:
    for name in ("hatchling", "editables", "scikit-build-core", "cmake", "ninja", "nox"):
        assert re.search(rf"^{name}==", LOCK, flags=re.MULTILINE), name


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose environment is made in an empty folder, by nobody."""
    root = tmp_path / "checkout"
    for name in ("requirements.lock", "pyproject.toml"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)

    def create(folder: Path, **_options: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            left.unlink()

    monkeypatch.setattr(noxfile, "ROOT", root)
    monkeypatch.setattr(noxfile, "VENV", root / ".nox" / "livekv")
    monkeypatch.setattr(noxfile, "venv", SimpleNamespace(create=create))
    monkeypatch.setattr(noxfile, "package", lambda: "somewhere")
    return Session()


def test_the_environment_is_made_once_and_again_when_the_lock_changes(fresh: Session) -> None:
    noxfile.environment(fresh)  # type: ignore[arg-type]
    assert [("--require-hashes" in ran, "--editable" in ran) for ran in fresh.ran] == [
        (True, False),
        (False, True),
    ]
    noxfile.environment(fresh)  # type: ignore[arg-type]
    assert len(fresh.ran) == 2
    (noxfile.ROOT / "pyproject.toml").write_text("changed")
    noxfile.environment(fresh)  # type: ignore[arg-type]
    assert len(fresh.ran) == 3
    (noxfile.ROOT / "requirements.lock").write_text("changed")
    noxfile.environment(fresh)  # type: ignore[arg-type]
    assert len(fresh.ran) == 5


def test_a_set_up_that_was_interrupted_is_done_again(
    fresh: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(noxfile, "install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            noxfile.environment(fresh)  # type: ignore[arg-type]
    noxfile.environment(fresh)  # type: ignore[arg-type]
    assert len(fresh.ran) == 2


def test_a_digest_is_of_content_and_python(fresh: Session) -> None:
    content = b"requirements.lock" + sys.version.encode()
    assert noxfile.digest("requirements.lock") == hashlib.sha256(content).hexdigest()


def test_without_a_browser_and_without_rights_one_line_says_so(
    fresh: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="need one of chromium, chromium-browser, google-chrome"):
        noxfile.need_browser(fresh)  # type: ignore[arg-type]
    assert fresh.ran == []


def test_a_dry_run_builds_no_page(fresh: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noxfile, "environment", lambda _session: "python")
    fresh.posargs = ["--dry-run"]
    noxfile.sweep(fresh)
    assert fresh.ran == ["python -m runner sweep --dry-run"]
    fresh.posargs = []
    noxfile.sweep(fresh)
    assert [ran.split()[3] for ran in fresh.ran[1:]] == ["sweep", "warehouse", "site", "ratios"]
