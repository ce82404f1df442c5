"""Branch and bound: every timeline of a small problem looked at or ruled out, so that its best plan is proved so.

For up to 64 ops on 16 devices, judged by the step time and without a host. Decisions are taken in the order of time as
the simulator meets them, so that what it counts is exactly what `simulate` counts. What it finds first is a plan of
`start`; then it costs as many moments as there are ways that the bounds cannot rule out, which may be endless: a budget
ends it, with the bound that was proved so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.methods.annealing.anneal import Anneal
from loadmaster.methods.exact.branching import moments, tree
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.bounds import levels, lower_bound
from loadmaster.problem.symmetry import alike_devices
from loadmaster.search import Method, Score, Search
from loadmaster.simulator import layout, simulate

MOST_OPS, MOST_DEVICES, MOST_COPIES = 64, 16, 2_000  # what is worth a try (docs/methods/exact.md)
ENTRIES = 1 << 20  # moments that are remembered: 24 MB
START = 3_000  # simulations for the first plan, at most
STEP = 2_000  # moments between looks at the clock: some milliseconds


@dataclass(frozen=True)
class BranchAndBound:
    """Branch and bound over all placements, orders of ops and orders of sends, for the step time of small problems.

    A timeline is a row of decisions: on which device an op runs, what a free device or channel takes next. They are
    taken in the order of time, as the simulator would meet them, so that every leaf is a plan and every plan a leaf.
    Ways on are given up when a bound of all that is left (critical paths with their sends, work on one device, work on
    all) is no better than the best plan; when the same moment was met before, no later; and when they only swap devices
    or ops that nothing tells apart. Begins with the plan of `start`. Nothing is fused.

    Attributes:
        start: gives the plan that bounds are first held against.
    """

    start: Method = field(default_factory=Anneal)

    def optimize(self, search: Search) -> Plan:
        with search.keeping(0.5, simulations=START) as part:
            plan = self.start.optimize(part)
        if search.best is None:
            search.score(plan)
        assert search.best is not None, "it was just scored"
        search.prove(lower_bound(search.problem, fitting=True, seconds=search.bound_seconds))
        if can_branch(search.problem) and not search.closed:
            _run(search, SearchTree(search.problem, search.best))
        return search.best


def _run(search: Search, branches: SearchTree) -> None:
    """Until all is proved or the budget is spent, of which each moment looked at takes as much as a simulation."""
    while not branches.finished and not search.spent:
        before = branches.looked_at + branches.simulated
        found = branches.go_on(search.best_score, min(STEP, search.simulations_left))
        looked = branches.looked_at + branches.simulated - before
        search.count(min(looked, search.simulations_left))  # options are weighed all together
        if found is not None:
            search.offer(*found)
    search.prove(branches.bound(search.best_score))
    search.note = "proved optimal" if search.closed else f"no plan is under {search.bound:,}"


def can_branch(problem: Problem) -> bool:
    """Small, judged by the step time alone, and without a host."""
    small = problem.num_ops <= MOST_OPS and problem.num_devices <= MOST_DEVICES
    few = problem.graph.num_tensors * problem.num_devices <= MOST_COPIES
    goal = problem.goal
    plain = goal.step_price == 1 and not len(goal.busy_price) and not len(problem.dispatch_ns)
    return small and few and plain


class SearchTree:
    """The tree of one problem, which is gone through bit by bit.

    `go_on` looks at so many moments more and stops at a plan better than what it is given; `bound` is what is proved by
    then, and `finished` says that nothing is left.
    """

    def __init__(self, problem: Problem, usual: Plan) -> None:
        self.problem = problem
        self.facts = _facts(problem, usual)
        # What was left behind counts for memory, so that two moments alike in all else may not be.
        entries = 0 if may_be_full(problem) else ENTRIES
        self.tree: Any = tree.make_tree(self.facts, entries)
        self.finished = False
        self.simulated = 0  # plans that it met
        self.unclear = np.iinfo(np.int64).max  # least step of timelines that do not fit, or came out otherwise

    @property
    def looked_at(self) -> int:
        return int(self.tree.nodes[0])

    def go_on(self, best: Score, more: int) -> tuple[Plan, Score] | None:
        """A plan better than `best`, with its score, if one is met within so many moments more."""
        limit = best.value if best.over_bytes == 0 else moments.FAR
        stop = self.looked_at + more
        while self.looked_at < stop:
            answer = tree.explore(self.facts, self.tree, limit, stop - self.looked_at)
            if answer != tree.FOUND:
                self.finished = answer == tree.FINISHED
                return None
            plan = self._plan()
            score = Score.of(self.problem, simulate(self.problem, plan))
            self.simulated += 1
            if score.value != int(self.tree.leaf[0]):
                self.unclear = min(self.unclear, int(self.tree.leaf[0]))
            if score < best:
                return plan, score
        return None

    def bound(self, best: Score) -> int:
        """No plan that fits is under it."""
        limit = best.value if best.over_bytes == 0 else moments.FAR
        bound = int(min(tree.proven(self.tree, limit), self.unclear))
        return bound if bound < moments.FAR else 0

    def _plan(self) -> Plan:
        """That of the timeline in `leaf`: ranks in the order in which things were started."""
        problem, row = self.problem, self.tree.leaf
        ops, slots = problem.num_ops, problem.graph.num_tensors * problem.num_devices
        turn = row[2 + 3 * ops : 2 + 4 * ops]
        copies = row[2 + 4 * ops + 2 * slots : 2 + 4 * ops + 3 * slots]
        plan = Plan.of(problem, row[2 : 2 + ops].copy(), np.argsort(np.argsort(turn)))
        return replace(plan, send_rank=ints(copies.reshape(-1, problem.num_devices)))


def may_be_full(problem: Problem) -> bool:
    """Whether memory can be short at all: all tensors at once, and the largest workspace, are more than the smallest
    device."""
    graph = problem.graph
    return int(graph.nbytes.sum() + graph.workspace_bytes.max()) > int(problem.memory_bytes.min())


def _facts(problem: Problem, usual: Plan) -> moments.BranchFacts:
    graph, devices, plain = problem.graph, problem.num_devices, layout(problem)
    updates = np.zeros(problem.num_ops, np.int64)
    updates[problem.updater[problem.is_updated]] = 1
    times = np.where(problem.able, problem.op_ns, CANNOT)
    price = levels.prices(times, np.ones(devices, np.int64), 4096, 200)
    sends = np.zeros((graph.num_tensors, devices, devices), np.int64)
    if devices > 1:
        sends[:] = np.where(np.eye(devices, dtype=bool)[None], 0, problem.send_ns[:, problem.send_class])
    return moments.BranchFacts(
        devices,
        plain.channels,
        bool(problem.cluster.contention),
        times,
        _ragged(*graph.dependencies),
        _ragged(graph.after_start, graph.after),
        _ragged(plain.next_start, plain.nexts),
        _ragged(plain.read_start, plain.reads),
        _ragged(graph.make_start, graph.makes),
        _ragged(*graph.readers),
        np.column_stack([plain.maker, problem.is_updated]).astype(np.int64),
        np.column_stack([problem.leader, updates, _twins(problem), usual.device]).astype(np.int64),
        plain.channel.astype(np.int64),
        alike_devices(problem),
        price,
        np.where(problem.able, problem.op_ns * price[None, :], np.inf).min(axis=1),
        sends,
    )


def _ragged(start: Ints, values: Ints) -> np.ndarray:
    return np.concatenate([np.asarray(start, np.int64) + len(start), np.asarray(values, np.int64)])


def _twins(problem: Problem) -> Ints:
    """[ops] the last earlier op with the same reads, times, groups and readers, or -1."""
    graph, seen = problem.graph, dict[Any, int]()
    twin = np.full(problem.num_ops, -1, np.int64)
    start, before = graph.dependencies
    follow = [set[int]() for _ in range(problem.num_ops)]
    for op in range(problem.num_ops):
        for earlier in before[start[op] : start[op + 1]].tolist():
            follow[earlier].add(op)
    for op in range(problem.num_ops):
        made = sorted(
            (int(graph.nbytes[t]), int(graph.role[t]), int(graph.alias_of[t]), tuple(graph.readers_of(int(t)).tolist()))
            for t in graph.makes_of(op)
        )
        key = (
            tuple(sorted(graph.reads_of(op).tolist())),
            tuple(sorted(before[start[op] : start[op + 1]].tolist())),
            tuple(sorted(follow[op])),
            tuple(problem.op_ns[op].tolist()),
            tuple(made),
            int(problem.leader[op]) if graph.is_colocated[op] else -1,
            int(graph.workspace_bytes[op]),
        )
        twin[op] = seen.get(repr(key), -1)
        seen[repr(key)] = op
    return ints(twin)
