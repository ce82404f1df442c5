"""Choosing: which of the plans that are kept a search begins from.

Sketches of graphs are compared first, which costs nothing; the few most alike are read whole and adapted, and kept if
enough of the work has a like by its surroundings, not only by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cache
from math import log2
from typing import Protocol

from loadmaster.errors import InvalidPlan
from loadmaster.methods.experience.adapting import adapt
from loadmaster.methods.experience.entries import PlanHead, alike, known_of, sketch_of
from loadmaster.methods.experience.likeness import Sight
from loadmaster.problem import Problem
from loadmaster.search import Start

LEAST_LIKE = 0.1  # share of the sketch: less, and what is left in common are the names of ops
LOOKED_INTO = 4  # entries read whole, the most alike
LEAST_CLOSE = 0.5  # share of the work whose like is found by its surroundings
OTHER_COUNT = 0.1  # of likeness, that a plan for half or twice as many devices is set back by


class Shelf(Protocol):
    """Where plans are kept: the user's store, or a library. `entries` lists heads without reading plans, `read` gives
    what is known of one, and `used` is told which were."""

    def entries(self) -> list[PlanHead]:
        """Heads of all plans that are kept, without reading the plans."""
        ...

    def read(self, entry: PlanHead) -> bytes:
        """What is known of one, as `entries.known_of` reads it."""
        ...

    def used(self, entry: PlanHead) -> None:
        """Is told that a search began from it."""
        ...


def starts_like(problem: Problem, shelves: Sequence[Shelf]) -> list[Start]:
    """Plans of problems like this one, made to suit it, the most alike first."""

    @cache
    def seen(scopes: bool) -> tuple[Sight, tuple[int, ...]]:
        sight = Sight.of(problem.graph, scopes)
        return sight, sketch_of(sight)

    kept = [(shelf, entry) for shelf in shelves for entry in shelf.entries()]
    kept = [(shelf, entry) for shelf, entry in kept if entry.objective == problem.objective.name]
    near = [(alike(seen(entry.scopes)[1], entry.sketch), shelf, entry) for shelf, entry in kept]
    near = [row for row in near if row[0] >= LEAST_LIKE]
    near.sort(key=lambda row: -row[0] + OTHER_COUNT * _apart(row[2], problem))
    found: list[Start] = []
    for _, shelf, entry in near[:LOOKED_INTO]:
        with contextlib.suppress(InvalidPlan, OSError):  # torn or foreign: as good as absent
            plans, close = adapt(known_of(shelf.read(entry), entry.name), problem, seen(entry.scopes)[0])
            if close >= LEAST_CLOSE:
                shelf.used(entry)
                found.extend(Start(plan, entry.origin) for plan in plans)
    return found


def _apart(entry: PlanHead, problem: Problem) -> float:
    """How often the number of devices doubles from the one to the other."""
    return abs(log2((entry.devices or problem.num_devices) / problem.num_devices))
