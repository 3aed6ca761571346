"""Server-side tools: generate, run the tool the model called, feed its result, go on.

The loop runs beside the KV state, so a hop costs the tool's result and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from runner.engine.backend import NativeBackend, TokenIds
from runner.engine.requests import Turn
from runner.engine.sampling import GREEDY, Sampler
from runner.engine.session import Session

Tool = Callable[[Mapping[str, Any]], str]
"""Takes the call's arguments, returns the text the model will read."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model asked for."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes a call and how it reads a result.

    `before_result` and `after_result` are the template's scaffolding, tokenized with control
    markers; the result between them is content, tokenized without, so that it cannot forge a turn.
    """

    call_opens: bytes
    call_closes: bytes
    before_result: bytes
    after_result: bytes

    def parse(self, text: bytes) -> ToolCall | None:
        """The first well-formed call in a turn's text, None when there is none."""
        _, opened, rest = text.partition(self.call_opens)
        body, closed, _ = rest.partition(self.call_closes)
        if not (opened and closed):
            return None
        try:
            call = json.loads(body)
            return ToolCall(str(call["name"]), dict(call.get("arguments", {})))
        except (ValueError, KeyError, TypeError):
            return None

    def result_tokens(self, backend: NativeBackend, text: str) -> TokenIds:
        """The ids that bring a tool's answer into the conversation."""
        return np.concatenate(
            [
                backend.tokenize(self.before_result, special=True),
                backend.tokenize(text.encode()),
                backend.tokenize(self.after_result, special=True),
            ]
        )


HERMES = ToolFormat(
    call_opens=b"<tool_call>",
    call_closes=b"</tool_call>",
    before_result=b"\n<|im_start|>tool\n",
    after_result=b"<|im_end|>\n<|im_start|>assistant\n",
)
"""The ChatML form that Qwen2.5 and SmolLM2 were tuned on."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One finished loop."""

    turns: tuple[Turn, ...]
    calls: tuple[ToolCall, ...]
    stop: Literal["answer", "max_hops"]
    """`answer`: the last turn called no tool; `max_hops`: it did and was not answered."""


def run_tools(
    backend: NativeBackend,
    session: Session,
    tools: Mapping[str, Tool],
    *,
    max_tokens: int,
    max_hops: int,
    format: ToolFormat = HERMES,
    sampler: Sampler = GREEDY,
) -> ToolRun:
    """Run the loop on a session whose prompt was sent.

    A tool that is unknown or raises is answered with an error text, which the model can read.

    Raises:
        ContextExceeded: a turn or a result would not fit; the session keeps what came before.
    """
    turns: list[Turn] = []
    calls: list[ToolCall] = []
    while True:
        turn = session.generate(max_tokens, sampler)
        turns.append(turn)
        call = format.parse(backend.detokenize(turn.fed))
        if call is None:
            return ToolRun(tuple(turns), tuple(calls), "answer")
        if len(calls) == max_hops:
            return ToolRun(tuple(turns), tuple(calls), "max_hops")
        calls.append(call)
        session.append_tool_result(format.result_tokens(backend, _answer(tools, call)))


def _answer(tools: Mapping[str, Tool], call: ToolCall) -> str:
    tool = tools.get(call.name)
    if tool is None:
        return f"error: no tool {call.name!r}; there are: {', '.join(sorted(tools)) or 'none'}"
    try:
        return tool(call.arguments)
    except Exception as error:
        # A tool's failure is the model's to read, not the engine's to die of.
        return f"error: {type(error).__name__}: {error}"
