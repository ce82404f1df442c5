"""Sets of ops that all start late, or all have much after them, or are long to send, set by set."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.graph.columns import Ints, ints
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


def ancestors(before: list[list[int]]) -> list[set[int]]:
    above = [set[int]() for _ in before]
    for op, row in enumerate(before):
        above[op] = {*row, *(further for one in row for further in above[one])}
    return above


def random_graph(rng: np.random.Generator, ops: int) -> list[list[int]]:
    return [sorted({int(one) for one in rng.integers(0, op, rng.integers(0, 4))}) if op else [] for op in range(ops)]


def mirrored(before: list[list[int]]) -> list[list[int]]:
    return [[len(before) - 1 - one for one in row] for row in reversed(before)]


def ragged(rows: list[list[int]]) -> tuple[Ints, Ints]:
    return ints(np.cumsum([0, *map(len, rows)])), ints([each for row in rows for each in row])


def test_all_that_leads_to_an_op_shares_the_devices() -> None:
    """Set by set of ancestors that start late; 65 ops, since sets are words of 64 bits. Backwards: of the mirror."""
    rng = np.random.default_rng(5)
    for ops, cells in ((5, 1), (9, 3), (9, 200), (65, 4)):
        before, share = random_graph(rng, ops), int(rng.integers(1, 4))
        far, work = ints(rng.integers(0, 50, ops)), ints(rng.integers(0, 9, ops))
        wide = int(far.max()) // cells + 1
        wanted = []
        for above in map(list, ancestors(before)):
            sets = [[one for one in above if far[one] // wide >= row] for row in range(cells)]
            spans = [int(far[some].min()) - (-int(work[some].sum()) // share) for some in sets if work[some].sum() > 0]
            wanted.append(max(spans, default=0))
        assert crowds.crowd(*ragged(before), far, work, share, cells, True).tolist() == wanted
        turned = (*ragged(mirrored(before)), ints(far[::-1]), ints(work[::-1]), share, cells, False)
        assert crowds.crowd(*turned).tolist() == wanted[::-1]


def widest(after: list[list[int]], ns: dict[tuple[int, int], int], op: int) -> dict[int, int]:
    """Of every op that leads to it, the widest of the ways there, each as wide as its shortest send."""
    found = {op: 10**9}
    for one in range(op - 1, -1, -1):
        ways = [min(ns[one, via], found[via]) for via in after[one] if via in found]
        found |= {one: max(ways)} if ways else {}
    del found[op]
    return found


def test_what_runs_elsewhere_is_sent() -> None:
    rng, raised = np.random.default_rng(6), 0
    for turn in range(80):
        ops, devices, cells = 8, int(rng.integers(2, 5)), int(rng.integers(1, 9))
        before = random_graph(rng, ops)
        after = [[op for op in range(ops) if one in before[op]] for one in range(ops)]
        ns = {
            (one, op): int(rng.integers(0, 1 << int(rng.integers(1 if turn % 4 < 3 else 22, 29))))
            for one in range(ops)
            for op in after[one]
        }
        far = ints(rng.integers(0, 90_000 if turn % 3 else 20, ops))
        work = ints(rng.integers(0, 90_000 if turn % 2 else 2, ops) << (10 * (turn % 4 == 3)))
        step, wanted = int(far.max()) // cells + 1, []
        for op in range(ops):
            lost = widest(after, ns, op)
            rank = {one: sum(wide >= 4096 << k for k in range(13)) for one, wide in lost.items()}
            latest = 0
            for least, row in product(sorted({*rank.values()}), range(cells)):
                some = [one for one in lost if rank[one] >= least]
                shortest, total = min(lost[one] for one in some), 0
                some = [one for one in some if far[one] // step >= row]
                total = int(work[some].sum())
                if total > 0:
                    shared = -(-(total + (devices - 1) * min(shortest, total)) // devices)
                    latest = max(latest, int(far[some].min()) + min(total, shared))
            wanted.append(latest)
            raised += latest > 0
        start, then = ragged(after)
        wide = ints([ns[one, op] for one in range(ops) for op in after[one]])
        assert crowds.apart(start, then, wide, far, work, devices, cells, True).tolist() == wanted
        turned = [[ops - 1 - op for op in reversed(after[one])] for one in reversed(range(ops))]
        wide = ints([ns[one, op] for one in reversed(range(ops)) for op in reversed(after[one])])
        found = crowds.apart(*ragged(turned), wide, ints(far[::-1]), ints(work[::-1]), devices, cells, False)
        assert found.tolist() == wanted[::-1]
    assert raised > 200


def test_ops_that_cannot_run_on_a_kind_do_not_count_there() -> None:
    start, left, times = ints([[5, 1], [0, 7]]), ints([[2, 9], [3, 1]]), ints([[4, -1], [6, 2]])
    # 5 + 4 + 2 of the first; of the second the lesser of 0 + 6 + 3 and 7 + 2 + 1; together: 0 + 10 / 1 + 1.
    assert crowds.least_span(start, left, times, ints([1, 1]), 1, 4) == 11
    assert crowds.least_span(start, left, times, ints([5, 6]), 1, 4) == 0 + 11 + 1
    assert crowds.least_span(start, left, times, ints([0, 0]), 1, 4) == 11


def test_every_bit_has_its_place() -> None:
    assert [crowds._place_of(np.uint64(1 << place)) for place in range(64)] == list(range(64))
