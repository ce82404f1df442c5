"""What a network is shown of an op and a device, and which device it chooses, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.policy import decoding
from loadmaster.optimizers.policy.decoding import PAIR, SENT, THERE, WEIGHTS
from tests.unit.optimizers.annealing.told import plain


@pytest.mark.parametrize(
    ("able", "only", "found"),
    [
        ([True, True, True], -1, (2, 3)),
        ([True, False, False], -1, (0, 1)),
        ([False, True, False], -1, (1, 1)),
        ([True, True, True], 0, (0, 1)),
        ([False, True, True], 0, (2, 2)),  # it cannot run where it should
        ([False, True, True], 1, (1, 1)),
    ],
)
def test_devices_that_an_op_can_go_to(able: list[bool], only: int, found: tuple[int, int]) -> None:
    assert plain(decoding._only)(np.array([able]), 0, only, 3) == found


def graph() -> Any:
    """Op 0 makes tensor 0, which ops 1 and 2 read; op 1 reads tensors 0, 1 and 3 too, op 2 tensor 2; op 3 makes
    nothing and reads none."""
    return SimpleNamespace(
        devices=2,
        make_start=np.array([0, 1, 2, 3, 3]),
        makes=np.array([0, 1, 2]),
        reader_start=np.array([0, 2, 3, 4, 5]),
        readers=np.array([1, 2, 1, 2, 1]),
        read_start=np.array([0, 0, 3, 5, 5]),
        reads=np.array([0, 1, 3, 0, 2]),
        nbytes=np.array([10, 20, 30, 40]),
        send_class=np.array([0, 1, 2, 0]),
        send_classes=3,
        send_ns=np.array([0, 5, 6, 0, 7, 8, 0, 9, 11, 0, 13, 15]),
        channel=np.array([-1, 2, 3, -1]),
    )


@pytest.mark.parametrize(
    ("home", "mates"),
    [
        ([-1, -1, -1, -1], [0.0, 0.0]),
        ([0, -1, -1, -1], [1.0, 0.0]),
        ([-1, 0, 1, 1], [1 / 3, 2 / 3]),
        ([-1, -1, 1, -1], [0.0, 1.0]),
    ],
)
def test_of_what_readers_also_need_the_share_that_is_there(home: list[int], mates: list[float]) -> None:
    state = SimpleNamespace(home=np.array(home))
    assert [plain(decoding._mates)(graph(), 0, device, state) for device in (0, 1)] == pytest.approx(mates)
    assert plain(decoding._mates)(graph(), 3, 0, state) == 0.0, "it makes nothing"


def wide(readers: int) -> Any:
    """Op 0 makes a tensor that many read, each with a tensor of its own."""
    own = np.arange(1, readers + 1)
    return SimpleNamespace(
        make_start=np.array([0, 1]),
        makes=np.array([0]),
        reader_start=np.array([0, readers]),
        readers=own,
        read_start=np.concatenate([[0, 0], own]),
        reads=own,
    )


def test_only_the_first_few_readers_are_looked_at() -> None:
    few, many = decoding.LOOKED_AT, 2 * decoding.LOOKED_AT
    home = np.ones(40, np.int64)
    home[1 : few + 1] = 0
    assert plain(decoding._mates)(wide(30), 0, 0, SimpleNamespace(home=home)) == pytest.approx(1.0)
    former = np.ones(40, np.int64)
    former[1 : many + 1] = 0
    assert plain(decoding._formerly)(wide(30), 0, 0, former) == 1.0


def test_of_its_readers_the_share_that_a_plan_has_there() -> None:
    former = np.array([9, 0, 1, 0])
    assert [plain(decoding._formerly)(graph(), 0, device, former) for device in (0, 1)] == [0.5, 0.5]
    assert (
        plain(decoding._formerly)(graph(), 1, 0, former) == 1.0
        and plain(decoding._formerly)(graph(), 3, 0, former) == 0.0
    )
    unread = graph()
    unread.reader_start = np.array([0, 0, 1, 2, 3])
    assert plain(decoding._formerly)(unread, 0, 0, former) == 0.0


def test_what_is_there_and_what_has_to_be_sent() -> None:
    """Of what op 1 reads, tensor 0 is on the first device, 1 on both and 3 nowhere yet; of its weights one is held."""
    state = SimpleNamespace(
        there=np.array([5, -1, 0, 0, -1, -1, -1, -1]),
        home=np.array([0, 1, -1, -1]),
        has=np.array([0, 0, 0, 0, 1, 0, 0, 0]),
    )
    pair = np.zeros((2, PAIR))
    fixed_start, fixed = np.array([0, 0, 2, 2, 2]), np.array([2, 3])
    for device in (0, 1):
        plain(decoding._look_at_tensors)(graph(), 1, device, fixed_start, fixed, state, pair, 10.0)
    assert pair[:, THERE].tolist() == pytest.approx([30 / 71, 20 / 71])
    assert pair[:, SENT].tolist() == pytest.approx([0.0, np.log1p(5 / 10)]), "from the first to the second"
    assert pair[:, WEIGHTS].tolist() == pytest.approx([30 / 71, 0.0])


def test_the_way_out_of_a_device_is_to_the_next_two() -> None:
    """Channels are numbered after the devices; 0 to 1 and back."""
    free = np.array([50, 80])
    assert plain(decoding._way_out)(graph(), 0, 40, free, 10.0) == pytest.approx(np.log1p(1.0))
    assert plain(decoding._way_out)(graph(), 1, 40, free, 10.0) == pytest.approx(np.log1p(4.0))
    assert plain(decoding._way_out)(graph(), 0, 50, free, 10.0) == 0.0, "it is free by then"
    four = SimpleNamespace(devices=4, channel=4 + np.arange(16))
    free = np.zeros(16, np.int64)
    for to, found in ((1, 70), (2, 70), (3, 0)):
        free[:] = 0
        free[to] = 70
        assert plain(decoding._way_out)(four, 0, 0, free, 1.0) == pytest.approx(np.log1p(found))
    alone = SimpleNamespace(devices=1, channel=np.array([-1]))
    assert plain(decoding._way_out)(alone, 0, 0, free, 1.0) == 0.0


class Chosen:
    """Three devices, of which one feature counts twice and one hidden unit sees another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, able: list[bool], noise: float, *draws: float) -> None:
        pair = np.zeros((3, PAIR))
        pair[:, 0], pair[:, PAIR - 1] = [1.0, 2.0, 2.0], [0.0, 1.0, 3.0]
        linear, of_pair = np.zeros(PAIR), np.zeros((PAIR, 1))
        linear[0], of_pair[PAIR - 1, 0] = 2.0, -1.0
        net = SimpleNamespace(linear=linear, of_pair=of_pair, out=np.array([4.0]))
        self.scores = np.full((1, 3), -9.0)
        scratch = SimpleNamespace(hidden=np.zeros(1), pair=pair, of_op=np.array([[1.5]]), scores=self.scores)
        left = iter(draws)
        monkeypatch.setattr(decoding, "unit", lambda random: next(left))
        self.device = int(plain(decoding._choose)(0, np.array([able]), scratch, net, noise, None, 3))


def test_the_device_with_the_highest_score(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Chosen(monkeypatch, [True, True, True], 0.0)
    # Twice the one, and four times what is left of 1.5 less the other.
    assert told.scores.tolist() == [[2 + 6, 4 + 2, 4]] and told.device == 0
    unable = Chosen(monkeypatch, [False, True, True], 0.0)
    assert unable.device == 1 and unable.scores[0].tolist() == [-9, 6, 4]
    assert Chosen(monkeypatch, [False, False, False], 0.0).device == -1


def test_with_noise_it_is_a_draw_and_scores_are_kept_without(monkeypatch: pytest.MonkeyPatch) -> None:
    even = float(np.exp(-1))  # which adds nothing
    high = float(np.exp(-np.exp(-3)))  # three times the noise
    told = Chosen(monkeypatch, [True, True, True], 1.0, even, high, even)
    assert told.device == 1 and told.scores.tolist() == [[8, 6, 4]]
    assert Chosen(monkeypatch, [True, True, True], 0.5, even, high, even).device == 0
