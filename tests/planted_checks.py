"""What sees planted mistakes: `python -m tests.planted_checks CHECK LEAST.json` fails where something is wrong.

The simulator is held to the slow reference, on the examples of tests/properties; bounds to the best of all plans, which
is worked out beforehand, with the source as it is.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import loadmaster as lm
import tests.conftest  # noqa: F401
from loadmaster.baselines.simple import OneDevice
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.methods.exact.branching.branch_and_bound import BranchAndBound
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound, step
from loadmaster.problem.bounds.peak import peak_bound
from loadmaster.problem.bounds.step import step_bound
from loadmaster.search import Search
from tests.golden import test_timelines
from tests.graphs import GRAPHS, pair
from tests.planted import WRONG
from tests.properties import test_additions, test_simulator
from tests.unit.baselines.downsets.test_downsets import cluster_of, random_graph
from tests.unit.problem.bounds.test_bounds import (
    all_fused_plans,
    all_plans,
    equal_problem,
    fusible_problem,
    random_problem,
)
from tests.unit.problem.bounds.test_copies import drawn, least_peak
from tests.unit.problem.bounds.test_held_up import least as least_load
from tests.unit.problem.bounds.test_kernels import all_plans as all_plans_of_pairs
from tests.unit.problem.bounds.test_kernels import moving_problem, some_pairs

NO_PLAN_FITS = 2**62
COUNTS = {"tiny": 250, "tight": 120, "fused": 60, "pairs": 60, "equal": 60, "again": 60, "load": 24}


def drawn_problems(check: str) -> Iterator[tuple[Problem, Any]]:
    """The problems of a check, each with what plans may fuse."""
    rng = np.random.default_rng(4)
    for number in range(COUNTS[check]):
        if check == "pairs":
            problem = moving_problem(rng)
            yield problem, some_pairs(problem, rng)
        elif check == "load":
            some = cluster_of(2 + number % 2)
            if number % 3 == 0:
                some = replace(some, devices=(replace(some.devices[0], overlap=True), *some.devices[1:]))
            graph: Graph = random_graph(rng, 5)
            yield lm.price(graph, some, objective="throughput"), False
        else:
            make: dict[str, Callable[[np.random.Generator], Problem]] = {
                "tiny": random_problem,
                "tight": tight_problem,
                "fused": fusible_problem,
                "equal": equal_problem,
                "again": drawn,
            }
            yield make[check](rng), check == "fused"


def tight_problem(rng: np.random.Generator) -> Problem:
    """Ops with weights, on two unlike devices that do not hold all of them."""
    graph, made = GraphBuilder("tight"), list[int]()
    for op in range(int(rng.integers(3, 6))):
        weight, out = graph.tensor(int(rng.integers(40, 120)), "weight"), graph.tensor(int(rng.integers(0, 20)))
        reads = [weight, *(tensor for tensor in made if rng.random() < 0.2)]
        fast = int(rng.integers(5, 30))
        graph.op(f"op{op}", "any", reads, [out], time_ns=[fast, fast * int(rng.integers(1, 6))])
        made.append(out)
    cluster = pair()
    rooms = (int(rng.integers(130, 300)), int(rng.integers(130, 600)))
    devices = [replace(device, memory_bytes=room) for device, room in zip(cluster.devices, rooms, strict=True)]
    return lm.price(graph.build(), replace(cluster, devices=tuple(devices)))


def least_of_all() -> dict[str, list[list[int]]]:
    """[problems] of each check: what no plan is under, by trying all, in the order of `bounds_of`."""
    found: dict[str, list[list[int]]] = {}
    for check in COUNTS:
        found[check] = [_least(check, problem, sharing) for problem, sharing in drawn_problems(check)]
    return found


def _least(check: str, problem: Problem, sharing: Any) -> list[int]:
    if check == "equal":
        search = Search(problem, lm.Budget(None, 30_000))
        BranchAndBound(start=OneDevice()).optimize(search)
        return [search.best_score.value] * 3
    if check == "again":
        return [least_peak(problem)]
    if check == "load":
        return [least_load(problem)]
    every = all_plans_of_pairs(problem, sharing) if check == "pairs" else None
    every = every or (all_fused_plans(problem) if check == "fused" else all_plans(problem))
    fit = every.over_bytes == 0
    fitting = int(every.step_ns[fit].min()) if fit.any() else NO_PLAN_FITS
    return [int(every.step_ns.min()), int(every.peak_bytes.max(axis=1).min()), fitting]


def bounds_of(check: str, problem: Problem, sharing: Any) -> list[int]:
    """What bounds say of the same."""
    if check == "equal":
        found = [step_bound(problem)]
        step.LEAST_SHARED = 2  # what shares a device is looked for in small problems, too
        found.append(step_bound(problem))
        whole, step.MOST_TOGETHER = step.MOST_TOGETHER, 1  # as in large ones
        found.append(step_bound(problem))
        step.LEAST_SHARED, step.MOST_TOGETHER = 64, whole
        return found
    if check == "again":
        return [peak_bound(problem, adding=True)]
    if check == "load":
        return [lower_bound(problem)]
    some = {"fusing": sharing}
    return [step_bound(problem, **some), peak_bound(problem, **some), step_bound(problem, fitting=True, **some)]


def hold_bounds(check: str, least: list[list[int]]) -> None:
    for number, (problem, sharing) in enumerate(drawn_problems(check)):
        told = bounds_of(check, problem, sharing)
        assert all(bound <= best for bound, best in zip(told, least[number], strict=True)), (
            number,
            told,
            least[number],
        )


def hold_simulator(check: str) -> None:
    if check == "timelines":
        for name in GRAPHS:
            test_timelines.test_simulate_gives_the_kept_timeline(name)
        return
    if check == "additions":
        drawn_anew(test_additions.test_expanded_and_judged_by_two_routes, st.data())
        drawn_anew(test_additions.test_what_runs_again_changes_no_result, st.data(), st.integers(0, 10_000))
    else:
        drawn_anew(test_simulator.test_compiled_equals_reference, st.data())


def drawn_anew(test: Any, *strategies: Any) -> None:
    """The property on other and fewer examples, the first that fails as it is."""
    settings(max_examples=300, phases=[Phase.generate], derandomize=True)(
        given(*strategies)(test.hypothesis.inner_test)
    )()


def main() -> None:
    check, least = sys.argv[1], Path(sys.argv[2])
    try:
        if check in COUNTS:
            hold_bounds(check, json.loads(least.read_text())[check])
        else:
            hold_simulator(check)
    except AssertionError as wrong:
        print(f"wrong: {traceback.extract_tb(wrong.__traceback__)[-1].line} {wrong}")
        sys.exit(WRONG)


if __name__ == "__main__":
    main()
