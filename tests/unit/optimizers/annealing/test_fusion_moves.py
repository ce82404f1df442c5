"""Pairs that a move of fusion is about, and their priorities, with draws that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.annealing.moves import fusion
from loadmaster.optimizers.annealing.state import FUSE_ALIKE, FUSE_ONE, FUSE_SHIFT, FUSE_SOME, FUSE_WINDOW, LEVELS
from tests.unit.optimizers.annealing.told import Draws, plain


def fusing() -> Any:
    """Four ops and pairs (0, 1), (0, 2), (1, 3) and (2, 3), of which the second is not drawn; the first and the third
    are alike, the fourth is alone."""
    rules = SimpleNamespace(
        pair_start=np.array([0, 2, 3, 4, 4]),
        given_start=np.array([0, 0, 1, 2, 4]),
        given=np.array([0, 1, 2, 3]),
        producer=np.array([0, 0, 1, 2]),
        consumer=np.array([1, 2, 3, 3]),
    )
    return SimpleNamespace(
        rules=rules,
        pairs=np.array([0, 2, 3]),
        index=np.array([0, -1, 1, 2]),
        alike_start=np.array([0, 2, 3]),
        alike=np.array([0, 2, 3]),
        alike_at=np.array([0, 0, 1]),
        within_start=np.array([0, 1, 1, 2, 3]),
        within=np.array([0, 1, 2]),
        drawn=np.full(4, -9),
        old_priority=np.zeros(4),
        opened=np.ones(4, bool),
        trial=np.zeros(4, np.int32),
        pair_from=None,
        pair_to=None,
        merging=SimpleNamespace(at=np.array([3, 2, 1, 0])),
        facts=None,
        space=None,
    )


@pytest.mark.parametrize(
    ("seed", "draws", "pair"),
    [
        (-1, [2], 3),
        (0, [0], 0),
        (0, [1, 0], 0),  # the second is not drawn
        (0, [1, 1, 1], 2),  # after as many looks as it has pairs, any
        (1, [0], 2),
        (1, [1], 0),  # of which it is the reader
        (3, [0], 2),
        (3, [1], 3),
    ],
)
def test_a_pair_about_an_op(seed: int, draws: list[int], pair: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Draws(monkeypatch, fusion, *draws)
    assert plain(fusion._pair_about)(fusing(), seed, None) == pair and not told.unused


def test_after_some_looks_any_pair_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    many = fusing()
    many.index[:] = -1
    many.rules.pair_start = np.array([0, 100, 100, 100, 100])
    told = Draws(monkeypatch, fusion, *[1] * fusion.LOOKS, 2)
    assert plain(fusion._pair_about)(many, 0, None) == 3 and not told.unused


@pytest.mark.parametrize(
    ("kind", "seed", "pair", "draws", "found"),
    [
        (FUSE_WINDOW, -1, 2, [2, 1], [0, 2]),
        (FUSE_WINDOW, -1, 2, [3, 0], [2, 3]),  # no farther than there are
        (FUSE_WINDOW, -1, 0, [2, 1], [0, 2]),  # nor before the first
        (FUSE_ALIKE, -1, 0, [0, 1], [0, 2]),
        (FUSE_ALIKE, -1, 0, [1, 0], [3]),
        (FUSE_ALIKE, 0, 3, [0, 0, 0], [3]),  # about the first op: of the sets that hold the pair
        (FUSE_ALIKE, 2, 2, [1, 0, 0], [0, 2]),
        (FUSE_SHIFT, 2, 2, [1, 0, 0], [0, 2]),
        (FUSE_SOME, -1, 0, [0, 1, 1, 0], [2]),
        (FUSE_SOME, -1, 0, [0, 1, 2, 1], [0, 2]),
        (FUSE_SOME, -1, 0, [0, 0, 2, 1], [0, 2]),
        (FUSE_SOME, -1, 0, [0, 1, 2, 0], [2]),
    ],
)
def test_which_pairs_a_move_is_about(
    kind: int, seed: int, pair: int, draws: list[int], found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, some = Draws(monkeypatch, fusion, *draws), fusing()
    monkeypatch.setattr(fusion, "_pair_about", lambda fusing, seed, state: pair)
    count, toward = plain(fusion.draw_pairs)(some, None, kind, seed, None)
    assert some.drawn[:count].tolist() == found and toward == fusion.ANY_PRIORITY and not told.unused


@pytest.mark.parametrize(
    ("coin", "kernel", "place", "pairs", "drawn", "toward"),
    [
        (1, [0, 0, 2, 3], [0, 0, 0, 0], [0], 0, fusion.PART),
        (1, [0, 0, 2, 3], [0, 0, 0, 0], [3, 0], 0, fusion.PART),  # until one is merged
        (0, [0, 0, 2, 3], [0, 0, 0, 0], [0, 3], 3, fusion.JOIN),  # or is not
        (0, [0, 1, 2, 3], [0, 0, 0, 1], [3], 3, fusion.ANY_PRIORITY),  # they are apart
        (1, [0, 1, 2, 3], [0, 0, 0, 0], [3] * (1 + fusion.LOOKS), 3, fusion.JOIN),  # there is none
    ],
)
def test_one_pair_to_part_or_to_join(
    coin: int,
    kernel: list[int],
    place: list[int],
    pairs: list[int],
    drawn: int,
    toward: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, left, some = Draws(monkeypatch, fusion, coin), iter(pairs), fusing()
    monkeypatch.setattr(fusion, "_pair_about", lambda *_: next(left))
    monkeypatch.setattr(fusion, "_one", plain(fusion._one))
    chain = SimpleNamespace(kernel=np.array(kernel), place=np.array(place))
    assert plain(fusion.draw_pairs)(some, chain, FUSE_ONE, 0, None) == (1, toward)
    assert some.drawn[0] == drawn and not told.unused and not list(left)


def units(monkeypatch: pytest.MonkeyPatch, *draws: float) -> Any:
    left = iter(draws)
    monkeypatch.setattr(fusion, "unit", lambda state: next(left))
    monkeypatch.setattr(fusion, "fresh", plain(fusion.fresh))
    monkeypatch.setattr(fusion, "shift", plain(fusion.shift))
    Draws(monkeypatch, fusion)
    return left


def test_a_fresh_priority_is_below_nothing_or_anywhere_on_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    for draws, value in (([0.19], -1.0), ([0.2, 0.0], 1.0), ([0.9, 0.5], 1 + (LEVELS - 1) / 2)):
        units(monkeypatch, *draws)
        assert fusion.fresh(None) == pytest.approx(value)


@pytest.mark.parametrize(
    ("kind", "toward", "draws", "priority"),
    [
        (FUSE_ALIKE, fusion.ANY_PRIORITY, [0.9, 0.0], [1.0, 5.0, 1.0, 5.0]),  # one for all
        (FUSE_WINDOW, fusion.ANY_PRIORITY, [0.1, 0.9, 0.0, 0.1], [1.0, 5.0, -1.0, 5.0]),  # one each
        (FUSE_ONE, fusion.PART, [0.9, 0.5, 0.7], [-1.0, 5.0, -1.0, 5.0]),
        (FUSE_ONE, fusion.JOIN, [0.1, 0.7, 0.25], [LEVELS - 0.75, 5.0, LEVELS - 0.75, 5.0]),
        (FUSE_ONE, fusion.JOIN, [0.9, 0.0, 0.8], [1.0, 5.0, 1.0, 5.0]),  # or any
        (FUSE_SHIFT, fusion.ANY_PRIORITY, [0.6], [7.0, 5.0, 7.0, 5.0]),
    ],
)
def test_new_priorities(
    kind: int, toward: int, draws: list[float], priority: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, some = units(monkeypatch, *draws), fusing()
    some.drawn[:2] = 0, 2
    chain = SimpleNamespace(priority=np.full(4, 5.0))
    plain(fusion.apply)(some, chain, kind, 2, toward, None)
    assert chain.priority.tolist() == pytest.approx(priority) and not list(left)
    plain(fusion.undo)(some, chain)
    assert chain.priority.tolist() == [5.0] * 4


def test_a_shift_stays_on_the_scale_and_leaves_alone_what_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.array([0, 1, 2, 3])
    for draw, shifted in ((0.0, [1.0, -1.0, 6.0, 1.0]), (0.9999, [14.998, -1.0, LEVELS - 1e-3, 9.998])):
        units(monkeypatch, draw)
        priority = np.array([5.0, -1.0, 16.0, 0.0])
        plain(fusion.shift)(priority, drawn, 4, None)
        assert priority.tolist() == pytest.approx(shifted)


def merged(
    monkeypatch: pytest.MonkeyPatch, trial: list[int], moved: list[int], drawn: list[int]
) -> tuple[bool, list[bool]]:
    """(whether other kernels come of it, which were opened), of kernels (0, 1), 2 and 3."""
    some = fusing()
    monkeypatch.setattr(fusion, "reopen", lambda *_: None)
    monkeypatch.setattr(fusion, "pairs_within", lambda *_: 1)
    monkeypatch.setattr(fusion, "merge_on", lambda *_: None)

    def read_off(kernels: Any, out: Any) -> None:
        out[:] = trial

    monkeypatch.setattr(fusion, "read_off", read_off)
    some.drawn[: len(drawn)] = drawn
    chain = SimpleNamespace(kernel=np.array([0, 0, 2, 3]), sequence=np.zeros(4, int), place=None, priority=None)
    scratch = SimpleNamespace(touched=np.array([*moved, 9, 9, 9, 9]))
    found = plain(fusion.merge_anew)(some, chain, scratch, len(moved), len(drawn))
    Draws(monkeypatch, fusion)
    plain(fusion.take)(some, chain)
    assert chain.kernel.tolist() == trial and chain.sequence.tolist() == [3, 2, 1, 0]
    return bool(found), some.opened.tolist()


def test_kernels_that_hold_what_changed_are_merged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert merged(monkeypatch, [0, 0, 2, 3], [1], []) == (False, [True, False, False, False])
    assert merged(monkeypatch, [0, 0, 2, 2], [3], []) == (True, [False, False, False, True])
    assert merged(monkeypatch, [0, 1, 2, 3], [], [3]) == (True, [False, False, True, True])
    assert merged(monkeypatch, [1, 0, 2, 3], [], []) == (True, [False] * 4)
    assert plain(fusion.merge_anew)(None, None, None, 0, 0), "without kernels a move is one"


def test_without_ranks_kernels_are_in_the_order_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    monkeypatch.setattr(fusion, "contract", lambda *given: asked.append(given[4]))
    kernel = np.arange(4)
    for rank in (np.zeros(0), np.ones(1), np.ones(4)):
        plain(fusion.contract_ranked)(None, SimpleNamespace(rank=rank, place=None), fusing(), kernel)
        assert asked[-1] is (rank if len(rank) else kernel)
