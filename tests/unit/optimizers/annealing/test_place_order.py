"""Ranks that are shifted and ops that move, with loads kept up, and all of it undone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from loadmaster.optimizers.annealing.moves import order
from loadmaster.optimizers.annealing.moves import place as placing
from loadmaster.optimizers.annealing.sets import ANYWHERE
from tests.unit.optimizers.annealing.told import copied, plain


def test_ranks_are_shifted_and_stay_on_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "copy", copied)
    chain = SimpleNamespace(rank=np.array([5, 100, order.TOP_RANK - 3, 7], np.int32))
    scratch = SimpleNamespace(members=np.array([1, 2, 0]), old_rank=np.zeros(4, np.int32))
    plain(order.apply)(chain, scratch, 2, 10)
    assert chain.rank.tolist() == [5, 110, order.TOP_RANK, 7]
    assert scratch.old_rank.tolist() == [5, 100, order.TOP_RANK - 3, 7]
    plain(order.apply)(chain, scratch, 3, -20)
    assert chain.rank.tolist() == [0, 90, order.TOP_RANK - 20, 7]
    plain(order.undo)(chain, scratch)
    assert chain.rank.tolist() == [5, 110, order.TOP_RANK, 7]


@pytest.mark.parametrize("price", [0, 1])
def test_ranks_follow_the_longest_way_to_the_end(price: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "copy", copied)
    measured = list[int]()
    monkeypatch.setattr(order, "measure_tails", lambda layout, place, top, tail: measured.append(top))
    chain = SimpleNamespace(rank=np.array([1, 2, 3], np.int32), place=None)
    scratch = SimpleNamespace(tail=np.array([40, 30, 0]), old_rank=np.zeros(3, np.int32))
    terrain = SimpleNamespace(goal=SimpleNamespace(step_price=price))
    plain(order.follow)(None, terrain, chain, scratch)
    assert chain.rank.tolist() == [0, (order.TOP_RANK - 1) // 4, order.TOP_RANK - 1]
    assert measured == [2] * (price == 0), "of all ops, where they are not kept up"
    scratch.tail[:] = 0, 1, 0
    plain(order.follow)(None, terrain, chain, scratch)
    assert chain.rank.tolist() == [order.TOP_RANK - 1, 0, order.TOP_RANK - 1]


class Placed:
    """Four ops on devices 0, 1, 2, 0 of three; ops 0 and 3 share a group; op 2 cannot run on device 0."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, members: list[int], target: int, swapped: int, price: int = 1
    ) -> None:
        monkeypatch.setattr(placing, "copy", copied)
        self.measured = list[int]()
        monkeypatch.setattr(placing, "measure_tails", lambda layout, place, top, tail: self.measured.append(int(top)))
        able = np.ones((4, 3), bool)
        able[2, 0] = False
        op_ns = (10 * np.arange(1, 5)[:, None] + np.arange(3)).reshape(-1)
        self.layout = SimpleNamespace(devices=3, op_ns=op_ns)
        self.terrain = SimpleNamespace(
            able=able,
            colocate=np.array([0, -1, -1, 0]),
            mate_start=np.array([0, 2]),
            mates=np.array([0, 3]),
            goal=SimpleNamespace(step_price=price),
        )
        self.chain = SimpleNamespace(place=np.array([0, 1, 2, 0], np.int32))
        scratch = {name: np.zeros(4, np.int64) for name in ("touched", "old_place", "stamp")}
        tails = {"tail": np.arange(4), "old_tail": np.full(4, -1)}
        load, mark = np.array([10 + 40, 21, 32]), np.zeros(1, np.int64)
        self.scratch = SimpleNamespace(load=load, members=np.array(members), mark=mark, **scratch, **tails)
        given = (self.layout, self.terrain, self.chain, self.scratch)
        self.moved = tuple(map(int, plain(placing.apply)(*given, len(members), target, swapped)))
        self.place, self.load = self.chain.place.tolist(), self.scratch.load.tolist()
        plain(placing.undo)(*given, *self.moved)
        assert self.chain.place.tolist() == [0, 1, 2, 0] and self.scratch.load.tolist() == [50, 21, 32]


def test_ops_go_with_what_is_bound_to_them_where_they_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Placed(monkeypatch, [0], 1, ANYWHERE)
    assert told.moved == (2, 3) and told.place == [1, 1, 2, 1] and told.load == [0, 21 + 11 + 41, 32]
    assert told.measured == [3] and told.scratch.old_tail.tolist() == [0, 1, 2, 3]
    one = Placed(monkeypatch, [1, 2, 0], 0, ANYWHERE)
    assert one.moved == (1, 1) and one.place == [0, 0, 2, 0] and one.load == [50 + 20, 0, 32]
    assert one.measured == [1] and one.scratch.old_tail.tolist() == [0, 1, -1, -1]
    assert Placed(monkeypatch, [0, 3], 1, ANYWHERE).moved == (2, 3), "once"
    nothing = Placed(monkeypatch, [2, 0], 0, ANYWHERE)
    assert nothing.moved == (0, -1) and nothing.measured == []
    assert Placed(monkeypatch, [1], 0, ANYWHERE, price=0).measured == []


def test_two_devices_exchange_what_they_have_of_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Placed(monkeypatch, [0, 1, 2], 1, 0)
    assert told.place == [1, 0, 2, 1] and told.moved == (3, 3), "the first device, too; others stay"
    assert Placed(monkeypatch, [0, 1, 2], 2, 0).place == [2, 1, 2, 2], "op 2 cannot run there"
