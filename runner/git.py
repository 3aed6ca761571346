"""Questions put to git, with "no" and "cannot say" kept apart.

Registration rests on these answers, so whatever could bend them is switched off: replaced and
grafted commits, variables that point at another repository, settings of the user.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.errors import LivekvError

TIMEOUT_S: Final = 60.0

_REDIRECTIONS: Final = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
        "GIT_SHALLOW_FILE",
        "GIT_GLOB_PATHSPECS",
        "GIT_ICASE_PATHSPECS",
        "GIT_NOGLOB_PATHSPECS",
    }
)
_OPTIONS: Final = ("-c", "core.fsmonitor=false", "-c", "advice.graftFileDeprecated=false")
_SETTINGS: Final = {
    "GIT_NO_REPLACE_OBJECTS": "1",  # a replaced commit could carry other parents
    "GIT_GRAFT_FILE": os.devnull,  # and so could a grafted one
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",  # asking must not disturb a git that is at work here
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class NoRepositoryError(LivekvError):
    """There is no history to ask: no git, no checkout, no commit."""


class GitError(LivekvError):
    """Git could not answer: an object is missing, history is cut off. Never to be read as a no."""


@dataclass(frozen=True)
class Repository:
    """The git checkout whose top folder is `root`. Reads only; every method may raise GitError."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> Repository:
        """Return the checkout at `root`.

        Raises:
            NoRepositoryError: git is absent, or `root` is not the top of a checkout. A folder
                unpacked inside another repository is not one: that history is not ours.
        """
        # Looked up rather than parsed from git's message, which a damaged checkout shares.
        if not (root / ".git").exists():
            raise NoRepositoryError(
                f"{root} is not a git checkout; clone the repository to register runs"
            )
        repository = cls(root)
        if repository.read("rev-parse", "--show-prefix").strip():
            raise NoRepositoryError(
                f"{root} lies inside another git checkout; clone livekv by itself"
            )
        return repository

    def ask(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run git, give it `given` to read, and return its answer whatever the exit code."""
        command = ["git", *_OPTIONS, "-C", str(self.root), *arguments]
        kept = {name: value for name, value in os.environ.items() if name not in _REDIRECTIONS}
        try:
            return subprocess.run(
                command,
                env={**kept, **_SETTINGS},
                input=given,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise NoRepositoryError("git is not installed; install it to register runs") from error
        except subprocess.TimeoutExpired as error:
            raise GitError(f"git {arguments[0]} gave no answer within {TIMEOUT_S:.0f} s") from error

    def read(self, *arguments: str, given: bytes = b"") -> bytes:
        """Run git and return what it printed."""
        answer = self.ask(*arguments, given=given)
        if answer.returncode:
            raise _failure(arguments, answer)
        return answer.stdout

    def head(self) -> str:
        """The commit that is checked out.

        Raises:
            NoRepositoryError: nothing has been committed yet.
        """
        answer = self.ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if answer.returncode == 1:
            raise NoRepositoryError(f"{self.root} has no commit yet; commit before you measure")
        if answer.returncode:
            raise _failure(("rev-parse", "HEAD"), answer)
        return answer.stdout.decode().strip()

    def tree(self, commit: str) -> str:
        """Digest of the whole tree of `commit`; a squash changes the commit and keeps this."""
        return self.read("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()

    def subtree(self, commit: str, path: str) -> str | None:
        """Digest of the folder `path` in `commit`; None where there is none."""
        if not self.files(commit, path):
            return None
        return self.read("rev-parse", "--verify", f"{commit}:{path}").decode().strip()

    def dirt(self) -> list[str]:
        """Paths that differ from the commit, untracked ones included, ignored ones not.

        Files that were marked so that ``git status`` overlooks them count as dirt.
        """
        marked = _names(self.read("ls-files", "-v", "-z"))
        hidden = [line[2:] for line in marked if line[0].islower() or line[0] == "S"]
        return [*self._status(), *hidden]

    def new_files(self) -> set[str]:
        """Paths that no commit up to the one checked out holds: untracked, or just added."""
        return {path for path, code in self._status().items() if code[0] in "?A"}

    def _status(self) -> dict[str, str]:
        options = ("--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
        return {line[3:]: line[:2] for line in _names(self.read("status", *options))}

    def brought(self, path: str, head: str) -> str:
        """The newest commit up to `head` that gave `path` the content it has at `head`."""
        commit = self.read("rev-list", "-1", head, "--", path).decode().strip()
        if not commit:
            raise GitError(f"no commit up to {head[:12]} touches {path}")
        return commit

    def parents(self, commit: str) -> list[str]:
        """Parents as `commit` itself names them, also where a shallow clone hides them."""
        header = self.read("cat-file", "commit", commit).split(b"\n\n", 1)[0]
        words = [line.split() for line in header.decode(errors="replace").splitlines()]
        return [line[1] for line in words if line[:1] == ["parent"]]

    def require_commit(self, commit: str) -> None:
        """Refuse when `commit` is not in the object store."""
        if self.ask("cat-file", "-e", f"{commit}^{{commit}}").returncode:
            raise GitError(
                f"commit {commit[:12]} is missing: history is cut off or was rewritten; "
                "run git fetch --unshallow, or clone anew"
            )

    def changed(self, commit: str) -> list[str]:
        """Paths that `commit` changed against its one parent; everything, for a first commit."""
        options = ("--root", "--no-commit-id", "--name-only", "--no-renames", "-r", "-z")
        return _names(self.read("diff-tree", *options, commit))

    def files(self, commit: str, path: str) -> list[str]:
        """Files at or under `path` in `commit`; none when it did not exist."""
        return _names(self.read("ls-tree", "-r", "-z", "--name-only", commit, "--", path))

    def content(self, commit: str, path: str) -> bytes:
        """Bytes of `path` in `commit`."""
        return self.read("cat-file", "blob", f"{commit}:{path}")

    def versions(self, folder: str, head: str) -> list[tuple[str, str]]:
        """Path and object id of every content a file under `folder` ever had, up to `head`.

        Side branches count, also where their merge took the other side's content.
        """
        listing = self.read("rev-list", "--objects", "--full-history", head, "--", folder)
        named = [os.fsdecode(line).partition(" ") for line in listing.splitlines()]
        return [(path, blob) for blob, _, path in named if path.startswith(f"{folder}/")]

    def blob(self, blob: str) -> bytes:
        """Bytes of an object that `versions` named."""
        return self.read("cat-file", "blob", blob)

    def holding(self, folder: str, tree: str, head: str) -> str | None:
        """The newest commit up to `head` in which `folder` is `tree`; None where there is none."""
        commits = self.read("rev-list", head).decode().split()
        asked = "".join(f"{commit}:{folder}\n" for commit in commits)
        answers = self.read("cat-file", "--batch-check", given=asked.encode()).decode()
        trees = [line.split()[0] for line in answers.splitlines()]
        return next((commit for commit, of in zip(commits, trees, strict=True) if of == tree), None)

    def is_strict_ancestor(self, older: str, newer: str) -> bool:
        """Whether `older` came before `newer`; a commit does not come before itself.

        Raises:
            GitError: git's exit code was neither 0 nor 1, or it was 1 where history is cut off or
                a commit of it is lost, and the way between the two with it.
        """
        question = ("merge-base", "--is-ancestor", older, newer)
        answer = self.ask(*question)
        if answer.returncode not in (0, 1):
            raise _failure(question, answer)
        if answer.returncode == 1:
            self._require_whole(older, newer)
        return answer.returncode == 0 and older != newer

    def _require_whole(self, older: str, newer: str) -> None:
        if self.is_shallow():
            raise GitError(
                f"history between {older[:12]} and {newer[:12]} is cut off in this shallow clone; "
                "run git fetch --unshallow"
            )
        # Where a commit is lost on the way, git says no as if there had been no way.
        self.read("rev-list", "--count", newer)

    def is_shallow(self) -> bool:
        """Whether this clone holds only part of the history."""
        return self.read("rev-parse", "--is-shallow-repository").strip() == b"true"


def _names(listing: bytes) -> list[str]:
    return [os.fsdecode(name) for name in listing.split(b"\0") if name]


def _failure(arguments: tuple[str, ...], answer: subprocess.CompletedProcess[bytes]) -> GitError:
    said = answer.stderr.decode(errors="replace").strip().splitlines()
    why = said[0] if said else "no message"
    return GitError(f"git {' '.join(arguments)} failed with exit code {answer.returncode}: {why}")
