"""CP-SAT: a plan polished and, where it can be, proved optimal; tiny problems solved by trying all plans.

`CpSat` is a method of its own; `closing` runs the same beside another search, on a thread, so that a small problem ends
when its best plan is proved so. The model (`exact_model`) lets devices idle, which plans cannot (rule 3 of the
simulator): its optimum is a bound, and its schedule is judged like any other. Where OR-Tools is not installed
`branching` takes its place.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import product
from math import ceil
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from loadmaster.errors import MissingExtra
from loadmaster.graph.columns import ints
from loadmaster.methods.annealing.anneal import Anneal
from loadmaster.methods.exact import MOST_PROVED
from loadmaster.methods.exact.branching import beside as branching
from loadmaster.methods.exact.branching.proving import close
from loadmaster.methods.exact.cp_model import CpModel
from loadmaster.methods.exact.timelines import every_timeline
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.search import Budget, Method, Score, Search
from loadmaster.simulator import Timeline, cores, simulate

MOST_INTERVALS = 20_000  # beyond that even the model takes long to build
TINY_OPS, TINY_DEVICES = 6, 2  # up to which every timeline is tried
QUICK_OPS = 1_000  # the bound on peak memory takes under a second for so many
MOST_TRIED = 400  # timelines of a tiny problem
MOST_BESIDE = 600  # intervals in a model that CP-SAT can hope to close beside a search
LEAST_SECONDS = 0.2  # that are left of a search, for a model to be worth building
PER_SIMULATION = 2e-3  # of CP-SAT's own deterministic seconds, where the budget counts simulations
MOST_EFFORT = 30.0  # of the same, however large the budget


class Proof(NamedTuple):
    """A plan, what no plan can beat, and whether the two meet. Over plans that fit, if the plan does.

    Attributes:
        plan: the best that was met.
        bound: in the unit of the objective.
        optimal: they meet.
    """

    plan: Plan
    bound: int
    optimal: bool


@dataclass(frozen=True)
class CpSat:
    """Constraint programming with CP-SAT (Perron and Furnon, OR-Tools), hinted with the plan of `start`.

    The model lets devices and channels idle, which plans cannot (rule 3), so its optimum is a bound and its schedule is
    judged by the simulator like any other. Problems of at most six ops on two devices are solved by trying every
    placement with every order of its ops and sends, where half the budget is enough for that.

    Attributes:
        start: whose plan is the hint, and what is to be improved.
        threads: of CP-SAT, 1 or 2.
    """

    start: Method = field(default_factory=Anneal)
    threads: int = 2

    def optimize(self, search: Search) -> Plan:
        if try_all(search, search.simulations_left // 2):
            assert search.best is not None, "a problem has a plan"
            return search.best
        # The model takes time but no simulations: where only those count, the start may use them all.
        counted = Budget(None, max(1, search.simulations_left)) if search.counts_simulations else None
        part = search.part(1.0 if counted else 0.5)
        plan = self.start.optimize(part)
        plan = plan if part.best is None or _score(search, plan) <= part.best_score else part.best
        proof = self._prove(search, plan, counted or Budget(max(0.01, 0.95 * search.seconds_left)))
        search.prove(proof.bound if _score(search, proof.plan).over_bytes == 0 else 0)
        search.note = "proved optimal" if proof.optimal else f"no plan is under {proof.bound:,}"
        return proof.plan

    def prove(
        self, problem: Problem, plan: Plan | None = None, *, budget: Budget | None = None, seed: int = 0
    ) -> Proof:
        """Improves the plan, or that of `start`, and bounds what any could reach, within the budget."""
        budget = budget or Budget()
        search = Search(problem, budget, seed)
        return self._prove(search, plan or self.start.optimize(search), budget)

    def _prove(self, search: Search, plan: Plan, budget: Budget) -> Proof:
        problem = search.problem
        best, score = plan, _score(search, plan)
        bound = lower_bound(problem, fusing=plan.fuses, fitting=score.over_bytes == 0)
        if score <= Score(0, bound) or plan.fuses or _intervals(problem) > MOST_INTERVALS:
            return Proof(plan, bound, score <= Score(0, bound))
        for trial, proved in _solved(search, plan, bound, self.threads, budget):
            bound = max(bound, proved)
            if _score(search, trial) < score:
                best, score = trial, _score(search, trial)
        return Proof(best, bound, score <= Score(0, bound))


def _score(search: Search, plan: Plan) -> Score:
    return Score.of(search.problem, search.timeline(plan))


def _placements(problem: Problem) -> list[tuple[int, ...]] | None:
    """Every legal placement of a tiny problem; None where it is not tiny, or a host decides what is asked for when."""
    if problem.num_ops > TINY_OPS or problem.num_devices > TINY_DEVICES or len(problem.dispatch_ns):
        return None
    group = problem.graph.colocate.tolist()
    legal = []
    for place in product(*(np.flatnonzero(row).tolist() for row in problem.able)):
        homes = {(g, d) for g, d in zip(group, place, strict=True) if g >= 0}
        if len(homes) == len({g for g, _ in homes}):
            legal.append(place)
    return legal


def try_all(search: Search, most: int) -> bool:
    """Scores every timeline of every placement of a tiny problem, with so many simulations at most; True if that was
    all of them."""
    last, cut_short = search.simulations + most, False

    def run(plan: Plan) -> Timeline | None:
        nonlocal cut_short
        cut_short = search.simulations >= last or search.spent
        return None if cut_short else search.timeline(plan)

    for place in _placements(search.problem) or ():
        for plan, line in every_timeline(search.problem, ints(place), run):
            search.offer(plan, Score.of(search.problem, line))
        if cut_short:
            return search.closed
    if search.best is None or _placements(search.problem) is None:
        return False
    search.prove(search.best_score.value if search.best_score.over_bytes == 0 else 0)
    search.note = "proved optimal"
    return True


@contextmanager
def closing(search: Search) -> Iterator[None]:
    """Tries to close the problem beside the search in the block: its bound is made known, so that the search ends when
    it is met; what is tiny is tried in full, and what is small goes to branch and bound first. What is left open goes
    on beside the search on a thread, if the clock decides: in CP-SAT where the problem is larger and that package is
    installed, else in branch and bound.

    When either has a plan that it proves optimal, the search is told to end, and the plan is its best.
    """
    if not search.problem.objective.of_memory or search.problem.num_ops <= QUICK_OPS:
        search.prove(lower_bound(search.problem, fitting=True, seconds=search.bound_seconds))
    if not (search.closed or try_all(search, MOST_TRIED)):
        close(search, told=False)
    if search.closed:
        yield
        return
    by_solver = find_spec("ortools") and search.problem.num_ops > MOST_PROVED
    thread = _Beside.of(search) if by_solver else branching.Beside.of(search, LEAST_SECONDS)
    if thread is None:
        yield
        return
    thread.start()
    try:
        yield
    finally:
        thread.finish()


class _Beside(Thread):
    """CP-SAT while something else searches."""

    def __init__(self, search: Search, plan: Plan) -> None:
        super().__init__(daemon=True)
        self.search, self.plan, self.line, self.until = search, plan, search.timeline(plan), search.seconds_left
        self.solver: Any = None
        self.found, self.bound, self.ended = list[tuple[Plan, Score]](), 0, False

    @staticmethod
    def of(search: Search) -> _Beside | None:
        """None where it would not help: too large, too little time, no plan that fits to start from."""
        plan, score = search.best, search.best_score
        small = _intervals(search.problem) <= MOST_BESIDE and search.problem.num_ops > 1
        if plan is None or plan.fuses or score.over_bytes or not small or search.counts_simulations:
            return None
        return _Beside(search, plan) if search.seconds_left > LEAST_SECONDS else None

    def run(self) -> None:
        problem, library = self.search.problem, cp_model()
        model, self.solver = CpModel(library, problem, self.plan, self.line, self.search.bound), library.CpSolver()
        settings = self.solver.parameters
        settings.random_seed, settings.num_workers = self.search.seed % 2**31, cores()
        settings.max_time_in_seconds = max(0.01, self.until)
        status = None if self.ended else self.solver.solve(model.model)
        if status in (library.OPTIMAL, library.FEASIBLE):
            self.found = [(plan, Score.of(problem, simulate(problem, plan))) for plan in model.plans(self.solver)]
            self.bound = ceil(self.solver.best_objective_bound - 1e-6) * model.unit
        if any(score <= Score(0, self.bound) for _, score in self.found):
            self.search.halt()

    def finish(self) -> None:
        self.ended = True
        while self.is_alive():  # a solver that is about to begin does not hear the first call
            if self.solver is not None:
                self.solver.stop_search()
            self.join(0.02)
        self.search.resume()
        self.search.prove(self.bound)
        self.search.count(len(self.found))
        for plan, score in self.found:
            self.search.offer(plan, score)
        if self.search.closed:
            self.search.note = "proved optimal"


def _intervals(problem: Problem) -> int:
    return problem.num_devices * (problem.num_ops + problem.graph.num_tensors * (problem.num_devices - 1))


def _solved(search: Search, plan: Plan, least: int, threads: int, budget: Budget) -> list[tuple[Plan, int]]:
    """Plans read off CP-SAT's schedule, each with the bound it gave."""
    library = cp_model()
    if library is None:
        raise MissingExtra.of("ortools", "exact", "cp-sat")
    model = CpModel(library, search.problem, plan, search.timeline(plan), least)
    solver = library.CpSolver()
    settings = solver.parameters
    settings.random_seed = search.seed % 2**31
    settings.num_workers = max(1, min(2, threads))
    if budget.seconds is None:
        settings.num_workers = 1  # several race, and the answer depends on who wins
        settings.max_deterministic_time = min(MOST_EFFORT, max(0.1, PER_SIMULATION * (budget.simulations or 0)))
    else:
        settings.max_time_in_seconds = budget.seconds
    status = solver.solve(model.model)
    if status not in (library.OPTIMAL, library.FEASIBLE):
        return []
    proved = ceil(solver.best_objective_bound - 1e-6) * model.unit
    return [(trial, proved) for trial in model.plans(solver)]


def cp_model() -> Any:
    """The module of CP-SAT, None where OR-Tools is not installed."""
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError:
        return None
