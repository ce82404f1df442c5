"""Compiled walks over dependencies, and their sort."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.graph.order import sort_by, topological_order


@given(st.lists(st.integers(-3, 3), max_size=40), st.randoms(use_true_random=False))
def test_sorting_is_stable_and_leaves_the_rest_alone(keys: list[int], random: object) -> None:
    key = np.array(keys, np.int64)
    items = np.arange(len(keys), dtype=np.int64)
    random.shuffle(items)  # type: ignore[attr-defined]
    count = len(items) * 2 // 3
    expected = [*sorted(items[:count].tolist(), key=lambda item: keys[item]), *items[count:].tolist()]
    sort_by(key, items, count, np.empty_like(items))
    assert items.tolist() == expected


def test_of_the_ready_the_lowest_key_goes_first_and_a_cycle_is_left_out() -> None:
    waits = [[], [0], [], [1, 2], [5], [4]]
    start = np.cumsum([0, *map(len, waits)])
    before = np.array([row for rows in waits for row in rows], np.int64)
    assert topological_order(start, before, np.array([5, 1, 4, 0, 0, 0])).tolist() == [2, 0, 1, 3]
