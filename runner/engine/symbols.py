"""Finding llama.cpp's functions, whichever version they come from.

The memory calls were renamed twice, the vocabulary moved out of the model, and the state calls
gained a size. Everything that depends on a version is decided here, once, at load.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.engine.backend import BackendError

LIBRARY_VARIABLE: Final = "LLAMA_CPP_LIB_PATH"
"""Where llama-cpp-python looks for the shared library, read when it is imported."""

_MEMORY_FAMILIES: Final = ("llama_memory_seq_", "llama_kv_self_seq_", "llama_kv_cache_seq_")


def load_binding(lib_dir: Path) -> Any:
    """Import llama-cpp-python's low-level module over the library in `lib_dir`.

    Raises:
        BackendError: the binding or the library is absent, they do not fit each other, or another
            library was loaded before.
    """
    wanted = str(lib_dir)
    loaded = os.environ.setdefault(LIBRARY_VARIABLE, wanted)
    if loaded != wanted:
        raise BackendError(f"{LIBRARY_VARIABLE} is {loaded}, this run needs {wanted}; unset it")
    try:
        return importlib.import_module("llama_cpp.llama_cpp")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise BackendError(
            f"llama-cpp-python cannot load the library in {lib_dir}: {error}; run `nox -s engine`"
        ) from error


def load_high_level(lib_dir: Path) -> Any:
    """Import llama-cpp-python's high-level package over the library in `lib_dir`.

    Raises:
        BackendError: as `load_binding`.
    """
    load_binding(lib_dir)
    return importlib.import_module("llama_cpp")


def find(binding: object, *names: str) -> Callable[..., Any] | None:
    """The first of `names` that the binding has, None when it has none."""
    for name in names:
        function = getattr(binding, name, None)
        if function is not None:
            found: Callable[..., Any] = function
            return found
    return None


def require(binding: object, *names: str) -> Callable[..., Any]:
    """The first of `names` that the binding has.

    Raises:
        BackendError: names them all.
    """
    function = find(binding, *names)
    if function is None:
        raise BackendError(f"llama.cpp has none of {', '.join(names)}: this version is not known")
    return function


@dataclass(frozen=True, slots=True)
class MemoryCalls:
    """The per-sequence KV calls and what they take first: a memory handle, or the context."""

    handle: Any
    remove: Callable[..., bool]
    copy: Callable[..., None]
    last_position: Callable[..., int] | None


def memory_calls(binding: object, context: object) -> MemoryCalls:
    """Look the memory calls of a context up.

    Raises:
        BackendError: no known family is there.
    """
    remove = require(binding, *(f"{family}rm" for family in _MEMORY_FAMILIES))
    copy = require(binding, *(f"{family}cp" for family in _MEMORY_FAMILIES))
    last = find(binding, *(f"{family}pos_max" for family in _MEMORY_FAMILIES))
    get_memory = find(binding, "llama_get_memory")
    takes_memory = find(binding, "llama_memory_seq_rm") is not None and get_memory is not None
    handle = get_memory(context) if takes_memory and get_memory else context
    return MemoryCalls(handle, remove, copy, last)


@dataclass(frozen=True, slots=True)
class StateCalls:
    """Per-sequence state, with one signature whatever the version's is."""

    size: Callable[[Any, int], int]
    get: Callable[[Any, Any, int, int], int]
    """(context, destination, n_bytes, sequence) -> bytes written."""
    set: Callable[[Any, Any, int, int], int]
    """(context, source, n_bytes, sequence) -> bytes read, 0 when refused."""


def state_calls(binding: object) -> StateCalls:
    """Look the state calls up; older versions take no size.

    Raises:
        BackendError: they are not there.
    """
    size = require(binding, "llama_state_seq_get_size", "llama_get_seq_state_size")
    get = require(binding, "llama_state_seq_get_data", "llama_get_seq_state_data")
    put = require(binding, "llama_state_seq_set_data", "llama_set_seq_state_data")
    return StateCalls(size, _with_size(get), _with_size(put))


def _with_size(function: Callable[..., int]) -> Callable[[Any, Any, int, int], int]:
    if len(getattr(function, "argtypes", None) or ()) != 3:
        return function

    def call(context: Any, data: Any, _n_bytes: int, seq: int) -> int:
        return function(context, data, seq)

    return call


def vocabulary_handle(binding: object, model: object) -> object:
    """What vocabulary calls take: a vocabulary where there is one, else the model."""
    get_vocab = find(binding, "llama_model_get_vocab")
    return get_vocab(model) if get_vocab else model
