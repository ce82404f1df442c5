"""Fusion: which ops share a kernel. Every rule here gives convex kernels with at most one heavy op."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmaster.columns import Bools, Ints, ints, rows_of
from loadmaster.kinds import HEAVY, OPAQUE, work_of
from loadmaster.optimizers import _merging
from loadmaster.optimizers.list_schedulers import Heft
from loadmaster.optimizers.simple import allowed
from loadmaster.plan import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Search
from loadmaster.simulate import Lift, coarse

MOST_MEMBERS = 64  # ops in one kernel; generated code gets slow to compile beyond that


@dataclass(frozen=True)
class GreedyFusion:
    """The default rule of graph compilers: a producer joins its consumer when nobody else reads it; then `inner`
    plans the kernels.

    In the manner of XLA's instruction fusion (consumers visited last to first), without duplicating producers.
    """

    inner: Optimizer = field(default_factory=Heft)

    def optimize(self, search: Search) -> Plan:
        kernel = greedy_kernels(search.problem)
        return plan_fused(search, kernel, self.inner)


def plan_fused(search: Search, kernel: Ints, inner: Optimizer) -> Plan:
    """The inner optimizer's plan of the coarser problem, lifted back."""
    problem = search.problem
    small = coarse(problem, kernel)
    part = search.part(problem=small)
    plan = inner.optimize(part)
    plan = part.best if part.best is not None and _better(part, plan) else plan
    lift = Lift.of(problem, small, kernel)
    # A kernel may hold kernels that the inner optimizer fused further.
    return Plan.of(problem, lift.up(plan.device), lift.up(plan.rank), lift.heads[plan.kernel][lift.kernel_of])


def _better(part: Search, plan: Plan) -> bool:
    return plan is not part.best and part.score(plan) > part.best_score


def greedy_kernels(problem: Problem) -> Ints:
    """[ops] kernels by the default rule."""
    producers, consumers = candidate_pairs(problem)
    order = np.argsort(-consumers, kind="stable")
    return merge(problem, producers[order], consumers[order], sole_reader=True)


def kernels_by_priority(problem: Problem, priority: np.ndarray) -> Ints:
    """[ops] kernels from merging producer into consumer, highest priority of the producer first, wherever legal."""
    producers, consumers = candidate_pairs(problem)
    order = np.lexsort((consumers, -priority[producers]))
    return merge(problem, producers[order], consumers[order], sole_reader=False)


def candidate_pairs(problem: Problem) -> tuple[Ints, Ints]:
    """(producers, consumers) of every tensor between two ops that may share a kernel at all."""
    graph = problem.graph
    free = fusable(problem)
    consumer, producer = rows_of(graph.read_start), graph.producer[graph.reads]
    keep = (producer >= 0) & free[producer] & free[consumer]
    pairs = np.unique(np.stack([producer[keep], consumer[keep]], axis=1), axis=0).reshape(-1, 2)
    return ints(pairs[:, 0]), ints(pairs[:, 1])


def fusable(problem: Problem) -> Bools:
    """[ops] not opaque, and not writing in place."""
    graph = problem.graph
    free = np.array([work_of(kind) != OPAQUE for kind in graph.kind])
    free[graph.producer[(graph.alias_of >= 0) & (graph.producer >= 0)]] = False
    return free


def heavy(problem: Problem) -> Bools:
    return np.array([work_of(kind) == HEAVY for kind in problem.graph.kind])


def merge(problem: Problem, producers: Ints, consumers: Ints, *, sole_reader: bool) -> Ints:
    """[ops] kernels after trying the merges in order; each only if the kernel stays convex, small, and has one heavy
    op."""
    start, before = problem.graph.dependencies
    kernel = _merging.merge(
        start,
        before,
        producers,
        consumers,
        heavy(problem),
        np.ascontiguousarray(allowed(problem)),
        MOST_MEMBERS,
        sole_reader,
    )
    return ints(kernel)


@dataclass(frozen=True)
class RandomFusion:
    """Merges in a random order, the best of several; kernels stay on the devices that `inner` chose."""

    inner: Optimizer = field(default_factory=Heft)
    samples: int = 64

    def optimize(self, search: Search) -> Plan:
        plan = start_of(search, self.inner)
        for _ in range(self.samples):
            if search.spent:
                break
            search.score(refuse(search.problem, plan, search.rng.random(search.problem.num_ops)))
        return search.best if search.best is not None else plan


@dataclass(frozen=True)
class AnnealFusion:
    """Simulated annealing over the priorities in which merges are tried; devices and order are those of `inner`.

    Starts from the default rule's kernels, expressed as priorities.
    """

    inner: Optimizer = field(default_factory=Heft)
    heat: float = 2e-3
    cold: float = 1e-5

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        plan = start_of(search, self.inner)
        if not search.spent:
            search.score(with_kernels(problem, plan, greedy_on(problem, plan)))
        priority = search.rng.random(problem.num_ops)
        here = score = search.score(refuse(problem, plan, priority)) if not search.spent else search.best_score
        begun = search.progress
        while not search.spent:
            heat = self.heat * (self.cold / self.heat) ** ((search.progress - begun) / max(1e-9, 1 - begun))
            trial = _shuffle_some(priority, search.rng)
            score = search.score(refuse(problem, plan, trial))
            bar = here.value * (1 + heat * search.rng.exponential())
            if score.over_bytes <= here.over_bytes and score.value <= bar:
                priority, here = trial, score
        return search.best if search.best is not None else plan


def _shuffle_some(priority: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """New priorities for a window of ops, log-uniform in length."""
    count = len(priority)
    length = int(np.exp(rng.random() * np.log(count + 1)))
    start = int(rng.integers(0, count))
    trial = priority.copy()
    part = slice(start, start + max(1, length))
    trial[part] = rng.random(len(trial[part])) - 0.1
    return trial


def start_of(search: Search, inner: Optimizer) -> Plan:
    """The inner optimizer's plan without fusion, scored."""
    part = search.part(0.2)
    plan = inner.optimize(part)
    if part.best is not None and (search.spent or part.score(plan) > part.best_score):
        plan = part.best
    if not search.spent:
        search.score(plan)
    return plan


def greedy_on(problem: Problem, plan: Plan) -> Ints:
    """[ops] kernels by the default rule among ops of one device."""
    producers, consumers = _same_device(problem, plan.device)
    order = np.argsort(-consumers, kind="stable")
    return merge(problem, producers[order], consumers[order], sole_reader=True)


def refuse(problem: Problem, plan: Plan, priority: np.ndarray) -> Plan:
    """The plan with kernels merged by priority among ops of one device; producers below 0 are not merged."""
    producers, consumers = _same_device(problem, plan.device)
    wanted = priority[producers] >= 0
    producers, consumers = producers[wanted], consumers[wanted]
    order = np.lexsort((consumers, -priority[producers]))
    return with_kernels(problem, plan, merge(problem, producers[order], consumers[order], sole_reader=False))


def _same_device(problem: Problem, device: Ints) -> tuple[Ints, Ints]:
    producers, consumers = candidate_pairs(problem)
    together = device[producers] == device[consumers]
    return ints(producers[together]), ints(consumers[together])


def with_kernels(problem: Problem, plan: Plan, kernel: Ints) -> Plan:
    return Plan.of(problem, plan.device, plan.rank, kernel)
