"""Two questions about GO, for docs/papers/go2020.md: how much sooner is it where HDP ends, and what fusing could add.

python benchmarks/questions.py race [--seconds S] [--limit N]
python benchmarks/questions.py fusing [--evaluations N] [--seeds N] [--limit N]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from loadmaster.bench.rows import Source, SuiteRow, go_rows
from loadmaster.catalog.specs import make_method
from loadmaster.cost import price
from loadmaster.problem import Problem
from loadmaster.search import Budget, Method, Moment, Score, Search, solve
from loadmaster.zoo.synthetic import generate


def fusing(evaluations: int, seeds: int, limit: int | None) -> None:
    """What could a policy gain that says in one pass what to fuse? Percent over the expert without fusion, on its
    placement and order: greedy, the best of that and eight at random, a search; what the search has over those nine."""
    gaps = []
    for row in go_rows(Source(limit=limit)):
        problem = price(row.graph(), row.cluster)
        expert = solve(problem, "expert", Budget(None, 1)).value
        greedy = solve(problem, "greedy-fusion:inner=expert", Budget(None, 2)).value
        nine = min(greedy, solve(problem, "random-fusion:inner=expert", Budget(None, 8)).value)
        found = [
            solve(problem, "anneal-fusion:inner=expert", Budget(None, evaluations), seed).value for seed in range(seeds)
        ]
        searched = min(nine, *found)
        gaps.append(np.log(nine / searched))
        cells = " | ".join(f"{100 * (expert / value - 1):+.1f} %" for value in (greedy, nine, searched))
        print(f"| {row.name} | {cells} | {100 * (nine / searched - 1):+.2f} % |", flush=True)
    print(f"left for a policy, geometric mean: {100 * (np.exp(np.mean(gaps)) - 1):+.2f} %")


class _Reached(Exception):
    """The target of a race."""


class Heat(NamedTuple):
    """One problem of a race: the best of the first method and when it had it, when each other was there, if ever."""

    name: str
    target: Moment
    reached: tuple[Moment | None, ...]

    def ratio(self, other: int) -> float:
        """How many times sooner; 0 for never."""
        at = self.reached[other]
        return self.target.seconds / max(1e-3, at.seconds) if at else 0.0


def race(seconds: float, limit: int | None) -> None:
    """How much sooner does GO reach HDP's best? Both alone on each of GO's workloads, seed 0, for so many seconds; the
    seconds of loading compiled loops and weights are nobody's."""
    others = ("go-one", "go")
    small = price(next(iter(generate("layered", 1, 1, (60, 60)))), "2xp100-pcie")
    for spec in ("hdp", *others):
        run_until(small, spec, Budget(1.0, 200))
    print("| workload | HDP's best, ms | at, s | " + " | ".join(f"{o}, s | times sooner" for o in others) + " |")
    heats = []
    for row in go_rows(Source(limit=limit)):
        heats.append(heat(row, "hdp", others, Budget(seconds)))
        print(_line(heats[-1]), flush=True)
    for number, other in enumerate(others):
        ratios = [each.ratio(number) for each in heats]
        there = sum(ratio > 0 for ratio in ratios)
        print(f"{other}: there on {there} of {len(heats)}, {np.median(ratios):.1f} times as soon in the median")


def heat(row: SuiteRow, first: str, others: Sequence[str], budget: Budget) -> Heat:
    problem = price(row.graph(), row.cluster, objective=row.objective)
    history = run_until(problem, first, budget)
    target = min(history, key=lambda moment: moment.score)
    return Heat(row.name, target, tuple(first_at(problem, spec, budget, target.score) for spec in others))


def first_at(problem: Problem, method: Method | str, budget: Budget, target: Score) -> Moment | None:
    """When a method first is as good as that, or better."""
    history = run_until(problem, method, budget, target)
    return next((moment for moment in history if moment.score <= target), None)


def run_until(problem: Problem, method: Method | str, budget: Budget, target: Score | None = None) -> list[Moment]:
    """The improvements of a run, which ends soon after it is as good as the target."""

    def stop(part: Search) -> None:
        if target is not None and part.problem is problem and part.best_score <= target:
            raise _Reached

    search = Search(problem, budget, 0, listener=stop)
    with suppress(_Reached):
        chosen = make_method(method) if isinstance(method, str) else method
        search.score(chosen.optimize(search))
    return search.history


def _line(heat: Heat) -> str:
    cells = [f"{heat.target.score.value / 1e6:.1f}", f"{heat.target.seconds:.1f}"]
    for number, at in enumerate(heat.reached):
        cells += [f"{at.seconds:.2f}", f"{heat.ratio(number):.1f}"] if at else ["never", "0"]
    return f"| {heat.name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=["fusing", "race"])
    parser.add_argument("--evaluations", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each method on each workload of the race")
    parser.add_argument("--limit", type=int, help="so many workloads, the first ones")
    given = parser.parse_args()
    if given.question == "race":
        race(given.seconds, given.limit)
    else:
        fusing(given.evaluations, given.seeds, given.limit)


if __name__ == "__main__":
    main()
