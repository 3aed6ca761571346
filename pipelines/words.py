"""How numbers and states are said, on the terminal and on pages alike."""

from __future__ import annotations

from typing import Any, Final

from pipelines.database import Row

ABSENT: Final = "\N{EM DASH}"


def ratio(value: float | None) -> str:
    """A ratio with two decimals, or a dash."""
    return ABSENT if value is None else f"{value:.2f}"


def interval(low: float | None, high: float | None) -> str:
    """An interval of ratios, or a dash."""
    return ABSENT if low is None or high is None else f"{low:.2f} to {high:.2f}"


def fine_interval(low: float | None, high: float | None) -> str:
    """An interval of ratios near 1, with three decimals, or a dash."""
    return ABSENT if low is None or high is None else f"{low:.3f} to {high:.3f}"


def signed_interval(low: float | None, high: float | None) -> str:
    """An interval of shares around zero as percent, or a dash."""
    return ABSENT if low is None or high is None else f"{low:+.1%} to {high:+.1%}"


def yes(value: bool) -> str:
    """A truth as a word."""
    return "yes" if value else "no"


def seconds(value: float | None) -> str:
    """Seconds, or milliseconds below 10 ms, to three significant digits; or a dash."""
    if value is None:
        return ABSENT
    return f"{value * 1000:.3g} ms" if 0 < abs(value) < 0.01 else f"{value:.3g} s"


def weights(row: Row) -> str:
    """Why a model's words mean nothing, or nothing; `row` has model_kind, output_meaningful."""
    if row["output_meaningful"]:
        return ""
    kind = "shape only" if row["model_kind"] == "shape" else "random weights"
    return f"{kind}, output meaningless"


def percent(value: float | None) -> str:
    """A share as whole percent, or a dash."""
    return ABSENT if value is None else f"{value:.0%}"


def blocks(row: Row) -> str:
    """How many blocks a number rests on, and how many were void."""
    void = f", {row['n_void']} void" if row["n_void"] else ""
    return f"{row['n_blocks']}{void}"


def point(row: Row) -> str:
    """A point by what a reader varies: measured prefix and hops."""
    return f"{row['n_prefix']:,} / {row['n_hops']}"


def verdict(row: Row) -> str:
    """The verdict, or that the number is not evidence."""
    return str(row["verdict"] or "not evidence")


def figure(low: float, high: float) -> str:
    """A published figure, one number or a range."""
    return ratio(low) if low == high else f"{low:g} to {high:g}"


def said(value: Any) -> str:
    """Any value as text; a missing one says so."""
    return "not recorded" if value is None else str(value)
