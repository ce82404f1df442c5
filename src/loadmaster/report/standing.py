"""How far a plan is from the best, in words that name the best of what: "at most 20 % from the best fused plan".

Bounds hold for a class of plans each, so that the numbers of two rows compare only with their classes beside them.
"Optimal" is said where no plan at all is better; a plan that meets a narrower bound is the best of its class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from loadmaster.problem import Problem
from loadmaster.problem.bounds import Among, Bound, bound_of
from loadmaster.report.units import percent_text
from loadmaster.search import Result

ANY_PLAN = Among("any", adding=True)
BOUND_SECONDS = 0.5  # for the bound of all plans


class Bounded(Protocol):
    """A result or a verdict."""

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


@dataclass(frozen=True)
class Bounds:
    """A value between what no plan can beat and itself.

    Attributes:
        value: of the plan, in the unit of its objective.
        choices: what no plan of the class that was searched can beat.
        widest: works out what no plan of the widest class can beat.
        fits: the plan does.
        nouns: one of the class that was searched, and one of the widest.
    """

    value: int
    choices: Bound
    widest: Callable[[], Bound]
    fits: bool
    nouns: tuple[str, str]

    @cached_property
    def any_plan(self) -> Bound:
        """What no plan can beat, whatever it fuses, makes again or keeps elsewhere; worked out when asked for."""
        return self.widest()

    @property
    def gap(self) -> float:
        """How far above the bound of its choices, as a share of it."""
        return _above(self.value, self.choices.value)

    def to_json(self) -> dict[str, Any]:
        rows = (("choices", self.choices), ("any_plan", self.any_plan))
        said = {name: {"value": bound.value, **bound_summary(bound)} for name, bound in rows}
        return {"value": self.value, **said, "gap": self.gap if math.isfinite(self.gap) else None}

    def words(self, shown: Callable[[float], str]) -> str:
        """The strongest true sentence; empty of a plan that does not fit."""
        noun, widest = self.nouns
        if not self.fits:
            return ""
        if (self.value == self.choices.value or self.choices.cut) and self.value == self.any_plan.value:
            return f"Optimal: no {widest} is better."
        if self.value == self.choices.value:
            far = _above(self.value, self.any_plan.value)
            return f"The best {noun}{f'; at most {far_text(far)} from any {widest}' if math.isfinite(far) else ''}."
        if not math.isfinite(self.gap):
            return f"No bound above 0 is known for a {noun}."
        return f"At most {far_text(self.gap)} from the best {noun} ({shown(self.choices.value)} or more)."


def bounds_of(result: Result) -> Bounds:
    """Of a result, with the bound of all plans where the result's own is narrower."""
    own, source = result.bound, result.problem.source
    if source.is_pipeline:
        return _of_pipeline(result)
    nouns = (class_words(own.among), "plan of these parts" if source.is_split else "unsplit plan")
    widest = lambda: own if own.among.covers(ANY_PLAN) else _any_plan(result.problem)  # noqa: E731
    return Bounds(result.value, own, widest, result.fits, nouns)


def _of_pipeline(result: Result) -> Bounds:
    """Its ops are stages: their bound is of schedules alone, and the one it was planned with of all pipelines."""
    own, stages = result.bound, bound_of(result.problem)
    nouns = ("schedule of these stages", "pipeline of so many microbatches")
    wide = own if own.value < stages.value else Bound(0, own.among)
    return Bounds(result.value, stages, lambda: wide, result.fits, nouns)


def _any_plan(problem: Problem) -> Bound:
    return bound_of(problem, fusing=True, adding=True, seconds=BOUND_SECONDS)


def _above(value: int, bound: int) -> float:
    return value / bound - 1 if bound else (0.0 if not value else math.inf)


def far_text(gap: float) -> str:
    """34 %, 2.5 %, 0.05 %; never 0 of what is more."""
    gap = max(gap, 5e-5) if gap > 0 else gap
    return f"{100 * gap:.{0 if gap >= 0.095 else 1 if gap >= 0.0095 else 2}f} %"


def class_words(among: Among) -> str:
    """ "unsplit, fused plan": one of the class."""
    kernels = {"none": ", unfused", "rules": ", fused", "any": ""}[among.kernels]
    fitting = " that fits" if among.fitting else ""
    again = "" if among.adding else " without recompute"
    return f"{'split' if among.parts else 'unsplit'}{kernels} plan{again if among.kernels == 'any' else ''}{fitting}"


def standing(result: Bounded) -> str:
    """In a cell: at most how far from the best of its class, or that it is the best."""
    among = result.bound.among
    if result.optimal:
        return "optimal" if among.covers(Among("any", adding=True, parts=among.parts)) else f"best {among.short}"
    return f"{percent_text(result.gap)} {among.short}" if math.isfinite(result.gap) else "-"


def standing_beside(result: Result, others: Iterable[Result]) -> str:
    """The same in a table: no row above a smaller value that fits is called optimal, only the best of its class."""
    beaten = result.optimal and any(other.fits and other.value < result.value for other in others)
    return f"best {result.among.short}" if beaten else standing(result)


def bound_summary(bound: Bound) -> dict[str, object]:
    """For JSON: the class that a bound holds for, and whether more work might raise it."""
    among = bound.among
    kind = {"kernels": among.kernels, "adding": among.adding, "fitting": among.fitting, "parts": among.parts}
    return {"among": kind, "words": among.words, "cut": bound.cut}
