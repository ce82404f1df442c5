"""How long and how hot coolings are, whatever the budget, and how often the clock is looked at."""

from __future__ import annotations

from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.optimizers.annealing.chains import Pace, Reheating, epochs


def test_each_cooling_is_half_as_long_again_as_the_one_before() -> None:
    assert list(islice(epochs(), 4)) == [192, 288, 432, 648]
    lengths = list(islice(epochs(100), 12))
    assert lengths[0] == 100 and all(1.45 < later / earlier < 1.55 for earlier, later in pairwise(lengths))


@pytest.mark.parametrize(
    ("left", "count", "seconds", "following"),
    [
        (100.0, 10, 0.1, 10),  # a tenth of a second at most
        (1.0, 10, 0.01, 20),  # a fiftieth of what is left
        (0.01, 10, 0.01, 2),  # two milliseconds at least
        (0.01, 10, 1.0, 1),
        (100.0, 10, 1e-6, 80),  # no more than eight times as many
        (100.0, 10, 0.0, 80),
    ],
)
def test_the_clock_is_looked_at_after_a_part_of_the_time_that_is_left(
    left: float, count: int, seconds: float, following: int
) -> None:
    search: Any = SimpleNamespace(counts_simulations=False, seconds_left=left)
    pace = Pace(search)
    assert pace.next() == 4 and Pace(search, 9).next() == 9
    pace.took(count, seconds)
    assert pace.next() == following and pace.one_s == seconds / count
    counting: Any = SimpleNamespace(counts_simulations=True, seconds_left=left)
    assert Pace(counting).next() == 2**31


def test_a_cooling_that_gained_nothing_is_followed_by_hotter_ones_until_they_are_too_hot() -> None:
    pace = Reheating(50)
    assert not pace.settled and Reheating(48).settled and not Reheating(49).settled
    pace.ended(0.01, gained=False)  # too short to tell
    assert (pace.length, pace.times) == (288.0, 1.0) and pace.settled
    pace.ended(0.01, gained=False)
    assert (pace.length, pace.times) == (288.0, 3.0)
    pace.ended(0.01, gained=False)
    assert (pace.length, pace.times) == (288.0, 9.0)
    pace.ended(0.01, gained=False)  # 27 times would be more than a tenth of the value
    assert (pace.length, pace.times) == (432.0, 1.0)
    pace.ended(0.01, gained=False)
    pace.ended(0.01, gained=True)
    assert (pace.length, pace.times) == (648.0, 1.0)
