"""Tiny random models of four architectures: half a megabyte, on the real backend, in no time.

What they generate means nothing. What they do with memory is what their architecture does: llama
and qwen2 can roll back, gemma3 has a sliding window, mamba keeps a recurrent state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from gguf import GGUFWriter, LlamaFileType
from rich.console import Console

from runner.catalog import Model
from runner.errors import UsageError
from runner.models.vocabularies import SIZE, Vocabulary, bpe, spm
from runner.paths import cache_dir

# Part of the file's name: a changed writer writes a new file.
_VERSION = 2
_EMBD, _FF, _HEADS, _KV_HEADS, _HEAD = 64, 96, 4, 2, 16
_LAYERS = 2
_CONTEXT = 32768
WINDOW = 64
_INNER, _STATE, _RANK, _CONV = 2 * _EMBD, 16, 4, 4

Floats = np.ndarray[Any, np.dtype[np.float32]]
Tensors = Iterator[tuple[str, Floats]]


def obtain(model: Model, _console: Console) -> Path:
    """The tiny model's file in the cache, written when it is not there."""
    return write(str(model.architecture), cache_dir() / "models" / "tiny")


def write(architecture: str, folder: Path) -> Path:
    """Write the tiny model of `architecture` into `folder`; the same bytes every time.

    Raises:
        UsageError: there is no tiny model of that architecture.
    """
    if architecture not in _BUILDERS:
        raise UsageError(
            f"no tiny model of {architecture!r}; choose one of: {', '.join(sorted(_BUILDERS))}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"tiny-{architecture}-v{_VERSION}.gguf"
    with FileLock(folder / f"{target.name}.lock"):
        if not target.exists():
            scratch = target.with_suffix(".partial")
            _write(architecture, scratch)
            scratch.replace(target)
    return target


def _write(architecture: str, path: Path) -> None:
    vocabulary, keys, tensors = _BUILDERS[architecture]
    writer = GGUFWriter(path, architecture)
    writer.add_name(f"tiny random {architecture}, output meaningless")
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_EMBD)
    writer.add_block_count(_LAYERS)
    keys(writer)
    _add_tokenizer(writer, vocabulary())
    for name, values in tensors(_Weights(architecture)):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types([int(kind) for kind in vocabulary.types])
    if vocabulary.scores is not None:
        writer.add_token_scores(list(vocabulary.scores))
    if vocabulary.merges is not None:
        writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_eot_token_id(vocabulary.eot)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


class _Weights:
    """Random weights from the raw bits of PCG64, which numpy promises never to change."""

    def __init__(self, architecture: str) -> None:
        self._bits = np.random.PCG64([ord(letter) for letter in architecture])

    def __call__(self, *shape: int, std: float) -> Floats:
        count = int(np.prod(shape))
        uniform = self._bits.random_raw(count).astype(np.float64) / 2.0**63 - 1.0
        scale: float = std * 3.0**0.5
        return (uniform * scale).astype(np.float32).reshape(shape)

    def linear(self, n_out: int, n_in: int) -> Floats:
        """A matrix that keeps the size of what goes through it."""
        return self(n_out, n_in, std=n_in**-0.5)


def _ones(*shape: int) -> Floats:
    return np.ones(shape, dtype=np.float32)


def _attention_keys(writer: GGUFWriter) -> None:
    writer.add_feed_forward_length(_FF)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)


def _gemma3_keys(writer: GGUFWriter) -> None:
    _attention_keys(writer)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern([True, False])


def _mamba_keys(writer: GGUFWriter) -> None:
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_RANK)
    writer.add_layer_norm_rms_eps(1e-5)


def _ends(weights: _Weights, *, embedding_std: float = 1.0) -> Tensors:
    """Embedding and output. Not tied: a tied random model only repeats the token it was fed."""
    yield "token_embd.weight", weights(SIZE, _EMBD, std=embedding_std)
    yield "output_norm.weight", _ones(_EMBD)
    # Three times the usual size: a clear margin between the best and the second-best token.
    yield "output.weight", 3.0 * weights.linear(SIZE, _EMBD)


def _transformer_layer(weights: _Weights, prefix: str) -> Tensors:
    yield f"{prefix}.attn_norm.weight", _ones(_EMBD)
    yield f"{prefix}.attn_q.weight", weights.linear(_HEADS * _HEAD, _EMBD)
    yield f"{prefix}.attn_k.weight", weights.linear(_KV_HEADS * _HEAD, _EMBD)
    yield f"{prefix}.attn_v.weight", weights.linear(_KV_HEADS * _HEAD, _EMBD)
    yield f"{prefix}.attn_output.weight", weights.linear(_EMBD, _HEADS * _HEAD)
    yield f"{prefix}.ffn_norm.weight", _ones(_EMBD)
    yield f"{prefix}.ffn_gate.weight", weights.linear(_FF, _EMBD)
    yield f"{prefix}.ffn_up.weight", weights.linear(_FF, _EMBD)
    yield f"{prefix}.ffn_down.weight", weights.linear(_EMBD, _FF)


def _llama(weights: _Weights) -> Tensors:
    yield from _ends(weights)
    for layer in range(_LAYERS):
        yield from _transformer_layer(weights, f"blk.{layer}")


def _qwen2(weights: _Weights) -> Tensors:
    yield from _llama(weights)
    for layer in range(_LAYERS):
        for name, size in (
            ("q", _HEADS * _HEAD),
            ("k", _KV_HEADS * _HEAD),
            ("v", _KV_HEADS * _HEAD),
        ):
            yield f"blk.{layer}.attn_{name}.bias", weights(size, std=0.5)


def _gemma3(weights: _Weights) -> Tensors:
    # Gemma multiplies its embeddings by sqrt(n_embd).
    yield from _ends(weights, embedding_std=_EMBD**-0.5)
    for layer in range(_LAYERS):
        yield from _transformer_layer(weights, f"blk.{layer}")
        yield f"blk.{layer}.attn_q_norm.weight", _ones(_HEAD)
        yield f"blk.{layer}.attn_k_norm.weight", _ones(_HEAD)
        yield f"blk.{layer}.post_attention_norm.weight", _ones(_EMBD)
        yield f"blk.{layer}.post_ffw_norm.weight", _ones(_EMBD)


def _mamba(weights: _Weights) -> Tensors:
    yield from _ends(weights)
    decay = -np.tile(np.arange(1, _STATE + 1, dtype=np.float32), (_INNER, 1))
    for layer in range(_LAYERS):
        prefix = f"blk.{layer}"
        yield f"{prefix}.attn_norm.weight", _ones(_EMBD)
        yield f"{prefix}.ssm_in.weight", weights.linear(2 * _INNER, _EMBD)
        yield f"{prefix}.ssm_conv1d.weight", weights.linear(_INNER, _CONV)
        yield f"{prefix}.ssm_conv1d.bias", weights(_INNER, std=0.1)
        yield f"{prefix}.ssm_x.weight", 3.0 * weights.linear(_RANK + 2 * _STATE, _INNER)
        yield f"{prefix}.ssm_dt.weight", weights.linear(_INNER, _RANK)
        # Small time steps: a state that forgets its first token would hide every memory fault.
        yield f"{prefix}.ssm_dt.bias", weights(_INNER, std=0.1) - 3.0
        yield f"{prefix}.ssm_a", decay
        yield f"{prefix}.ssm_d", _ones(_INNER)
        yield f"{prefix}.ssm_out.weight", weights.linear(_EMBD, _INNER)


_Builder = tuple[
    Callable[[], Vocabulary], Callable[[GGUFWriter], None], Callable[[_Weights], Tensors]
]
_BUILDERS: dict[str, _Builder] = {
    "llama": (lambda: spm("<|im_end|>"), _attention_keys, _llama),
    "qwen2": (lambda: bpe("qwen2"), _attention_keys, _qwen2),
    "gemma3": (lambda: spm("<end_of_turn>"), _gemma3_keys, _gemma3),
    "mamba": (lambda: bpe("smollm"), _mamba_keys, _mamba),
}
