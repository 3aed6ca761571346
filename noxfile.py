"""Every job of this repository. Arguments after ``--`` go to the program that does it.

All sessions share one environment, made from the hash-locked requirements. The package itself is
installed as a link to this checkout, so that what runs is always what is on disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".nox" / "livekv"
PYTHON = VENV / ("Scripts" if os.name == "nt" else "bin") / "python"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

nox.needs_version = ">=2025.5"
nox.options.sessions = ["sweep"]
nox.options.default_venv_backend = "none"
nox.options.error_on_external_run = False


def environment(session: nox.Session) -> str:
    """The shared environment's Python, made anew when the lock has changed."""
    if sys.version_info < (3, 11):  # noqa: UP036 - nox may run on an older Python than the package
        session.error(f"livekv needs Python 3.11 or newer, nox runs on {sys.version.split()[0]}")
    locked = digest("requirements.lock")
    if noted("locked") != locked:
        session.log(f"making the environment in {VENV.relative_to(ROOT)}, a minute or two")
        venv.create(VENV, clear=True, with_pip=True)
        install(session, "--require-hashes", "-r", "requirements.lock")
        note("locked", locked)
    linked = digest("pyproject.toml")
    if noted("linked") != linked:
        install(session, "--no-deps", "--no-build-isolation", "--editable", ".")
        note("linked", linked)
    session.log(f"testing {package()} at {commit()}")
    return str(PYTHON)


def digest(name: str) -> str:
    """What a file holds and the Python that reads it, as one line."""
    return hashlib.sha256((ROOT / name).read_bytes() + sys.version.encode()).hexdigest()


def noted(what: str) -> str:
    """What `note` wrote last; nothing in a fresh or half-made environment."""
    path = VENV / f"{what}.digest"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def note(what: str, value: str) -> None:
    """Remember what the environment was made of. Written last: an interrupted set-up is redone."""
    (VENV / f"{what}.digest").write_text(value, encoding="utf-8")


def install(session: nox.Session, *arguments: str) -> None:
    """Install with the environment's own pip."""
    options = ("--disable-pip-version-check", "--quiet", "--progress-bar", "on")
    session.run(str(PYTHON), "-m", "pip", "install", *options, *arguments)


def package() -> str:
    """The folder the package is imported from, asked of the environment itself."""
    ask = "import pathlib, runner; print(pathlib.Path(runner.__file__).parent)"
    said = subprocess.run(
        [PYTHON, "-P", "-c", ask], cwd=VENV, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "a package that cannot be imported"


def commit() -> str:
    """The commit that is checked out, and whether files differ from it."""
    ask = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "an unknown commit (no git)"
    return said.stdout.strip() or "an unknown commit (no git checkout)"


def need_browser(session: nox.Session) -> None:
    """The site's tests look at the pages in a browser: find one, or install it where we may."""
    if any(shutil.which(name) for name in BROWSERS):
        return
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        session.log("no browser found: installing chromium for the tests of the site")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        session.run("apt-get", "update", "-q", env=quiet)
        session.run("apt-get", "install", "-qy", "--no-install-recommends", "chromium", env=quiet)
    if not any(shutil.which(name) for name in BROWSERS):
        session.error(f"the tests of the site need one of {', '.join(BROWSERS)} on PATH")


@nox.session
def sweep(session: nox.Session) -> None:
    """Main job: build, get the model, bring up, measure, and show ratios and page."""
    python = environment(session)
    session.run(python, "-m", "runner", "sweep", *session.posargs)
    if not {"--dry-run", "--help"} & set(session.posargs):
        session.run(python, "-m", "pipelines", "warehouse")
        session.run(python, "-m", "pipelines", "site")
        session.run(python, "-m", "pipelines", "ratios", "--latest")


@nox.session
def tests(session: nox.Session) -> None:
    """All rings, the fast ones first: style, types, unit, then real models, then the site."""
    python = environment(session)
    check_style(session, python)
    check_types(session, python)
    pytest(session, python, "tests/unit", "tests/honesty")
    need_browser(session)
    session.run(python, "-m", "runner", "engine")
    pytest(session, python, "tests/native", "tests/model", "tests/site")


@nox.session
def honesty(session: nox.Session) -> None:
    """The tests that attack the harness, the registration and the ledger."""
    attacked = ("registration", "ledger", "published")
    files = (f"tests/unit/test_{name}.py" for name in attacked)
    pytest(session, environment(session), "tests/honesty", *files)


def pytest(session: nox.Session, python: str, *rings: str) -> None:
    """Run rings. A selection after ``--`` may leave a ring without tests; nothing else may."""
    passing = [0, 5] if session.posargs else [0]
    session.run(python, "-m", "pytest", *rings, *session.posargs, success_codes=passing)


def check_style(session: nox.Session, python: str) -> None:
    """Format and lint rules."""
    session.run(python, "-m", "ruff", "format", "--check", ".")
    session.run(python, "-m", "ruff", "check", ".")


def check_types(session: nox.Session, python: str) -> None:
    """Strict types over packages, tests and this file."""
    session.run(python, "-m", "mypy")
    # A ring at a time: two rings may each have a conftest, and both are modules of that name.
    for ring in ("unit", "honesty", "native", "model", "site"):
        session.run(python, "-m", "mypy", "--explicit-package-bases", f"tests/{ring}")
    session.run(python, "-m", "mypy", "--explicit-package-bases", "noxfile.py", "tests/conftest.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Format and lint rules."""
    check_style(session, environment(session))


@nox.session
def types(session: nox.Session) -> None:
    """Strict types over packages, tests and this file."""
    check_types(session, environment(session))


@nox.session
def engine(session: nox.Session) -> None:
    """Build llama.cpp for a platform, once."""
    session.run(environment(session), "-m", "runner", "engine", *session.posargs)


@nox.session
def validate(session: nox.Session) -> None:
    """Bring a backend up, primitive by primitive."""
    session.run(environment(session), "-m", "runner", "validate", *session.posargs)


@nox.session
def tune(session: nox.Session) -> None:
    """Search a written grid of settings for every arm, the same number of trials each."""
    session.run(environment(session), "-m", "runner", "tune", *session.posargs)


@nox.session
def register(session: nox.Session) -> None:
    """Write an expectation from a pilot run, to be committed alone before it is measured."""
    session.run(environment(session), "-m", "runner", "register", *session.posargs)


@nox.session
def publish(session: nox.Session) -> None:
    """Copy a complete run, checked, into data/runs and put its figures on record."""
    python = environment(session)
    session.run(python, "-m", "runner", "publish", *session.posargs)
    if "--help" not in session.posargs:
        session.run(python, "-m", "pipelines", "rederive", "--update")


@nox.session
def collect(session: nox.Session) -> None:
    """Publish every complete run of several checkouts and put their figures on record."""
    python = environment(session)
    session.run(python, "-m", "runner", "collect", *session.posargs)
    if "--help" not in session.posargs:
        session.run(python, "-m", "pipelines", "rederive", "--update")


@nox.session
def matrix(session: nox.Session) -> None:
    """Print the jobs of a workflow's matrix; in a workflow, as its output ``matrix``."""
    python = environment(session)
    found = session.run(python, "-m", "runner", "matrix", *session.posargs, silent=True)
    print(found)
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"matrix={str(found).strip()}\n")


@nox.session
def shots(session: nox.Session) -> None:
    """Screenshots of every page of the built site: light, dark, and as on a phone."""
    python = environment(session)
    need_browser(session)
    session.run(python, "-m", "pipelines", "warehouse")
    session.run(python, "-m", "pipelines", "site")
    session.run(python, "tests/site/shots.py", *session.posargs)


@nox.session
def speed(session: nox.Session) -> None:
    """Measure what the site promises: build times, memory, charts, the first answer of SQL."""
    python = environment(session)
    need_browser(session)
    session.run(python, "tests/site/speed.py", env={"PYTHONPATH": str(ROOT / "tests")})


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the engine's own overhead and its rates against llama-bench."""
    session.run(environment(session), "-m", "runner", "bench", *session.posargs)


@nox.session
def warehouse(session: nox.Session) -> None:
    """Turn the Parquet of every run into data/results.duckdb."""
    session.run(environment(session), "-m", "pipelines", "warehouse", *session.posargs)


@nox.session
def compare(session: nox.Session) -> None:
    """Compare two runs of the warehouse; fails where one became slower."""
    python = environment(session)
    session.run(python, "-m", "pipelines", "warehouse")
    session.run(python, "-m", "pipelines", "compare", *session.posargs)


@nox.session
def rederive(session: nox.Session) -> None:
    """Derive every published figure again from the committed Parquet, and compare."""
    session.run(environment(session), "-m", "pipelines", "rederive", *session.posargs)


@nox.session
def site(session: nox.Session) -> None:
    """Build the site into build/site."""
    python = environment(session)
    session.run(python, "-m", "pipelines", "warehouse")
    session.run(python, "-m", "pipelines", "site", *session.posargs)


@nox.session
def serve(session: nox.Session) -> None:
    """Serve the built site on this machine."""
    session.run(environment(session), "-m", "pipelines", "serve", *session.posargs)
