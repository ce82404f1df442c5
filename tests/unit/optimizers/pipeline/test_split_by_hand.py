"""What the split of a line is made from, worked out by hand; op 0 and tensor 0 among what is special."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.optimizers.pipeline import split
from loadmaster.optimizers.pipeline.stages import DeviceSets
from loadmaster.search import Search
from tests.graphs.tiny import chain, pair


def updated() -> Any:
    """Op 0 updates tensor 0; op 1 makes 40 bytes that ops 2 and 3 read; ops 1 and 3 read a weight that stays."""
    g = GraphBuilder("updated")
    w, x, fixed = g.tensor(100, "weight"), g.tensor(8, "input"), g.tensor(30, "weight")
    new, made, one, two = g.tensor(100, "weight", alias_of=w), g.tensor(40), g.tensor(20), g.tensor(10, "output")
    g.op("update", "any", [w], [new], time_ns=1)
    g.op("make", "any", [x, fixed], [made], time_ns=[2, None])
    g.op("read", "any", [made], [one], time_ns=3)
    g.op("last", "any", [made, fixed], [two], time_ns=4)
    return price(g.build(), pair())


def test_what_slots_touch() -> None:
    """In the order of slots, then of tensors: where it is touched next, first and last, what sending it takes, and what
    a stage holds for good that touches it there. A weight that is updated is held where that is, and may be sent."""
    start, follows, low, high, ns, nbytes = split._touches(updated(), ints([0, 1, 1, 2]), 3)
    assert start.tolist() == [0, 2, 6, 9]
    rows = list(zip(*(column.tolist() for column in (follows, low, high, ns, nbytes)), strict=True))
    assert rows == [
        (3, 0, 0, 15, 100),  # the weight, and what is written over it
        (3, 0, 0, 15, 0),
        (3, 1, 1, 0, 8),  # the input
        (2, 1, 2, 0, 30),  # the fixed weight, in both of its slots
        (2, 1, 2, 9, 0),
        (3, 1, 1, 7, 0),
        (3, 1, 2, 0, 30),
        (3, 1, 2, 9, 0),
        (3, 2, 2, 6, 0),
    ]


def test_an_updated_weight_is_held_only_where_it_is_updated() -> None:
    g = GraphBuilder("read first")
    w, grad = g.tensor(100, "weight"), g.tensor(4)
    g.op("read", "any", [w], [grad], time_ns=1)
    g.op("update", "any", [w, grad], [g.tensor(100, "weight", alias_of=w)], time_ns=1)
    *_, high, ns, nbytes = split._touches(price(g.build(), pair()), ints([0, 1]), 2)
    assert list(zip(high.tolist(), ns.tolist(), nbytes.tolist(), strict=True)) == [
        (1, 15, 0), (1, 6, 0), (1, 15, 100), (1, 6, 0), (1, 15, 0),
    ]  # fmt: skip


def test_a_line_adds_up_times_and_what_cannot_run() -> None:
    problem = updated()
    line = split._line(problem, ints([0, 1, 1, 2]), problem.device_kind, ints([50, 70]))
    assert line.times.tolist() == [[0, 0], [1, 1], [6, 4], [10, 8]] and line.memory.tolist() == [50, 70]
    assert line.cannot.tolist() == [[0, 0], [0, 0], [0, 1], [0, 1]]


def test_bytes_that_are_kept_over_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is at op 1: what it and op 0 make for later ops; results of the step, whenever; nothing that is written
    over another."""
    g = GraphBuilder("turn")
    w = g.tensor(1_000, "weight")
    sizes = {"over": 1, "at": 2, "before": 4, "after": 8}
    over, at, before, after = (g.tensor(size) for size in sizes.values())
    result, new = g.tensor(16, "output"), g.tensor(1_000, "weight", alias_of=w)
    g.op("op0", "any", [], [over, before], time_ns=1)
    g.op("op1", "any", [before], [at], time_ns=1)
    g.op("op2", "any", [over, at], [after], time_ns=1)
    g.op("op3", "any", [after], [result], time_ns=1)
    g.op("op4", "any", [w], [new], time_ns=1)
    monkeypatch.setattr(split, "turning_point", lambda _: 1)
    assert split._saved_bytes(price(g.build(), pair())).tolist() == [1, 2, 0, 16, 0]


def test_devices_are_added_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of none, the second, the first and both of two kinds; where that is too much, one kind after the other."""
    monkeypatch.setattr(split, "MOST_STATES", 4)
    moves = split.all_moves(ints([1, 1]))
    rows = zip(moves.source.tolist(), moves.target.tolist(), moves.kind.tolist(), strict=True)
    assert list(rows) == [(0, 2, 0), (0, 1, 1), (1, 3, 0), (2, 3, 1)] and moves.states == 4
    assert split._devices_used(moves) == [0, 1, 1, 2]
    monkeypatch.setattr(split, "MOST_STATES", 3)
    row = split.all_moves(ints([1, 1]))
    assert (row.source.tolist(), row.target.tolist(), row.kind.tolist(), row.states) == ([0, 1], [1, 2], [0, 1], 3)
    twice = split.all_moves(ints([2]))
    assert (twice.source.tolist(), twice.target.tolist(), twice.states) == ([0, 1], [1, 2], 3)


def test_neighbours_with_little_work_are_one_slot() -> None:
    slot, work = ints([0, 5, 9, 9]), np.ones(4)
    assert split.merged_slots(slot, work, 3).tolist() == [0, 1, 2, 2]
    assert split.merged_slots(slot, work, 2).tolist() == [0, 0, 1, 1]
    assert split.merged_slots(slot, np.array([8.0, 1, 1, 1]), 2).tolist() == [0, 1, 1, 1]
    assert split.merged_slots(slot, work, 1).tolist() == [0, 0, 0, 0]


def test_ops_without_a_module_go_with_what_they_read_or_with_the_next() -> None:
    g = GraphBuilder("scopes")
    x = g.tensor(1, "input")
    a, b, c, d, e = (g.tensor(1) for _ in range(5))
    g.op("none yet", "any", [x], [a], time_ns=1)
    g.op("first", "any", [a], [b], time_ns=1, scope="first")
    g.op("of first", "any", [b], [c], time_ns=1)
    g.op("second", "any", [c], [d], time_ns=1, scope="second")
    g.op("of both", "any", [d, b], [e], time_ns=1)
    g.op("first again", "any", [e], [], time_ns=1, scope="first")
    g.op("nothing", "any", [], [], time_ns=1)
    problem = price(g.build(), pair())
    assert split.scope_slots(problem).tolist() == [0, 0, 0, 1, 1, 0, 0]


def test_groups_are_in_their_first_slot() -> None:
    problem: Any = price(chain(), pair())
    assert split._together(problem, ints([3, 2, 1])).tolist() == [3, 2, 1]
    grouped = replace(problem, graph=replace(problem.graph, colocate=ints([0, -1, 0])))
    assert split._together(grouped, ints([3, 2, 1])).tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("fold", "scoped", "found"),
    [
        ("auto", True, ["scope", "mirror", "program"]), ("auto", False, ["mirror", "program"]),
        ("scope", True, ["scope"]), ("scope", False, ["mirror"]), ("mirror", True, ["mirror"]),
        ("program", True, ["program"]),
    ],
)  # fmt: skip
def test_ways_to_lay_out_work(fold: Any, scoped: bool, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = price(chain(), pair())
    if scoped:
        problem = replace(problem, graph=replace(problem.graph, scope=("", "a", "")))
    monkeypatch.setattr(split, "scope_slots", lambda _: "scope")
    monkeypatch.setattr(split, "mirrored_position", lambda _: "mirror")
    monkeypatch.setattr(split, "_together", lambda _, slot: slot if isinstance(slot, str) else "program")
    assert split._folds(problem, fold) == found


def test_stages_take_devices_of_their_kind_in_order() -> None:
    """Devices 0 and 2 are of one kind; three stages of kinds 0, 1 and 0, cut before slots 1 and 3."""
    moves = DeviceSets(np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([0, 1, 0]), 4)
    cut, by = np.full((4, 5), -1), np.full((4, 5), -1)
    cut[3, 4], by[3, 4] = 3, 2
    cut[2, 3], by[2, 3] = 1, 1
    cut[1, 1], by[1, 1] = 0, 0
    g = GraphBuilder("four")
    for op in range(4):
        g.op(f"op{op}", "any", [], [g.tensor(1)], time_ns=1)
    problem = price(g.build(), "3xp100-pcie")
    found = split._placement(problem, ints([0, 1, 2, 3]), 3, ints(cut), ints(by), moves, ints([0, 1, 0]))
    assert found.tolist() == [0, 1, 1, 2]


def test_the_least_load_of_all_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = price(chain(), pair())
    loads: dict[str, Any] = {
        "a": [(5.0, ints([0, 0, 0])), (9.0, ints([1, 1, 1]))],
        "b": [(4.0, ints([0, 1, 1]))],
        "c": [],
    }
    monkeypatch.setattr(split, "_folds", lambda *_: list(loads))
    monkeypatch.setattr(split, "least_loads", lambda _, slot: loads[slot])
    found = split.PipelineSplit("max-load").optimize(Search(problem, Budget(None, 9)))
    assert found.device.tolist() == [0, 1, 1]
    loads.clear()
    assert split.PipelineSplit("max-load").optimize(Search(problem, Budget(None, 9))).device.tolist() == [0, 0, 0]


def test_every_other_split_is_a_candidate_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = price(chain(), pair())
    one, two, three = ints([0, 0, 1]), ints([0, 1, 1]), ints([1, 1, 1])
    monkeypatch.setattr(split, "_folds", lambda *_: ["slot"])
    monkeypatch.setattr(split, "least_loads", lambda *_: [(1.0, one), (2.0, two)])
    monkeypatch.setattr(split, "least_totals", lambda *_: [(1.0, two), (2.0, three)])
    assert [device.tolist() for device in split._candidates(problem, "auto")] == [[0, 0, 1], [0, 1, 1], [1, 1, 1]]
    monkeypatch.setattr(split, "_folds", lambda *_: [])
    assert [device.tolist() for device in split._candidates(problem, "auto")] == [[0, 0, 0]]


@pytest.mark.parametrize(("order", "left", "asked"), [("best", 5, True), ("best", 0, False), ("program", 5, False)])
def test_the_best_candidate_is_put_in_every_order(
    order: Any, left: int, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Any]()
    monkeypatch.setattr(split, "ordered", lambda _, device, order: seen.append((device, order)) or (device, order))
    plan = SimpleNamespace(device="best device")
    monkeypatch.setattr(split, "best_of", lambda _, plans: (list(plans) and plan, None))
    search: Any = SimpleNamespace(simulations_left=left)
    found = split._fastest(search, iter(["one", "two"]), order)  # type: ignore[list-item]
    first = "critical" if order == "best" else order
    assert seen[:2] == [("one", first), ("two", first)]
    assert found == ("best device", "best") if asked else found is plan
