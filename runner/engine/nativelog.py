"""llama.cpp's log, kept quiet and asked for its last error when a call fails."""

from __future__ import annotations

import collections
from typing import Any, ClassVar, Final

_ERROR_LEVEL: Final = 4
_KEPT_LINES: Final = 200


class NativeLog:
    """Collects the library's log lines; one callback for the process, as the library has it."""

    _lines: ClassVar[collections.deque[tuple[int, str]]] = collections.deque(maxlen=_KEPT_LINES)
    _callback: ClassVar[Any] = None

    def __init__(self, binding: Any) -> None:
        if NativeLog._callback is None:
            # The library keeps the pointer: the object must outlive every context.
            NativeLog._callback = binding.llama_log_callback(self._take)
            binding.llama_log_set(NativeLog._callback, None)

    @classmethod
    def _take(cls, level: int, text: bytes, _user_data: object) -> None:
        cls._lines.append((level, text.decode(errors="replace").strip()))

    def last_error(self) -> str:
        """The newest lines at error level, joined; a sentence when there are none."""
        errors = [line for level, line in self._lines if level == _ERROR_LEVEL and line]
        return "; ".join(errors[-2:]) or "llama.cpp gave no reason"

    def text(self) -> str:
        """All kept lines."""
        return "\n".join(line for _, line in self._lines if line)
