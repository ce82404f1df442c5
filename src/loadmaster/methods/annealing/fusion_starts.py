"""Where search over fusion begins: kernels by simple rules with their fusion priorities, and what chains need to merge
anew.

Moves change priorities, not kernels (`annealing.moves.fusion`); so kernels that came from elsewhere need priorities
that give about these kernels (`kernels_of`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.baselines.fusion.merging import make_kernels
from loadmaster.baselines.fusion.spaces import ways_of
from loadmaster.graph.columns import Ints, ints, inverse, positions, ragged, rows_of
from loadmaster.graph.kinds import REDUCING
from loadmaster.methods.annealing.moves.fusion import Fusing
from loadmaster.methods.annealing.state import LEVELS
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.remembering import LastFew
from loadmaster.search import Score, Search
from loadmaster.simulator import contraction, contraction_facts, layout

Floats = NDArray[np.float64]
_ORDERS: LastFew[list[Floats]] = LastFew("simple_orders", 1)  # asked for again after every long epoch
BATCH = 8  # kernels scored between two looks at the budget


class FusionStart(NamedTuple):
    """How ops are fused, and which merges are to be tried first when that is to change.

    Attributes:
        priority: [pairs of ops that may share a kernel] 1 to LEVELS, the highest first; -1: not at all.
        sequence: [ops] kernels in an order in which each comes after those it waits for, then -1.
    """

    priority: Floats  # [pairs of ops that may share a kernel]
    kernel: NDArray[np.int32]  # [ops]
    sequence: NDArray[np.int32]  # [ops]


def kernels_of(problem: Problem, kernel: Ints, order: Floats | None = None) -> FusionStart:
    """Kernels with priorities: those that are drawn from an order of merges in [0, 1), below 0 for none; else such that
    give about these kernels."""
    if order is None:
        merges = Merges.of(problem)
        order = np.where(kernel[merges.producers] == kernel[merges.consumers], 0.5, -1.0)
    priority = np.where(order < 0, -1.0, np.minimum(order, 0.999) * (LEVELS - 1) + 1.0)
    sequence, heads = np.full(len(kernel), -1, np.int32), coarsen(problem, kernel).heads
    sequence[: len(heads)] = heads
    return FusionStart(priority, kernel.astype(np.int32), sequence)


def simple_fusions(search: Search, plan: Plan, most: int, fifo: bool = False) -> list[tuple[FusionStart, Score]]:
    """The best few of simple fusions of a plan, best first, as starts of a search."""
    found = fused_simply(search, plan, most, fifo)
    return [(kernels_of(search.problem, kernel, order), score) for kernel, order, score in found]


def fused_simply(search: Search, plan: Plan, most: int, fifo: bool = False) -> list[tuple[Ints, Floats | None, Score]]:
    """(kernels, their order of merges if they have one, score) of the best few simple fusions of a plan, best first:
    what graph compilers do, and every merge that is legal, in several orders; as many as the budget still simulates."""
    problem, merges = search.problem, Merges.of(search.problem)
    orders = np.stack([np.zeros(problem.num_ops), *simple_orders(problem)])
    greedy = merges.greedy(plan.device)
    kernels = np.vstack([greedy, merges.kernels(plan.device, orders)])
    found: list[tuple[Score, int]] = []
    for low in range(0, len(kernels), BATCH):
        if found and search.spent:
            break
        scores = _scores(search, plan, kernels[low : low + BATCH], fifo)
        found += [(score, low + at) for at, score in enumerate(scores)]
    best = sorted(found)[:most]
    return [(ints(kernels[row]), orders[row - 1, merges.producers] if row else None, score) for score, row in best]


def _scores(search: Search, plan: Plan, kernels: NDArray[Any], fifo: bool) -> list[Score]:
    if fifo:
        some = kernels[: search.simulations_left]
        return [search.score(search.first_come(plan.device, ints(kernel))) for kernel in some]
    device, rank = (np.broadcast_to(column, kernels.shape) for column in (plan.device, plan.rank))
    over, value = search.score_fused(device, rank, kernels)
    return [Score(int(o), int(v)) for o, v in zip(over, value, strict=True)]


def fusing_for(problem: Problem, chains: int, device: Ints | None = None) -> list[Fusing]:
    """For each chain: it holds scratch space. `device`: where the ops stay; then only pairs that are together are
    drawn."""
    merges = Merges.of(problem)
    together = np.ones(len(merges.producers), bool)
    if device is not None:
        together = device[merges.producers] == device[merges.consumers]
    pairs = ints(np.flatnonzero(together))
    # An op that waits for none is listed twice in a set.
    sets = ragged(sorted({tuple(dict.fromkeys(alike)) for alike in pairs_alike(problem, merges, pairs)}))
    return [_fusing(problem, merges, pairs, sets) for _ in range(chains)]


def _fusing(problem: Problem, merges: Merges, drawn: Ints, sets: tuple[Ints, Ints]) -> Fusing:
    shown, space = contraction.make_space(layout(problem))
    (start, members), pairs, ops = sets, len(merges.producers), problem.num_ops
    index = np.full(pairs, -1, np.int64)
    index[drawn] = np.arange(len(drawn))
    within_start, within = inverse(ints(np.arange(len(members) + 1)), members, pairs)
    return Fusing(
        merges.rules,
        contraction_facts(problem),
        shown,
        space,
        drawn,
        ints(index),
        start,
        members,
        within_start,
        within,
        ints(rows_of(start)),
        make_kernels(merges.rules),
        pair_from=np.empty(pairs, np.int32),
        pair_to=np.empty(pairs, np.int32),
        trial=np.empty(ops, np.int32),
        opened=np.zeros(ops, np.bool_),
        old_priority=np.empty(pairs),
        drawn=np.empty(pairs, np.int64),
    )


def simple_orders(problem: Problem) -> list[Floats]:
    """Priorities by rules that any graph has: by bytes saved, first or last op first; reductions before or after
    the others; all producers, or only those with one reader."""
    return _ORDERS.of(problem, None, lambda: _simple_orders(problem))


def _simple_orders(problem: Problem) -> list[Floats]:
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


def pairs_alike(problem: Problem, merges: Merges, pairs: Ints) -> list[tuple[int, ...]]:
    """Sets of pairs that do the same work: with producers of one kind; of two kinds; among the same kinds; and of the
    same size."""
    graph, (start, before) = problem.graph, problem.graph.dependencies
    groups: dict[tuple[Any, ...], list[int]] = {}
    for pair in pairs.tolist():
        op, reader = int(merges.producers[pair]), int(merges.consumers[pair])
        kinds = (graph.kind[op], graph.kind[reader])
        near = (*kinds, *sorted(graph.kind[maker] for maker in before[start[op] : start[op + 1]]))
        for key in {kinds[:1], kinds, near, (*near, int(problem.traffic_bytes[op]))}:  # each set holds a pair once
            groups.setdefault(key, []).append(pair)
    return sorted({tuple(group) for group in groups.values()})
