"""Chances of what a set may take."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.optimizers.annealing import proposals


@pytest.mark.parametrize("scale", [1.0, 900.0, -900.0])
@pytest.mark.parametrize("toward", [-1, 2])
def test_by_the_mean_scores_of_its_ops_however_large_they_are(scale: float, toward: int) -> None:
    scores = np.array([[0.0, 1.0, -1.0], [2.0, 0.5, 0.0], [9.0, 9.0, 9.0]]) + scale
    label, members = np.array([0, 1, 2], np.int32), np.array([0, 1, 2], np.int32)
    chance = np.empty(3)
    proposals.weigh(label, scores, members, 2, toward, 0.1, chance)
    mean = scores[:2].mean(axis=0)
    plain = np.exp(mean - mean.max()) / np.exp(mean - mean.max()).sum()
    wanted = 0.9 * plain + 0.1 / 3 if toward < 0 else 0.5 * plain + 0.5 * (np.arange(3) == toward)
    np.testing.assert_allclose(chance, wanted)
