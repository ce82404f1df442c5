"""Remembering: what was made of a problem is kept for as long as the problem is, the last few of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from loadmaster.problem.problem import Problem

Made = TypeVar("Made")


class LastFew(Generic[Made]):
    """The last `most` things made of each problem, by what they were made from. Searches come back to them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: WeakKeyDictionary[Problem, OrderedDict[Hashable, Made]] = WeakKeyDictionary()

    def of(self, problem: Problem, key: Hashable, make: Callable[[], Made]) -> Made:
        """What was made of the problem from this key, or what is made now; the one used longest ago is forgotten."""
        known = self._known.setdefault(problem, OrderedDict())
        if key not in known:
            known[key] = make()
            if len(known) > self.most:
                known.popitem(last=False)
        known.move_to_end(key)
        return known[key]
