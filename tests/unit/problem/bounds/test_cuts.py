"""Minimum cuts against every set of ops that may have ended, and flows against scipy's."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from loadmaster.graph.columns import ints, inverse
from loadmaster.problem.bounds import cuts
from loadmaster.problem.bounds.cuts import CutView, FlowNetwork, largest_cut, live_bytes, make_flow

Rows = list[list[int]]


def ragged(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    start = np.cumsum([0, *map(len, rows)])
    return ints(start), ints([each for row in rows for each in row])


def random_net(rng: np.random.Generator, ops: int) -> CutView:
    """Storages of one to three users, some that stay, some of no bytes; ops that also only wait."""
    maker = [int(op) for op in np.sort(rng.integers(0, ops, ops + 2))]
    users = [
        sorted({int(op) for op in rng.integers(one + 1, ops, rng.integers(0, 4))} if one + 1 < ops else [])
        for one in maker
    ]
    waits: list[set[int]] = [
        {int(one) for one in rng.integers(0, op, rng.integers(0, 2))} if op else set() for op in range(ops)
    ]
    for storage, of in enumerate(users):
        for op in of:
            waits[op].add(maker[storage])
    wait_start, waited = ragged([sorted(each) for each in waits])
    follow_start, follows = inverse(wait_start, waited, ops)
    nbytes = rng.integers(0, 30, len(maker))
    stays = rng.random(len(maker)) < 0.2
    own = rng.integers(0, 20, ops) + np.bincount(maker, nbytes, ops).astype(np.int64)
    user_start, used = ragged(users)
    return CutView(
        wait_start, waited, follow_start, follows, ints(np.arange(len(maker))), ints(maker), ints(nbytes), stays,
        user_start, used, ints(own),
    )  # fmt: skip


def rows_of_net(start: np.ndarray, values: np.ndarray) -> Rows:
    return [values[start[at] : start[at + 1]].tolist() for at in range(len(start) - 1)]


def alive(net: CutView, ended: set[int]) -> int:
    """Bytes that some op outside the set needs, or that stay."""
    users = rows_of_net(net.user_start, net.users)
    made = [storage for storage in range(len(net.nbytes)) if int(net.maker[storage]) in ended]
    return sum(int(net.nbytes[one]) for one in made if net.stays[one] or not ended.issuperset(users[one]))


def least_cut(net: CutView, op: int) -> int:
    """Over all sets that are closed, hold what the op waits for and not the op."""
    waits = rows_of_net(net.wait_start, net.waits)
    others = [other for other in range(len(waits)) if other != op]
    sets = [set(some) for size in range(len(waits)) for some in combinations(others, size)]
    closed = [some for some in sets if some.issuperset(waits[op]) and all(some.issuperset(waits[one]) for one in some)]
    return min(alive(net, some) for some in closed) + int(net.own[op])


@pytest.mark.parametrize("ops", [1, 3, 5, 7])
def test_the_largest_least_cut_of_all_ops(ops: int) -> None:
    rng = np.random.default_rng(ops)
    for _ in range(60):
        net = random_net(rng, ops)
        order = ints(np.arange(ops))
        true = max(least_cut(net, op) for op in range(ops))
        found, best, _ = largest_cut(net, order, 0, 10**6)
        assert found == true
        assert largest_cut(net, order, true + 3, 10**6)[0] == true + 3, "what is known already"
        place = np.argsort(best)
        waits = rows_of_net(net.wait_start, net.waits)
        assert sorted(best.tolist()) == list(range(ops))
        assert all(place[one] < place[op] for op in range(ops) for one in waits[op])
        assert true <= live_bytes(net, best).max() <= live_bytes(net, order).max()
        for work in (0, 5, 20, 60, 150):
            assert largest_cut(net, order, 0, work)[0] <= true


def test_an_order_is_found_that_the_cut_asks_for() -> None:
    """Two lanes, each of a large tensor that becomes a small one: one lane after the other, not both at once."""
    waits, maker, sizes = [[], [], [0], [1], [2, 3]], [0, 1, 2, 3], [50, 40, 2, 3]
    wait_start, waited = ragged(waits)
    follow_start, follows = inverse(wait_start, waited, 5)
    user_start, users = ragged([[2], [3], [4], [4]])
    own = ints([50, 40, 2, 3, 1])
    stays = np.zeros(4, bool)
    net = CutView(
        wait_start,
        waited,
        follow_start,
        follows,
        ints(range(4)),
        ints(maker),
        ints(sizes),
        stays,
        user_start,
        users,
        own,
    )
    assert live_bytes(net, ints([0, 1, 2, 3, 4])).tolist() == [50, 90, 92, 45, 6]
    bound, best, _ = largest_cut(net, ints([0, 1, 2, 3, 4]), 0, 10**6)
    assert bound == live_bytes(net, best).max() == 52


def test_bytes_alive_at_each_op_of_an_order() -> None:
    rng = np.random.default_rng(9)
    for _ in range(30):
        net = random_net(rng, 8)
        waits, order = rows_of_net(net.wait_start, net.waits), list[int]()
        while len(order) < 8:
            ready = [op for op in range(8) if op not in order and set(waits[op]) <= set(order)]
            order.append(int(rng.choice(ready)))
        told = live_bytes(net, ints(order))
        for turn, op in enumerate(order):
            assert told[op] == alive(net, set(order[:turn])) + net.own[op]


# Flows


def empty_flow(nodes: int, arcs: int) -> FlowNetwork:
    whole = [np.zeros(nodes, np.int32) for _ in range(5)]
    whole[0][:] = -1
    return FlowNetwork(*whole, np.zeros(2 * arcs, np.int32), np.zeros(2 * arcs, np.int32), np.zeros(2 * arcs, np.int64))


def network(nodes: int, arcs: list[tuple[int, int, int]]) -> FlowNetwork:
    flow, count = empty_flow(nodes, len(arcs)), 0
    for tail, tip, room in arcs:
        count = cuts._arc(flow, count, tail, tip, room)
    assert count == 2 * len(arcs)
    return flow


def test_the_largest_flow_is_that_of_scipy() -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        nodes = int(rng.integers(3, 8))
        ends = [(a, b) for a in range(nodes) for b in range(nodes) if a != b and rng.random() < 0.5]
        arcs = [(a, b, int(rng.integers(0, 12))) for a, b in ends]
        flow = network(nodes, arcs)
        tails, tips, rooms = zip(*arcs, strict=True) if arcs else ((), (), ())
        table = coo_array((np.array(rooms, np.int32), (tails, tips)), (nodes, nodes)).tocsr()
        true = maximum_flow(table, 0, nodes - 1).flow_value
        total, left, whole = cuts._run(flow, 0, nodes - 1, cuts.ENDLESS, 10**6)
        assert total == true and whole and left < 10**6
        sent = np.zeros(nodes, np.int64)
        for at, (tail, tip, room) in enumerate(arcs):
            there, back = flow.room[2 * at], flow.room[2 * at + 1]
            assert there + back == room and there >= 0 and back >= 0, "each arc and its reverse"
            sent[tail] -= back
            sent[tip] += back
        assert sent[nodes - 1] == true == -sent[0] and not sent[1:-1].any()
        half, _, _ = cuts._run(network(nodes, arcs), 0, nodes - 1, max(1, true // 2), 10**6)
        assert true // 2 <= half <= true, "up to what is enough"


def test_what_was_looked_at_is_counted() -> None:
    """Source 0, sink 3: 0 - 1 - 3 with room for 4 and 0 - 2 with room for 9, and 2 - 3 with none. Arcs of a node are
    looked at from the last that was made, with the reverse ones."""
    arcs = [(0, 1, 5), (0, 2, 9), (1, 3, 4), (2, 3, 0)]
    flow = network(4, arcs)
    # 0: two arcs; then 2: its arc to the sink, without room, and back; then 1: the arc to the sink.
    assert cuts._levels(flow, 0, 3) == 2 + 2 + 1
    assert flow.level.tolist() == [0, 1, 1, 2]
    flow.near[:] = flow.head
    # 0 to 2: 1; out of 2: 2, no way; back at 0: the arc to 2 again and the one to 1: 2; 1 to 3: 1; the way there has
    # two arcs; from 1, whose arc is full: 2; back at 0, 1 and none left.
    assert cuts._push(flow, 0, 3, 100) == (4, 100 - 1 - 2 - 2 - 1 - 2 - 2 - 1)
    # 0: two arcs; 2: two; 1: two. No sink.
    assert cuts._levels(flow, 0, 3) == -6 - 1
    assert cuts._run(network(4, arcs), 0, 3, cuts.ENDLESS, 100) == (4, 100 - 5 - 11 - 7, True)
    assert cuts._run(network(4, arcs), 0, 3, 4, 100) == (4, 100 - 5 - 11, False), "enough, perhaps not all"
    assert cuts._run(network(4, arcs), 0, 3, cuts.ENDLESS, 5) == (0, 0, False)


def test_memory_for_every_arc_of_a_network() -> None:
    """All storages have bytes, users that are free and makers that are free: every arc there can be is made."""
    rng = np.random.default_rng(6)
    for _ in range(20):
        net = random_net(rng, 6)
        some = np.diff(net.user_start) > 0
        users = [row for row in rows_of_net(net.user_start, net.users) if row]
        start, used = ragged(users)
        net = net._replace(
            maker=net.maker[some], nbytes=net.nbytes[some] + 1, stays=np.zeros(len(users), bool), user_start=start,
            users=used,
        )  # fmt: skip
        flow, side = make_flow(net), np.zeros(6, np.int8)
        forced, arcs = cuts._build(net, flow, side)
        assert forced == 0 and arcs == len(flow.to) == len(flow.room) == len(flow.after)
        assert (
            len(flow.head) == len(flow.near) == len(flow.level) == len(flow.queue) == len(flow.path) == 8 + len(users)
        )


def test_which_must_have_ended_and_which_cannot_have() -> None:
    rng = np.random.default_rng(8)
    for _ in range(20):
        net = random_net(rng, 7)
        waits = rows_of_net(net.wait_start, net.waits)
        above = [set[int]() for _ in range(7)]
        for op in range(7):
            above[op] = {*waits[op], *(further for one in waits[op] for further in above[one])}
        for op in range(7):
            side, stack = np.empty(7, np.int8), np.empty(7, np.int64)
            looked = cuts._mark(net, op, side, stack)
            wanted = [
                cuts.BEFORE if other in above[op] else cuts.AFTER if other == op or op in above[other] else cuts.FREE
                for other in range(7)
            ]
            assert side.tolist() == wanted
            # Every op once, and the arcs out of the op and of each that is marked, on its side.
            follows = rows_of_net(net.follow_start, net.follows)
            below = {other for other in range(7) if op in above[other]}
            arcs = sum(len(waits[one]) for one in {op} | above[op]) + sum(len(follows[one]) for one in {op} | below)
            assert looked == 7 + arcs
