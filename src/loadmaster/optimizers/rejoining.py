"""Rejoining: ops that run apart from their neighbours go back to them where the transfers cost more than that gives.

List schedulers leave islands: a few ops on another device, because it was idle just then. An island whose transfers,
weighed down by a factor (`DEAR`: sends overlap with work), take longer than its own work goes where most of them come
from and go to; a few rounds, since that may join islands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.optimizers.simple import legal
from loadmaster.plans import Plan
from loadmaster.problem import Problem

# Shares of the transfers' time that count against the work: most of it passes while other ops run. Of 0.1 to 2, these
# two gave the best plans when links got half as fast (11 of 12 models).
DEAR = (0.1, 0.25)
ROUNDS = 3  # what has gone back may have made a larger island of its neighbours


def rejoined(problem: Problem, plan: Plan, dear: float) -> Plan:
    """The plan in which every island whose transfers, times `dear`, take longer than its work has gone where most of
    them come from and go to. An island: ops on one device that hang together."""
    before, later, tensor = _edges(problem)
    device = plan.device.copy()
    for _ in range(ROUNDS):
        island, sent = _islands(problem, device, before, later, tensor)
        work = np.bincount(island, problem.op_ns[np.arange(problem.num_ops), device])
        leaves: Bools = (dear * sent.sum(axis=1) > work)[island]
        if not leaves.any():
            break
        device[leaves] = sent.argmax(axis=1)[island[leaves]]
    return Plan.of(problem, legal(problem, ints(device)), plan.rank)


def _edges(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """(who makes, who reads, which tensor) of every read of something that the step makes."""
    graph = problem.graph
    made = graph.is_made[graph.reads]
    return ints(graph.producer[graph.reads][made]), ints(rows_of(graph.read_start)[made]), ints(graph.reads[made])


def _islands(
    problem: Problem, device: Ints, before: Ints, later: Ints, tensor: Ints
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """([ops] island, [islands, devices] time of the transfers between each island and each device)."""
    cut = device[before] != device[later]
    within = coo_matrix((np.ones((~cut).sum()), (before[~cut], later[~cut])), shape=(problem.num_ops,) * 2)
    count, island = connected_components(within, directed=False)
    sent = np.zeros((count, problem.num_devices))
    one, other = before[cut], later[cut]
    took = problem.send_ns[tensor[cut], problem.send_class[device[one], device[other]]]
    np.add.at(sent, (island[one], device[other]), took)
    np.add.at(sent, (island[other], device[one]), took)
    return island, sent
