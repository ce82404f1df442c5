"""Parts of how GO draws and scores, with random numbers that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import policy
from loadmaster.learn.go2020.network import MIDDLE
from loadmaster.learn.go2020.policy import Decided, score_decided
from loadmaster.search import Budget, Search
from tests.graphs.tiny import chain, pair


def test_ops_of_priority_zero_join_nobody_where_many_are_scored() -> None:
    problem = price(chain(), pair())
    search, label = Search(problem, Budget(None, 9)), ints([0, 1, 2])
    asked = []
    search.score_fused = lambda placed, ranks, kernels: asked.append(kernels) or (0, 0)  # type: ignore[method-assign, assignment, return-value, func-returns-value]
    many = [Decided(ints([0] * 3), ints([MIDDLE] * 3), ints(fusion)) for fusion in ([0, 0, 0], [5, 5, 5])]
    with pytest.MonkeyPatch.context() as patched:
        told = list[Any]()
        merges = SimpleNamespace(sharing=None, kernels=lambda placed, priority: told.append(priority.tolist()))
        patched.setattr(policy, "Merges", SimpleNamespace(of=lambda problem: merges))
        score_decided(search, label, many)
    assert told == [[[-1, -1, -1], [5, 5, 5]]] and asked == [None]


def test_past_the_budget_decisions_that_go_first_come_first_served_are_the_worst() -> None:
    problem = price(chain(), pair())
    many = [Decided(ints([device] * 3), ints([MIDDLE] * 3), ints([])) for device in (0, 1, 0)]
    over, value = score_decided(Search(problem, Budget(None, 2)), ints([0, 1, 2]), many, policy.Fixed(fifo=True))
    assert value.tolist() == [35, 35, 2**63 - 1] and over.tolist() == [0, 0, 2**63 - 1]


@pytest.mark.parametrize(("groups", "size", "most"), [(60, 20, 16), (60, 9, 9), (8, 2, 2)])
def test_sets_at_random_have_sixteen_members_at_most(groups: int, size: int, most: int) -> None:
    asked = list[Any]()

    def choice(some: Any, count: int | None = None, replace: bool = True) -> Any:
        if count is None:
            return some[0]
        asked.append((some, count))
        return np.arange(count)

    rng: Any = SimpleNamespace(uniform=lambda low, high: np.log2(size + 0.5), random=lambda: 0.95, choice=choice)
    one: Any = SimpleNamespace(num_groups=groups)
    units = policy.draw_units(one, ints(range(groups)), False, rng)
    assert asked == [(groups, most)] and (units >= 0).sum() == most


def test_fusion_is_drawn_in_one_piece_at_least() -> None:
    bounds = list[Any]()
    rng: Any = SimpleNamespace(
        uniform=lambda low, high: (bounds.append((low, high)), low)[1], random=lambda: 0.9, integers=lambda most: 0
    )
    one: Any = SimpleNamespace(single=np.zeros((16, 1)), kind=ints([0, 1] * 8))
    units = policy._fusion_units(one, ints([]), True, rng)
    assert bounds == [(0, 4.0)] and units.tolist() == [0] * 16
    part = policy._fusion_units(one, ints([]), False, rng)
    assert bounds[1:] == [(2, 4.0), (0, 2.0)] and part.tolist() == [0] * 4 + [-1] * 12


@pytest.mark.parametrize(("score", "spare"), [(-14.9, 0.5), (-15.0, 0.0)])
def test_what_is_all_but_impossible_is_not_drawn_without_asking(score: float, spare: float) -> None:
    """Half of the draws ask nobody: they go to either device, or to the first alone."""
    scores = np.array([[0.0, score]], np.float32)
    rng: Any = SimpleNamespace(random=lambda shape: np.full(shape, 0.999999))
    picks, chance = policy._pick(ints([0]), scores, 0.5, rng)
    assert picks.tolist() == [1 if spare else 0]
    assert np.exp(chance) == pytest.approx([0.25 if spare else 1.0], abs=1e-4)


def test_units_take_the_mean_of_their_scores_and_say_its_chance() -> None:
    scores = np.array([[0.0, 2.0], [4.0, 0.0], [0.0, 0.0], [0.0, 1.0]], np.float32)
    rng: Any = SimpleNamespace(random=lambda shape: np.array([[0.7], [0.7]]))
    picks, chance = policy._pick(ints([0, 0, policy.OFF, 1]), scores, 0.0, rng)
    first, second = 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))  # means of 2 and 1, and of 0 and 1
    assert picks.tolist() == [0, 1] and np.exp(chance) == pytest.approx([first, 1 - second])
