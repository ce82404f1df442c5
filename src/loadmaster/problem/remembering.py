"""Remembering: what was made of a problem is kept with the problem, the last few of it.

Searches ask again and again for the coarser problem of the same kernels, or the expanded one of the same additions, and
these are costly to make. `passes.coarse` and `plans.expansion` keep theirs so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from loadmaster.problem.problem import Problem

Made = TypeVar("Made")


class _Held(OrderedDict[Hashable, Any]):
    """Stays behind where its problem is copied or sent to another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Held, ()


class LastFew(Generic[Made]):
    """The last `most` things made of each problem, by what they were made from. Searches come back to them.

    They are held by the problem itself: what is made of a problem often holds it in turn, and a table of all problems,
    weak as its keys may be, would keep such a pair for ever.
    """

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = f"_last_{name}", most

    def of(self, problem: Problem, key: Hashable, make: Callable[[], Made]) -> Made:
        """What was made of the problem from this key, or what is made now; the one used longest ago is forgotten."""
        known: _Held = vars(problem).setdefault(self.name, _Held())
        if key not in known:
            known[key] = make()
            if len(known) > self.most:
                known.popitem(last=False)
        known.move_to_end(key)
        found: Made = known[key]
        return found
