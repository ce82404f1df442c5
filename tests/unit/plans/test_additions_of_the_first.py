"""Additions of the first op and the first tensor, which have the number 0, and at the ends of what is allowed."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import ACTIVATION, STATE, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, check
from loadmaster.plans.additions import (
    SEVERAL,
    Additions,
    check_additions,
    homes,
    may_live_elsewhere,
    may_stay,
    overwriters,
    reads_again,
    repeatable,
    returns,
    statistics,
    updated_by,
)
from loadmaster.plans.expansion import expand
from loadmaster.problem import Problem
from loadmaster.simulator import simulate
from tests.graphs import pair
from tests.unit.plans.test_additions import overwriting


def updating(*, update_first: bool) -> Problem:
    """u overwrites the weight W with W2, f makes A of that, g makes B of A, h reads W2; the first op is u, and the
    first tensor W, or W2."""
    g = GraphBuilder("updating")
    if update_first:
        new, w = g.tensor(100, "state", name="W2", alias_of=1), g.tensor(100, "weight", name="W")
    else:
        w, new = g.tensor(100, "weight", name="W"), g.tensor(100, "state", name="W2", alias_of=0)
    a, b, c = g.tensor(20, name="A"), g.tensor(30, "output", name="B"), g.tensor(8, "output", name="C")
    g.op("u", "optim.sgd", [w], [new], time_ns=10)
    g.op("f", "mm", [new], [a], time_ns=20)
    g.op("g", "mm", [a], [b], time_ns=30)
    g.op("h", "mm", [new], [c], time_ns=5)
    return price(g.build(), pair())


def named(problem: Problem, *names: str) -> list[int]:
    return [problem.graph.tensor_name.index(name) for name in names]


def additions(*rows: tuple[int, int, int], reads: list[tuple[int, int, int]]) -> Additions:
    """Of (op, tensor, after) and (reader, read, source)."""
    table, given = np.array(rows).reshape(-1, 3).T, np.array(reads, np.int64).reshape(-1, 3).T
    return Additions(*(ints(column) for column in (*table, *given)))


both = pytest.mark.parametrize("update_first", [False, True])


@both
def test_what_is_overwritten_has_any_number(update_first: bool) -> None:
    problem = updating(update_first=update_first)
    graph = problem.graph
    assert graph.op_name == ("u", "f", "g", "h")
    assert overwriters(graph).tolist() == [True, False, False, False]
    assert repeatable(graph).tolist() == [False, True, True, True]
    w, new, a = named(problem, "W", "W2", "A")
    assert np.flatnonzero(may_stay(graph)).tolist() == [a]
    assert np.flatnonzero(may_live_elsewhere(graph)).tolist() == [w]
    assert updated_by(graph)[w] == new and (np.delete(updated_by(graph), w) == SEVERAL).all()


@both
def test_a_weight_of_any_number_lives_elsewhere(update_first: bool) -> None:
    """By hand: W comes from d1 from 0 to 15, u runs to 25, W2 goes home from 25 to 40; f runs to 45, g to 75, h to 80.
    W2 takes the bytes of the W that came, and with A there are 120; d1 has W all the time, and W2 from when it is
    sent."""
    base = updating(update_first=update_first)
    w, new = named(base, "W", "W2")
    added = additions((-1, w, -1), (-1, new, -1), reads=[(0, w, 0)])
    assert (added.num_again, added.num_stays) == (0, 2)
    assert homes(base.graph, added).tolist() == [w, w] and returns(base.graph, added).tolist() == [False, True]
    problem = expand(base, added)
    graph, names = problem.graph, list(problem.graph.op_name)
    assert sorted(names) == ["W.stay", "W2.stay", "f", "g", "h", "u"] and names[:2] == ["W.stay", "u"]
    came, home = named(problem, "W.stay", "W2.stay")
    assert graph.alias_of[[came, new, home]].tolist() == [w, came, w]
    assert graph.role[[new, home]].tolist() == [ACTIVATION, STATE]
    assert {int(graph.colocate[names.index(name)]) for name in ("W.stay", "W2.stay")} == {w}
    assert (graph.colocate[[names.index(name) for name in "ufgh"]] == -1).all()
    plan = Plan.of(problem, [int(name.startswith("W")) for name in names])
    check(plan, base)
    line = simulate(base, plan)
    starts = dict(zip(names, line.start_ns.tolist(), strict=True))
    assert starts == {"W.stay": 0, "u": 15, "f": 25, "g": 45, "h": 75, "W2.stay": 40}
    assert line.step_ns == 80 and line.peak_bytes.tolist() == [150, 200]


def test_the_first_op_runs_again_without_the_first_tensor() -> None:
    g = GraphBuilder("normed")
    mean, x = g.tensor(4, "state", name="mean"), g.tensor(100, "input", name="X")
    new, out = g.tensor(4, "state", name="new", alias_of=mean), g.tensor(100, name="Y")
    g.op("norm", "aten.native_batch_norm.default", [x, mean], [new, out], flops=10)
    g.op("late", "add", [out], [g.tensor(8, "output")], flops=10)
    problem = price(g.build(), pair())
    graph = problem.graph
    assert np.flatnonzero(statistics(graph)).tolist() == [new]
    which, place = reads_again(graph, ints([1, 0]))
    assert which.tolist() == [0, 1] and graph.reads[place].tolist() == [out, x]
    added = additions((0, -1, -1), reads=[(1, out, 0)])
    assert (added.num_again, added.num_stays) == (1, 0) and repr(added) == "Additions(1 ops again, 0 stays)"
    names = expand(problem, added).graph.op_name
    assert names == ("norm", "norm.again", "late")


def test_statistics_are_those_that_were_there_before() -> None:
    """A batch norm over what the first op made is one that overwrites like any other."""
    g = GraphBuilder("made")
    mean, x = g.tensor(4, name="mean"), g.tensor(100, "input")
    new, out = g.tensor(4, name="new", alias_of=mean), g.tensor(100, "output")
    g.op("zeros", "aten.zeros.default", [], [mean], flops=10)
    g.op("norm", "aten.native_batch_norm.default", [x, mean], [new, out], flops=10)
    graph = g.build()
    assert not statistics(graph).any() and repeatable(graph).tolist() == [False, False]


def test_what_makes_nothing_or_is_not_known_does_not_run_again() -> None:
    g = GraphBuilder("odd")
    g.op("barrier", "any", [], [], flops=1)
    for kind in ("while", "rng_bit_generator", "aten.empty.memory_format", "aten.bernoulli_", "onnx.Loop", "mm"):
        g.op(kind, kind, [], [g.tensor(4, "output")], flops=1)
    assert repeatable(g.build()).tolist() == [False, False, False, False, True, False, True]


def test_updates_are_one_by_an_op_that_reads_the_weight() -> None:
    """one: read and written over; unread: written over by an op that does not read it; two: written over twice;
    kept: only read."""
    g = GraphBuilder("updates")
    one, unread, two, kept = (g.tensor(8, "weight", name=name) for name in ("one", "unread", "two", "kept"))
    over = [g.tensor(8, "state", alias_of=base) for base in (one, unread, two, two)]
    g.op("a", "any", [one, kept], over[:1], flops=1)
    g.op("b", "any", [kept], over[1:2], flops=1)
    g.op("c", "any", [two], over[2:3], flops=1)
    g.op("d", "any", [two], over[3:], flops=1, after=["c"])
    graph = g.build()
    assert updated_by(graph)[[one, unread, two, kept]].tolist() == [over[0], SEVERAL, SEVERAL, -1]
    assert np.flatnonzero(may_live_elsewhere(graph)).tolist() == [one, kept]


# Of `overwriting`: ops a, b, r, c, u, d; tensors x, w, A, B, R, A2, w2, D. d (5) reads B (3), which b (1) makes again.
@pytest.mark.parametrize(
    ("row", "read", "wrong", "fix"),
    [
        ((6, -1, -1), (5, 3, 0), "'op' out", "use -1 to 5"),
        ((-2, 3, -1), (5, 3, 0), "'op' out", "use -1 to 5"),
        ((-1, 8, -1), (5, 3, 0), "'tensor' out", "use -1 to 7"),
        ((1, -2, -1), (5, 3, 0), "'tensor' out", "use -1 to 7"),
        ((1, -1, 6), (5, 3, 0), "'after' out", "use -1 to 5"),
        ((1, -1, -2), (5, 3, 0), "'after' out", "use -1 to 5"),
        ((1, -1, -1), (7, 3, 0), "'reader' out", "use 0 to 6"),
        ((1, -1, -1), (-1, 3, 0), "'reader' out", "use 0 to 6"),
        ((1, -1, -1), (5, 8, 0), "'read' out", "use 0 to 7"),
        ((1, -1, -1), (5, -1, 0), "'read' out", "use 0 to 7"),
        ((1, -1, -1), (5, 3, 1), "'source' out", "use 0 to 0"),
        ((1, -1, -1), (5, 3, -1), "'source' out", "use 0 to 0"),
        ((1, -1, -1), (6, 3, 0), "of tensor 'B' does not read it", "name ops that read it"),
        ((1, -1, -1), (5, 0, 0), "makes no copy of tensor '0'", "name the addition that does"),
        ((5, -1, -1), (5, 7, 0), "of tensor 'D' does not read it", "name ops that read it"),
        ((-1, -1, -1), (5, 3, 0), "addition 0 is neither", "give one of the two"),
        ((-1, 7, -1), (5, 7, 0), "tensor 'D' cannot be offloaded", "keep it"),
    ],
)
def test_numbers_next_to_those_allowed(
    row: tuple[int, int, int], read: tuple[int, int, int], wrong: str, fix: str
) -> None:
    with pytest.raises(InvalidPlan, match=wrong) as caught:
        check_additions(overwriting(), additions(row, reads=[read]))
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("rows", "reads", "words"),
    [
        ([(1, -1, -1), (-1, -1, -1)], [(5, 3, 0)], "addition 1 is neither"),
        ([(1, -1, -1), (3, -1, -1)], [(5, 3, 0)], "op 'c' cannot run again"),
        ([(-1, 3, -1), (-1, 5, -1)], [(5, 3, 0)], "tensor 'A2' cannot be offloaded"),
        ([(1, -1, -1), (1, -1, -1)], [(5, 3, 0)], "no op reads addition 1"),
        ([(1, -1, -1), (1, -1, -1)], [(5, 3, 0), (5, 3, 1)], "reads a tensor from two copies"),
        ([(1, -1, -1)], [(5, 3, 0), (5, 4, 0)], "addition 0 makes no copy of tensor 'R'"),
        ([(-1, 3, -1), (-1, 4, -1)], [(5, 3, 1), (5, 4, 0)], "addition 1 makes no copy of tensor 'B'"),
        ([(1, -1, -1)], [(5, 3, 0), (4, 3, 0)], "a reader of tensor 'B' does not read it"),
    ],
)
def test_the_second_is_at_fault(
    rows: list[tuple[int, int, int]], reads: list[tuple[int, int, int]], words: str
) -> None:
    with pytest.raises(InvalidPlan, match=words):
        check_additions(overwriting(), additions(*rows, reads=reads))


def test_a_copy_reads_a_copy_that_stands_after_it() -> None:
    """r again reads what b made again, and d reads that of r; b again comes before c and u, which overwrite what it
    reads, r again just before d."""
    problem = expand(price(overwriting(), pair()), additions((2, -1, -1), (1, -1, -1), reads=[(5, 4, 0), (6, 3, 1)]))
    graph, names = problem.graph, problem.graph.op_name
    assert names == ("a", "b", "r", "b.again", "c", "u", "r.again", "d")

    def reads(op: str) -> list[str]:
        return [graph.tensor_name[t] for t in graph.reads_of(names.index(op))]

    assert reads("r.again") == ["B.again"] and reads("d") == ["A2", "B", "R.again"] and reads("r") == ["B"]
    assert reads("b.again") == ["A", "1"]


def test_copies_of_one_op_are_counted() -> None:
    base = updating(update_first=False)
    a = named(base, "A")[0]
    added = additions((1, -1, -1), (1, -1, -1), (1, -1, -1), reads=[(2, a, 2)])
    with pytest.raises(InvalidPlan, match="addition 0"):
        expand(base, added)
    g = GraphBuilder("three")
    x, a, f2 = g.tensor(8, "input"), g.tensor(8, name="A"), g.tensor(8, "output")
    g.op("f", "mm", [x], [a], flops=1)
    g.op("f.again", "mm", [a], [f2], flops=1)
    for name in "gh":
        g.op(name, "mm", [a], [g.tensor(8, "output")], flops=1)
    rows = (0, -1, -1), (0, -1, -1), (-1, 1, -1)
    problem = expand(price(g.build(), pair()), additions(*rows, reads=[(2, 1, 0), (3, 1, 1), (1, 1, 2)]))
    assert problem.graph.op_name == ("f", "A.stay", "f.again", "f.again2", "g", "f.again3", "h")
    assert problem.graph.tensor_name[-3:] == ("A.again2", "A.again3", "A.stay")


@both
def test_homes_are_read_as_they_are(update_first: bool) -> None:
    base = updating(update_first=update_first)
    w, new = named(base, "W", "W2")
    with pytest.raises(InvalidPlan, match="reads a copy"):
        expand(base, additions((-1, w, -1), (-1, w, -1), (-1, new, -1), reads=[(0, w, 0), (4, w, 1)]))
    with pytest.raises(InvalidPlan, match="what was brought home"):
        expand(base, additions((-1, w, -1), (-1, new, -1), reads=[(0, w, 0), (3, new, 1)]))
    with pytest.raises(InvalidPlan, match="brought home 0 times"):
        expand(base, additions((-1, w, -1), reads=[(0, w, 0)]))
    with pytest.raises(InvalidPlan, match="from no stay"):
        expand(base, additions((-1, new, -1), reads=[]))
