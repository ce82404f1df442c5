"""Weights and state that live on a host: plans that fit only so, and not for more time than the link needs."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.simple import OneDevice
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.methods.memory.lodging import early_updates
from loadmaster.methods.memory.recompute import Recompute
from loadmaster.plans import Plan, check
from loadmaster.plans.additions import homes, returns
from loadmaster.problem import Problem
from loadmaster.search import Budget, Result, solve
from loadmaster.simulator import simulate
from tests.reference import judge

BIG = 10**6


def on(graph: Graph, limit: int, bytes_per_s: float) -> Problem:
    """On a GPU of so many bytes with a host."""
    gpu = Device("gpu", "gpu", limit, 1e12, 1e12)
    host = Device("host", "cpu", 2**40, 1e9, 1e9)
    links = {(0, 1): Link(bytes_per_s, 0), (1, 0): Link(bytes_per_s, 0)}
    return price(graph, Cluster("gpu and host", (gpu, host), links, ints([[-1, 0], [1, -1]])))


def inference(layers: int = 12) -> Graph:
    """Each layer has a weight of a megabyte and takes a millisecond."""
    g = GraphBuilder("inference")
    x = g.tensor(1000, "input")
    for i in range(layers):
        out = g.tensor(1000, "output" if i == layers - 1 else "activation")
        g.op(f"mm{i}", "mm", [x, g.tensor(BIG, "weight", name=f"w{i}")], [out], time_ns=[BIG, 10**10])
        x = out
    return g.build()


def training(layers: int = 6) -> Graph:
    """Forward, backward, and updates at the end, each with a state of two megabytes."""
    g = GraphBuilder("training")
    x, kept = g.tensor(1000, "input"), []
    for i in range(layers):
        weight, out = g.tensor(BIG, "weight", name=f"w{i}"), g.tensor(1000)
        g.op(f"mm{i}", "mm", [x, weight], [out], time_ns=[BIG, 10**10])
        kept.append((x, weight))
        x = out
    updates = []
    for i in reversed(range(layers)):
        came, weight = kept[i]
        down, grad = g.tensor(1000), g.tensor(BIG, name=f"g{i}")
        g.op(f"down{i}", "mm", [x, weight], [down], time_ns=[BIG, 10**10])
        g.op(f"weight{i}", "mm", [x, came], [grad], time_ns=[BIG, 10**10])
        updates.append((i, weight, grad))
        x = down
    for i, weight, grad in updates:
        state = g.tensor(2 * BIG, "state", name=f"m{i}")
        made = [g.tensor(BIG, "weight", alias_of=weight), g.tensor(2 * BIG, "state", alias_of=state)]
        g.op(f"up{i}", "optim.adam", [weight, grad, state], made, time_ns=[1000, 10**10], after=[f"mm{i}", f"down{i}"])
    return g.build()


def planned(problem: Problem, residents: bool, simulations: int = 20) -> Result:
    method = Recompute(OneDevice(), again=False, residents=residents)
    return solve(problem, method, Budget(None, simulations))


@pytest.mark.parametrize(("bytes_per_s", "most_ns"), [(4e9, 12.5 * BIG), (0.5e9, 19.2 * BIG)])
def test_weights_of_which_half_fit_stream(bytes_per_s: float, most_ns: float) -> None:
    """Behind a link that is faster than the layers, the step takes what they do. Behind one that takes two milliseconds
    for each, with one coming while another is read, at most four stay and eight come: 16 ms, and a fifth more."""
    problem = on(inference(), 6 * BIG, bytes_per_s)
    assert not planned(problem, residents=False).fits
    found = planned(problem, residents=True)
    assert found.fits and found.plan.added is not None
    assert 12 * BIG <= found.timeline.step_ns <= most_ns
    assert judge(found.problem, found.plan).step_ns == found.timeline.step_ns
    assert not returns(problem.graph, found.plan.added).any()


def test_state_comes_for_its_update_and_goes_back() -> None:
    """Weights, gradients and state take 24 MB of which 13 fit: state is not needed but for updates, which the search
    has run early."""
    problem = on(training(), 13 * BIG, 4e9)
    assert not planned(problem, residents=False).fits
    found = planned(problem, residents=True)
    plain = simulate(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
    assert found.fits and found.timeline.step_ns <= 1.1 * plain.step_ns
    assert found.plan.added is not None
    moved = homes(problem.graph, found.plan.added)
    back = returns(problem.graph, found.plan.added)
    assert back.any() and set(moved[back]) == {t for t in moved if t >= 0 and problem.updater[t] >= 0}
    check(found.plan, problem)


def test_early_updates_follow_what_they_wait_for() -> None:
    problem = on(training(), 2**30, 4e9)
    graph, device = problem.graph, np.zeros(problem.num_ops, np.int64)
    late = Plan.of(problem, device)
    early = early_updates(problem, late)
    order = [graph.op_name[op] for op in np.argsort(early.rank)]
    assert [name for name in order if not name.startswith("up")] == [
        name for name in graph.op_name if not name.startswith("up")
    ]
    assert all(order[order.index(f"weight{i}") + 1] == f"up{i}" for i in range(6))
    lines = simulate(problem, early), simulate(problem, late)
    assert lines[0].step_ns == lines[1].step_ns and lines[0].peak_bytes[0] < lines[1].peak_bytes[0]
