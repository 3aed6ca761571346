"""The tool loop: prefix -> turn -> tool result -> turn -> ... as a script of token ids.

Ids, never text: a model's own output does not survive text -> tokens, so two arms that exchange
text do not do the same work. The script is a function of tokenizer, point and seed only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from runner.catalog import Point
from runner.engine.backend import NativeBackend, TokenIds
from runner.workloads import text


@dataclass(frozen=True)
class Hop:
    """One turn: what the workload adds, and what is fed on in place of the sampled ids."""

    index: int
    new: TokenIds
    """The prefix at hop 0, a tool result after it, shape (n_new,)."""
    context: TokenIds
    """The whole conversation the turn generates from, `new` included."""
    output: TokenIds
    """The turn's script, shape (generate,)."""


@dataclass(frozen=True)
class Script:
    """A point's token ids."""

    point: Point
    hops: tuple[Hop, ...]

    @property
    def digest(self) -> str:
        """Hex sha256 over every id of every hop; equal digests mean the same work."""
        digest = hashlib.sha256()
        for hop in self.hops:
            digest.update(np.ascontiguousarray(hop.context, dtype="<i4").tobytes())
            digest.update(np.ascontiguousarray(hop.output, dtype="<i4").tobytes())
        return digest.hexdigest()


def build_script(
    point: Point,
    backend: NativeBackend,
    seed: int,
    outputs: Sequence[Sequence[int]] | None = None,
) -> Script:
    """The script of `point` for the backend's tokenizer.

    Args:
        point: sizes in tokens; every one is met exactly.
        backend: only its tokenizer and vocabulary are used.
        seed: what the text is made from; equal seeds give equal scripts.
        outputs: what the model itself says at each hop, instead of made-up replies: an arm that
            cannot be fed a turn then says what the script says.
    """
    rng = Random(seed)
    bos = backend.vocabulary.bos
    start = [] if bos is None else [bos]
    new = _cut(start, text.instructions(rng), backend.tokenize, point.prefix)
    conversation = new
    hops: list[Hop] = []
    for index in range(point.hops + 1):
        output = _cut([], text.reply(rng), backend.tokenize, point.generate)
        if outputs is not None:
            output = np.array(outputs[index], dtype=np.int32)
        hops.append(Hop(index, new, conversation, output))
        new = _cut([], text.result(rng), backend.tokenize, point.result)
        conversation = np.concatenate([conversation, output, new])
    return Script(point, tuple(hops))


def _cut(
    start: list[int], pieces: Iterator[str], tokenize: Callable[[bytes], TokenIds], length: int
) -> TokenIds:
    """Tokens of `pieces`, each tokenized by itself as plain content, cut to `length`."""
    ids = list(start)
    while len(ids) < length:
        # Control markers stay text: content must not be able to forge a turn.
        ids.extend(tokenize(next(pieces).encode()).tolist())
    return np.array(ids[:length], dtype=np.int32)
