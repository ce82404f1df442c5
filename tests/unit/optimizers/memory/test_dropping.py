"""What doing without a tensor is worth, and which is done first; positions 2 to 7 and 9 of ten are over the limit."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.graph.columns import ints
from loadmaster.optimizers.memory import dropping
from loadmaster.optimizers.memory.closures import Closure
from loadmaster.optimizers.memory.draft import Job, Version
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


def choosing(ways: dict[str, float], uses: Any, job: int = -1, again: bool = True, **given: Any) -> Any:
    """A pass in which each way is worth so much; what it looked at."""
    draft = SimpleNamespace(versions=[Version(0, 1, job, uses)], able=[True, False], producer=[0], home=lambda _: 0)
    found = passing(draft, **given)
    found.settings = SimpleNamespace(again=again)
    looked = list[Any]()

    def way(name: str) -> Any:
        looked.append(name)
        return ([name], 0) if name in ways else ([], 0)

    found._reused = lambda *_: way("reused")
    found.again = lambda number, later, allowed, at: way(allowed if all(use[0] >= at for use in later) else "early")
    found._away = lambda *_: way("away")
    found._valued = lambda number, acts, at, cost: Choice(ways[acts[0]], acts)
    return found, looked


def test_the_best_way_to_do_without_a_version() -> None:
    ways = {"reused": 0.25, "light": 0.5, "every": 0.75, "away": 0.7}
    found, looked = choosing(ways, [(6, 9)], hosts={0: 1})
    assert found.choice(0, 4) == Choice(0.75, ["every"])
    assert looked == ["reused", "light", "none", "every", "away"]
    assert choosing({"away": 0.0}, [(6, 9)], hosts={0: 1})[0].choice(0, 4) is None, "it helps nothing"
    rng = SimpleNamespace(standard_normal=lambda: 3.0)
    moved = choosing(ways, [(6, 9)], rng=rng, noise=1 / 3)[0].choice(0, 4)
    assert moved.worth == pytest.approx(0.75 * np.e)
    assert choosing({}, [(6, 9)], rng=rng)[0].choice(0, 4) is None


def test_what_is_read_at_the_position_is_made_there_and_does_not_leave() -> None:
    found, looked = choosing({"light": 1.0, "every": 2.0}, [(3, 9), (4, 1), (6, 1)], hosts={0: 1})
    assert found.choice(0, 4).worth == 1.0 and looked == ["light", "none"]


def test_copies_are_not_sent_away_nor_what_has_no_host() -> None:
    for given in ({"job": 0, "hosts": {0: 1}}, {"hosts": {1: 0}}):
        found, looked = choosing({"away": 1.0}, [(6, 9)], again=False, **given)
        assert found.choice(0, 4) is None and looked == ["reused"]


def relieving(worth: dict[int, list[float]], frees: int = 100, need: int = 150) -> Any:
    """Versions whose worth is another each time it is asked for; each frees so many bytes at position 4 of device 0."""
    memory = np.full((1, 10), LIMIT + need)
    versions = [Version(at, 1, uses=[(8, 9)]) for at in range(4)]
    draft = SimpleNamespace(versions=versions, memory=memory, home=lambda version: 0)
    found = passing(draft, limits=ints([LIMIT]))
    taken = list[int]()

    def choice(number: int, at: int) -> Choice | None:
        values = worth.get(number, [])
        value = values.pop(0) if len(values) > 1 else values[0] if values else 0.0
        return Choice(value, []) if value else None

    def take(number: int, choice: Choice, device: int) -> None:
        taken.append(number)
        memory[0] -= frees

    found.choice, found._take, found._may = choice, take, lambda number, at: number not in taken
    return found, taken


@pytest.mark.parametrize(
    ("worth", "taken"),
    [
        ({0: [5], 1: [9], 2: [7]}, [1, 2]),
        ({0: [5], 1: [9, 4], 2: [7]}, [2, 0]),  # the best is worth less when its turn comes
        ({0: [5], 1: [9, 7], 2: [7]}, [1, 2]),  # no more than the next: it stays first
        ({0: [5], 1: [9, 8], 2: [7]}, [1, 2]),
        ({1: [7], 2: [9, 7]}, [2, 1]),
        ({0: [99], 1: [9], 2: [7], 3: [99]}, [1, 2]),  # made too late, and elsewhere
        ({0: [5], 1: [9, 0], 2: [7]}, [2, 0]),  # nothing helps with it any more
    ],
)
def test_the_most_worth_goes_first(worth: Any, taken: list[int]) -> None:
    found, seen = relieving(worth)
    if 3 in worth:
        found.draft.versions[0].made, found.draft.home = 4, lambda version: int(version.tensor == 3)
    found._relieve(0, 4)
    assert seen == taken and not found.stuck


def test_where_nothing_helps_the_pass_is_stuck() -> None:
    found, seen = relieving({0: [5], 1: [9]}, need=300)
    found._relieve(0, 4)
    assert seen == [1, 0] and found.stuck and found.stuck_at == 4
    late, seen = relieving({0: [5]})
    late.is_up = lambda: True
    late._relieve(0, 4)
    assert not seen and not late.stuck
    enough, seen = relieving({0: [5], 1: [9]}, need=100)
    enough._relieve(0, 4)
    assert seen == [1], "at the limit is not over it"


def test_residents_take_their_turn_among_versions() -> None:
    """Tensor 2 is worth 8 at most, and 6 when its turn comes: after version 2. Tensor 1 may not, 3 is elsewhere."""
    found, seen = relieving({0: [5], 2: [7]}, need=250)
    found.lodgers, found._may_lodge = [1, 2, 3], lambda tensor, at: tensor != 1 and -1 - tensor not in seen
    found._lodging_worth = lambda tensor: 8.0
    found._lodged = lambda tensor, at: Choice(6.0, []) if tensor == 2 else None
    found.draft.home_of = lambda tensor: int(tensor == 3)
    found._relieve(0, 4)
    assert seen == [2, -3, 0]


def test_what_is_over_the_limit_is_counted_and_added_up() -> None:
    memory = np.array([[0] * 4, [LIMIT, LIMIT + 3, LIMIT - 9, LIMIT + 1]])
    found = passing(SimpleNamespace(memory=memory))
    found._measure(1)
    assert found.over_until.tolist() == [0, 0, 1, 1, 2] and found._over(1) == 4 and found._over(0) == 0


def test_what_is_kept_or_cannot_be_dropped_is_left() -> None:
    draft = SimpleNamespace(versions=[Version(5, 0), Version(6, 0)], droppable=lambda number, at: at == 3)
    found = passing(draft, kept={6})
    assert [found._may(number, at) for number in (0, 1) for at in (3, 4)] == [True, False, False, False]


@pytest.mark.parametrize(("change", "kept"), [(-1, True), (0, False), (1, False)])
@pytest.mark.parametrize("number", [0, -1])
def test_a_drop_that_frees_nothing_is_taken_back(
    change: int, kept: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, undone = np.array([[LIMIT + 5, LIMIT - 50, LIMIT + 1]]), list[Any]()
    draft = SimpleNamespace(memory=memory, versions=[Version(7, 0)])
    found = passing(draft, hosts={0: 1})

    def do(*given: Any) -> Any:
        memory[0, 0] += change
        return lambda: undone.append(given)

    found.do = do
    monkeypatch.setattr(dropping, "lodge", lambda draft, tensor, host, lodging: do(tensor, host))
    acts = [] if number < 0 else [Act([], 1, None), Act([], 1, None, trip=TRIP)]
    found._take(number, Choice(1.0, acts, Lodging([], None, -1, 0) if number < 0 else None), 0)
    if number < 0:
        assert undone == ([] if kept else [(0, 1)]) and found.dropped == ({0} if kept else set())
    else:
        assert undone == ([] if kept else [(0, act) for act in acts[::-1]])
        assert found.dropped == found.sent == ({7} if kept else set())


def test_only_what_leaves_is_said_to_be_sent() -> None:
    memory = np.array([[LIMIT + 5]])
    found = passing(SimpleNamespace(memory=memory, versions=[Version(7, 0)]))

    def do(*_: Any) -> Any:
        memory[:] = 0

    found.do = do
    found._take(0, Choice(1.0, [Act([], 1, None, 3)]), 0)
    assert found.dropped == {7} and not found.sent


def test_copies_that_cost_most_are_the_first_not_to_be_made() -> None:
    """The last job brings a tensor back and is left alone, as is what nobody reads and what was sent away."""
    jobs = [*(Job(op, 3) for op in range(5)), Job(-1, 3, stay=0)]
    costs = [9, 40, 70, 50, 60]
    versions = [Version(op, 3, op, [(5, 9)], cost_ns=costs[op]) for op in range(5)] + [Version(10, 3, 5, [(5, 9)])]
    versions[4].uses = []
    latest = {0: 0, 1: 3, 2: 2, 3: -1}
    draft = SimpleNamespace(
        versions=versions, jobs=jobs, follows=False, latest=lambda tensor, at: latest[tensor],
        op_ns=lambda tensor: 55 if tensor == 0 else 1,
    )  # fmt: skip
    found, read = passing(draft, sent={2}), list[Any]()
    found._read_again = lambda copy, number: read.append((copy, number))
    found._take_back()
    assert read == [(0, 0), (1, 3)]


@pytest.mark.parametrize(("room", "stays"), [(0, True), (1, False)])
def test_a_copy_is_not_made_where_what_it_stands_for_can_be_kept(
    room: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, back = np.zeros((1, 10), np.int64), list[int]()
    draft = SimpleNamespace(
        memory=memory, versions=[Version(0, 2), Version(0, 5, 0, [(6, 9), (8, 9)])], home=lambda _: 0
    )

    def reuse(_: Any, copy: int, number: int, uses: Any) -> Any:
        assert (copy, number, uses) == (1, 0, [(6, 9), (8, 9)])
        return lambda: back.append(copy)

    monkeypatch.setattr(dropping, "reuse", reuse)
    for at in (2, 8):
        memory[:] = 0
        memory[0, at] = LIMIT + room
        passing(draft)._read_again(1, 0)
    assert back == ([] if stays else [1, 1])
    memory[:] = LIMIT + 99
    memory[0, 2:9] = LIMIT
    passing(draft)._read_again(1, 0)
    assert len(back) == (0 if stays else 2), "what is over elsewhere is no matter"


def test_a_pass_goes_on_from_where_most_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, seen = np.full((2, 4), LIMIT), list[Any]()
    memory[1, 2], memory[0, 3], memory[0, 1] = LIMIT + 9, LIMIT + 5, LIMIT + 1
    found = passing(SimpleNamespace(memory=memory, lead=inf))

    def relieve(device: int, at: int) -> None:
        seen.append((device, at))
        memory[device, at] = LIMIT

    found._relieve, found._take_back = relieve, lambda: seen.append("taken back")
    assert found.run() is found.dropped
    assert seen == [(1, 2), (0, 3), (0, 1), "taken back"]
    monkeypatch.setattr(dropping, "set_out_early", lambda draft, limits: seen.append("early"))
    found.stuck, found.draft.lead = True, 3.0
    found.run()
    assert seen[4:] == ["early"]


def test_which_ops_may_make_what_a_tensor_is_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Light ones, none, all. Hosts and residents are looked at where they are wanted."""
    problem = SimpleNamespace(num_ops=3, cluster=None)
    draft: Any = SimpleNamespace(problem=problem, heavy=np.array([True, False, False]))
    monkeypatch.setattr(dropping, "hosts_of", lambda _: {0: 1})
    monkeypatch.setattr(dropping, "lodgers", lambda *_: [4])
    for offload, residents, hosts, found in (
        (True, True, {0: 1}, [4]), (False, True, {}, []), (True, False, {0: 1}, []),
    ):  # fmt: skip
        settings: Any = SimpleNamespace(offload=offload, residents=residents)
        made = Dropping(settings, draft, ints([1]), set(), None, 0.0)
        assert (made.hosts, made.lodgers) == (hosts, found)
        assert [each.tolist() for each in made.allowed] == [[False, True, True], [False] * 3, [True] * 3]
        assert (made.stuck, made.stuck_at, made.is_up()) == (False, -1, False)
