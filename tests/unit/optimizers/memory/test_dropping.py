"""What doing without a tensor is worth; positions 2 to 7 and 9 of ten are over the limit."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.graph.columns import ints
from loadmaster.optimizers.memory import dropping
from loadmaster.optimizers.memory.closures import Closure
from loadmaster.optimizers.memory.draft import Version
from loadmaster.optimizers.memory.dropping import FLOOR_NS, Act, Choice, Dropping
from loadmaster.optimizers.memory.lodging import OVERLAPPED, Lodging, Visit
from loadmaster.optimizers.memory.trips import SLACK_NS, Trip

LIMIT, OVER = 1_000, (2, 3, 4, 5, 6, 7, 9)
TRIP = Trip(0, 0, 0, 0)


def passing(draft: Any, **given: Any) -> Any:
    """A pass over a draft of which only so much is there."""
    found: Any = Dropping.__new__(Dropping)
    settings = SimpleNamespace(again=True, offload=True, residents=True)
    vars(found).update(
        draft=draft, limits=ints([LIMIT, LIMIT]), kept=set(), rng=None, noise=0.0, stuck=False, stuck_at=-1,
        dropped=set(), sent=set(), hosts={}, lodgers=[], settings=settings, is_up=lambda: False,
        allowed=("light", "none", "every"),
    )  # fmt: skip
    found.over_until = np.concatenate([[0], np.cumsum([at in OVER for at in range(10)])])
    vars(found).update(given)
    return found


def over(first: int, last: int) -> int:
    return sum(at in OVER for at in range(first, last + 1))


def held(**more: Any) -> Any:
    """Version 0 is of 100 bytes, made at 1 and read at 3, 6 and 8; version 1 of 30, read until 4."""
    versions = [Version(0, 1, uses=[(3, 9), (6, 9), (8, 9)]), Version(1, 0, uses=[(4, 9)])]
    return SimpleNamespace(versions=versions, nbytes=[100, 30], **more)


LATER = [(6, 9), (8, 9)]


@pytest.mark.parametrize(
    ("acts", "gain"),
    [
        # Gone after position 3, its last reader before 5, until 8, and back in all the kernels that read it.
        ([Act(LATER, 6, Closure((0,), (), True, 5))], 100 * over(4, 8)),
        ([Act(LATER, 6, Closure((0,), (), False, 5))], 100 * (over(4, 8) - over(6, 8))),
        ([Act(LATER, 6, None, 3)], 100 * (over(4, 8) - over(6, 8))),
        ([Act([(6, 9)], 6, Closure((0,), (), True, 5)), Act([(8, 9)], 8, None, 3)], 100 * over(4, 8)),
        # It leaves at 5, for host 0; or had left before its last reader.
        ([Act(LATER, 6, None, host=0, gone=5, trip=TRIP)], 100 * (over(4, 8) - over(6, 8) - over(4, 5))),
        ([Act(LATER, 6, None, host=0, gone=3, trip=TRIP)], 100 * (over(4, 8) - over(6, 8))),
        ([Act(LATER, 6, None, host=0, gone=1, trip=TRIP)], 100 * (over(4, 8) - over(6, 8))),
        # The other is kept for it from 5 to 6.
        ([Act(LATER, 6, Closure((0,), (1,), True, 5))], 100 * over(4, 8) - 30 * over(5, 6)),
        ([Act(LATER, 3, Closure((0,), (1,), True, 5))], 100 * over(4, 8)),
    ],
)
@pytest.mark.parametrize("cost", [0, FLOOR_NS, 3 * FLOOR_NS])
def test_what_a_drop_is_worth(acts: list[Act], gain: int, cost: int) -> None:
    """Bytes times positions that are over the limit, for the time; what is free is not better than what nearly is."""
    choice = passing(held())._valued(0, acts, 5, cost)
    assert choice.worth == gain / max(FLOOR_NS, cost) and choice.acts == acts


def test_readers_before_the_position_keep_it_until_the_last_of_them() -> None:
    """At 7, those of 3 and 6; at 6, that of 3: the one at 6 makes it itself."""
    acts = [Act([(8, 9)], 8, Closure((0,), (), True, 5))]
    assert passing(held())._valued(0, acts, 7, 0).worth == 100 * over(7, 8) / FLOOR_NS
    acts = [Act(LATER, 6, Closure((0,), (), True, 5))]
    assert passing(held())._valued(0, acts, 6, 0).worth == 100 * over(4, 8) / FLOOR_NS


def test_what_nobody_has_read_yet_is_gone_from_when_it_is_made() -> None:
    acts = [Act([(3, 9), *LATER], 3, Closure((0,), (), True, 5))]
    assert passing(held())._valued(0, acts, 2, 0).worth == 100 * over(2, 8) / FLOOR_NS


@pytest.mark.parametrize(
    ("mates", "found"),
    [
        ([(5, False)], 1), ([(4, False)], None), ([(6, False)], 1), ([(7, False)], None), ([(5, True)], None),
        ([(5, False), (6, False)], 2), ([(5, False), (6, True)], 1),
    ],
)  # fmt: skip
def test_another_version_that_is_made_between_a_position_and_the_next_reader(mates: Any, found: int | None) -> None:
    versions = [Version(0, 1, uses=LATER), *(Version(0, made, job=0, inner=inner) for made, inner in mates)]
    draft = SimpleNamespace(versions=versions, of={0: list(range(len(versions)))})
    acts, cost = passing(draft)._reused(0, LATER, 4)
    assert cost == 0 and acts == ([] if found is None else [Act(LATER, 6, None, found)])


def again(
    closures: dict[tuple[int, bool], int], uses: Any, monkeypatch: Any, at: int = 4, opened: Any = (4, 6, 8)
) -> Any:
    """Of tensor 0 at those positions, inside their kernels or not, for so much time."""

    def closure_of(draft: Any, tensors: Any, where: int, allowed: Any, join: bool) -> Closure | None:
        assert tensors == (0,) and allowed == "every"
        cost = closures.get((where, join))
        return None if cost is None else Closure((7,), (), join, cost)

    monkeypatch.setattr(dropping, "closure_of", closure_of)
    draft = SimpleNamespace(versions=[Version(0, 1)], at=[0] * 10, open={at: at in opened for at in range(10)})
    acts, cost = passing(draft).again(0, uses, "every", at)
    return [(act.at, act.later, act.closure.joined) for act in acts], cost


@pytest.mark.parametrize(
    ("closures", "acts", "cost"),
    [
        ({(6, True): 5, (8, True): 7}, [(6, [(6, 9)], True), (8, [(8, 9)], True)], 12),
        ({(6, True): 5, (6, False): 5, (8, True): 7}, [(6, [(6, 9)], True), (8, [(8, 9)], True)], 12),
        # Alone it is cheaper: once for both.
        ({(6, True): 5, (6, False): 4, (8, True): 7, (8, False): 6}, [(6, LATER, False)], 4),
        ({(6, True): 5, (8, True): 7, (8, False): 6}, [(6, [(6, 9)], True), (8, [(8, 9)], False)], 11),
        ({(6, False): 4}, [(6, LATER, False)], 4),
        ({(6, True): 5}, [], 0),
        ({(8, False): 5}, [], 0),
    ],
)
def test_a_tensor_is_made_again_in_light_kernels_and_once_for_the_others(
    closures: Any, acts: Any, cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert again(closures, LATER, monkeypatch) == (acts, cost)


def test_at_the_position_itself_it_is_made_within_the_kernel_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel of its own it would be there all the same."""
    uses = [(4, 9), (6, 9)]
    both = {(4, True): 9, (4, False): 1, (6, False): 2}
    assert again(both, uses, monkeypatch) == ([(4, [(4, 9)], True), (6, [(6, 9)], False)], 11)
    assert again({(4, False): 1, (6, False): 2}, uses, monkeypatch) == ([], 0)
    assert again(both, uses, monkeypatch, opened=(6,)) == ([], 0)
    assert again(both, [(4, 10)], monkeypatch) == ([], 0), "a copy reads it, not an op"
    assert again(both | {(6, True): 1}, [(6, 9), (6, 10)], monkeypatch)[0] == [(6, [(6, 9), (6, 10)], False)]


MS = 10 * SLACK_NS


def away(at: int, out: int, back: int, lead: float = inf, before: tuple[Trip, ...] = ()) -> Any:
    """Kernels of `MS` each; the version is made at 0 and read next at 6; its device is 1, the host 0."""
    starts = MS * np.arange(10)
    problem = SimpleNamespace(send_ns=np.array([[1, 2], [out, back]]), send_class=np.array([[0, 1], [0, 0]]))
    draft = SimpleNamespace(
        versions=[Version(1, 0, uses=[(6, 9)])], problem=problem, start_ns=starts, end_ns=starts + MS, lead=lead,
        trips=dict(enumerate(before)), home=lambda version: 1,
    )  # fmt: skip
    return passing(draft, hosts={1: 0})._away(0, [(6, 9), (8, 9)], at)


def test_a_tensor_goes_to_the_host_and_is_back_in_time() -> None:
    """Gone at 1.5 kernels, so from 2 on; back from where 5.4 is, 5."""
    out, back = MS // 2, MS // 2 + 40
    for at in range(1, 7):
        acts, cost = away(at, out, back)
        assert bool(acts) == (2 <= at < 5)
        if acts:
            trip = Trip(MS, out, 6 * MS - SLACK_NS, back)
            assert acts == [Act([(6, 9), (8, 9)], 5, None, host=0, gone=2, trip=trip)]
            assert cost == (out + back) // OVERLAPPED


def test_what_the_step_waits_for_it_is_part_of_its_cost() -> None:
    """Two others that are due at the same time come first, of which one is late already: this one by its own way."""
    other = Trip(0, 0, 6 * MS - SLACK_NS, MS)
    (act,), plain = away(2, 2 * OVERLAPPED, MS, before=(other,))
    assert act.at == 3 and plain == (2 * OVERLAPPED + MS) // OVERLAPPED
    (act,), waiting = away(2, 2 * OVERLAPPED, MS, lead=1.0, before=(other, other))
    assert act.at == 4 and waiting == plain + MS


@pytest.mark.parametrize(
    ("tensor", "at", "may"), [(0, 4, True), (0, 3, False), (0, 6, False), (1, 4, False), (2, 4, False), (3, 3, True)]
)
def test_what_may_live_on_a_host(tensor: int, at: int, may: bool) -> None:
    """Tensor 0 is read at 3 and 6; tensor 1 does already, tensor 2 is to be kept."""
    draft = SimpleNamespace(lodged={1}, given={0: [(3, 9), (6, 9)], 1: [], 2: [], 3: [(4, 9)]})
    assert passing(draft, kept={2})._may_lodge(tensor, at) is may


def lodged(visits: Any, left: int, at: int, monkeypatch: Any, cost: int = 0, **given: Any) -> Choice | None:
    """Tensor 0, of 100 bytes; updated at position 5 by op 2, which makes tensor 1."""
    trips = [Visit([(last, 9), (min(first, last), 9)], first, TRIP) for first, last in visits]
    monkeypatch.setattr(dropping, "lodging_of", lambda *_: Lodging(trips, TRIP if left >= 0 else None, left, cost))
    draft = SimpleNamespace(nbytes=[100], at=[0, 0, 5], producer=[-1, 2], updates=[1], home_of=lambda tensor: 0)
    found: Choice | None = passing(draft, hosts={0: 1}, **given)._lodged(0, at)
    return found


@pytest.mark.parametrize(
    ("visits", "left", "away_from"),
    [
        ([(3, 4)], -1, [2, 5, 6, 7, 9]), ([(1, 2), (7, 7)], -1, [3, 4, 5, 6, 9]), ([(4, 5)], 6, [2, 3, 7, 9]),
        ([(4, 5)], 5, [2, 3, 6, 7, 9]), ([(4, 3)], -1, [2, 3, 4, 5, 6, 7, 9]), ([(0, 9)], -1, []),
    ],
)  # fmt: skip
def test_a_resident_is_worth_the_positions_at_which_it_is_not_here(
    visits: Any, left: int, away_from: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in OVER:
        found = lodged(visits, left, at, monkeypatch)
        assert (found is not None) == (at in away_from)
        assert found is None or found.worth == 100 * len(away_from) / FLOOR_NS
    assert lodged([(2, 9)], -1, 0, monkeypatch) is None, "it is here wherever that is too much"
    if away_from:
        dear = lodged(visits, left, away_from[0], monkeypatch, cost=10**6)
        assert dear is not None and dear.worth == 100 * len(away_from) / 10**6, "little, and not nothing"


def test_chance_moves_the_worth_of_a_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = SimpleNamespace(standard_normal=lambda: 2.0)
    found = lodged([(3, 4)], -1, 5, monkeypatch, rng=rng, noise=0.5)
    assert found is not None and found.worth == pytest.approx(100 * 5 / FLOOR_NS * np.e)


def test_what_a_resident_is_worth_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = SimpleNamespace(nbytes=[100], home_of=lambda tensor: 0)
    for cost in (0, FLOOR_NS + 1):
        monkeypatch.setattr(dropping, "least_cost_ns", lambda *_, cost=cost: cost)
        assert passing(draft, hosts={0: 1})._lodging_worth(0) == 100 * len(OVER) / max(FLOOR_NS, cost)
