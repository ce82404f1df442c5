"""Groups in numbers and back to ops: sums and means by hand, the middle level changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.learn.decoding import LEVELS, critical_ranks, device_of_groups, levels_of, ranks_with_levels
from loadmaster.learn.features import features_of, group_features
from loadmaster.passes.groups import group_ops
from loadmaster.problem import Problem
from loadmaster.zoo.synthetic import generate


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(next(iter(generate("layered", 1, 3, (60, 60)))), "2xp100-pcie+1xk80")


def test_groups_of_one_op_keep_the_columns(problem: Problem) -> None:
    features = features_of(problem)
    same = group_features(features, ints(np.arange(problem.num_ops)))
    np.testing.assert_allclose(same.ops, features.ops, atol=2e-3)
    np.testing.assert_array_equal(same.able, features.able)
    edges = {(int(a), int(b)) for a, b in zip(features.before, features.after, strict=True)}
    assert {(int(a), int(b)) for a, b in zip(same.before, same.after, strict=True)} == edges


def test_sizes_of_a_group_add_up(problem: Problem) -> None:
    features = features_of(problem)
    label = group_ops(problem, 5)
    groups = group_features(features, label)
    assert groups.num_ops == label.max() + 1 and groups.num_devices == 3
    time = [problem.best_ns[label == group].sum() for group in range(groups.num_ops)]
    shown = 2.0 ** (16 * groups.ops[:, 14].astype(float)) - 1  # the eighth size is the time
    np.testing.assert_allclose(shown, time, rtol=1e-3)
    assert (groups.before != groups.after).all()


def test_ops_follow_their_group(problem: Problem) -> None:
    label = group_ops(problem, 7)
    chosen = np.random.default_rng(0).integers(3, size=(4, label.max() + 1))
    device = device_of_groups(problem, label, chosen)
    for sample in range(4):
        assert all(device[sample, op] == chosen[sample, label[op]] for op in range(problem.num_ops))
    np.testing.assert_array_equal(device_of_groups(problem, label, chosen[1]), device[1])


def test_levels_move_ops_and_the_middle_one_does_not(problem: Problem) -> None:
    rank = critical_ranks(problem, ints(np.zeros((1, problem.num_ops), np.int64)))
    level = np.full_like(rank, LEVELS // 2)
    np.testing.assert_array_equal(ranks_with_levels(rank, level), rank)
    op = int(np.flatnonzero(rank[0] == 40)[0])
    level[0, op] = 0
    moved = ranks_with_levels(rank, level)
    assert moved[0, op] < 40 and sorted(moved[0]) == list(range(problem.num_ops))


def test_levels_of_a_moved_order_bring_it_back(problem: Problem) -> None:
    rank = critical_ranks(problem, ints(np.zeros((1, problem.num_ops), np.int64)))
    level = np.full_like(rank, LEVELS // 2)
    op = int(np.flatnonzero(rank[0] == 40)[0])
    level[0, op] = 2
    turn = ranks_with_levels(rank, level)[0]
    found = levels_of(rank[0], turn)
    assert abs(int(found[op]) - 2) <= 1
    assert (np.delete(found, op) >= LEVELS // 2).all()  # the others only make room
