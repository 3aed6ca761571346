"""Read a GGUF header: its keys, its tensors, and the size a complete file must have.

The `gguf` package's reader builds an object per string (seven seconds for a 150,000-token
vocabulary); this one steps over the bytes and keeps the spans.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

from gguf import GGML_QUANT_SIZES, LlamaFileType

from runner.errors import UsageError

MAGIC = b"GGUF"
STRING, ARRAY, UINT32 = 8, 9, 4
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_ALIGNMENT = 32


@dataclass(frozen=True)
class Tensor:
    """One tensor's entry in the header."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of its data, by its type's block size."""
        block, size = _quant_sizes()[self.type]
        return self.elements // block * size


@dataclass(frozen=True)
class Header:
    """What stands before the weights. `spans` are the raw bytes of each key's typed value."""

    spans: dict[str, bytes]
    scalars: dict[str, object]
    tensors: tuple[Tensor, ...]
    data_start: int

    @property
    def file_size(self) -> int:
        """Bytes a complete file has at least."""
        return self.data_start + max((t.offset + t.bytes for t in self.tensors), default=0)

    @property
    def parameters(self) -> int:
        """Number of weights in this file."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def quantisation(self) -> str | None:
        """The quantisation's name, such as ``Q4_K_M``, from ``general.file_type``."""
        number = self.scalars.get("general.file_type")
        if not isinstance(number, int) or number not in {int(kind) for kind in LlamaFileType}:
            return None
        return str(LlamaFileType(number).name).removeprefix("MOSTLY_").removeprefix("ALL_")


@lru_cache
def _quant_sizes() -> dict[int, tuple[int, int]]:
    return {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file.

    Raises:
        UsageError: it is no GGUF, or it ends inside its own header.
    """
    with path.open("rb") as stream:
        start = stream.read(4)
        if start != MAGIC:
            raise UsageError(f"{path} is not a GGUF file: it starts with {start!r}, not {MAGIC!r}")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Cursor(content).header()
            except (struct.error, IndexError) as error:
                raise UsageError(
                    f"{path} is truncated: {path.stat().st_size:,} bytes, and its header is "
                    "longer; fetch it again"
                ) from error
            except (KeyError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"{path} has a damaged GGUF header: {error}; fetch it again"
                ) from error


class _Cursor:
    """A position in the mapped file."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._at = 4

    def header(self) -> Header:
        version = self._take("I")
        if version not in {2, 3}:
            raise KeyError(f"version {version}, known are 2 and 3")
        n_tensors, n_keys = self._take("Q"), self._take("Q")
        spans: dict[str, bytes] = {}
        scalars: dict[str, object] = {}
        for _ in range(n_keys):
            key, start = self._string(), self._at
            scalars[key] = self._value(self._take("I"))
            spans[key] = self._content[start : self._at]
        tensors = tuple(self._tensor() for _ in range(n_tensors))
        align = scalars.get("general.alignment")
        step = align if isinstance(align, int) and align > 0 else _ALIGNMENT
        return Header(spans, scalars, tensors, -(-self._at // step) * step)

    def _take(self, code: str) -> int:
        layout = "<" + code
        (value,) = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return value  # type: ignore[no-any-return]  # unpack_from is untyped; codes here are numbers

    def _string(self) -> str:
        length = self._take("Q")
        start, self._at = self._at, self._at + length
        if self._at > len(self._content):
            raise IndexError(self._at)
        return self._content[start : self._at].decode("utf-8")

    def _value(self, kind: int) -> object:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            self._skip_array(self._take("I"), self._take("Q"))
            return None
        return self._take(_SCALARS[kind])

    def _skip_array(self, kind: int, count: int) -> None:
        if kind == STRING:
            for _ in range(count):
                self._at += 8 + struct.unpack_from("<Q", self._content, self._at)[0]
        elif kind == ARRAY:
            for _ in range(count):
                self._skip_array(self._take("I"), self._take("Q"))
        else:
            self._at += count * struct.calcsize("<" + _SCALARS[kind])
        if self._at > len(self._content):
            raise IndexError(self._at)

    def _tensor(self) -> Tensor:
        name = self._string()
        shape = tuple(self._take("Q") for _ in range(self._take("I")))
        kind, offset = self._take("I"), self._take("Q")
        if kind not in _quant_sizes():
            raise KeyError(f"tensor {name} has the unknown type {kind}")
        return Tensor(name, shape, kind, offset)
