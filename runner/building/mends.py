"""Lines of the pinned llama.cpp that crash as they stand, and what we build instead."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from runner.errors import EnvironmentProblem


class Mend(NamedTuple):
    """One line of `path`, `before` and `after`. The text before must be there exactly once."""

    path: str
    before: str
    after: str


# GCC's `_tile_loadconfig` tells the compiler that it reads 8 of the 64 bytes it reads, so the other
# stores are dropped and a CPU with AMX dies at its first matrix product: "general protection" or
# SIGILL. Seen with GCC 12; llama.cpp's pull request 26954 reports it. Switching AMX off instead
# would slow prefill alone, which is the baseline's work, and so flatter the treatment.
_AMX_TILES: Final = Mend(
    path="ggml/src/ggml-cpu/amx/mmq.cpp",
    before="    _tile_loadconfig(&tc);\n",
    after='    __asm__ volatile ("" : : "m" (tc));\n    _tile_loadconfig(&tc);\n',
)
MENDS: Final = (_AMX_TILES,)


def mend(tree: Path, mends: tuple[Mend, ...] = MENDS) -> None:
    """Rewrite the lines of an unpacked llama.cpp.

    Raises:
        EnvironmentProblem: a line is not there as it was when the mend was written.
    """
    for one in mends:
        path = tree / one.path
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(one.before) != 1:
            raise EnvironmentProblem(
                f"{one.path} of llama.cpp has the line {one.before.strip()!r} "
                f"{text.count(one.before)} times instead of once; the source is not the pinned one"
            )
        path.write_text(text.replace(one.before, one.after), encoding="utf-8")
