"""Placeto: what a board says, what episodes earn, and what the method does with both."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price, solve
from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.graph.columns import ints
from loadmaster.learn.placeto2019.board import board_of, groups_of, relations, topological, visits
from loadmaster.learn.placeto2019.episodes import Episodes, advantages, costs, log_chances, play
from loadmaster.learn.placeto2019.method import Placeto
from loadmaster.learn.placeto2019.network import PlacetoNetwork, tensors_of
from loadmaster.papers.environment import Simulated
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.search import Search
from loadmaster.simulator import simulate, simulate_many
from tests.graphs.tiny import pair


def lanes(count: int = 4, length: int = 3, devices: str = "") -> Problem:
    """Independent chains of equal time: the best plan gives each device as many whole lanes."""
    graph = GraphBuilder("lanes")
    for lane in range(count):
        read = graph.tensor(8, "input")
        for step in range(length):
            made = graph.tensor(4_000, "output" if step == length - 1 else "activation")
            graph.op(f"op {lane} {step}", "any", [read], [made], time_ns=1_000, scope=f"lane{lane}.{step}")
            read = made
    return price(graph.build(), devices or pair())


def board(problem: Problem):  # type: ignore[no-untyped-def]
    label = groups_of(problem)
    return board_of(problem, label), label


def test_relations_are_those_of_a_walk_along_the_edges() -> None:
    rng = np.random.default_rng(0)
    for density in (0.05, 0.2):
        edges = rng.random((14, 14)) < density  # cycles included
        np.fill_diagonal(edges, False)
        ancestors, descendants, unrelated = relations(edges)
        for one in range(14):
            seen, stack = set(), [one]
            while stack:
                for after in np.flatnonzero(edges[stack.pop()]).tolist():
                    if after not in seen:
                        seen.add(after)
                        stack.append(after)
            for other in set(range(14)) - {one}:
                assert descendants[one, other] == (other in seen)
                assert ancestors[other, one] == (other in seen)
        apart = 1 - np.eye(14)
        np.testing.assert_array_equal(unrelated, apart * (ancestors == 0) * (descendants == 0))


def test_topological_order_obeys_every_edge_off_a_cycle() -> None:
    rng = np.random.default_rng(1)
    name = rng.permutation(20)
    edges = np.zeros((20, 20), bool)
    for one, two in rng.integers(0, 20, (40, 2)):
        if one != two:
            edges[name[min(one, two)], name[max(one, two)]] = True
    place = np.argsort(topological(edges))
    assert (place[np.nonzero(edges)[0]] < place[np.nonzero(edges)[1]]).all()
    cyclic = np.zeros((3, 3), bool)
    cyclic[0, 1] = cyclic[1, 0] = cyclic[1, 2] = True
    assert sorted(topological(cyclic)) == [0, 1, 2] and topological(cyclic)[-1] == 2


@pytest.mark.parametrize("every", [1, 4])
def test_step_rewards_add_up_to_start_less_end(every: int) -> None:
    problem = lanes()
    made, label = board(problem)
    search = Search(problem, Budget(None, 10_000))
    start = ints(np.zeros(made.num_groups))
    played = play(PlacetoNetwork(), made, tensors_of(made), start, made.order, "episode", 5, np.random.default_rng(0))
    cost = costs(Simulated(search, label), played, every)
    assert cost is not None
    rewards = cost[:, :-1] - cost[:, 1:]
    ends = np.concatenate([start[None], played.last])
    plans = [Plan.of(problem, each[label], critical_rank(problem, ints(each[label]))) for each in ends]
    step = np.array([simulate(problem, plan).step_ns for plan in plans])
    root = np.sqrt(step / problem.best_ns.sum())
    np.testing.assert_allclose(rewards.sum(axis=1), root[0] - root[1:])
    assert np.abs(rewards).sum() > 0


def test_placements_on_the_way_change_one_group_at_a_time() -> None:
    order, start = ints([2, 0, 1]), ints([0, 0, 0])
    played = Episodes(order, start, ints([[1, 0, 1]]), np.zeros((1, 3, 2, 21), np.float32))
    np.testing.assert_array_equal(played.passed()[0], [[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(played.last[0], [0, 1, 1])


def test_equal_placements_are_measured_once() -> None:
    problem = lanes()
    made, label = board(problem)
    search = Search(problem, Budget(None, 1_000))
    stay = Episodes(
        made.order,
        ints(np.zeros(made.num_groups)),
        ints(np.zeros((3, made.num_groups))),
        np.zeros((3, made.num_groups, 2, 21), np.float32),
    )
    assert (costs(Simulated(search, label), stay) == 1.0).all()
    assert search.simulations == 1


def test_returns_are_compared_step_by_step() -> None:
    cost = np.array([[2.0, 1.0, 1.0], [2.0, 2.0, 1.0]])
    returns = np.array([[1.0, 0.0], [1.0, 1.0]])
    over = returns - returns.mean(axis=0)
    assert np.sign(advantages(cost)).tolist() == np.sign(over).tolist()


@pytest.mark.parametrize("once", ["episode", "step"])
def test_renaming_equal_devices_renames_the_chances(once: str) -> None:
    problem = lanes(devices="placeto-4")
    made, _ = board(problem)
    board_tensors, network = tensors_of(made), PlacetoNetwork()
    rng = np.random.default_rng(3)
    name = np.array([2, 0, 3, 1])
    start, actions = rng.integers(0, 4, made.num_groups), rng.integers(0, 4, (2, made.num_groups))
    pairs = rng.random((2, made.num_groups, 4, 21)).astype(np.float32)
    back = np.argsort(name)
    one = Episodes(made.order, ints(start), ints(actions), pairs)
    two = Episodes(made.order, ints(name[start]), ints(name[actions]), np.ascontiguousarray(pairs[:, :, back]))
    found = [
        np.concatenate([part.detach().numpy() for _, part in log_chances(network, board_tensors, each, once)], axis=1)  # type: ignore[arg-type]
        for each in (one, two)
    ]
    np.testing.assert_allclose(found[0][:, :, back], found[1], atol=1e-5)
    assert np.ptp(found[0]) > 0.01


def test_what_is_learned_from_is_what_was_played() -> None:
    """The chances of a whole batch at once are those of one step after the other."""
    problem = lanes()
    made, _ = board(problem)
    board_tensors, network = tensors_of(made), PlacetoNetwork()
    start = ints(np.zeros(made.num_groups))
    for once in ("episode", "step"):
        played = play(network, made, board_tensors, start, made.order, once, 1)  # type: ignore[arg-type]
        chances = np.concatenate(
            [part.detach().numpy() for _, part in log_chances(network, board_tensors, played, once)],
            axis=1,  # type: ignore[arg-type]
        )
        np.testing.assert_array_equal(chances.argmax(axis=2), played.actions)


def test_visits_every_group_once() -> None:
    made, _ = board(lanes())
    for traversal in ("topological", "reverse", "random"):
        order = visits(made, traversal, np.random.default_rng(0))  # type: ignore[arg-type]
        assert sorted(order) == list(range(made.num_groups))
    np.testing.assert_array_equal(visits(made, "reverse", np.random.default_rng(0)), made.order[::-1])


def test_tuning_finds_the_known_optimum() -> None:
    problem = lanes(count=4, length=1)
    best = min(
        int(simulate_many(problem, np.array([each])).step_ns[0]) for each in product(range(2), repeat=problem.num_ops)
    )
    result = solve(problem, Placeto(checkpoint="none", samples=0, every=1), Budget(None, 400))
    assert result.value == best < problem.best_ns.sum()


SWITCHES = [
    {"once": "step"},
    {"aggregator": "simple"},
    {"embedding": "partitioner"},
    {"traversal": "reverse"},
    {"traversal": "random"},
    {"tune": False},
    {"failures": 0.3, "noise": 0.1},
    {"by": "op"},
]


@pytest.mark.parametrize("switch", SWITCHES, ids=[str(switch) for switch in SWITCHES])
def test_every_switch_gives_a_legal_plan_twice_the_same(switch: dict[str, object]) -> None:
    problem = lanes()
    method = replace(Placeto(checkpoint="none", samples=3, episodes=3), **switch)  # type: ignore[arg-type]
    one, two = (solve(problem, method, Budget(None, 60), seed=4) for _ in range(2))
    check(one.plan, problem)
    assert one.simulations <= 60 and one.value <= problem.best_ns.sum()
    np.testing.assert_array_equal(one.plan.device, two.plan.device)


def test_a_placement_that_always_fails_never_stops_the_run() -> None:
    problem = lanes()
    result = solve(problem, Placeto(checkpoint="none", samples=2, failures=0.99), Budget(None, 80))
    assert result.value == problem.best_ns.sum(), "the start is measured outside and stays"


def test_memory_over_the_limit_drives_the_policy_apart() -> None:
    problem = lanes()
    together = simulate_many(problem, np.zeros((1, problem.num_ops), np.int64))
    tight = replace(problem, memory_bytes=ints(np.full(2, int(together.peak_bytes.max() * 0.8))))
    assert solve(tight, Placeto(checkpoint="none"), Budget(None, 200)).fits
