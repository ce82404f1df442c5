"""The brute-force optimum, where it can be found by thought."""

from __future__ import annotations

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from tests.graphs import pair
from tests.graphs.tiny import diamond
from tests.reference import brute_force


class TestBruteForce:
    def test_two_ops_share_two_devices(self) -> None:
        g = GraphBuilder()
        for name in "abc":
            g.op(name, "any", [], [g.tensor(10)], time_ns=10)
        problem = price(g.build(), pair())
        assert brute_force(problem, "step-time") == (0, 20)
        assert brute_force(problem, "peak-memory") == (0, 10)

    def test_a_send_is_worth_it_only_when_short(self) -> None:
        # Together 70, c away 74. b and d away: c 10 to 40, A sent 10 to 25, b 25 to 45, C sent 40 to 49, d 49 to 59.
        # Less is impossible: c ends at 40 at best, and then d waits for C or for B.
        assert brute_force(price(diamond(), pair()), "step-time") == (0, 59)

    def test_what_does_not_fit_comes_last(self) -> None:
        # The reader's device must hold both 100 bytes: 50 over 150, wherever the others are.
        g = GraphBuilder()
        a, b = g.tensor(100), g.tensor(100)
        g.op("a", "any", [], [a], time_ns=1)
        g.op("b", "any", [], [b], time_ns=1)
        g.op("c", "any", [a, b], time_ns=1)
        assert brute_force(price(g.build(), pair(memory_bytes=150)), "step-time") == (50, 3)
