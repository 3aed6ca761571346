"""The gates as lines of the product's text, and how to run the product without one of them."""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from laboratory import Finding, Laboratory

from pipelines import warehouse

_HEAD: Final = "from __future__ import annotations"
_SOURCES: Final[dict[object, str]] = {}
"""Text of the functions that have been cut already: they are in no file."""


@dataclass(frozen=True)
class Cut:
    """One place of the product: `text` is there once, and `instead` takes its place.

    `place` is a file of ``pipelines/sql``, or ``module:function``.
    """

    place: str
    text: str
    instead: str

    def apply(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        """Run the product so until `patch` is undone; `folder` is an empty one for the SQL."""
        if self.place.endswith(".sql"):
            self._cut_sql(patch, folder)
        else:
            self._cut_function(patch)

    def _cut_sql(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        if folder != warehouse.SQL:
            shutil.copytree(warehouse.SQL, folder)
            patch.setattr(warehouse, "SQL", folder)
        file = folder / self.place
        file.write_text(self._without(file.read_text(encoding="utf-8")), encoding="utf-8")

    def _cut_function(self, patch: pytest.MonkeyPatch) -> None:
        module_name, name = self.place.split(":")
        module = importlib.import_module(module_name)
        whole = getattr(module, name)
        source = self._without(_SOURCES.get(whole) or textwrap.dedent(inspect.getsource(whole)))
        code = compile(f"{_HEAD}\n{source}", module_name, "exec", dont_inherit=True)
        namespace = dict(vars(module))
        exec(code, namespace)
        _SOURCES[namespace[name]] = source
        for user in [*sys.modules.values()]:
            if getattr(user, name, None) is whole:
                patch.setattr(user, name, namespace[name])

    def _without(self, text: str) -> str:
        found = text.count(self.text)
        assert found == 1, f"{self.place} holds {self.text!r} {found} times: the gate has moved"
        return text.replace(self.text, self.instead)


@dataclass(frozen=True)
class Gate:
    """A gate, the lie that it alone stands in the way of, and the words in which it says so."""

    name: str
    lie: Callable[[Laboratory], object]
    says: str
    cuts: tuple[Cut, ...]
    leaves_open: bool = False
    """With the gate the claim is undecided, which is a result too; without it it is confirmed."""

    def lets_pass(self, found: Finding) -> bool:
        """Whether the lie is believed."""
        return found.verdict == "CONFIRMED" if self.leaves_open else found.evidence
