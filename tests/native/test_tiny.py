"""The tiny models on the real backend: they load, and each behaves as its architecture does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from runner.building import EngineBuild
from runner.engine.backend import Entry, Logits, NativeBackend, TokenIds
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.parameters import LoadParameters
from runner.models.tiny import WINDOW
from runner.models.vocabularies import SIZE

ARCHITECTURES = ("llama", "qwen2", "gemma3", "mamba")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def backend(
    architecture: str, engine_build: EngineBuild, tiny_model: Callable[[str], Path]
) -> Iterator[NativeBackend]:
    path = tiny_model(architecture)
    loaded = LlamaCppBackend(
        LoadParameters(
            model_path=path,
            model_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            lib_dir=engine_build.lib_dir,
            library_sha256=engine_build.library_sha256,
            n_ctx=1024,
            n_batch=512,
        )
    )
    yield loaded
    loaded.close()


@pytest.fixture(autouse=True)
def empty(backend: NativeBackend) -> None:
    backend.seq_remove(0)


def after(backend: NativeBackend, tokens: TokenIds) -> Logits:
    """Logits after `tokens`, appended to what sequence 0 holds."""
    entry = Entry(0, backend.seq_end(0), tokens, True)
    last: Logits = np.array(backend.decode([entry]))[0]
    return last


def ids(*values: int) -> TokenIds:
    return np.array(values, dtype=np.int32)


def test_capabilities_are_those_of_the_architecture(
    backend: NativeBackend, architecture: str
) -> None:
    found = backend.capabilities
    assert found.recurrent == (architecture == "mamba")
    assert found.can_roll_back == (architecture != "mamba")
    assert found.sliding_window == (WINDOW if architecture == "gemma3" else 0)


def test_there_are_two_end_tokens(backend: NativeBackend) -> None:
    assert backend.vocabulary.n_tokens == SIZE
    assert len(backend.vocabulary.end_ids) == 2
    assert {backend.detokenize([end]) for end in backend.vocabulary.end_ids} & {
        b"<|im_end|>",
        b"<end_of_turn>",
    }


def test_logits_are_finite_and_follow_the_whole_context(backend: NativeBackend) -> None:
    text = backend.tokenize(b"the tool and agent return cache for the result")
    first = after(backend, text)
    assert np.isfinite(first).all()
    assert first.std() > 1
    backend.seq_remove(0)
    other = text.copy()
    other[0] += 1
    assert np.abs(after(backend, other) - first).max() > 0.01


def test_generation_is_no_repetition_of_one_token(backend: NativeBackend) -> None:
    last = after(backend, backend.tokenize(b"the tool result"))
    seen: list[int] = []
    for _ in range(32):
        seen.append(int(last.argmax()))
        last = after(backend, ids(seen[-1]))
    assert len(set(seen)) > 1


def test_some_pieces_are_longer_than_the_bindings_own_buffer(backend: NativeBackend) -> None:
    lengths = [len(backend.detokenize([token])) for token in range(SIZE)]
    assert sum(length > 32 for length in lengths) == 5
    assert max(lengths) == 80


@pytest.mark.parametrize(
    "text",
    [
        "the tool result",
        " " * 200 + "X",
        "=" * 81,
        "né → 😀",
        "a\n\n\tb  c ",
        "".join(map(chr, range(1, 256))),
        "ok<|im_end|></s><end_of_turn>",
    ],
)
def test_text_survives_the_round_trip(backend: NativeBackend, text: str) -> None:
    assert backend.detokenize(backend.tokenize(text.encode())) == text.encode()


def test_a_spelled_control_token_is_text(backend: NativeBackend) -> None:
    for end in backend.vocabulary.end_ids:
        spelled = backend.detokenize([end])
        assert end not in backend.tokenize(spelled)
        assert list(backend.tokenize(spelled, special=True)) == [end]
