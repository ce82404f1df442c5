"""Fusion: which ops share a kernel. Every rule here gives convex kernels of one loop each, as `spaces` has it.

`Merges` is what is found out once of a problem: pairs that may merge, and the bytes between them. Kernels are the
result of trying pairs in an order, so that a rule is an order: the default one takes most bytes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.fusion import merging
from loadmaster.baselines.fusion.spaces import fusable, joinable, possible, spaces_of, ways_of
from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.graph import Graph
from loadmaster.graph.columns import Bools, Ints, from_pairs, ints, inverse, positions, rows_of
from loadmaster.graph.kinds import REDUCING
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.plans.expansion import keeps_to
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Sharing
from loadmaster.problem.problem import LastFew
from loadmaster.search import Method, Search
from loadmaster.simulator import spread

MOST_MEMBERS = 64  # ops in one kernel; generated code gets slow to compile beyond that


@dataclass(frozen=True)
class GreedyFusion:
    """The default rule of graph compilers: what makes a tensor joins what reads it, most bytes first; then `inner`
    plans the kernels.

    In the manner of PyTorch's Inductor, without duplicating producers and without joining ops of which none reads the
    other.

    Attributes:
        inner: plans the kernels.
    """

    inner: Method = field(default_factory=Heft)

    def optimize(self, search: Search) -> Plan:
        search.fusing = Merges.of(search.problem).sharing
        kernel = greedy_kernels(search.problem)
        return plan_fused(search, kernel, self.inner)


def plan_fused(search: Search, kernel: Ints, inner: Method) -> Plan:
    """The inner method's plan of the coarser problem, lifted back. What it scored best is kept, also where that
    ended the budget: kernels take the same time as ops of the coarser problem."""
    coarse = coarsen(search.problem, kernel)
    part = search.part(problem=coarse.problem)
    try:
        plan = inner.optimize(part)
    finally:
        if part.best is not None:
            search.offer(coarse.up(part.best), part.best_score)
    return coarse.up(part.best if part.best is not None and _better(part, plan) else plan)


def _better(part: Search, plan: Plan) -> bool:
    return plan is not part.best and part.score(plan) > part.best_score


@dataclass(frozen=True, eq=False)
class Merges:
    """Which ops of a problem may share a kernel at all, found once.

    Attributes:
        rules: merging.Rules, as the compiled loops want them.
        producers: of every tensor between two ops that may share a kernel, by producer, then reader.
        saved: bytes between the two.
        alone: [ops] that share no kernel.
    """

    rules: Any
    producers: Ints
    consumers: Ints
    saved: Ints
    alone: Bools  # [ops]

    @staticmethod
    def of(problem: Problem) -> Merges:
        """Those of the problem, remembered with it."""
        return _merges.get(problem) or _merges.setdefault(problem, Merges._found(problem))

    @property
    def sharing(self) -> Sharing:
        """What bounds are told of it."""
        return Sharing(self.producers, self.consumers, MOST_MEMBERS, self.alone)

    @staticmethod
    def _found(problem: Problem) -> Merges:
        graph, able, spaces, free = problem.graph, problem.able, spaces_of(problem.graph), fusable(problem.graph)
        waits = graph.dependencies
        before, follow = [(narrow(start), narrow(ops)) for start, ops in (waits, inverse(*waits, graph.num_ops))]
        makers, readers = edges_between(graph)
        joins = joinable(graph, spaces, makers, readers)
        bars = from_pairs(
            np.concatenate([makers[~joins], readers[~joins]]),
            np.concatenate([readers[~joins], makers[~joins]]),
            graph.num_ops,
        )
        producers, consumers = ints(makers[joins]), ints(readers[joins])
        keep = possible(before, follow, producers, consumers, free, MOST_MEMBERS)
        producers, consumers = ints(producers[keep]), ints(consumers[keep])
        each = ints(np.arange(len(producers) + 1))
        start, pairs = inverse(each, producers, problem.num_ops)
        given_start, given = inverse(each, consumers, problem.num_ops)
        rows = [narrow(part) for part in (start, consumers[pairs], producers, given_start, given, *bars)]
        able = np.ascontiguousarray(able[:, :0] if able.all() else able)
        rules: Any = merging.Rules
        loops = (spaces.points, spaces.rows, spaces.apart)
        saved = bytes_between(graph, producers, consumers)
        return Merges(rules(*before, *follow, *rows, *loops, able, MOST_MEMBERS), producers, consumers, saved, ~free)

    def kernels(self, device: NDArray[np.integer], priority: NDArray[Any]) -> NDArray[np.int32]:
        """[candidates, ops] kernels from merging each producer into its readers on the same device, highest priority
        first, wherever legal; a producer below 0 joins none of its readers. Devices: one row for all, or a row each."""
        places = np.ascontiguousarray(np.atleast_2d(device), np.int32)
        priorities = np.ascontiguousarray(np.atleast_2d(priority), np.float64)
        out = np.empty(priorities.shape, np.int32)

        def part(low: int, high: int) -> None:
            merging.merge_many(self.rules, places, priorities, low, high, out)

        spread(part, len(priorities))
        return out

    def greedy(self, device: Ints | None = None) -> Ints:
        """[ops] kernels by the default rule, where devices are given among ops of one device."""
        producers, consumers, saved = self.producers, self.consumers, self.saved
        if device is not None:
            together = device[producers] == device[consumers]
            producers, consumers, saved = producers[together], consumers[together], saved[together]
        order = np.lexsort((producers, -consumers, -saved))
        return ints(merging.merge(self.rules, producers[order], consumers[order]))


def narrow(column: NDArray[Any]) -> NDArray[np.int32]:
    """In 32 bits, as the compiled loops of fusion want it."""
    return np.ascontiguousarray(column, np.int32)


_merges: WeakKeyDictionary[Problem, Merges] = WeakKeyDictionary()
_ORDERS: LastFew[list[NDArray[np.float64]]] = LastFew("simple_orders", 1)  # asked for again and again


def greedy_kernels(problem: Problem) -> Ints:
    """[ops] kernels by the default rule."""
    return Merges.of(problem).greedy()


def edges_between(graph: Graph) -> tuple[Ints, Ints]:
    """(makers, readers) of every tensor between two ops that do not run alone, by maker, then reader."""
    free = fusable(graph)
    reader, maker = rows_of(graph.read_start), graph.producer[graph.reads]
    keep = (maker >= 0) & free[maker] & free[reader]
    pairs = np.unique(np.stack([maker[keep], reader[keep]], axis=1), axis=0).reshape(-1, 2)
    return ints(pairs[:, 0]), ints(pairs[:, 1])


def bytes_between(graph: Graph, producers: Ints, consumers: Ints) -> Ints:
    """[pairs] of all tensors that the second reads of the first; pairs are by producer, then reader."""
    reader, maker = rows_of(graph.read_start), graph.producer[graph.reads]
    keys, key = producers * graph.num_ops + consumers, maker * graph.num_ops + reader
    total, known = np.zeros(len(keys), np.int64), (maker >= 0) & np.isin(key, keys)
    np.add.at(total, np.searchsorted(keys, key[known]), graph.nbytes[graph.reads[known]])
    return ints(total)


def simple_orders(problem: Problem) -> list[NDArray[np.float64]]:
    """Priorities by rules that any graph has: by bytes saved, first or last op first; reductions before or after
    the others; all producers, or only those with one reader."""
    return _ORDERS.of(problem, None, lambda: _simple_orders(problem))


def _simple_orders(problem: Problem) -> list[NDArray[np.float64]]:
    count, graph = problem.num_ops, problem.graph
    made = graph.is_made
    saved, readers = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(saved, graph.producer[made], graph.nbytes[made])
    np.maximum.at(readers, graph.producer[made], np.diff(graph.readers[0])[made])
    program, reduces = np.arange(count), ways_of(graph) == REDUCING
    rules = []
    for by in (saved, program, -program):
        for first in (reduces, ~reduces, np.zeros(count, bool)):
            order = np.lexsort((-program, by, first))
            place = positions(order) / count
            rules += [place, np.where(readers == 1, place, -1.0)]
    return rules


def sharing_of(problem: Problem) -> Sharing:
    """Which ops of the problem searches may fuse."""
    return Merges.of(problem).sharing


def fusing_of(problem: Problem, plan: Plan) -> bool | Sharing:
    """What its bound must hold for: nothing fused, what searches may fuse, or, where it was fused by others, all."""
    if not plan.fuses:
        return False
    base = problem if problem.expansion is None else problem.expansion.base
    sharing = sharing_of(base)
    return sharing if keeps_to(base, plan, sharing) else True
