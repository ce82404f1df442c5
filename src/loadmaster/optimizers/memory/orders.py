"""Orders that keep memory low: on one device exactly, on several by cutting a good order.

`memory_order` is what other methods ask for an order by; the two methods here put everything on one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadmaster.graph.columns import Ints, ints, inverse, positions, rows_of
from loadmaster.optimizers.annealing.acceptance import cooled
from loadmaster.optimizers.annealing.chains import epochs
from loadmaster.optimizers.memory import exact_orders, order_moves
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import cut_order
from loadmaster.search import Search

Rule = Literal["given", "dfs", "bfs", "lpmf", "rpo", "cut", "best"]
PLAIN: tuple[Rule, ...] = ("given", "dfs", "bfs", "lpmf", "rpo")
RULES: tuple[Rule, ...] = (*PLAIN, "cut")
MOST_READY = 512  # how many ready ops the greedy rule compares


@dataclass(frozen=True)
class MemoryOrder:
    """Everything on one device, in an order that a simple rule gives: given, depth first, breadth first, least peak
    memory first, reverse post-order, the one that the bound's search for the largest cut meets, or the best of them.

    Attributes:
        rule: given, dfs, bfs, lpmf (least peak memory first), rpo (reverse post-order), cut, or best: the best of them.
    """

    rule: Rule = "best"

    def optimize(self, search: Search) -> Plan:
        from loadmaster.optimizers.simple import OneDevice

        problem = search.problem
        device = OneDevice().optimize(search).device
        return Plan.of(problem, device, positions(memory_order(problem, self.rule)))


@dataclass(frozen=True)
class AnnealOrder:
    """Annealing over topological orders of one device with exact differences: millions of moves a second.

    Starts from the best simple rule. A thousand moves count as one simulation: a move is judged by the bytes it changes
    and not by a simulation. Acceptance, cooling, its length and random numbers are those of every other annealing.

    Attributes:
        temperature: first temperature, as a share of the peak.
        cold: last temperature.
        window: places that an op goes at most in one move.
    """

    temperature: float = 3e-3
    cold: float = 1e-5
    window: int = 1_000

    def optimize(self, search: Search) -> Plan:
        from loadmaster.optimizers.simple import OneDevice

        problem = search.problem
        device = OneDevice().optimize(search).device
        plans = [
            Plan.of(problem, device, positions(order))
            for order in anneal_order(search, self.temperature, self.cold, self.window)
        ]
        for plan in plans[::-1]:  # the one that annealing found first: there may be but one simulation left
            if not search.spent:
                search.score(plan)
        return search.best or plans[-1]


MOVES_PER_SIMULATION = 1_000  # a move looks at a few ops, a simulation at all
CHUNK = 8  # simulations' worth of moves at one temperature, and between two looks at the budget


def anneal_order(search: Search, hot: float, cold: float, window: int) -> list[Ints]:
    """The best order that annealing finds within what is left of the budget, after the best simple one. It cools again
    and again, each time for longer and from the best order so far, whatever the budget is."""
    flow = flow_of(search.problem)
    start = memory_order(search.problem)
    best, profile = start.copy(), np.empty(len(start), np.int64)
    state = search.rng.integers(1, 2**62, 2, dtype=np.uint64)
    for length in epochs():
        order, done = best.copy(), 0
        while done < length and not search.spent and search.simulations_left > 1:
            here = cooled(hot, cold, done / length)
            count = min(CHUNK, length - done, search.simulations_left - 1)
            trial = order.copy()
            peak, _ = order_moves.anneal(flow, order, trial, count * MOVES_PER_SIMULATION, window, here, state)
            if peak < exact_orders.profile(flow, best, profile):
                best = trial
            search.count(count)
            done += count
        if search.spent or search.simulations_left <= 1:
            break
    return [ints(start), ints(best)]


def memory_order(problem: Problem, rule: Rule = "best", among: tuple[Rule, ...] = RULES) -> Ints:
    """[ops] ops in the order of the rule; "best": of those it is to be among."""
    flow = flow_of(problem)
    if rule != "best":
        return _by_rule(problem, flow, rule)
    room = np.empty(problem.num_ops, np.int64)
    orders = [_by_rule(problem, flow, each) for each in among]
    return min(orders, key=lambda order: int(exact_orders.profile(flow, order, room)))


def _by_rule(problem: Problem, flow: exact_orders.Flow, rule: Rule) -> Ints:
    if rule == "dfs":
        return ints(exact_orders.depth_first(flow, True))
    if rule == "bfs":
        return ints(exact_orders.breadth_first(flow))
    if rule == "lpmf":
        return ints(exact_orders.greedy(flow, MOST_READY))
    if rule == "rpo":
        return ints(exact_orders.post_order(flow))
    if rule == "cut":
        return cut_order(problem)
    return ints(np.arange(problem.num_ops))


def flow_of(problem: Problem) -> exact_orders.Flow:
    """The made tensors of the problem on one device; what is written in place counts as a use of its base."""
    graph = problem.graph
    base = graph.owner
    made = graph.is_made[base]
    reader = rows_of(graph.read_start)
    use_rows = np.concatenate([reader, graph.producer[graph.makes]])
    use_tensors = np.concatenate([base[graph.reads], base[graph.makes]])
    # A tensor made by the op itself is no use; one it overwrites is.
    keep = made[use_tensors] & (graph.producer[use_tensors] != use_rows)
    pairs = np.unique(np.stack([use_rows[keep], use_tensors[keep]], axis=1), axis=0).reshape(-1, 2)
    read_start = np.zeros(problem.num_ops + 1, np.int64)
    np.cumsum(np.bincount(pairs[:, 0], minlength=problem.num_ops), out=read_start[1:])
    reads = ints(pairs[:, 1])
    reader_start, readers = inverse(ints(read_start), reads, graph.num_tensors)
    own = np.where(graph.is_fresh, graph.nbytes, 0)
    stays = np.zeros(graph.num_tensors, np.int8)
    stays[base[problem.stays]] = 1
    before_start, before = graph.dependencies
    follow_start, follow = inverse(before_start, before, problem.num_ops)
    return exact_orders.Flow(
        ints(read_start),
        reads,
        graph.make_start,
        graph.makes,
        reader_start,
        readers,
        graph.producer,
        ints(own),
        stays,
        graph.workspace_bytes,
        before_start,
        before,
        follow_start,
        follow,
    )
