"""Cuts, deals and groups of a few ops, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.optimizers import cuts, dealing, grouped
from loadmaster.optimizers.grouped import Groups
from loadmaster.optimizers.simple import legal
from loadmaster.passes.groups import group_ops
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


@pytest.mark.parametrize(
    ("turn", "alive"), [(0, [0, 0, 0, 0]), (1, [0, 40, 0, 0]), (2, [0, 40, 20, 0]), (3, [0, 0, 20, 0])]
)
def test_what_is_made_is_held_from_there_to_its_last_reader(
    turn: int, alive: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of the step are not held for anybody."""
    monkeypatch.setattr(cuts, "turning_point", lambda _: turn)
    assert cuts.held_bytes(updated()).tolist() == [100 + alive[0], alive[1], 30 + alive[2], alive[3]]


def test_cuts_of_equal_time_bytes_and_count() -> None:
    found = [device.tolist() for device in cuts.cuts(row([3, 1, 1, 1], [1, 1, 1, 9]))]
    assert found == [[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]
    assert len(cuts.cuts(row([3, 1, 1, 1], [1, 1, 1, 9], ["a.0", "", "", ""]))) == 5
    nothing = [device.tolist() for device in cuts.cuts(row([0, 0], [0, 0]))]
    assert nothing == [[0, 0], [0, 0], [0, 1]]
    g = GraphBuilder("one")
    g.op("op", "any", [], [g.tensor(1)], time_ns=1)
    assert cuts.cuts(price(g.build(), "1xp100-pcie")) == []


def test_cuts_by_what_is_held_turned_and_tilted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ops that hold as much: two each; turned by half a share, the last is the first device's; tilted by a half,
    the first device has one."""
    monkeypatch.setattr(cuts, "held_bytes", lambda _: np.ones(4))
    found = cuts.cut_by_held(row([1] * 4, [1] * 4), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.0, -0.5)])
    assert [device.tolist() for device in found] == [[0, 0, 1, 1], [0, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 1]]
    monkeypatch.setattr(cuts, "held_bytes", lambda _: np.zeros(4))
    (device,) = cuts.cut_by_held(row([1] * 4, [1] * 4), [(0.0, 0.0)])
    assert device.tolist() == [0, 0, 0, 0]


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


def test_the_largest_group_goes_first_to_the_device_that_is_least_full_with_it() -> None:
    even, uneven = np.array([10.0, 10.0]), np.array([10.0, 30.0])
    assert dealing._deal(np.array([5.0, 9.0, 4.0]), even).tolist() == [1, 0, 1]
    assert dealing._deal(np.array([5.0, 9.0, 4.0]), uneven).tolist() == [1, 1, 0]
    assert dealing._deal(np.array([3.0, 3.0]), even).tolist() == [0, 1], "of equals the first"


def test_the_first_deal_is_by_sizes_as_they_are() -> None:
    problem = row([1] * 6, [5, 50, 7, 20, 11, 3], objective="peak-memory")
    first, second = dealing.dealt(problem, {3: 2})
    label = group_ops(problem, 3)
    total = np.bincount(label, dealing.bytes_of(problem))
    assert (
        first.tolist() == legal(problem, ints(dealing._deal(total, problem.memory_bytes.astype(float))[label])).tolist()
    )
    assert len(second) == 6
    assert len(list(dealing.dealt(problem, {2: 1, 3: 3}))) == 4


def groups(times: list[list[float]], sends: dict[tuple[int, int], float]) -> Groups:
    """Groups that send to each other for so long; two devices, one class of links."""
    pairs = [(a, b, False, ns) for (a, b), ns in sends.items()] + [(b, a, True, ns) for (a, b), ns in sends.items()]
    pairs.sort(key=lambda each: each[0])
    start = np.searchsorted([pair[0] for pair in pairs], np.arange(len(times) + 1))
    return Groups(
        ints(np.arange(len(times))), np.array(times, float), ints([[1, 0], [0, 1]]), ints(start),
        ints([pair[1] for pair in pairs]), np.array([pair[2] for pair in pairs], bool),
        np.array([[pair[3], 0.0] for pair in pairs]).reshape(-1, 2),
    )  # fmt: skip


def listed(given: Groups, rule: Any, sends: float) -> list[int]:
    return grouped._listed(given, rule, sends).tolist()


def test_a_group_goes_where_it_ends_soonest() -> None:
    """Beside the one before it unless what that sends takes longer than to wait for it."""
    for send, there in ((9, 1), (10, 0), (11, 0)):
        assert listed(groups([[10, 10], [10, 10], [10, 99]], {(0, 1): 0.0, (1, 2): float(send)}), "finish", 0.0)[0] == 0
        assert listed(groups([[10, 10], [10, 10]], {(0, 1): float(send)}), "finish", 0.0) == [0, 0]
        assert listed(groups([[10, 10], [10, 10]], {}), "finish", 0.0) == [0, 1]
        after = groups([[10, 10], [10, 99], [10, 10]], {(0, 2): float(send)})
        assert listed(after, "finish", 0.0) == [0, 0, there], "the second holds it up for 10"


def test_by_load_or_with_sends_counted_again() -> None:
    """Where nothing is waited for, devices get as much; what is sent counts as often as is said."""
    assert listed(groups([[10, 10], [10, 10]], {(0, 1): 50.0}), "load", 0.0) == [0, 1]
    assert listed(groups([[10, 10], [10, 10]], {(0, 1): 50.0}), "load", 1.0) == [0, 0]
    assert listed(groups([[10, 10], [10, 10]], {(1, 0): 50.0}), "load", 0.2) == [0, 0], "what it sends back, too"
    assert listed(groups([[10, 10], [10, 10]], {(1, 0): 50.0}), "load", 0.19) == [0, 1]
    assert listed(groups([[10, 10], [10, 10]], {(1, 0): 50.0}), "finish", 0.0) == [0, 1], "which it does not wait for"
    assert listed(groups([[5, 9], [10, 10], [10, 10]], {}), "load", 0.0) == [0, 1, 0]


def test_what_groups_take_and_send() -> None:
    """Tensor 0 is updated by op 0, and read from there by op 1; op 2 reads what both make. One group for 1 and 2."""
    g = GraphBuilder("groups")
    w, a, b = g.tensor(100, "weight"), g.tensor(40), g.tensor(20)
    g.op("op1", "any", [w], [b], time_ns=[1, None])
    g.op("op0", "any", [w], [g.tensor(100, "weight", alias_of=w), a], time_ns=[2, 3])
    g.op("op2", "any", [a, b], [], time_ns=[4, 5])
    problem = price(g.build(), pair())
    found = Groups.of(problem, ints([1, 0, 1]))
    assert found.time_ns.tolist() == [[2, 3], [1 + 4, 10 * 1 + 5]]
    assert (
        found.start.tolist() == [0, 1, 2] and found.other.tolist() == [1, 0] and found.before.tolist() == [False, True]
    )
    assert found.send_ns.tolist() == [[15 + 9, 0], [15 + 9, 0]] and found.link.tolist() == [[1, 0], [0, 1]]
    maker, reader, tensor = grouped._sent(problem, ints([1, 0, 1]))
    assert list(zip(maker.tolist(), reader.tolist(), tensor.tolist(), strict=True)) == [(0, 1, w), (0, 1, a)]
