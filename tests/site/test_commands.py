"""Every command shown to a reader is one that the real command line takes; every query runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from checkout import Served

import pipelines.cli
import runner.cli
from pipelines.database import open_database
from pipelines.publish.builder import common_commands
from runner.paths import DATA, ROOT

SHOWN = [ROOT / "README.md", ROOT / "RUNBOOK.md", *sorted((ROOT / "site").rglob("*.md"))]
COMMAND = re.compile(r"^(?:nox |livekv |python -m (?:runner|pipelines)\b)")
SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DECORATED = re.compile(r"^@nox\.session.*?\n(?:@.*\n)*def (\w+)", re.MULTILINE)


def _commands() -> Iterator[tuple[str, str]]:
    for path in SHOWN:
        text = path.read_text(encoding="utf-8")
        fenced = [line.strip() for _, block in FENCE.findall(text) for line in block.splitlines()]
        spans = SPAN.findall(FENCE.sub("", text))
        for line in [*fenced, *spans]:
            if COMMAND.match(line):
                yield path.relative_to(ROOT).as_posix(), line
    for command, _ in common_commands(DATA):
        yield "builder", command


def _subcommands(app: typer.Typer) -> dict[str, Any]:
    found: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return found


def _parse(program: str, words: list[str]) -> None:
    app = pipelines.cli.app if program == "pipelines" else runner.cli.app
    words = [word for word in words if word != "--help"]  # it prints and leaves
    if words:
        _subcommands(app)[words[0]].make_context(words[0], words[1:])


def _parse_nox(words: list[str]) -> None:
    own = words[: words.index("--")] if "--" in words else words
    rest = words[len(own) + 1 :]
    assert own[0] in ("-s", "--session", "--list", "-l"), own
    sessions = set(DECORATED.findall((ROOT / "noxfile.py").read_text(encoding="utf-8")))
    for name in own[1:]:
        assert name in sessions, f"noxfile.py has no session {name}"
        for program, app in (("runner", runner.cli.app), ("pipelines", pipelines.cli.app)):
            if rest and name in _subcommands(app):
                _parse(program, [name, *rest])


@pytest.mark.parametrize(("place", "command"), sorted(set(_commands())))
def test_a_shown_command_is_real(place: str, command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "nox":
        _parse_nox(words[1:])
    elif words[0] == "livekv":
        _parse("runner", words[1:])
    else:
        _parse(words[2], words[3:])


def test_the_check_refuses_what_does_not_exist() -> None:
    with pytest.raises(Exception, match="no-such-option"):
        _parse("runner", ["sweep", "--no-such-option"])
    with pytest.raises(AssertionError, match="no session nowhere"):
        _parse_nox(["-s", "nowhere"])


def _queries() -> Iterator[str]:
    for path in SHOWN:
        for language, block in FENCE.findall(path.read_text(encoding="utf-8")):
            if language == "sql":
                yield from (query.strip() for query in block.split(";") if query.strip())


@pytest.mark.parametrize("query", list(_queries()))
def test_a_shown_query_runs(site: Served, query: str) -> None:
    with open_database(site.layout.database) as database:
        database.rows(query)


def test_the_published_file_is_listed_with_its_digest(site: Served) -> None:
    folder: Path = site.layout.built / "downloads"
    page = (site.layout.built / "data" / "index.html").read_text(encoding="utf-8")
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert lines[0].split("  ")[1] == "results.duckdb"
    assert all(line.split("  ")[0] in page for line in lines)
    with open_database(folder / "results.duckdb") as database:
        assert database.rows("select distinct published from run") == [{"published": True}]
