"""Text for an agent's conversation: instructions, tool descriptions, tool results.

Made from a seed so that any length can be had, every block reads different text, and every arm of
a block reads the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

_SERVICES = ("billing", "search", "inventory", "checkout", "identity", "gateway", "mail", "reports")
_REGIONS = ("eu-west", "us-east", "ap-south", "sa-east", "af-north")
_VERBS = ("list", "read", "restart", "inspect", "compare", "trace", "measure", "archive")
_THINGS = (
    "deployments",
    "log lines",
    "open tickets",
    "queues",
    "replicas",
    "certificates",
    "builds",
)
_STATES = ("healthy", "degraded", "restarting", "draining", "unreachable", "overloaded")


def instructions(rng: Random) -> Iterator[str]:
    """A system prompt that never ends: a role, then one tool description after another."""
    yield (
        "You are an operations agent. Use the tools below, one call at a time, read each result "
        "before you go on, and answer with what you found and how you know.\n"
    )
    while True:
        verb, thing, service = rng.choice(_VERBS), rng.choice(_THINGS), rng.choice(_SERVICES)
        yield (
            f"Tool {verb}_{thing.replace(' ', '_')}: {verb} the {thing} of the {service} service "
            f"in one region. Arguments: region (such as {rng.choice(_REGIONS)}), limit (at most "
            f"{rng.randrange(5, 500)}), since (minutes, {rng.randrange(1, 90)} by default).\n"
        )


def reply(rng: Random) -> Iterator[str]:
    """What an agent writes between two tool calls."""
    while True:
        yield (
            f"The {rng.choice(_SERVICES)} service looks {rng.choice(_STATES)}. "
            f"I will {rng.choice(_VERBS)} its {rng.choice(_THINGS)} in {rng.choice(_REGIONS)} "
            f"over the last {rng.randrange(2, 120)} minutes and compare. "
        )


def result(rng: Random) -> Iterator[str]:
    """What a tool answers: one JSON object after another."""
    while True:
        yield (
            f'{{"service": "{rng.choice(_SERVICES)}", "region": "{rng.choice(_REGIONS)}", '
            f'"state": "{rng.choice(_STATES)}", "latency_ms": {rng.randrange(3, 4000)}, '
            f'"errors": {rng.randrange(0, 300)}}}\n'
        )
