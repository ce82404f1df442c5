"""How far a plan is from the best, in words that name the best of what: "optimal unfused", "+34.0 % fused".

Bounds hold for a class of plans each, so that the numbers of two rows compare only with their classes beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from loadmaster.problem.bounds import Bound
from loadmaster.report.units import percent_text
from loadmaster.search import Result


class Bounded(Protocol):
    """A result or an explanation."""

    @property
    def bound(self) -> Bound:
        """With its class."""
        ...

    @property
    def gap(self) -> float:
        """How far above the bound, as a share of it."""
        ...

    @property
    def optimal(self) -> bool:
        """It fits and meets the bound."""
        ...


def standing(result: Bounded) -> str:
    """At most how far from the best of its class; or that it is the best."""
    among = result.bound.among.short
    if result.optimal:
        return f"optimal {among}"
    return f"{percent_text(result.gap)} {among}" if math.isfinite(result.gap) else "-"


def standing_beside(result: Result, others: Iterable[Result]) -> str:
    """The same in a table: no row above a smaller value that fits is called optimal, only the best of its class."""
    beaten = result.optimal and any(other.fits and other.value < result.value for other in others)
    return f"best {result.among.short}" if beaten else standing(result)


def standing_words(result: Bounded, shown: str) -> str:
    """As a sentence; `shown`: the bound with its unit."""
    words = result.bound.among.words
    if result.optimal:
        return f"It is optimal among {words}: none of them can go under {shown}."
    if not math.isfinite(result.gap):
        return f"No bound above 0 is known for {words}."
    tail = " More work might raise this bound: it was cut off." if result.bound.cut else ""
    far = f"{100 * result.gap:.1f} %"
    return f"It is at most {far} from the best of {words}: none of them can go under {shown}.{tail}"


def bound_summary(bound: Bound) -> dict[str, object]:
    """For JSON: the class that a bound holds for, and whether more work might raise it."""
    among = bound.among
    kind = {"kernels": among.kernels, "adding": among.adding, "fitting": among.fitting, "parts": among.parts}
    return {"among": kind, "words": among.words, "cut": bound.cut}
