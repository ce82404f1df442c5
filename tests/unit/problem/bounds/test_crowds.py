"""Spans over sets of ops that all start late and all have much after them, set by set."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.problem.bounds import crowds

NUMBERS = st.integers(0, 60)
OPS = st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 9), NUMBERS), min_size=1, max_size=9)


@given(OPS, st.integers(1, 8), st.integers(1, 3))
def test_the_largest_over_all_corners_of_the_grid(ops: list[tuple[int, int, int, int]], cells: int, share: int) -> None:
    head, tail, time, work = (np.array(column) for column in zip(*ops, strict=True))
    wide, deep = head.max() // cells + 1, tail.max() // cells + 1
    spans = [int((head + time + tail).max())]
    for row in range(cells):
        for column in range(cells):
            late = (head // wide >= row) & (tail // deep >= column)
            if work[late].sum() > 0:
                spans.append(int(head[late].min() - (-work[late].sum() // share) + tail[late].min()))
    found = crowds.least_span(head[:, None], tail[:, None], time[:, None], work, share, cells)
    assert found == max(spans)
