"""What objectives put their bounds together from, by hand."""

from __future__ import annotations

from loadmaster import GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem
from loadmaster.problem.bounds.bounds import _Parts
from tests.graphs.tiny import pair


def four(**given: str) -> Problem:
    """10 ns and not on the second device; 20 or 5; 7 on either; not on the first, or 9."""
    graph = GraphBuilder("four")
    for name, times in (("a", [10, None]), ("b", [20, 5]), ("c", [7, 7]), ("d", [None, 9])):
        graph.op(name, "any", [], [graph.tensor(50)], time_ns=times, colocate=given.get(name))
    return price(graph.build(), pair())


def test_work_costs_what_the_cheapest_device_takes_that_can_run_it() -> None:
    assert _Parts(four(), False, False).work(ints([3, 1])) == 10 * 3 + 5 + 7 + 9
    assert _Parts(four(), False, False).work(ints([1, 9])) == 10 + 20 + 7 + 9 * 9


def test_ops_that_must_share_a_device_are_on_one_that_can_run_all() -> None:
    """Alone 31 ns of work on two devices: 16, or what is left when fractions are whole; b and c share 12 or 27."""
    assert 10 <= _Parts(four(), False, False).shared_ns() <= 16
    assert _Parts(four(a="x", b="x", c="x"), False, False).shared_ns() == 10 + 20 + 7
    assert _Parts(four(b="x", c="x", d="x"), False, False).shared_ns() == 5 + 7 + 9
