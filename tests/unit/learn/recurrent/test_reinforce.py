"""What placements are worth to a recurrent placer, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.learn.environment import Measurements
from loadmaster.learn.recurrent.reinforce import Standing, advantages


def measured(over: list[int], failed: list[bool]) -> Measurements:
    return Measurements(np.ones(len(over)), np.array(over), np.array(failed))


def test_where_nothing_fits_what_is_over_by_less_is_better() -> None:
    found = advantages(measured([1, 3, 0], [False, False, True]), np.zeros(3), Standing(), (0.0, 1.0))
    assert found.tolist() == [1 / 2, -1 / 2, 0.0]  # a byte from the mean, in deviations of one and one more
    many = advantages(measured([*[10**6] * 40, 9 * 10**6], [False] * 41), np.zeros(41), Standing(), (0.0, 1.0))
    assert many.min() == -3.0
    assert advantages(measured([5], [True]), np.zeros(1), Standing(), (0.0, 1.0)).tolist() == [0.0]


@pytest.mark.parametrize(("known", "wanted"), [(False, [-1.0, 3.0, -6.0, 1.0]), (True, [-9.0, -5.0, -12.0, -7.0])])
def test_what_fits_is_against_the_moving_average_and_the_rest_far_below(known: bool, wanted: list[float]) -> None:
    """Of this step the mean is -4 and the spread 2, of those before 4 and 4: three spreads below is far."""
    standing = Standing(known=known, mean=4.0, spread=4.0)
    gained = np.array([-5.0, -1.0, 0.0, -3.0])
    found = advantages(measured([0, 0, 7, 0], [False] * 4), gained, standing, (-4.0, 2.0))
    assert found.tolist() == wanted
