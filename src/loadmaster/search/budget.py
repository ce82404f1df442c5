"""Budget: how long a search may go on; Score: what it compares plans by.

Both are small values that cross every boundary: command line, methods, files of benchmarks, other machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline


class Score(NamedTuple):
    """What a plan is worth: two whole numbers compared in order, and lower is better. Bytes over the memory limits come
    first, summed over all devices, so that a plan that fits beats every plan that does not, and among plans that do not
    fit the one that misses by least wins. There is no penalty to tune.

    >>> Score(0, 900) < Score(0, 1_000) < Score(1, 5)
    True

    Attributes:
        over_bytes: over the memory of the devices (rule 9 of the simulator); 0: it fits.
        value: of the objective, in its unit.
    """

    over_bytes: int
    value: int

    @staticmethod
    def of(problem: Problem, line: Timeline) -> Score:
        """Of a plan's timeline; `problem` says what is judged."""
        return Score(line.over_bytes, problem.value(line))


WORST = Score(np.iinfo(np.int64).max, np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Budget:
    """How long a search may go on: seconds, simulations, or both, whichever comes first. None: no limit of that kind.

    With simulations alone, answers are the same on every machine for a seed; with seconds they depend on how fast it
    is. The clock stands still while code is compiled, which happens once per machine.

    >>> Budget(5)
    Budget(seconds=5, simulations=None)
    >>> Budget(None, 2_000)  # reproducible
    Budget(seconds=None, simulations=2000)

    Attributes:
        seconds: more than 0.
        simulations: timelines that may be worked out, those of compiled loops counted too.

    Raises:
        InvalidSetting: a limit that is not positive, simulations that are no whole number, or no limit at all.
    """

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
    """Whether it is a whole number, of Python or numpy; True and False are none."""
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
        raise InvalidSetting.instead_of("budget", given, "budget", fix)
    return Budget(float(given))
