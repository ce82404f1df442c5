"""benchmarks/saga.py without SAGA: what becomes of its problems, and what is called a fault."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster import Budget, solve

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("saga_script", ROOT / "benchmarks/saga.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FORK = {
    "name": "fork",
    "tasks": [["a", 2.0], ["b", 6.0], ["c", 6.0]],
    "edges": [["a", "b", 1.0], ["a", "c", 3.0]],
    "nodes": [["n0", 1.0], ["n1", 2.0]],
    "links": [["n0", "n0", float("inf")], ["n0", "n1", 1.5], ["n1", "n1", float("inf")]],
}


def test_a_fork_takes_what_it_takes_by_hand(script: Any) -> None:
    problem = script.our_problem(FORK)
    assert problem.op_ns.tolist() == [[2_000_000, 1_000_000], [6_000_000, 3_000_000], [6_000_000, 3_000_000]]
    # All on n1: 1 + 3 + 3. With one of the two on n0: 1 + 1 / 1.5 + 6, which is more.
    assert solve(problem, "branch-and-bound", Budget(None, 1_000)).value == 7_000_000
    assert not problem.cluster.contention


def schedule(**tasks: tuple[str, float, float]) -> Any:
    mapping: dict[str, list[Any]] = {"n0": [], "n1": []}
    for name, (node, start, end) in tasks.items():
        mapping[node].append(SimpleNamespace(name=name, start=start, end=end))
    return SimpleNamespace(mapping=mapping)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"a": ("n1", 0, 1), "b": ("n1", 1, 4), "c": ("n1", 4, 7)}, ""),
        ({"a": ("n1", 0, 1), "b": ("n1", 1, 4)}, "c is not scheduled"),
        ({"a": ("n1", 0, 1), "b": ("n1", 1, 4), "c": ("n1", 3, 6)}, "c overlaps with another task on n1"),
        ({"a": ("n1", 0, 1), "b": ("n1", 1, 4), "c": ("n0", 1, 7)}, "c starts at 1.000, before what it reads of a is"),
        ({"a": ("n1", 0, 1), "b": ("n1", 1, 3), "c": ("n1", 3, 6)}, "b takes 2.000, which is less than it needs"),
    ],
)
def test_schedules_that_break_their_own_model_are_named(script: Any, given: Any, fault: str) -> None:
    rows = {key: [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in FORK[key]] for key, names in (
        ("tasks", ("name", "cost")), ("edges", ("source", "target", "size")),
        ("nodes", ("name", "speed")), ("links", ("source", "target", "speed")),
    )}  # fmt: skip
    network = SimpleNamespace(nodes=rows["nodes"], edges=rows["links"])
    graph = SimpleNamespace(tasks=rows["tasks"], dependencies=rows["edges"])
    assert script.fault(schedule(**given), network, graph).startswith(fault)
    assert fault or not script.fault(schedule(**given), network, graph)
