"""Whatever is given where something else belongs, public verbs answer with an error of ours that says what to give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadmaster as lm


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    """One of everything that a user holds."""
    g = lm.GraphBuilder("two")
    t = g.tensor(100)
    g.op("a", "task", [], [t], time_ns=100)
    g.op("b", "task", [t], [], time_ns=100)
    graph = g.build()
    problem = lm.price(graph, "2xp100-pcie")
    plan = lm.Plan.of(problem, [0, 1])
    result = lm.solve(problem, "heft", lm.Budget(None, 1))
    return {
        "graph": graph,
        "cluster": problem.cluster,
        "problem": problem,
        "plan": plan,
        "timeline": lm.simulate(problem, plan),
        "result": result,
        "places": np.zeros((3, 2), np.int64),
        "none": None,
        "whole": 3,
        "real": 1.5,
        "text": "abc",
        "list": [1, 2],
        "ragged": [[1], [2, 3]],
        "dict": {},
        "object": object(),
    }


ONE = lm.Budget(None, 1)
# verb, what belongs in each place (a name of `things`, or a value), and what else does not upset it there
CALLS: list[tuple[Callable[..., Any], list[Any], dict[int, set[str]]]] = [
    (lm.check, ["plan", "problem"], {}),
    (lm.diff, ["result", "result"], {}),
    (lm.explain, ["result"], {}),
    (lm.fuse, ["problem", np.arange(2)], {}),
    (lm.load_plan, [Path("nowhere.json")], {}),
    (lm.lower_bound, ["problem"], {}),
    (lm.make_method, ["heft"], {}),
    (lm.price, ["graph", "cluster"], {}),
    (lm.save_plan, ["plan", "problem", Path("nowhere/at/all.json")], {2: {"text"}}),
    (lm.settle, ["problem", "plan", "timeline"], {}),
    (lm.simulate, ["problem", "plan"], {}),
    (lm.simulate_many, ["problem", "places"], {}),
    (lm.solve, ["problem", "heft", ONE, 0], {2: {"none", "whole", "real"}, 3: {"whole"}}),
    (lm.Plan.of, ["problem", np.arange(2)], {1: {"whole", "list", "places"}}),  # `check` looks at its shape
    (lm.Cluster.load, [Path("nowhere.json")], {}),
    (lm.Cluster.preset, ["2xp100-pcie"], {}),
]
NAMED: list[tuple[Callable[..., Any], list[Any], str, set[str]]] = [
    (lm.price, ["graph", "cluster"], "objective", set()),
    (lm.price, ["graph", "cluster"], "memory_limit", {"none", "whole"}),
    (lm.price, ["graph", "cluster"], "cost", {"none"}),
    (lm.simulate_many, ["problem", "places"], "rank", {"none", "list", "places"}),
    (lm.simulate_many, ["problem", "places"], "kernel", {"none"}),
    (lm.simulate_many, ["problem", "places"], "workers", {"none", "whole"}),
    (lm.solve, ["problem", "heft", ONE], "starts", set()),
    (lm.lower_bound, ["problem"], "seconds", {"none", "whole", "real"}),
]


@pytest.mark.parametrize(("verb", "args", "fine"), CALLS, ids=lambda value: getattr(value, "__qualname__", ""))
def test_wrong_things_in_any_place(things, verb, args, fine):
    right = [things[arg] if isinstance(arg, str) and arg in things else arg for arg in args]
    for place in range(len(right)):
        for name, thing in things.items():
            if type(thing) is type(right[place]) or name in fine.get(place, ()):
                continue
            with pytest.raises(lm.LoadmasterError) as raised:
                verb(*right[:place], thing, *right[place + 1 :])
            assert raised.value.fix, (place, name)


@pytest.mark.parametrize(("verb", "args", "setting", "fine"), NAMED, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_things_by_name(things, verb, args, setting, fine):
    for name, thing in things.items():
        given = [things[arg] if isinstance(arg, str) and arg in things else arg for arg in args]
        if name in fine | ({"dict"} if setting == "starts" else set()):
            continue
        with pytest.raises(lm.LoadmasterError) as raised:
            verb(*given, **{setting: thing})
        assert raised.value.fix, name


def test_saving_to_what_is_no_path(things):
    with pytest.raises(lm.InvalidSetting, match="an int is no path"):
        things["result"].save(3)


@pytest.mark.parametrize("rank", [[0], [[0, 1]] * 2, np.zeros((3, 1), int), np.zeros((2, 2), int), 0])
def test_ranks_that_the_compiled_loop_would_read_beyond(things, rank):
    with pytest.raises(lm.InvalidSetting, match="ranks of shape"):
        lm.simulate_many(things["problem"], things["places"], rank)


@pytest.mark.parametrize("kernel", [[0], [1, 1], [0, 2], [0, -1], [0, 0, 0]])
def test_kernels_that_are_none(things, kernel):
    with pytest.raises(lm.InvalidPlan):
        lm.fuse(things["problem"], kernel)
    with pytest.raises(lm.InvalidPlan):
        lm.simulate_many(things["problem"], things["places"], kernel=kernel)


@pytest.mark.parametrize("seconds", [0, -1.0, "4"])
def test_explaining_takes_time(things, seconds):
    with pytest.raises(lm.InvalidSetting):
        lm.explain(things["result"], seconds=seconds)


@pytest.mark.parametrize("wrong", [0.5, float("nan"), float("inf"), -float("inf")])
def test_columns_of_fractions_are_refused(wrong: float, things: dict[str, Any]) -> None:
    with pytest.raises(lm.InvalidSetting, match="no column of whole numbers"):
        lm.Plan.of(things["problem"], [0, wrong])
    assert lm.Plan.of(things["problem"], [0.0, 1.0]).device.tolist() == [0, 1]
