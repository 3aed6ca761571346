"""What would the arms say freely? Live KV beside a re-prefill and beside a replay of itself.

The arms are fed a script, so that they do the same work token for token; what the model itself
would go on with is looked at here, once a point, untimed. Live KV runs the script, and at chosen
hops it also says a turn of its own. From the same conversation

* ``free``: the turn is said again after a re-prefill, as the other arm does it;
* ``matched``: live KV's own batches are decoded once more, cold and without the engine's sessions.

Batches of other shapes round otherwise, so ``free`` may part on a near-tie. ``matched`` has equal
shapes and must agree: where it does not, the kept state is not what the tokens say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.bench.isolated import Job, serve
from runner.bench.worker import load_parameters
from runner.catalog import Point
from runner.engine.backend import Logits, NativeBackend
from runner.engine.contract import feed
from runner.engine.engine import Engine
from runner.engine.llamacpp import LlamaCppBackend
from runner.engine.session import Session
from runner.workloads.tool_loop import Hop, Script, build_script

Row = dict[str, Any]


class Listener:
    """The greedy sampler, keeping a copy of every row of logits it chooses from."""

    # Greedy batches are sampled all at once, and no row is handed out.
    is_greedy = False

    def __init__(self) -> None:
        self.rows: list[NDArray[np.float32]] = []

    def sample(self, row: NDArray[np.float32]) -> int:
        """See `Sampler`."""
        self.rows.append(row.copy())
        return int(row.argmax())


@dataclass(frozen=True)
class Said:
    """A turn's logits, one row a step, shape (n_tokens, n_vocab)."""

    rows: Logits

    @property
    def tokens(self) -> NDArray[np.intp]:
        """What was chosen at each step."""
        chosen: NDArray[np.intp] = self.rows.argmax(axis=1)
        return chosen


@dataclass
class Live:
    """Live KV's run over the script: where each hop's batches began, and what it said freely."""

    held: list[int] = field(default_factory=list)
    """Tokens in KV before each hop; the rest of the hop's context was computed in it."""
    said: dict[int, Said] = field(default_factory=dict)
    """By hop, the chosen ones only."""


def chosen_hops(n_hops: int) -> tuple[int, ...]:
    """First, middle and last hop after a tool result; before any, all arms do the same."""
    return tuple(sorted({1, (n_hops + 1) // 2, n_hops})) if n_hops else (0,)


def equivalence_rows(backend: NativeBackend, script: Script) -> list[Row]:
    """Compare at the chosen hops of `script`.

    It costs about one run of live KV, one more of its batches, and a re-prefill at each chosen hop.

    Args:
        backend: a fresh one, as an arm gets it; it is left empty and not closed.
        script: what the arms are fed.

    Returns:
        Rows of `records.EQUIVALENCE` without run id and point.

    Raises:
        BackendError: a turn failed, or the memory did not take its own state back.
    """
    chosen = chosen_hops(script.point.hops)
    hops = [script.hops[index] for index in chosen]
    live = run_live(backend, script, chosen)
    again = {hop.index: _reprefill(backend, hop) for hop in hops}
    replay = _Replay(backend, script, live.held)
    cold = {hop.index: replay.follow(hop, live.said[hop.index]) for hop in hops}
    backend.seq_remove(0)
    sides = (("free", again), ("matched", cold))
    return [
        {"comparison": name, "hop": hop, **compare(live.said[hop], said)}
        for name, side in sides
        for hop, said in side.items()
    ]


def run_live(backend: NativeBackend, script: Script, chosen: Sequence[int]) -> Live:
    """Run live KV over the script; at a chosen hop it speaks freely and is put back as it was.

    Put back by its saved state, which every memory can do: a recurrent one cannot roll back, and a
    sliding window has lost by then what it slid over.
    """
    live = Live()
    with Engine(backend).session() as session:
        for hop in script.hops[: chosen[-1] + 1]:
            live.held.append(session.n_past)
            if hop.index == 0:
                session.send(hop.new)
            else:
                session.append_tool_result(hop.new)
            if hop.index in chosen:
                before = session.save_state()
                live.said[hop.index] = _speak(session, len(hop.output))
                session.load_state(before)
            if hop.index < chosen[-1]:
                session.generate(len(hop.output), script=hop.output.tolist())
    return live


def _reprefill(backend: NativeBackend, hop: Hop) -> Said:
    with Engine(backend).session() as session:
        session.send(hop.context)
        return _speak(session, len(hop.output))


def _speak(session: Session, n_tokens: int) -> Said:
    listener = Listener()
    session.generate(n_tokens, listener, ignore_end=True)
    return Said(np.stack(listener.rows))


class _Replay:
    """Decodes live KV's batches once more, straight on the backend, in sequence 0.

    A free turn is taken back by removing it where memory can; elsewhere the next begins anew. Both
    are other ways than the saved state by which live KV was put back.
    """

    def __init__(self, backend: NativeBackend, script: Script, held: Sequence[int]) -> None:
        self._backend = backend
        self._script = script
        self._held = held
        can = backend.capabilities
        self._can_remove = can.can_roll_back and not can.sliding_window
        self._fed = 0
        """Hops whose script is in the sequence, all but the last token of the last one."""

    def follow(self, hop: Hop, said: Said) -> Said:
        """The logits of `hop` when what live KV `said` freely is fed in its batches."""
        backend = self._backend
        for earlier in self._script.hops[self._fed : hop.index]:
            self._turn(earlier, earlier.output)
        self._fed = hop.index
        rows = self._turn(hop, said.tokens.astype(np.int32))
        if not (self._can_remove and backend.seq_remove(0, self._held[hop.index])):
            backend.seq_remove(0)
            self._fed = 0
        return Said(np.stack(rows))

    def _turn(self, hop: Hop, output: NDArray[np.int32]) -> list[Logits]:
        """A turn as the scheduler cuts it: what is new in chunks, then single tokens."""
        new = hop.context[self._held[hop.index] :]
        parts = [new, *output[:-1].reshape(-1, 1)]
        return [feed(self._backend, 0, part) for part in parts]


def compare(one: Said, other: Said) -> Row:
    """Hold two turns from the same conversation together, up to where they part.

    After the first divergence the conversations differ, and nothing is compared.
    """
    n_tokens = len(one.rows)
    if not (np.isfinite(one.rows).all() and np.isfinite(other.rows).all()):
        return {"n_tokens": n_tokens, "n_agreed": 0, "reason": "logits that are not finite"}
    parted = np.flatnonzero(one.tokens != other.tokens)
    n_agreed = int(parted[0]) if len(parted) else n_tokens
    compared = slice(0, n_agreed + 1)
    second, first = np.partition(one.rows[min(n_agreed, n_tokens - 1)], -2)[-2:]
    return {
        "n_tokens": n_tokens,
        "n_agreed": n_agreed,
        "top2_margin": float(first - second) if len(parted) else None,
        "max_logit_difference": float(np.abs(one.rows[compared] - other.rows[compared]).max()),
        "logit_sd": float(one.rows[0].std()),
        "reason": None,
    }


def equivalence(job: Job) -> dict[str, Any]:
    """The job of a process of its own: compare at one point.

    Args:
        job: ``load`` (LoadParameters), ``point``, ``seed``.

    Returns:
        ``rows``, as `equivalence_rows`.
    """
    backend = LlamaCppBackend(load_parameters(job))
    try:
        script = build_script(Point(**job["point"]), backend, job["seed"])
        return {"rows": equivalence_rows(backend, script)}
    finally:
        backend.close()


if __name__ == "__main__":
    serve(equivalence)
