"""Budget: how long a search may go on; Score: what it compares plans by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline


class Score(NamedTuple):
    """Compared in order: bytes over the memory limits, then the objective. Lower is better."""

    over_bytes: int
    value: int  # of the objective, in its unit

    @staticmethod
    def of(problem: Problem, line: Timeline) -> Score:
        return Score(line.over_bytes, problem.value(line))


WORST = Score(np.iinfo(np.int64).max, np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Budget:
    """Seconds and simulations; whichever comes first. None: no limit of that kind."""

    seconds: float | None = 10.0
    simulations: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not (_is_number(self.seconds) and self.seconds > 0):
            raise InvalidSetting(f"a budget of {self.seconds!r} seconds", "", "give more than 0 seconds")
        if self.simulations is not None and not (is_whole(self.simulations) and self.simulations >= 1):
            raise InvalidSetting(
                f"a budget of {self.simulations!r} simulations", "", "give a whole number of 1 or more"
            )
        if self.seconds is None and self.simulations is None:
            raise InvalidSetting("a budget without any limit", "", "give seconds, simulations or both")


def is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return is_whole(value) or isinstance(value, (float, np.floating))


def as_budget(given: Budget | float | None) -> Budget:
    """A budget from what people write: a number is seconds, None the default of ten."""
    if given is None:
        return Budget()
    if isinstance(given, Budget):
        return given
    if not _is_number(given):
        fix = "give seconds (10), or Budget(seconds=…, simulations=…)"
        raise InvalidSetting(f"a {type(given).__name__} is no budget", "budget", fix)
    return Budget(float(given))
