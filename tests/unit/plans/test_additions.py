"""Additions: what may not be added is refused by name."""

from __future__ import annotations

import pytest

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, check
from loadmaster.plans.additions import Additions, may_live_elsewhere, repeatable, same_additions
from loadmaster.plans.expansion import expand, whole
from loadmaster.problem import Problem
from loadmaster.simulator import simulate
from tests.graphs import pair


def overwriting() -> Graph:
    """x -> a -> A -> b -> B; c overwrites A once b has read it; r draws random numbers; d reads all."""
    g = GraphBuilder("overwriting")
    x, w = g.tensor(10, "input"), g.tensor(7, "weight")
    a, b, r = g.tensor(100, name="A"), g.tensor(50, name="B"), g.tensor(20, name="R")
    changed, updated = g.tensor(100, name="A2", alias_of=a), g.tensor(7, "state", name="w2", alias_of=w)
    g.op("a", "relu", [x], [a], flops=10)
    g.op("b", "mm", [a, w], [b], flops=10)
    g.op("r", "aten.bernoulli.p", [b], [r], flops=10)
    g.op("c", "relu_", [a], [changed], flops=10, after=["b"])
    g.op("u", "optim.sgd", [w, r], [updated], flops=10, after=["b"])
    g.op("d", "add", [changed, b, r], [g.tensor(8, "output", name="D")], flops=10)
    return g.build()


@pytest.fixture
def problem() -> Problem:
    return price(overwriting(), pair())


def added(
    op: int = -1, tensor: int = -1, reader: int = 5, read: int = 3, after: int = -1, source: int = 0
) -> Additions:
    return Additions(*(ints([value]) for value in (op, tensor, after, reader, read, source)))


def named(problem: Problem, tensor: str) -> int:
    return problem.graph.tensor_name.index(tensor)


def test_only_what_gives_the_same_again_may_run_again(problem: Problem) -> None:
    able = dict(zip(problem.graph.op_name, repeatable(problem.graph).tolist(), strict=True))
    assert able == {"a": False, "b": True, "r": True, "c": False, "u": False, "d": True}


def test_additions_are_the_same_by_what_they_say() -> None:
    assert same_additions(None, None) and same_additions(added(1), added(1))
    assert not any(same_additions(added(1), other) for other in (None, added(2), added(1, after=0)))
    assert not same_additions(None, added(1))


def test_a_copy_reads_before_its_weight_is_overwritten(problem: Problem) -> None:
    op = problem.graph.op_name.index("b")
    whole_problem = expand(problem, added(op, reader=problem.graph.op_name.index("d"), read=named(problem, "B")))
    names = whole_problem.graph.op_name
    again = names.index("b.again")
    for writer in ("c", "u"):
        assert again in whole_problem.graph.after_of(names.index(writer)).tolist()
    plan = Plan.of(whole_problem, [0] * 7, rank=[0, 1, 6, 2, 3, 4, 5])
    check(plan, problem)
    line = simulate(problem, plan)
    assert line.end_ns[again] <= line.start_ns[[names.index("c"), names.index("u")]].min()
    assert whole(problem, plan) is whole_problem and whole(whole_problem, plan) is whole_problem


def test_a_batch_norm_runs_again_without_its_running_statistics() -> None:
    g = GraphBuilder("normed")
    x, mean = g.tensor(100, "input", name="X"), g.tensor(4, "state", name="mean")
    new, out, kept = g.tensor(4, "state", name="new", alias_of=mean), g.tensor(100, name="Y"), g.tensor(4, name="kept")
    g.op("norm", "aten.native_batch_norm.default", [x, mean], [new, out, kept], flops=10)
    g.op("late", "add", [out, kept], [g.tensor(8, "output")], flops=10)
    problem = price(g.build(), pair())
    assert repeatable(problem.graph).tolist() == [True, True]
    graph = expand(problem, added(0, reader=1, read=out)).graph
    again = graph.op_name.index("norm.again")
    assert [graph.tensor_name[t] for t in graph.reads_of(again)] == ["X"]
    assert [graph.tensor_name[t] for t in graph.makes_of(again)] == ["Y.again", "kept.again"]
    with pytest.raises(InvalidPlan, match="makes no copy of tensor 'new'"):
        expand(problem, added(0, reader=1, read=new))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"op": 0, "read": "A", "reader": 1}, "op 'a' cannot run again"),
        ({"op": 3, "read": "A2"}, "op 'c' cannot run again"),
        ({"tensor": "A", "read": "A", "reader": 1}, "tensor 'A' cannot be offloaded"),
        ({"op": 1, "read": "R"}, "makes no copy of tensor 'R'"),
        ({"op": 1, "read": "B", "reader": 0}, "does not read it"),
        ({"op": 1, "tensor": "B", "read": "B"}, "neither"),
        ({"op": 9, "read": "B"}, "'op' out of range"),
        ({"op": 1, "read": "B", "source": 1}, "'source' out of range"),
        ({"op": 1, "read": "B", "after": 5}, "would wait for itself"),
    ],
)
def test_refusals(problem: Problem, settings: dict[str, int | str], words: str) -> None:
    numbers = {key: named(problem, value) if isinstance(value, str) else value for key, value in settings.items()}
    with pytest.raises(InvalidPlan, match=words) as caught:
        expand(problem, added(**numbers))
    assert caught.value.fix


def test_a_stay_is_no_part_of_a_kernel(problem: Problem) -> None:
    whole_problem = expand(problem, added(tensor=named(problem, "B"), read=named(problem, "B")))
    stay = whole_problem.graph.kind.index("stay")
    plan = Plan.of(whole_problem, [0] * 7, kernel=[0, 1, 2, 3, 4, 5, 5] if stay in (5, 6) else range(7))
    with pytest.raises(InvalidPlan, match=r"'B\.stay' is fused with others"):
        check(plan, problem)


def stays(problem: Problem, *rows: tuple[str, int], reads: list[tuple[str, str, int]]) -> Additions:
    """Stays of tensors after ops; who reads which from which of them."""
    op = {name: number for number, name in enumerate(problem.graph.op_name)}
    columns = [(-1, named(problem, tensor), after) for tensor, after in rows]
    given = [(op[reader], named(problem, tensor), source) for reader, tensor, source in reads]
    return Additions(*(ints(column) for column in (*zip(*columns, strict=True), *zip(*given, strict=True))))


def weighted() -> Problem:
    """f reads the weight W for 10 ns, g takes 200 ns, and u updates W in 10 ns; a link takes 5 ns and 10 bytes a ns."""
    g = GraphBuilder("weighted")
    x, w = g.tensor(10, "input", name="X"), g.tensor(100, "weight", name="W")
    a, b = g.tensor(20, name="A"), g.tensor(30, name="B")
    g.op("f", "mm", [x, w], [a], time_ns=10)
    g.op("g", "mm", [a], [b], time_ns=200)
    g.op("u", "optim.sgd", [w, b], [g.tensor(100, "weight", name="W2", alias_of=w)], time_ns=10, after=["f"])
    devices = tuple(Device(f"d{i}", "any", 2**30, 1e9, 1e9) for i in range(2))
    links = {(0, 1): Link(10e9, 5), (1, 0): Link(10e9, 5)}
    return price(g.build(), Cluster("two", devices, links, ints([[-1, 0], [1, -1]])))


def test_a_weight_that_lives_elsewhere_comes_twice_and_goes_back() -> None:
    """By hand. W comes 0 to 15, f runs 15 to 25; g runs 25 to 225; W comes again from when f has ended, 25 to 40, and u
    overwrites it, 225 to 235; it goes home 235 to 250. d0 holds X and W before f (110), with A 130; then W again, A and
    B with X (160); u reads W and B beside X (140). d1 has W all the time, and W2 while it arrives."""
    base = weighted()
    added = stays(base, ("W", -1), ("W", 0), ("W2", -1), reads=[("f", "W", 0), ("u", "W", 1)])
    problem = expand(base, added)
    names = list(problem.graph.op_name)
    assert names == ["W.stay", "f", "g", "W.stay2", "u", "W2.stay"]
    plan = Plan.of(problem, [int(name.startswith("W")) for name in names])
    check(plan, base)
    line = simulate(base, plan)
    assert dict(zip(names, line.start_ns.tolist(), strict=True)) == {
        "W.stay": 0,
        "f": 15,
        "g": 25,
        "W.stay2": 25,
        "u": 225,
        "W2.stay": 250,
    }
    assert line.step_ns == 250
    sent = [problem.graph.tensor_name[t] for t in line.send_tensor]
    assert sent == ["W.stay", "W.stay2", "W2"]
    assert line.peak_bytes.tolist() == [160, 200]
    assert list(zip(*(column.tolist() for column in line.curve(0)), strict=True)) == [
        (0, 10),
        (0, 110),
        (15, 130),
        (25, 60),  # the stay that follows f ends in the next round
        (25, 160),
        (225, 140),
        (235, 110),
        (250, 10),
    ]
    plain = simulate(base, Plan.of(base, [0, 0, 0]))
    assert plain.peak_bytes.tolist() == [160, 0] and plain.curve(0)[1][0] == 110


@pytest.mark.parametrize(
    ("rows", "reads", "words"),
    [
        ([("W", -1)], [("f", "W", 0)], "brought home 0 times"),
        ([("W", -1), ("W2", -1)], [("f", "W", 0)], "reads it from no stay"),
        ([("W", -1), ("W2", -1), ("W2", -1)], [("u", "W", 0)], "brought home 2 times"),
        ([("W2", -1)], [], "reads it from no stay"),
        ([("X", -1), ("X", -1)], [("f", "X", 0)], "no op reads addition 1"),
        ([("W", 2), ("W2", -1)], [("u", "W", 0)], "would wait for itself"),
    ],
)
def test_what_lives_elsewhere_must_come_and_go(
    rows: list[tuple[str, int]], reads: list[tuple[str, str, int]], words: str
) -> None:
    base = weighted()
    if not reads:
        added = Additions(ints([-1]), ints([named(base, "W2")]), ints([-1]), ints([]), ints([]), ints([]))
    else:
        added = stays(base, *rows, reads=reads)
    with pytest.raises(InvalidPlan, match=words) as caught:
        expand(base, added)
    assert caught.value.fix


def test_stays_of_one_weight_share_a_device() -> None:
    base = weighted()
    added = stays(base, ("W", -1), ("W", 0), ("W2", -1), reads=[("f", "W", 0), ("u", "W", 1)])
    problem = expand(base, added)
    device = [int(name.startswith("W.stay")) for name in problem.graph.op_name]
    with pytest.raises(InvalidPlan, match="must share a device"):
        check(Plan.of(problem, device), base)


def test_what_is_updated_twice_stays_where_it_is(problem: Problem) -> None:
    g = GraphBuilder("twice")
    w = g.tensor(100, "weight", name="W")
    once = g.tensor(100, name="once", alias_of=w)
    g.op("one", "add_", [w], [once], flops=10)
    g.op("two", "add_", [once], [g.tensor(100, "weight", name="twice", alias_of=once)], flops=10)
    twice = price(g.build(), pair())
    assert not may_live_elsewhere(twice.graph).any()
    assert [problem.graph.tensor_name[t] for t in may_live_elsewhere(problem.graph).nonzero()[0]] == ["0", "1"]
