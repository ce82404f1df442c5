"""Orders of one device that keep memory low, by simple rules; `memory_order` is what other methods ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadmaster.baselines import exact_orders
from loadmaster.graph.columns import Ints, ints, inverse, positions, rows_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds.peak import cut_order
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
        from loadmaster.baselines.simple import OneDevice

        problem = search.problem
        device = OneDevice().optimize(search).device
        return Plan.of(problem, device, positions(memory_order(problem, self.rule)))


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
