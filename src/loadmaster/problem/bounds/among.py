"""Among: which plans a bound holds for, and the best of which is called optimal. Bound: a number with that. Work: how
much of it a bound may do.

Every bound is one of a class of plans, and classes contain each other: what holds for plans with any kernels holds for
those that are fused by rules, and that for plans that fuse nothing; what holds where ops may be added holds where none
is; what holds for all plans holds for those that fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadmaster.problem.bounds.kernels import Fusing, Sharing

Kernels = Literal["none", "rules", "any"]
ORDER: tuple[Kernels, ...] = ("none", "rules", "any")
_SHORT = {"none": "unfused", "rules": "fused", "any": "with any kernels"}
_PLANS = {"none": "unfused plans", "rules": "plans fused by rules", "any": "plans with any kernels"}


@dataclass(frozen=True)
class Among:
    """A class of plans.

    >>> fused = Among("rules", fitting=True)
    >>> fused.short, fused.words, fused.covers(Among("none", fitting=True)), fused.covers(Among("any"))
    ('fused', 'plans fused by rules that fit', True, False)

    Attributes:
        kernels: "none": no plan of it fuses; "rules": they fuse what the methods here may fuse; "any": whatever they
            like.
        adding: ops may run again, and tensors may wait on another device.
        fitting: only plans that fit the memory.
        parts: the model was split, and they are plans of these parts.
    """

    kernels: Kernels = "any"
    adding: bool = False
    fitting: bool = False
    parts: bool = False

    @staticmethod
    def of(fusing: Fusing, *, adding: bool, fitting: bool, parts: bool) -> Among:
        """The class that these arguments of `lower_bound` mean."""
        kernels: Kernels = "rules" if isinstance(fusing, Sharing) else "any" if fusing else "none"
        return Among(kernels, adding, fitting, parts)

    def covers(self, other: Among) -> bool:
        """Whether every plan of the other class is one of this: then a bound of this one holds there."""
        wider = ORDER.index(self.kernels) >= ORDER.index(other.kernels)
        return wider and self.adding >= other.adding and self.fitting <= other.fitting and self.parts == other.parts

    @property
    def short(self) -> str:
        """For a cell of a table: "unfused", "fused", "of all plans"."""
        if self.kernels == "any" and self.adding:
            return "of all plans" + (" of these parts" if self.parts else "")
        return _SHORT[self.kernels] + (" + recompute" if self.adding else "") + (", these parts" if self.parts else "")

    @property
    def words(self) -> str:
        """For a sentence: "unfused plans that fit"."""
        everything = self.kernels == "any" and self.adding
        noun = "all plans" if everything else _PLANS[self.kernels]
        adding = " with recompute and offload" if self.adding and not everything else ""
        return f"{noun}{adding}{' of these parts' if self.parts else ''}{' that fit' if self.fitting else ''}"


@dataclass(frozen=True)
class Bound:
    """What no plan of a class can go under.

    Attributes:
        value: in the unit of the objective.
        among: the class.
        cut: more work might raise it: it ended when its share of the budget was used up.
    """

    value: int
    among: Among
    cut: bool = False


class Work:
    """What a bound has done and may do, in nanoseconds of one quiet core by what its loops look at and not by a clock,
    so that it is the same at any load. When it is up, what would raise the bound further is left out: a bound with less
    work is where one with more came by."""

    def __init__(self, seconds: float | None = None) -> None:
        self.most_ns, self.done_ns = float("inf") if seconds is None else seconds * 1e9, 0.0
        self.left_out = False

    def add(self, ns: float) -> None:
        """So much was done."""
        self.done_ns += ns

    def is_up(self, more_ns: float = 0.0) -> bool:
        """Whether it is, or would be after so much more; remembered, so that once something was left out nobody takes
        the bound for the best there is."""
        self.left_out = self.left_out or self.done_ns + more_ns >= self.most_ns
        return self.left_out

    @property
    def left_ns(self) -> float:
        """What is left of it."""
        return 0.0 if self.left_out else max(0.0, self.most_ns - self.done_ns)
