"""Parts of packing by hand: rounds of an instant, first fit, sections, orders and the rules of a search."""

from __future__ import annotations

from itertools import islice, permutations

import numpy as np
import pytest

from loadmaster.graph.columns import Ints, ints
from loadmaster.simulator.arenas.arena import MOST_IMPROVED, NEAR, DeviceArena
from loadmaster.simulator.arenas.capacity import GROWTH, NOISE, SIX, VARIED, _rules
from loadmaster.simulator.arenas.orders import fullest, fullest_time, orders_of, peak_of
from loadmaster.simulator.arenas.packing import Steps, pack, rounds
from loadmaster.simulator.arenas.rounding import SCALE, _Level
from loadmaster.simulator.arenas.sections import blocks_of


def steps(
    ops: list[tuple[int, int, int]],
    sends: list[tuple[int, int, int, int]] = [],  # noqa: B006
    waits: dict[int, list[int]] = {},  # noqa: B006
    turns: list[int] | None = None,
    dispatch: list[int] = [],  # noqa: B006
) -> Steps:
    """ops: (device, start, end); sends: (maker, channel, start, end); waits: of an op, ops or len(ops) + a send."""
    rows = [waits.get(op, []) for op in range(len(ops))]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    table, sent = np.array(ops).reshape(-1, 3).T, np.array(sends, np.int64).reshape(-1, 4).T
    order = ints(turns if turns is not None else range(len(ops)))
    flat = ints([item for row in rows for item in row])
    return Steps(*(ints(c) for c in table), order, *(ints(c) for c in sent), ints(start), flat, ints(dispatch))


def begun_and_ended(given: Steps, devices: int = 2, channels: int = 2) -> tuple[list[int], list[int]]:
    begun, ended, _ = rounds(given, devices, channels)
    return begun.tolist(), ended.tolist()


def test_what_takes_no_time_goes_from_round_to_round() -> None:
    """The first op, then the send of what it makes, then the op elsewhere that waits for it: all at once."""
    given = steps([(0, 0, 0), (1, 0, 0)], [(0, 0, 0, 0)], {1: [2]})
    assert begun_and_ended(given) == ([0, 2, 1], [1, 3, 2])


def test_what_takes_time_ends_in_the_first_round_of_a_later_instant() -> None:
    given = steps([(0, 0, 5), (1, 9, 9)], [(0, 0, 5, 9)], {1: [2]})
    assert begun_and_ended(given) == ([0, 0, 0], [0, 1, 0])
    late = steps([(0, 0, 5), (1, 10, 10)], [(0, 0, 5, 9)], {1: [2]})
    assert begun_and_ended(late) == ([0, 0, 0], [0, 1, 0])


def test_a_device_and_a_channel_do_one_after_another() -> None:
    assert begun_and_ended(steps([(0, 0, 0), (0, 0, 0), (1, 0, 0)])) == ([0, 1, 0], [1, 2, 1])
    assert begun_and_ended(steps([(0, 0, 0), (0, 0, 0)], turns=[1, 0])) == ([1, 0], [2, 1])
    both = steps([(0, 9, 9)], [(-1, 0, 0, 0), (-1, 0, 0, 0), (-1, 1, 0, 0)])
    assert begun_and_ended(both) == ([0, 0, 1, 0], [1, 1, 2, 1])


def test_a_send_whose_maker_has_not_ended_waits_for_it() -> None:
    """The second send is of the second op, which waits for the first."""
    given = steps([(0, 0, 0), (1, 0, 0)], [(0, 0, 0, 0), (1, 1, 0, 0)], {1: [2]})
    assert begun_and_ended(given) == ([0, 2, 1, 3], [1, 3, 2, 4])


def test_the_host_asks_one_after_another() -> None:
    """It asks for the second op first, in no time; both start in the round in which they were asked for."""
    begun, ended, asked = rounds(steps([(0, 3, 4), (1, 0, 2)], turns=[1, 0], dispatch=[3, 0]), 2, 1)
    assert asked.tolist() == [3, 0]
    assert begun.tolist() == [0, 1, 1, 0] and ended.tolist() == [0, 0, 0, 1]


def blocks(*rows: tuple[int, int, int]) -> tuple[Ints, Ints, Ints]:
    begin, end, size = np.array(rows, np.int64).reshape(-1, 3).T
    return ints(begin), ints(end), ints(size)


THREE = blocks((0, 2, 4), (1, 3, 4), (2, 4, 4))


def test_first_fit_takes_the_lowest_place_that_is_free_for_long_enough() -> None:
    """The third begins as the first ends, and has its place. Looked at: nothing, the first, then both."""
    offset, top, work = pack(ints([0, 1, 2]), *THREE, 1000)
    assert (offset.tolist(), int(top), int(work)) == ([0, 4, 0], 8, 5)
    assert pack(ints([1, 0, 2]), *THREE, 1000)[0].tolist() == [4, 0, 4]
    gap = blocks((0, 9, 4), (0, 5, 4), (0, 9, 4), (6, 8, 4), (6, 8, 5))
    assert pack(ints(range(5)), *gap, 1000)[0].tolist() == [0, 4, 8, 4, 12]


def test_packing_gives_up_once_it_reaches_the_most() -> None:
    for most in (7, 8):
        assert int(pack(ints([0, 1, 2]), *THREE, most)[1]) == most
    assert int(pack(ints([0, 1, 2]), *THREE, 9)[1]) == 8


def test_sections_are_largest_sets_alive_at_once() -> None:
    """0 and 1 are alive together, then 1 and 2; three pairs of four blocks share a section, of which two are twins."""
    found = blocks_of(*THREE)
    assert (found.first.tolist(), found.last.tolist(), found.sections) == ([0, 0, 1], [1, 2, 2], 2)
    assert found.pairs == 2 and found.twin.tolist() == [-1, -1, -1]
    twins = blocks_of(*blocks((0, 2, 4), (5, 9, 4), (1, 2, 4), (0, 2, 5), (0, 2, 4)))
    assert twins.twin.tolist() == [-1, -1, 0, -1, 2] and twins.pairs == 6
    assert blocks_of(*blocks((0, 1, 4), (1, 2, 4))).pairs == 0


def test_how_full_it_is() -> None:
    """4, then 8 from 1 to 3 (what ends at 2 makes way for what begins), then 4; the last lies where it is 4."""
    four = blocks((0, 2, 4), (1, 3, 4), (2, 4, 4), (4, 5, 4))
    assert peak_of(*four) == 8 and fullest_time(*four) == 1
    assert fullest(*four).tolist() == [8, 8, 8, 4]
    assert (peak_of(*blocks()), fullest_time(*blocks())) == (0, 0)
    assert fullest(*blocks((0, 1, 3), (0, 8, 1), (2, 3, 5), (5, 8, 2))).tolist() == [4, 6, 6, 3]


def test_orders_are_by_size_by_life_by_both_and_by_use() -> None:
    """Sizes 2, 9, 4, 3; lives 10, 1, 2, 3."""
    some = blocks((0, 10, 2), (4, 5, 9), (0, 2, 4), (7, 10, 3))
    found = [order.tolist() for order in orders_of(*some)]
    assert found[:4] == [[1, 2, 3, 0], [0, 1, 3, 2], [0, 3, 2, 1], [2, 0, 1, 3]]
    assert found[4] == [1, 0, 2, 3]  # 11 bytes are alive with the second, 6 with the third, 5 with the last
    assert found[6] == [3, 0, 1, 2]
    assert found[7] == [1, 2, 3, 0] and found[8] == [0, 1, 2, 3]
    assert found[5] == [1, 0, 2, 3]  # sizes times roots of lives: 9, 6.3, 5.7, 5.2


def test_a_search_begins_with_all_orders_of_its_three_keys() -> None:
    """Life, bytes x life, and the fullest section, which is known as the search goes on: a factor of 1."""
    begin, end, size = blocks((0, 3, 5), (1, 9, 2))
    life = np.array([3.0, 8.0])
    keys = [life, life * size, np.ones(2)]
    some = list(islice(_rules(begin, end, size, 7), 48))
    orders = [tuple(tuple(row) for row in rule.factor.tolist()) for rule, _ in some[:6]]
    assert set(orders) == {tuple(tuple(keys[at].tolist()) for at in way) for way in permutations(range(3))}
    for rule, _ in some[:12]:
        assert rule.factor[rule.fullest].tolist() == [1, 1]
    assert [rule.anew for rule, _ in some[:24]] == [True] * 6 + [False] * 6 + [True] * 6 + [False] * 6
    longest = some[0][1]
    assert [run for _, run in some[:24]] == [longest] * 3 + [int(longest * VARIED)] * 21
    assert [run for _, run in some[24:]] == [int(longest * GROWTH)] * 3 + [int(longest * GROWTH * VARIED)] * 21


def test_later_rules_vary_the_first_at_random() -> None:
    rng = np.random.default_rng(0)
    begin, size = ints(rng.integers(0, 50, 200)), ints(rng.integers(1, 50, 200))
    some = [rule for rule, _ in islice(_rules(begin, ints(begin + 9), size, 7), 24)]
    again = [rule for rule, _ in islice(_rules(begin, ints(begin + 9), size, 7), 24)]
    for place, rule in enumerate(some[12:]):
        apart = np.log(rule.factor / some[place % 6].factor)
        assert rule.fullest == SIX[place % 6].index(2) and 0.8 * NOISE < apart.std() < 1.2 * NOISE
        assert np.array_equal(rule.factor, again[12 + place].factor)


def test_weights_of_blocks_grow_with_size_and_life() -> None:
    """The largest that live longest weigh most; a quarter of the size, or of the life, is half with a power of 1/2."""
    level = _Level(*blocks((0, 8, 16), (0, 8, 4), (0, 2, 16), (0, 2, 4)), goal=99, quantum=1)
    assert level.weights(0.5, 0.5).tolist() == [1 + SCALE, 1 + SCALE // 2, 1 + SCALE // 2, 1 + SCALE // 4]
    coarse = _Level(*blocks((0, 8, 16), (0, 8, 4), (0, 8, 5), (0, 8, 3)), goal=23, quantum=4)
    assert (coarse.blocks.tolist(), coarse.size.tolist(), coarse.goal) == ([0, 1, 2], [4, 1, 1], 5)


def arena(*rows: tuple[int, int, int]) -> DeviceArena:
    return DeviceArena(*blocks(*rows), np.arange(len(rows)))


def test_what_is_there_all_the_time_lies_at_the_bottom() -> None:
    """The second and the fourth are; the others lie above their 7 bytes."""
    made = arena((0, 2, 4), (0, 4, 5), (1, 3, 4), (0, 4, 2), (2, 4, 4))
    assert made.always.tolist() == [False, True, False, True, False]
    assert (made.peak, made.peak_bytes, made.is_near) == (8, 15, False)
    left = made.in_orders(1000)
    assert 0 < left < 1000 and made.is_near and made.size_bytes == 15
    places = made.places().tolist()
    assert (places[1], places[3]) == (0, 5) and sorted({places[0], places[2], places[4]}) == [7, 11]


def test_near_is_a_part_of_all_that_is_there() -> None:
    made = arena((0, 4, 5 * NEAR), (1, 3, 3 * NEAR))
    assert made.peak == 3 * NEAR and made.near == 3 * NEAR + 8
    made.top = made.near
    assert made.is_near
    made.top += 1
    assert not made.is_near


@pytest.mark.parametrize("way", ["eject", "fit"])
def test_nothing_is_looked_for_where_all_is_well_or_no_effort_is_left(way: str) -> None:
    made = arena((0, 2, 4), (1, 3, 4), (2, 4, 4))

    def effort(goal: int, given: int) -> int:
        return made.fit(goal, given) if way == "fit" else made.eject(goal, given, 0)

    made.top, made.best = 12, ints([0, 1, 2])
    assert effort(12, 50) == 50 and effort(8, 0) == 0
    made.best = ints(range(MOST_IMPROVED + 1))
    assert effort(8, 50) == 50 and made.top == 12
    made.best = ints(range(MOST_IMPROVED))
    assert effort(8, 10_000) < 10_000 and made.top == 8
