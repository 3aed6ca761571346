"""Two small tokenizers for the tiny models: one with byte fallback (SPM), one byte-level (BPE).

Both hold what tokenizer code gets wrong on real models: pieces longer than 32 bytes, a second
end-of-generation token, control tokens whose text a tool result could spell.
"""

from __future__ import annotations

from dataclasses import dataclass

from gguf import TokenType

SIZE = 448
_WORDS = ("the", "and", "tool", "result", "agent", "cache", "return", "import", "def", "for")
_LONG = (" " * 33, " " * 48, " " * 64, "=" * 40, "-" * 80)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens with their types, and what the tokenizer needs beside them."""

    model: str
    pre: str
    tokens: tuple[bytes, ...]
    types: tuple[int, ...]
    bos: int
    eos: int
    eot: int
    scores: tuple[float, ...] | None = None
    merges: tuple[str, ...] | None = None


def spm(eot: str) -> Vocabulary:
    """A sentencepiece vocabulary: every byte has a token, so any UTF-8 text survives a round trip.

    One character does not: U+2581 is how sentencepiece writes a space, and comes back as one.
    """
    control = ["<unk>", "<s>", "</s>", eot]
    names = [*control, *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 3, *[TokenType.BYTE] * 256]
    pieces = _pieces("\u2581", [chr(code) for code in range(33, 127)])
    names, types = _filled(names, types, pieces)
    # A merge wins by its score: longer pieces were appended later and must win over their parts.
    scores = tuple(float(i - SIZE) if i >= 260 else 0.0 for i in range(SIZE))
    return Vocabulary(
        "llama", "default", tuple(n.encode() for n in names), tuple(types), 1, 2, 3, scores=scores
    )


def bpe(pre: str) -> Vocabulary:
    """A byte-level vocabulary as GPT-2 introduced it, with the merges that spell its words."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = _byte_letters()
    names = [*control, *(letters[byte] for byte in range(256))]
    types = [*[TokenType.CONTROL] * 3, *[TokenType.NORMAL] * 256]
    pieces = _pieces(letters[32], [])
    names, types = _filled(names, types, pieces)
    merges = tuple(f"{piece[:-1]} {piece[-1]}" for piece in pieces)
    return Vocabulary(
        "gpt2", pre, tuple(n.encode() for n in names), tuple(types), 0, 0, 2, merges=merges
    )


def _pieces(space: str, singles: list[str]) -> list[str]:
    """Single characters, then every beginning of every word, shorter ones first."""
    words = [*(_WORDS), *(space + word for word in _WORDS)]
    starts = {word[:length] for word in words for length in range(2, len(word) + 1)}
    return [*singles, *([space] if singles else []), *sorted(starts, key=lambda s: (len(s), s))]


def _filled(
    names: list[str], types: list[TokenType], pieces: list[str]
) -> tuple[list[str], list[TokenType]]:
    # User-defined tokens are matched in the text as it is: their spaces are not written specially.
    names = [*names, *pieces, *_LONG]
    types = [*types, *[TokenType.NORMAL] * len(pieces), *[TokenType.USER_DEFINED] * len(_LONG)]
    spare = SIZE - len(names)
    if spare < 0:
        raise ValueError(f"the vocabulary has {len(names)} tokens, more than {SIZE}")
    names += [f"<spare{i}>" for i in range(spare)]
    return names, [*types, *[TokenType.UNUSED] * spare]


def _byte_letters() -> list[str]:
    """GPT-2's table: a printable letter for every byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
