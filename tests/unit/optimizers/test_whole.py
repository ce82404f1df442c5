"""Modules in one piece: which layer each op goes with, and how borders of stages are moved."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.optimizers import whole
from loadmaster.optimizers.annealing.chains import (
    FUSING,
    ORDERING,
    ORDERING_FOR_MEMORY,
    PLACING,
    PLACING_ALONE,
    PLACING_FOR_MEMORY,
    Decisions,
)
from loadmaster.problem import Problem
from loadmaster.search import Search

SCOPES = ("embed", "body.0", "body.0.inner", "body.1", "side.0", "body.2", "body.3", "head", "body.1")


def modules(time_ns: int = 10) -> Problem:
    build = GraphBuilder("modules")
    last = build.tensor(8, "input")
    for at, scope in enumerate(SCOPES):
        last, read = build.tensor(8), last
        group = {"colocate": "pair"} if at in (0, 5) else {}
        build.op(f"op{at}", "any", [read], [last], time_ns=time_ns, scope=scope, **group)
    return price(build.build(), "2xp100-pcie")


def test_ops_go_with_the_layer_that_they_are_in_or_that_came_before() -> None:
    """The longest list is that of `body`; what must be together goes with the first of it."""
    position, layers = whole._positions(modules(), "module")
    free = replace(modules().graph, colocate=ints(np.full(len(SCOPES), -1)))
    alone, count = whole._positions(replace(modules(), graph=free), "module")
    assert layers == count == 4
    assert alone[[1, 3, 5, 6, 8]].tolist() == [0, 1, 2, 3, 1]
    assert alone[0] == 0  # before the first
    assert alone[7] == 3  # after the last
    assert position[[0, 5]].tolist() == [0, 0] and position[[1, 3, 6, 7, 8]].tolist() == alone[[1, 3, 6, 7, 8]].tolist()


@pytest.mark.parametrize(
    ("cut", "step", "moved"),
    [
        ((4,), 2, {(2,), (6,)}),
        ((4,), 9, {(0,), (10,)}),  # no farther than there are layers
        ((3, 5), 1, {(2, 5), (4, 5), (3, 4), (3, 6)}),
        ((3, 4), 2, {(1, 4), (5, 5), (3, 3), (3, 6)}),  # a border takes the next one with it
        ((), 2, {()}),
    ],
)
def test_borders_are_moved_one_at_a_time(cut: tuple[int, ...], step: int, moved: set[tuple[int, ...]]) -> None:
    assert whole._moved(cut, step, 10) == moved


def test_stages_in_the_order_of_the_program() -> None:
    problem = modules(time_ns=10_000_000)
    search = Search(problem, Budget(None, 200))
    plan = whole._staged(search, "module")
    assert search.best is not None and search.best_score.value <= problem.best_ns.sum()
    assert set(plan.device.tolist()) <= {0, 1}


class Cuts:
    """A search that judges plans by how many layers are on the first device."""

    spent = False

    def __init__(self, problem: Problem, best: float) -> None:
        self.problem, self.best_layers, self.tried = problem, best, list[list[int]]()

    def score_many(self, device: Any) -> tuple[Any, Any]:
        layers = (device == 0).sum(axis=1)
        self.tried.append(sorted(layers.tolist()))
        return np.zeros(len(layers), np.int64), np.abs(10 * (layers - self.best_layers)).astype(np.int64)


def layered() -> Problem:
    """Eight layers on two devices, of which the first is three times as fast and has a third of the memory."""
    build = GraphBuilder("layers")
    last = build.tensor(8, "input")
    for at in range(8):
        last, read = build.tensor(8), last
        build.op(f"op{at}", "any", [read], [last], time_ns=10, scope=f"body.{at}")
    problem = price(build.build(), "2xp100-pcie")
    return replace(problem, op_ns=ints([[10, 30]] * 8), memory_bytes=ints([100, 300]))


def test_cuts_begin_by_speed_memory_and_number_and_move_by_fewer_and_fewer_layers() -> None:
    search: Any = Cuts(layered(), 5.1)
    plan = whole._staged(search, "module")
    # By number 4, by memory 2, by speed 6, and all on either; then by two layers from 6, by one, and by none.
    assert search.tried == [[0, 2, 4, 6, 8], [4, 8], [5, 7], [4, 6]]
    assert plan.device.tolist() == [0] * 5 + [1] * 3
    level: Any = Cuts(layered(), 5.0)
    whole._staged(level, "module")
    assert level.tried == [[0, 2, 4, 6, 8], [2, 6], [3, 5], [4, 6]], "as good is not better"
    spent: Any = Cuts(layered(), 5.0)
    spent.spent = True
    assert whole._staged(spent, "module").device.tolist() == [0] * 4 + [1] * 4 and len(spent.tried) == 1


def test_ops_that_take_no_time_count_as_none() -> None:
    free: Any = Cuts(replace(layered(), op_ns=ints([[0, 0]] * 4 + [[0, 1]] * 4), memory_bytes=ints([5, 5])), 4.0)
    whole._staged(free, "module")
    assert free.tried[0] == [0, 4, 6, 8], "a nanosecond at least, and four"


def test_where_there_are_hosts_alone_all_is_on_the_first_and_else_none_is_used() -> None:
    problem = modules(time_ns=10_000_000)
    gpu = problem.cluster.devices[0]
    for kinds, allowed in ((("cpu-a", "cpu-b"), {0}), (("cpu-a", gpu.kind), {1}), ((gpu.kind, "cpu"), {0})):
        devices = tuple(replace(gpu, name=f"d{at}", kind=kind) for at, kind in enumerate(kinds))
        some = replace(problem, cluster=replace(problem.cluster, devices=devices))
        plan = whole._staged(Search(some, Budget(None, 50)), "module")
        assert set(plan.device.tolist()) == allowed


def test_a_graph_that_knows_no_modules_is_planned_op_by_op() -> None:
    problem = modules()
    bare = replace(problem, graph=replace(problem.graph, scope=("",) * problem.num_ops))
    assert whole.bound_problem(bare, "module") is bare
    assert whole.bound_problem(problem, "module").graph.colocate.max() >= 0


def of(devices: int, *, memory: bool = False, ordered: bool = True) -> Any:
    return SimpleNamespace(num_devices=devices, objective=SimpleNamespace(of_memory=memory, of_order=ordered))


def test_kinds_of_moves_are_tried_where_there_is_something_to_change() -> None:
    none = [[0.0] * len(part) for part in (PLACING, ORDERING, FUSING)]

    def parts(decisions: Decisions, problem: Any, pairs: int) -> list[list[float]]:
        found = decisions.weights(problem, pairs).tolist()
        return [found[:7], found[7:11], found[11:]]

    every = Decisions(fusing=True)
    assert parts(every, of(2), 1) == [list(PLACING), list(ORDERING), list(FUSING)]
    assert parts(every, of(1), 1) == [none[0], list(ORDERING), list(FUSING)]
    assert parts(every, of(2), 0) == [list(PLACING), list(ORDERING), none[2]]
    assert parts(Decisions(), of(2), 3)[2] == none[2]
    assert parts(every, of(2, memory=True), 1)[:2] == [list(PLACING_FOR_MEMORY), list(ORDERING_FOR_MEMORY)]
    assert parts(every, of(2, ordered=False), 1)[:2] == [list(PLACING_ALONE), none[1]]
    assert parts(Decisions(placing=False), of(2), 1)[:2] == [none[0], list(ORDERING)]
    assert parts(Decisions(ordering=False), of(2), 1)[:2] == [list(PLACING), none[1]]
