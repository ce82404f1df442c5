"""How the effort for addresses is shared out among devices."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.simulator.arenas import layout


class Arena:
    """Spends what it is given and notes it; near its peak after the first orders or never."""

    peak = 1000

    def __init__(self, is_near: bool) -> None:
        self.is_near, self.given = is_near, dict[str, int]()

    def in_orders(self, effort: int) -> int:
        self.given["orders"] = effort
        return effort // 2

    near = 1001

    def fit(self, goal: int, effort: int) -> int:
        self.given["peak" if goal == self.peak else "near"] = effort
        return effort // 3

    def squeeze(self, effort: int, seed: int) -> int:
        self.given["squeeze again" if "squeeze" in self.given else "squeeze"] = effort
        return effort // 5

    def improve(self, effort: int, seed: int) -> None:
        self.given["improve"] = effort


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(100, 10**6))
def test_all_get_a_share_and_together_no_more_than_there_is(near: list[bool], effort: int) -> None:
    arenas: Any = [Arena(one) for one in near]
    layout._pack_all(arenas, effort, 0)
    count = len(arenas)
    assert arenas[0].given["orders"] == effort // count
    left = effort
    for number, arena in enumerate(arenas):
        share = left // (count - number)
        assert arena.given["orders"] == share
        left -= share - share // 2
    hard = [arena for arena in arenas if not arena.is_near]
    for number, arena in enumerate(hard):
        share = left // (len(hard) - number)
        parts = [arena.given[way] for way in ("squeeze", "near", "squeeze again", "improve")]
        assert parts[:3] == [share // 16, share // 4, share // 2]
        used = parts[0] - parts[0] // 5 + parts[1] - parts[1] // 3 + parts[2] - parts[2] // 5
        assert parts[3] == share - used
        left -= share
    left = min(left, effort // 3)
    for number, arena in enumerate(arenas):
        if arena.is_near:
            share = left // (count - number)
            assert arena.given["peak"] == share
            left -= share - share // 3
    assert left >= 0
