"""The best way to do without a version, which version goes first, and what is taken back."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.graph.columns import ints
from loadmaster.optimizers.memory import dropping
from loadmaster.optimizers.memory.draft import Job, Version
from loadmaster.optimizers.memory.dropping import Act, Choice, Dropping
from loadmaster.optimizers.memory.lodging import Lodging
from tests.unit.optimizers.memory.test_dropping import LIMIT, TRIP, passing


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
