"""Packing again and again with what does not fit earlier in the order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.graph.columns import ints
from loadmaster.simulator.arenas import packing

LIVES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 9)), min_size=1, max_size=24)


@given(LIVES, st.integers(0, 3))
def test_blocks_lie_apart_and_never_higher_than_they_did_at_first(lives: list[tuple[int, int, int]], seed: int) -> None:
    begin, life, size = (ints(column) for column in zip(*lives, strict=True))
    end, order = ints(begin + life), ints(np.arange(len(size)))
    offset, top, kept, left = packing.squeeze(order, begin, end, size, 0, 20_000, seed)
    for one in range(len(size)):
        for other in range(one):
            together = begin[one] < end[other] and begin[other] < end[one]
            above = offset[one] >= offset[other] + size[other] or offset[other] >= offset[one] + size[one]
            assert above or not together
    assert top == (offset + size).max() <= packing.pack(order, begin, end, size, packing.FAR)[1]
    assert sorted(kept.tolist()) == order.tolist() and left <= 0, "a goal of 0 is never met"
    assert packing.pack(kept, begin, end, size, packing.FAR)[1] == top


def test_it_stops_at_the_goal() -> None:
    """Two short blocks in a row beside a long one: in the order given the long one comes to lie on top of a gap."""
    begin, end, size = ints([0, 2, 1]), ints([2, 4, 3]), ints([1, 3, 2])
    order = ints([0, 1, 2])
    assert packing.pack(order, begin, end, size, packing.FAR)[1] == 5
    _, top, _, left = packing.squeeze(order, begin, end, size, 5, 10**6, 0)
    assert top == 5 and left > 0
