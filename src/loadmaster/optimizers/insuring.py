"""Insuring: plain annealing from one start beside a race, with a share of the simulations.

Where a search ends depends on where it begins and on chance, by more than on any setting of it, and what leads at first
is no sign of what leads later. So a race is insured: `anneal` from one start goes on beside it, a few rounds at a time
and with random numbers of its own, so that after as many simulations it stands where that method alone would stand. It
has a share of all simulations while it is not far behind what the race had after as many, and most once it leads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadmaster.optimizers.annealing.anneal import Anneal, improving
from loadmaster.search import WORST, Optimizer, Score, Search

# Chosen of 144 settings, by runs that docs/benchmarks/quality.md names.
AFTER = 3_000  # simulations of the race before it begins: on fewer the race is ahead
SHARE, LEADING, ASLEEP = 0.6, 0.8, 0.1  # of all simulations: while it may win, leads, or is far behind
FAR = 0.06  # as a share of what the race had after as many simulations
SLICE = 0.02  # of all simulations so far, that it has at one time; no less than a round


class Insurance:
    """A run of `anneal` from the plan of a method, and how good the race was after how many simulations.

    Attributes:
        used: simulations it has had.
        score: of its best plan.
    """

    def __init__(self, search: Search, start: Optimizer) -> None:
        self.search, self.start = search, start
        self.used, self.score, self.ended = 0, WORST, False
        self.part: Search | None = None
        self.rounds: Iterator[None] = iter(())
        self.marks: list[tuple[int, Score]] = []  # simulations of the race, its best score

    def watch(self, race: Score, used: int) -> None:
        """Told how good the race is after so many simulations of its own."""
        if not self.marks or race < self.marks[-1][1]:
            self.marks.append((used, race))

    @property
    def due(self) -> bool:
        """Whether it has had less than its share."""
        share = SHARE if self.part is None else LEADING if self._leads else ASLEEP if self._far else SHARE
        began = self.part is not None or self.search.simulations >= AFTER
        return began and not (self.ended or self.search.spent) and self.used < share * self.search.simulations

    @property
    def _leads(self) -> bool:
        return self.score < self.marks[-1][1]

    @property
    def _far(self) -> bool:
        """Whether it is far behind where the race was after as many simulations."""
        then = min((score for used, score in self.marks if used <= self.used), default=self.marks[0][1])
        return self.score.over_bytes > then.over_bytes or self.score.value > then.value * (1 + FAR)

    def go_on(self) -> None:
        """A few rounds more; the search keeps the best plan."""
        search, before = self.search, self.search.simulations
        part = self.part or self._begin()
        try:
            for _ in self.rounds:
                if search.simulations - before >= SLICE * before:
                    break
        finally:  # an interrupt keeps what the part has found
            search.keep(part)
            self.used += search.simulations - before
            self.score = part.best_score
            self.ended = search.simulations == before  # there is nothing to move

    def _begin(self) -> Search:
        """As a search of its own with that seed would begin."""
        self.part = part = self.search.part()
        part.rng = np.random.default_rng(self.search.seed)
        own = Anneal(self.start)
        plan = self.start.optimize(part)
        self.rounds = improving(part, plan, own.temperature, own.cold, own.chains, own.follow)
        return part
