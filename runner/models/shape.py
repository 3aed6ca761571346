"""A GGUF of a named model's exact shape and quantisation, with random weights and its tokenizer.

Speed depends on shape and types, not on values: such a file measures like the real one and is
written in seconds on a machine that cannot fetch it. What it generates means nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from gguf import GGMLQuantizationType as Quant
from gguf import LlamaFileType
from rich.console import Console

from runner.building.source import extract
from runner.catalog import Model
from runner.errors import UsageError
from runner.fetching import need_space
from runner.models.gguf_file import ARRAY, MAGIC, STRING, UINT32, Tensor, read_header
from runner.paths import cache_dir
from runner.progress import byte_progress

# Part of the file's name: a changed writer writes a new file.
_VERSION = 1
_VOCABULARY = "models/ggml-vocab-qwen2.gguf"
_ALIGNMENT = 32
_PIECE = 1 << 23
_UNUSED, _INT32, _FLOAT32 = 5, 5, 6
_STD = 0.02

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Shape:
    """The numbers of a qwen2 model that decide its speed."""

    name: str
    layers: int
    embd: int
    ff: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool


SHAPES = {
    "shape:qwen2.5-1.5b-q4_k_m": Shape("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 151936, tied=True),
    "shape:qwen2.5-7b-q4_k_m": Shape("Qwen2.5-7B", 28, 3584, 18944, 28, 4, 152064, tied=False),
}


def obtain(model: Model, console: Console) -> Path:
    """The shape's file in the cache, written when it is not there."""
    if model.id not in SHAPES:
        raise UsageError(f"no shape {model.id!r}; choose one of: {', '.join(sorted(SHAPES))}")
    folder = cache_dir() / "models"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{model.id.replace(':', '-')}-v{_VERSION}.gguf"
    with FileLock(folder / f"{target.name}.lock"):
        if not target.exists():
            vocabulary = extract(_VOCABULARY, folder / f"{target.name}.vocabulary", console)
            write(SHAPES[model.id], vocabulary, target, console)
            vocabulary.unlink()
    return target


def write(wanted: Shape, vocabulary: Path, target: Path, console: Console) -> None:
    """Write a shape with the tokenizer of the GGUF file `vocabulary`; the same bytes every time."""
    tensors = _placed(_tensors(wanted))
    size = tensors[-1].offset + tensors[-1].bytes
    need_space(target.parent, size + (64 << 20), target.name)
    scratch = target.with_suffix(".partial")
    blocks = _Blocks()
    with scratch.open("wb") as out, byte_progress(console, f"writing {target.name}", size) as show:
        out.write(_head(wanted, vocabulary, tensors))
        start = out.tell()
        for tensor in tensors:
            _pad(out.write, out.tell() - start, tensor.offset)
            for piece in blocks.pieces(tensor):
                out.write(piece)
            show(out.tell() - start)
    scratch.replace(target)


def _pad(write_bytes: Callable[[bytes], int], at: int, to: int) -> None:
    write_bytes(b"\0" * (to - at))


def _tensors(wanted: Shape) -> Iterator[tuple[str, tuple[int, ...], Quant]]:
    """Names, shapes and types as `llama-quantize` chooses them for Q4_K_M (llama-quant.cpp)."""
    embd, kv = wanted.embd, wanted.embd // wanted.heads * wanted.kv_heads
    # An embedding that is also the output takes the output's type.
    yield "token_embd.weight", (embd, wanted.vocabulary), Quant.Q6_K if wanted.tied else Quant.Q4_K
    yield "output_norm.weight", (embd,), Quant.F32
    if not wanted.tied:
        yield "output.weight", (embd, wanted.vocabulary), Quant.Q6_K
    for layer in range(wanted.layers):
        block = f"blk.{layer}"
        sensitive = Quant.Q6_K if use_more_bits(layer, wanted.layers) else Quant.Q4_K
        yield f"{block}.attn_norm.weight", (embd,), Quant.F32
        yield f"{block}.attn_q.weight", (embd, embd), Quant.Q4_K
        yield f"{block}.attn_q.bias", (embd,), Quant.F32
        yield f"{block}.attn_k.weight", (embd, kv), Quant.Q4_K
        yield f"{block}.attn_k.bias", (kv,), Quant.F32
        yield f"{block}.attn_v.weight", (embd, kv), sensitive
        yield f"{block}.attn_v.bias", (kv,), Quant.F32
        yield f"{block}.attn_output.weight", (embd, embd), Quant.Q4_K
        yield f"{block}.ffn_norm.weight", (embd,), Quant.F32
        yield f"{block}.ffn_gate.weight", (embd, wanted.ff), Quant.Q4_K
        yield f"{block}.ffn_up.weight", (embd, wanted.ff), Quant.Q4_K
        yield f"{block}.ffn_down.weight", (wanted.ff, embd), sensitive


def use_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's rule for the layers whose `attn_v` and `ffn_down` get Q6_K in a Q4_K_M file."""
    return (
        layer < layers // 8
        or layer >= 7 * layers // 8
        or (layer - layers // 8) % 3 == 2  # as there
    )


def _placed(tensors: Iterator[tuple[str, tuple[int, ...], Quant]]) -> list[Tensor]:
    placed: list[Tensor] = []
    at = 0
    for name, dims, kind in tensors:
        at = -(-at // _ALIGNMENT) * _ALIGNMENT
        placed.append(Tensor(name, dims, int(kind), at))
        at += placed[-1].bytes
    return placed


def _head(wanted: Shape, vocabulary: Path, tensors: list[Tensor]) -> bytes:
    keys = {**_model_keys(wanted), **_tokenizer_keys(vocabulary, wanted.vocabulary)}
    head = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(keys))]
    head += [_text(key) + value for key, value in keys.items()]
    for tensor in tensors:
        head += [_text(tensor.name), struct.pack("<I", len(tensor.shape))]
        head += [struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)]
        head += [struct.pack("<IQ", tensor.type, tensor.offset)]
    content = b"".join(head)
    return content + b"\0" * (-len(content) % _ALIGNMENT)


def _model_keys(wanted: Shape) -> dict[str, bytes]:
    text = {
        "general.architecture": "qwen2",
        "general.name": f"{wanted.name} shape only, output meaningless",
    }
    whole = {
        "general.file_type": int(LlamaFileType.MOSTLY_Q4_K_M),
        "general.quantization_version": 2,
        "qwen2.block_count": wanted.layers,
        "qwen2.context_length": 32768,
        "qwen2.embedding_length": wanted.embd,
        "qwen2.feed_forward_length": wanted.ff,
        "qwen2.attention.head_count": wanted.heads,
        "qwen2.attention.head_count_kv": wanted.kv_heads,
    }
    real = {"qwen2.rope.freq_base": 1e6, "qwen2.attention.layer_norm_rms_epsilon": 1e-6}
    return {
        **{key: struct.pack("<I", STRING) + _text(value) for key, value in text.items()},
        **{key: struct.pack("<II", UINT32, value) for key, value in whole.items()},
        **{key: struct.pack("<If", _FLOAT32, value) for key, value in real.items()},
    }


def _tokenizer_keys(vocabulary: Path, size: int) -> dict[str, bytes]:
    """The tokenizer's keys, byte for byte, with unused tokens appended up to the model's size."""
    spans = {k: v for k, v in read_header(vocabulary).spans.items() if k.startswith("tokenizer.")}
    tokens, types = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
    have = _array(spans[tokens])[1]
    extra = [f"[PAD{index}]" for index in range(have, size)]
    spans[tokens] = _longer(spans[tokens], b"".join(map(_text, extra)), len(extra))
    unused = struct.pack("<i", _UNUSED) * len(extra)
    spans[types] = _longer(spans[types], unused, len(extra))
    return spans


def _array(span: bytes) -> tuple[int, int]:
    kind, element, count = struct.unpack_from("<IIQ", span)
    if kind != ARRAY or element not in {STRING, _INT32}:
        raise UsageError(f"the vocabulary file holds a value of type {kind}/{element}, not a list")
    return element, count


def _longer(span: bytes, tail: bytes, count: int) -> bytes:
    element, have = _array(span)
    return struct.pack("<IIQ", ARRAY, element, have + count) + span[16:] + tail


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


class _Blocks:
    """Random valid blocks.

    Block scales are set so that weights have mean 0 and standard deviation 0.02: finite logits.
    """

    def __init__(self) -> None:
        # Raw bits of PCG64: numpy promises never to change them.
        self._bits = np.random.PCG64(20250101)

    def pieces(self, tensor: Tensor) -> Iterator[bytes]:
        """The tensor's bytes, in pieces."""
        if tensor.type == int(Quant.F32):
            value = 1.0 if tensor.name.endswith("norm.weight") else 0.0
            yield np.full(tensor.elements, value, dtype="<f4").tobytes()
            return
        size, scaled = (144, _q4_k) if tensor.type == int(Quant.Q4_K) else (210, _q6_k)
        left = tensor.bytes // size
        while left:
            step = min(left, _PIECE // size)
            yield scaled(self._random(step, size)).tobytes()
            left -= step

    def _random(self, blocks: int, size: int) -> Bytes:
        words = self._bits.random_raw(-(-blocks * size // 8)).astype("<u8", copy=False)
        return words.view(np.uint8)[: blocks * size].reshape(blocks, size)


def _q4_k(blocks: Bytes) -> Bytes:
    """fp16 d, fp16 dmin, 12 bytes of 6-bit scales and minimums, 128 bytes of 4-bit values.

    A weight is d * scale * value - dmin * minimum, scale and minimum in 0..63, value in 0..15.
    """
    scale = _STD / 258.0
    blocks[:, 0:2] = _half(scale)
    blocks[:, 2:4] = _half(7.5 * scale)
    return blocks


def _q6_k(blocks: Bytes) -> Bytes:
    """128 + 64 bytes of 6-bit values, 16 signed 8-bit scales, fp16 d.

    A weight is d * scale * (value - 32); scales are kept in -32..31.
    """
    blocks[:, 192:208] = (blocks[:, 192:208].view(np.int8) >> 2).view(np.uint8)
    blocks[:, 208:210] = _half(_STD / 342.0)
    return blocks


def _half(value: float) -> Bytes:
    return np.frombuffer(np.array(value, dtype="<f2").tobytes(), dtype=np.uint8)
