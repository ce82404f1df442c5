"""Looks for cuts of a pipeline by rehearsals: where stages begin, how many there are, on which devices and how much
each may hold. Stages of a device need not be neighbours, nor need devices have equally many.

Annealing from many starts, in rounds: of all a little, then of the best more. What rehearsals find is judged by the
simulator afterwards, the best few lines only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from loadmaster.pipelines.microbatches import Action
from loadmaster.pipelines.rehearsal import RehearsalScratch, Slots, Stages, anneal, rehearse
from loadmaster.search.xorshift import seeded

HOT = 0.005  # of the step: the first temperature
MOST_CHUNKS = 4  # stages of a device, on average
ROUNDS = ((0.4, 1.0), (0.3, 0.25), (0.3, 0.1))  # share of the rehearsals, and of the lines so far that they go to


@dataclass(frozen=True)
class StageLine:
    """Stages from left to right.

    Attributes:
        edges: [stages - 1] first slot of each but the first.
        most: [stages] microbatches that it may hold.
    """

    edges: tuple[int, ...]  # [stages - 1]
    device: tuple[int, ...]  # [stages]
    most: tuple[int, ...]  # [stages]


Worth = tuple[int, int]  # bytes over the limits, ns


class Rehearsals:
    """Annealing from many starts; keeps the best line of each."""

    def __init__(self, slots: Slots, count: int, seed: int, spent: Callable[[], bool] = lambda: False) -> None:
        """`spent`: whether there is no time left."""
        self.slots, self.count, self.spent = slots, count, spent
        self.size, self.devices = len(slots.saved) - 1, len(slots.memory)
        self.room = MOST_CHUNKS * self.devices
        self.scratch = _scratch(self.room, self.devices, count)
        self.state = seeded(seed)

    def worth(self, line: StageLine) -> Worth:
        value, over = rehearse(self.slots, self._stages(line), self.scratch, self.count)
        return int(over), int(value)

    def actions(self, line: StageLine) -> list[Action]:
        """What is done, in the order in which it begins."""
        self.worth(line)
        return [Action(*row) for row in self.scratch.log[: 3 * len(line.device) * self.count].tolist()]

    def best(self, starts: Iterable[StageLine], rehearsals: int, kept: int) -> list[StageLine]:
        """Best first: of all starts a little, then of the best ones more."""
        lines = [line for line in dict.fromkeys(starts) if len(line.device) <= self.room]
        found = {line: self.worth(line) for line in lines}
        for share, keep in ROUNDS:
            chosen = sorted(found, key=lambda line: found[line])[: max(1, int(len(lines) * keep))]
            each = int(rehearsals * share) // max(1, len(chosen))
            for line in chosen:
                if self.spent():
                    break
                worth, better = self.anneal(line, each)
                found[better] = worth
        return sorted(found, key=lambda line: found[line])[:kept]

    def anneal(self, line: StageLine, rehearsals: int) -> tuple[Worth, StageLine]:
        here, tried, best = (self._stages(line) for _ in range(3))
        value, over = anneal(self.slots, here, tried, best, self.scratch, self.count, rehearsals, HOT, self.state)
        number = int(best.number[0])
        found = StageLine(
            *(tuple(column.tolist()) for column in (best.begin[1:number], best.device[:number], best.most[:number]))
        )
        return (int(over), int(value)), found

    def _stages(self, line: StageLine) -> Stages:
        begin, device, most = (np.zeros(self.room + 1, np.int64) for _ in range(3))
        number = len(line.device)
        begin[1:number], begin[number] = line.edges, self.size
        device[:number], most[:number] = line.device, line.most
        return Stages(begin, device[:-1].copy(), most[:-1].copy(), np.array([number]))


def _scratch(room: int, devices: int, count: int) -> RehearsalScratch:
    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int64)

    return RehearsalScratch(
        time=zeros(3, room),
        saved=zeros(room),
        up=zeros(room),
        down=zeros(room),
        ready=zeros(3, room, count),
        following=zeros(3, room),
        held=zeros(room),
        first=zeros(devices + 1),
        own=zeros(room),
        start=zeros(devices),
        task=zeros(devices),
        free=zeros(devices),
        last=zeros(devices),
        now=zeros(devices),
        peak=zeros(devices),
        log=zeros(3 * room * count, 3),
    )
