"""Cuts, deals and groups of a few ops, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.baselines import cuts, dealing
from loadmaster.graph.columns import ints
from loadmaster.problem import CANNOT, Problem
from tests.graphs.tiny import pair


def row(times: list[Any], sizes: list[int], scopes: list[str] | None = None, **given: Any) -> Problem:
    """Ops in a row, each of which reads what the one before it makes."""
    g = GraphBuilder("row")
    made = [g.tensor(8, "input")]
    for op, (time, size) in enumerate(zip(times, sizes, strict=True)):
        made.append(g.tensor(size))
        g.op(f"op{op}", "any", made[-2:-1], made[-1:], time_ns=time, scope=scopes[op] if scopes else "")
    return price(g.build(), pair(), **given)


def updated() -> Problem:
    """Op 0 updates tensor 0, of 100 bytes; ops 2 and 3 read a weight of 30; nobody one of 7."""
    g = GraphBuilder("updated")
    w, fixed = g.tensor(100, "weight"), g.tensor(30, "weight")
    g.tensor(7, "weight")
    new, a, b, c = g.tensor(100, "weight", alias_of=w), g.tensor(40), g.tensor(20), g.tensor(10, "output")
    g.op("op0", "any", [w], [new], time_ns=1)
    g.op("op1", "any", [], [a], time_ns=1)
    g.op("op2", "any", [a, fixed], [b], time_ns=1)
    g.op("op3", "any", [b, fixed], [c], time_ns=1)
    return price(g.build(), pair())


def test_residents_are_with_the_op_that_updates_them_or_reads_them_first() -> None:
    assert dealing.resident_bytes(updated()).tolist() == [100, 0, 30, 0]
    assert dealing.bytes_of(updated()).tolist() == [100, 40, 30 + 20, 10]


def test_cuts_of_equal_time_bytes_and_count() -> None:
    found = [device.tolist() for device in cuts.cuts(row([3, 1, 1, 1], [1, 1, 1, 9]))]
    assert found == [[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]
    assert len(cuts.cuts(row([3, 1, 1, 1], [1, 1, 1, 9], ["a.0", "", "", ""]))) == 5
    nothing = [device.tolist() for device in cuts.cuts(row([0, 0], [0, 0]))]
    assert nothing == [[0, 0], [0, 0], [0, 1]]
    g = GraphBuilder("one")
    g.op("op", "any", [], [g.tensor(1)], time_ns=1)
    assert cuts.cuts(price(g.build(), "1xp100-pcie")) == []


def test_every_stack_is_cut_by_itself_and_small_ones_go_with_what_lies_before() -> None:
    scopes = ["enc.0", "enc.1", "dec.0", "dec.1"]
    assert cuts.cut_stacks(row([1] * 4, [1] * 4, scopes), np.ones(4)).tolist() == [0, 1, 0, 1]
    # A stack of a quarter is cut by itself, one of less is not.
    quarter = ["enc.0", "enc.1", "enc.2", "tail"]
    assert cuts.cut_stacks(row([1] * 4, [1] * 4, quarter), np.ones(4)).tolist() == [0, 0, 1, 0]
    fifth = ["head", "enc.0", "enc.1", "enc.2", "enc.3"]
    assert cuts.cut_stacks(row([1] * 5, [1] * 5, fifth), np.ones(5)).tolist() == [0, 0, 0, 1, 1]
    after = ["enc.0", "enc.1", "enc.2", "enc.3", "tail"]
    assert cuts.cut_stacks(row([1] * 5, [1] * 5, after), np.ones(5)).tolist() == [0, 0, 1, 1, 1]
    heavy = np.array([6.0, 1, 1])
    assert cuts.cut_stacks(row([1] * 3, [1] * 3, ["enc.0", "enc.1", "enc.2"]), heavy).tolist() == [0, 1, 1]
    middle = ["enc.0", "enc.1", "tail", "dec.0", "dec.1", "dec.2"]
    assert cuts.cut_stacks(row([1] * 6, [1] * 6, middle), np.ones(6)).tolist() == [0, 1, 1, 0, 0, 1]


def test_shares_of_unlike_devices_in_their_order() -> None:
    """4 ns on one and 2 on the other, each and one more: shares of 3 and 5 eighths, the faster first."""
    slow_first = row([[2, 1], [2, 1]], [1, 1])
    assert cuts.device_order(slow_first).tolist() == [1, 0]
    low, high = cuts.fair_share(slow_first)
    assert low.tolist() == pytest.approx([5 / 8, 0]) and high.tolist() == pytest.approx([1, 5 / 8])
    of_memory = row([[2, 1], [2, 1]], [1, 1], objective="peak-memory")
    assert cuts.fair_share(of_memory)[1].tolist() == pytest.approx([1, 0.5])
    cannot = row([[1, None], [1, 1]], [1, 1])
    assert cannot.op_ns[0, 1] == CANNOT
    assert cuts.fair_share(cannot)[1].tolist() == pytest.approx([12 / 15, 1]), "ten times the best: 2 + 1 to 11 + 1"


def test_of_devices_as_fast_the_larger_is_first() -> None:
    problem = row([1, 1], [1, 1])
    assert cuts.device_order(problem).tolist() == [0, 1]
    larger = replace(problem, memory_bytes=ints([5, 6]))
    assert cuts.device_order(larger).tolist() == [1, 0]
