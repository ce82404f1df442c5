"""Tiny problems, all or thousands of their plans, and what bounds and "optimal" say of them.

    python -m tests.enumeration [--cases 10000] [--seed 0]

`make enumerate` runs 10,000 cases; a test runs 200. A case is a random problem of up to six ops on one to three
devices, with an objective and a memory limit. Its plans are listed: every kernel, placement and order where there are
few, else thousands drawn from them; then plans with ops that run again and tensors that stay elsewhere, drawn. The
compiled simulator scores them, and the slow one of `tests.reference` judges the best of each class again, with its own
expansion. No bound may be above a plan of its class, no result called optimal above a plan of the class it names, and
no table may call a row optimal above a smaller number that fits.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations, product
from random import Random
from typing import Any

import numpy as np

from loadmaster import Budget, Result, solve
from loadmaster.baselines.fusion.greedy import sharing_of
from loadmaster.errors import InvalidPlan
from loadmaster.graph.columns import Ints, ints
from loadmaster.methods.exact.branching.proving import prove
from loadmaster.plans import Plan
from loadmaster.plans.expansion import expand, keeps_to
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Among, Sharing, lower_bound
from loadmaster.report.standing import standing_beside
from loadmaster.simulator import simulate, simulate_fused
from tests.reference import expand_slowly, is_allowed, judge
from tests.strategies import is_acyclic, random_additions, random_kernels, random_problem

MOST_OPS, MOST_DEVICES = 6, 3
MOST_PLANS = 3_000  # of a problem, fused and not; of more so many are drawn
EXPANSIONS, PLANS_EACH = 8, 40  # draws of added ops, and plans of each
SIMULATIONS = 150
METHODS = ("auto", "joint", "placement", "branch-and-bound", "recompute", "greedy-fusion", "heft", "cp-sat")
KINDS = ("aten.add.Tensor", "aten.relu.default", "aten.mm.default", "any")


@dataclass(frozen=True)
class Kind:
    """A class of plans.

    Attributes:
        kernels: "none", "rules" (those of the methods), "drawn" (pairs drawn at random) or "any".
        adding: ops may be added.
        fitting: only plans that fit.
    """

    kernels: Any
    adding: bool
    fitting: bool


@dataclass
class Best:
    """The least value met in a class, and whose it is."""

    value: int
    problem: Problem  # expanded, where the plan adds ops
    plan: Plan


class Case:
    """One problem and the best plans of it that were met."""

    def __init__(self, seed: int) -> None:
        self.seed, rng = seed, Random(seed)
        self.rng = rng
        self.problem = drawn_problem(rng)
        self.sharings = {"rules": sharing_of(self.problem), "drawn": drawn_sharing(rng, self.problem)}
        self.best: dict[Kind, Best] = {}
        self.plans, self.every, self.said_optimal, self.proved = 0, True, 0, 0

    def look(self) -> None:
        """Scores plans: without additions, with sends in other orders, with additions."""
        self._score(self.problem, *self._listed())
        self._other_sends()
        for _ in range(EXPANSIONS):
            added = random_additions(self.rng, self.problem, 3)
            if added is not None:
                expanded = expand(self.problem, added)
                self._score(expanded, *drawn_plans(self.rng, expanded, PLANS_EACH))

    def _listed(self) -> tuple[Ints, Ints, Ints]:
        problem, rows = self.problem, list[tuple[Ints, Ints, Ints]]()
        for kernel in kernels_of(problem):
            places, orders = placements(problem, kernel), orders_of(problem, kernel)
            pairs = list(product(places, orders))
            fair = max(40, MOST_PLANS // 50)
            if kernel_count(kernel) < problem.num_ops and len(pairs) > fair:
                pairs, self.every = self.rng.sample(pairs, fair), False
            elif len(pairs) > MOST_PLANS:
                pairs, self.every = self.rng.sample(pairs, MOST_PLANS), False
            rows += [(np.array(place), np.array(order), kernel) for place, order in pairs]
        device, rank, kernel = (np.array(column) for column in zip(*rows, strict=True))
        return device, rank, kernel

    def _score(self, problem: Problem, device: Ints, rank: Ints, kernel: Ints) -> None:
        if not len(device):
            return
        scores = simulate_fused(problem, device, rank, kernel)
        self.plans += len(device)
        value, over = scores.objective(problem), scores.over_bytes
        first = {}  # of each set of kernels, fitting or not, the best
        for at in np.lexsort((value,)).tolist():
            first.setdefault((kernel[at].tobytes(), bool(over[at] == 0)), at)
        for (_, fits), at in first.items():
            self.note(problem, Plan.of(problem, device[at], rank[at], kernel[at]), int(value[at]), fits)

    def note(self, problem: Problem, plan: Plan, value: int, fits: bool) -> None:
        """A plan counts for every class that it is in."""
        for kind in self.kinds_of(plan, fits):
            if kind not in self.best or value < self.best[kind].value:
                self.best[kind] = Best(value, problem, plan)

    def kinds_of(self, plan: Plan, fits: bool) -> Iterator[Kind]:
        kernels = ["any", *(name for name, sharing in self.sharings.items() if keeps_to(self.problem, plan, sharing))]
        kernels += [] if plan.fuses else ["none"]
        for name in kernels:
            for adding in (True,) if plan.added is not None else (False, True):
                for fitting in (False, True) if fits else (False,):
                    yield Kind(name, adding, fitting)

    def _other_sends(self) -> None:
        """The best plan of each class with its sends in every order, where there are few."""
        for best in [*self.best.values()]:
            plan = best.plan
            sends = sorted({(t, d) for t, _, d, _, _ in judge(best.problem, plan).sends})
            for order in permutations(sends) if 1 < len(sends) <= 4 else ():
                given = np.full((self.problem.graph.num_tensors, self.problem.num_devices), -1, np.int64)
                for turn, send in enumerate(order):
                    given[send] = turn
                other = replace(plan, send_rank=ints(given))
                line = simulate(best.problem, other)
                self.plans += 1
                self.note(best.problem, other, best.problem.value(line), line.over_bytes == 0)

    def judged(self) -> Iterator[str]:
        """Where the slow simulator does not agree on the best of a class."""
        for best in {id(best.plan): best for best in self.best.values()}.values():
            problem, plan = best.problem, best.plan
            if plan.added is not None:
                problem = expand_slowly(self.problem, plan.added)
                plan = same_plan_of(problem, best.problem, plan)
            found = judge(problem, plan).score(self.problem.objective)[1]
            if found != best.value:
                yield f"case {self.seed}: simulated {best.value}, judged {found}"

    def bounds(self) -> Iterator[str]:
        """Bounds above a plan of their class."""
        for kind, best in self.best.items():
            fusing = {"none": False, "any": True, **self.sharings}[kind.kernels]
            bound = lower_bound(self.problem, fusing=fusing, fitting=kind.fitting, adding=kind.adding)
            if bound > best.value:
                yield f"case {self.seed}: {self.problem.objective}, {kind}: bound {bound} above a plan of {best.value}"

    def results(self) -> Iterator[str]:
        """Results with a bound above a plan of its class, and tables that call a row optimal above a smaller number."""
        chosen = ["auto", *self.rng.sample(METHODS, 2)]
        found = []
        for method in chosen:
            try:
                found.append(solve(self.problem, method, Budget(None, SIMULATIONS), self.seed))
            except InvalidPlan as error:
                yield f"case {self.seed}: {method} made no valid plan: {error.what}"
        least = min((result.value for result in found if result.fits), default=0)
        for result in found:
            yield from self._wrong_bound(result)
            words = standing_beside(result, found)
            if words.startswith("optimal") and result.value > least:
                yield f"case {self.seed}: {result.method} is called {words} at {result.value} above {least}"

    def _wrong_bound(self, result: Result) -> Iterator[str]:
        self.said_optimal += result.optimal
        for kind, best in self.best.items():
            if kind.kernels == "drawn" or not result.among.covers(Among(kind.kernels, kind.adding, kind.fitting)):
                continue
            if result.lower_bound > best.value:
                what = f"{result.method} says {result.lower_bound} of {result.among.words}"
                yield f"case {self.seed}: {what}, but {best.value} is {kind}"

    def proofs(self) -> Iterator[str]:
        """What branch and bound shows of a class, against the best plan of that class that was listed."""
        first = Plan.of(self.problem, placements(self.problem, ints(np.arange(self.problem.num_ops)))[0])
        for name, fusing in (("none", False), ("rules", self.sharings["rules"])):
            proof, best = prove(self.problem, first, fusing, 20_000), self.best.get(Kind(name, False, True))
            if proof is None:
                continue
            self.proved += proof.optimal
            if best is not None and proof.bound.value > best.value:
                yield f"case {self.seed}: proved {proof.bound.value} of {name}, but there is {best.value}"
            if judge(self.problem, proof.plan).score(self.problem.objective) != tuple(proof.score):
                yield f"case {self.seed}: the plan of a proof is judged otherwise"


def drawn_problem(rng: Random) -> Problem:
    """Of up to six ops; half of them have kinds that may be fused."""
    problem = random_problem(rng, MOST_OPS, MOST_DEVICES, hosts=rng.random() < 0.1)
    if rng.random() < 0.5:
        kind = tuple(rng.choice(KINDS) for _ in range(problem.num_ops))
        problem = replace(problem, graph=replace(problem.graph, kind=kind))
    return problem


def drawn_sharing(rng: Random, problem: Problem) -> Sharing:
    """Some of the pairs of maker and reader, and some ops that share no kernel."""
    graph = problem.graph
    pairs = sorted({(int(graph.producer[t]), op) for op in range(graph.num_ops) for t in graph.reads_of(op)})
    alone = np.array([rng.random() < 0.3 for _ in range(graph.num_ops)])
    light = [(m, r) for m, r in pairs if m >= 0 and not alone[m] and not alone[r]]
    chosen = [pair for pair in light if rng.random() < 0.7]
    makers, readers = (ints([pair[side] for pair in chosen]) for side in (0, 1))
    return Sharing(makers, readers, rng.choice([2, 3, 64]), alone if rng.random() < 0.7 else None)


@cache
def partitions(count: int) -> tuple[tuple[int, ...], ...]:
    """Every way to part so many ops, each as the lowest of its part; the one op by op first."""
    labels: list[tuple[int, ...]] = [()]
    for op in range(count):
        labels = [(*known, head) for known in labels for head in (op, *sorted(set(known)))]
    return tuple(labels)


def kernels_of(problem: Problem) -> Iterator[Ints]:
    for labels in partitions(problem.num_ops):
        kernel = ints(labels)
        if is_acyclic(problem, kernel):
            yield kernel


def kernel_count(kernel: Ints) -> int:
    return len(set(kernel.tolist()))


def placements(problem: Problem, kernel: Ints) -> list[tuple[int, ...]]:
    """All that put every kernel on one device that can run it."""
    every = product(range(problem.num_devices), repeat=problem.num_ops)
    alike = [place for place in every if all(place[k] == place[op] for op, k in enumerate(kernel.tolist()))]
    return [place for place in alike if is_allowed(problem, place)]


def orders_of(problem: Problem, kernel: Ints) -> list[list[int]]:
    """[ops] ranks of every order in which kernels can run: any other ranks run in one of them."""
    graph, heads = problem.graph, sorted(set(kernel.tolist()))
    waits: dict[int, set[int]] = {head: set() for head in heads}
    for op in range(problem.num_ops):
        makers = {int(graph.producer[t]) for t in graph.reads_of(op)} - {-1}
        waits[int(kernel[op])] |= {int(kernel[earlier]) for earlier in (*makers, *graph.after_of(op))}
    found: list[list[int]] = []

    def go_on(done: list[int]) -> None:
        if len(done) == len(heads):
            turn = {head: at for at, head in enumerate(done)}
            found.append([turn[int(k)] for k in kernel])
        for head in heads:
            if head not in done and waits[head] - {head} <= set(done):
                go_on([*done, head])

    go_on([])
    return found


def drawn_plans(rng: Random, problem: Problem, count: int) -> tuple[Ints, Ints, Ints]:
    """Of an expanded problem; a third of them fuse nothing. A stay is no kernel's part."""
    rows = list[tuple[Ints, Ints, Ints]]()
    stays = [op for op, kind in enumerate(problem.graph.kind) if kind == "stay"]
    for number in range(count):
        kernel = np.arange(problem.num_ops) if number % 3 == 0 else random_kernels(rng, problem)
        if any((kernel == kernel[op]).sum() > 1 for op in stays):
            continue
        place = allowed_place(rng, problem, kernel)
        if place is not None:
            rows.append((place, np.array(rng.sample(range(problem.num_ops), problem.num_ops)), kernel))
    if not rows:
        return ints([]), ints([]), ints([])
    device, rank, kernel = (np.array(column) for column in zip(*rows, strict=True))
    return device, rank, kernel


def allowed_place(rng: Random, problem: Problem, kernel: Ints) -> Ints | None:
    for _ in range(20):
        each = [rng.randrange(problem.num_devices) for _ in range(problem.num_ops)]
        place = tuple(each[int(k)] for k in kernel)
        if rng.random() < 0.3:
            place = (each[0],) * problem.num_ops
        for group in set(problem.graph.colocate.tolist()) - {-1}:  # together, as far as one pass over kernels goes
            first = int(np.flatnonzero(problem.graph.colocate == group)[0])
            moved = {int(kernel[op]) for op in np.flatnonzero(problem.graph.colocate == group)}
            place = tuple(place[first] if int(kernel[op]) in moved else d for op, d in enumerate(place))
        if is_allowed(problem, place) and all(place[int(k)] == place[op] for op, k in enumerate(kernel)):
            return ints(place)
    return None


def same_plan_of(other: Problem, problem: Problem, plan: Plan) -> Plan:
    """The plan for the same ops in another order."""
    place = {name: op for op, name in enumerate(problem.graph.op_name)}
    of = np.array([place[name] for name in other.graph.op_name])
    kernel = plan.kernel[of]
    lowest = {int(k): int(np.flatnonzero(kernel == k)[0]) for k in kernel}
    kernel = ints([lowest[int(k)] for k in kernel])
    return replace(plan, kernel=kernel, device=plan.device[of], rank=plan.rank[of], added=None)


def run(seeds: Iterator[int]) -> tuple[list[str], Counter[str]]:
    """(what is wrong, how many of what were looked at)."""
    wrong, count = list[str](), Counter[str]()
    for seed in seeds:
        case = Case(seed)
        case.look()
        found = [*case.judged(), *case.bounds(), *case.results(), *case.proofs()]
        count.update(cases=1, plans=case.plans, bounds=len(case.best), optimal=case.said_optimal, proved=case.proved)
        count["with every plan that adds nothing"] += case.every
        count[str(case.problem.objective)] += 1
        for line in found:
            print(line, flush=True)
        wrong += found
    return wrong, count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong, count = run(iter(range(given.seed, given.seed + given.cases)))
    print(", ".join(f"{number:,} {name}" for name, number in count.items()))
    print(f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
