"""Replicated stages over downsets, beside all ways to cut and replicate small graphs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from loadmaster.baselines.downsets.replicated import replicated_stages
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem
from tests.unit.pipelines.lines import devices

DEVICES = 3


def cost(work: np.ndarray, nbytes: np.ndarray, r: int) -> np.ndarray:
    return (work + (r - 1) / r * nbytes) / r


def some_problem(rng: np.random.Generator, ops: int = 6) -> Problem:
    g = GraphBuilder("some")
    made: list[int] = []
    for op in range(ops):
        reads = [t for t in made if rng.random() < 0.5]
        made.append(g.tensor(8))
        weight = g.tensor(int(rng.integers(0, 400)), "weight")
        g.op(f"op{op}", "op", [*reads, weight], [made[-1]], time_ns=int(rng.integers(10, 300)))
    return price(g.build(), devices(1))


@pytest.mark.parametrize("seed", range(8))
def test_the_best_of_all_stages_and_replicas(seed: int) -> None:
    problem = some_problem(np.random.default_rng(seed))
    found = replicated_stages(problem, ints(np.arange(problem.num_ops)), DEVICES, cost)
    assert found.exact
    assert found.busiest == pytest.approx(min(every_way(problem)))
    assert found.busiest == pytest.approx(busiest(problem, found.stage.tolist(), found.replicas))


def every_way(problem: Problem) -> list[float]:
    start, before = problem.graph.dependencies
    values = []
    for stages in range(1, DEVICES + 1):
        for stage in product(range(stages), repeat=problem.num_ops):
            waits = [(int(b), op) for op in range(problem.num_ops) for b in before[start[op] : start[op + 1]]]
            if set(stage) == set(range(stages)) and all(stage[b] <= stage[op] for b, op in waits):
                for counts in product(range(1, DEVICES + 1), repeat=stages):
                    if sum(counts) <= DEVICES:
                        values.append(busiest(problem, list(stage), counts))
    return values


def busiest(problem: Problem, stage: list[int], counts: tuple[int, ...]) -> float:
    sizes = [
        sum(int(problem.graph.nbytes[t]) for t in problem.graph.reads_of(op) if problem.resident[t])
        for op in range(problem.num_ops)
    ]
    values = []
    for number, r in enumerate(counts):
        ops = [op for op, s in enumerate(stage) if s == number]
        values.append(cost(sum(int(problem.op_ns[op, 0]) for op in ops), sum(sizes[op] for op in ops), r))  # type: ignore[arg-type]
    return float(max(values))
