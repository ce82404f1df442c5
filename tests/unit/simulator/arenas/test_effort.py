"""How the effort for addresses is shared out among devices."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.simulator.arenas.arena import pack_all


class Arena:
    """Spends what it is given and notes it; near its peak after the first orders or never."""

    peak, near, top = 1000, 1001, 1101

    def __init__(self, is_near: bool) -> None:
        self.is_near, self.given = is_near, dict[str, int]()

    def in_orders(self, effort: int) -> int:
        self.given["orders"] = effort
        return effort // 2

    def fit(self, goal: int, effort: int) -> int:
        self.given["peak" if goal == self.peak else "fit"] = effort
        return effort // 3

    def eject(self, goal: int, effort: int, seed: int) -> int:
        self.given[{1001: "near", 1051: "half"}[goal]] = effort
        return effort // 5


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(100, 10**6))
def test_all_get_a_share_and_together_no_more_than_there_is(near: list[bool], effort: int) -> None:
    arenas: Any = [Arena(one) for one in near]
    pack_all(arenas, effort, 0)
    count = len(arenas)
    left = effort
    for number, arena in enumerate(arenas):
        share = left // (count - number)
        assert arena.given["orders"] == share
        left -= share - share // 2
    hard = [arena for arena in arenas if not arena.is_near]
    for number, arena in enumerate(hard):
        share = left // (len(hard) - number)
        half, fit, most = (arena.given[way] for way in ("half", "fit", "near"))
        assert (half, fit) == (share // 16, share // 32)
        used = half - half // 5 + fit - fit // 3
        assert most == share - used
        left -= used + most - most // 5
    left = min(left, effort // 10)
    for number, arena in enumerate(arenas):
        if arena.is_near:
            share = left // (count - number)
            assert arena.given["peak"] == share
            left -= share - share // 3
    assert left >= 0
