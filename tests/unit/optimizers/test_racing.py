"""Which runner of a race goes on: one that promises more than the leader, else the leader or another for its share.
Which starts are made when, and who is given up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.optimizers import racing
from loadmaster.optimizers.annealing.chains import Reheating
from loadmaster.optimizers.starts import Scored, StartRecipe
from loadmaster.search import WORST, Score


def race(leader: float, others: list[float], *, used: int = 90, simulations: int = 100) -> Any:
    made: Any = racing.Race.__new__(racing.Race)
    pace = SimpleNamespace(settled=False)
    made.leader = SimpleNamespace(promise=leader, pace=pace, stuck=False, slow=False, used=used)
    made.others = [SimpleNamespace(promise=promise, pace=pace, stuck=False, used=1) for promise in others]
    made.search = SimpleNamespace(in_turn=simulations)
    return made


@pytest.mark.parametrize(("others", "chosen"), [([5.0, 3.0, 9.0], 1), ([3.5, 3.0], 1), ([1.0], 0)])
def test_who_promises_most_goes_on_before_the_leader(others: list[float], chosen: int) -> None:
    racing = race(4.0, others, used=0)
    assert racing._other() is racing.others[chosen]


def test_nobody_goes_on_before_a_leader_that_promises_most_when_others_have_had_their_share() -> None:
    assert race(1.0, [2.0, 3.0], used=0)._other() is None


# Starts that wait, by the clock of a search that is told


def told(simulations: int, *, seconds: float = 1.0, left: float = 100.0, counts: bool = False) -> Any:
    return SimpleNamespace(in_turn=simulations, seconds=seconds, seconds_left=left, counts_simulations=counts)


def waiting(search: Any, prices: list[int], **given: Any) -> racing.Waiting:
    made = racing.Waiting(search, **given)
    made.__dict__["left"] = [StartRecipe(price, "list", lambda: None) for price in prices]  # type: ignore[arg-type, return-value]
    return made


def due(some: racing.Waiting) -> list[int]:
    return [start.price for start in some.due()]


def test_where_simulations_count_all_starts_are_due_at_once() -> None:
    some = waiting(told(0, counts=True), [6, 500, 20])
    assert due(some) == [6, 500, 20] and not some.left and some.cost == 526


@pytest.mark.parametrize(
    ("prices", "simulations", "first"),
    [
        ([120, 80, 1], 0, [120, 80]),  # two hundred simulations' worth
        ([120, 81, 1], 0, [120]),
        ([201], 0, []),
        ([120, 82], 2_020, [120, 82]),  # a tenth of what the search has done
        ([120, 83], 2_020, [120]),
    ],
)
def test_by_the_clock_starts_wait_until_they_cost_little(prices: list[int], simulations: int, first: list[int]) -> None:
    some = waiting(told(simulations), prices)
    assert due(some) == first
    assert [start.price for start in some.left] == prices[len(first) :] and some.cost == sum(first)


@pytest.mark.parametrize(("simulations", "first"), [(0, []), (59, []), (60, [6]), (119, [6]), (120, [6, 6])])
@pytest.mark.parametrize("counts", [False, True])
def test_beside_a_plan_that_stands_out_all_wait_for_a_tenth(simulations: int, first: list[int], counts: bool) -> None:
    assert due(waiting(told(simulations, counts=counts), [6, 6, 500], stands_out=True)) == first


@pytest.mark.parametrize(("left", "first"), [(8.0, [10, 20]), (7.9, [10])])
def test_a_start_that_could_take_much_of_the_time_left_is_not_made_unless_it_is_the_first(
    left: float, first: list[int]
) -> None:
    """20 simulations' worth at a tenth of a second each, against a quarter of what is left."""
    assert due(waiting(told(50, seconds=5.0, left=left), [10, 20])) == first
    assert due(waiting(told(0, seconds=5.0, left=left), [10, 20])) == [10, 20]  # nothing is known of the pace


@pytest.mark.parametrize(("simulations", "is_due"), [(7_999, False), (8_000, True)])
def test_the_bound_of_a_large_problem_is_due_once(simulations: int, is_due: bool) -> None:
    some = waiting(told(simulations), [5])
    assert not some.bound_is_due()  # there are starts to make yet
    some.left.clear()
    assert some.bound_is_due() is is_due and not some.bound_is_due()


# Runners


def runner(value: int, *, over: int = 0, used: int = 0, gain: int = 0, marks: tuple[int, ...] = ()) -> racing.Runner:
    seen = [(100 * (at + 1), Score(0, mark)) for at, mark in enumerate(marks)]
    plan: Any = SimpleNamespace(name=value)
    return racing.Runner(Score(over, value), plan, Reheating(40, 100), used=used, gain=gain, marks=seen)


@pytest.mark.parametrize(
    ("marks", "stuck"),
    [
        ((), False),
        ((9,), False),
        ((9, 9), False),
        ((9, 9, 9), True),
        ((9, 9, 8), False),
        ((9, 8, 8), False),
        ((9, 8, 8, 8), True),
    ],
)
def test_a_runner_is_stuck_when_its_last_two_epochs_brought_nothing(marks: tuple[int, ...], stuck: bool) -> None:
    assert runner(8, marks=marks).stuck is stuck


@pytest.mark.parametrize(
    ("value", "used", "marks", "slow"),
    [
        (9_951, 1_000, (12_000, 11_000, 10_000, 9_960, 10_000), True),  # the best of what it had by then counts
        (9_951, 1_000, (10_000, 10_000), True),
        (9_950, 1_000, (10_000, 10_000), False),  # half a percent
        (9_951, 999, (10_000, 10_000), False),  # it has had too few to tell
        (9_951, 1_000, (), False),  # nor is known where it was
    ],
)
def test_a_runner_is_slow_that_gained_little_since_half_of_its_simulations(
    value: int, used: int, marks: tuple[int, ...], slow: bool
) -> None:
    assert runner(value, used=used, marks=marks).slow is slow


def test_a_runner_that_fits_only_now_is_not_slow() -> None:
    some = runner(10_000, used=1_000)
    some.marks = [(400, Score(5, 10_000))]
    assert not some.slow


def test_what_a_runner_promises_and_how_good_it_was() -> None:
    some = runner(800, over=3, gain=10, marks=(900, 850, 870))
    assert some.promise == Score(3, 798)
    assert [some.after(count) for count in (99, 100, 199, 200, 300)] == [
        WORST, Score(0, 900), Score(0, 900), Score(0, 850), Score(0, 850),
    ]  # fmt: skip


def race_of(leader: racing.Runner, *others: racing.Runner, simulations: int = 1_000, ops: int = 40) -> racing.Race:
    made: Any = racing.Race.__new__(racing.Race)
    problem = SimpleNamespace(num_ops=ops, num_devices=2, objective=SimpleNamespace(of_memory=True))
    made.search = SimpleNamespace(in_turn=simulations, problem=problem, spent=False)
    made.leader, made.others, made.crossing = leader, list(others), SimpleNamespace(kept=[], due=0)
    made.crossing.keep = lambda plan, used: made.crossing.kept.append((plan.name, used))
    made.again = iter([Scored(Score(0, 77), leader.plan)])
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize(("used", "goes"), [(799, False), (800, True), (801, True)])
def test_others_have_a_fifth_of_all_simulations(used: int, goes: bool) -> None:
    leader, one, two = runner(100, used=used), runner(101, used=50), runner(102, used=40)
    assert race_of(leader, one, two)._other() is (two if goes else None)  # the one that has had least


@pytest.mark.parametrize(("used", "goes"), [(399, False), (400, True)])
@pytest.mark.parametrize("why", ["settled", "stuck", "slow"])
def test_beside_a_leader_that_has_come_to_a_stop_others_have_three_fifths_and_there_is_always_one(
    used: int, goes: bool, why: str
) -> None:
    leader = runner(100, used=used, marks=(100, 100, 100) if why == "stuck" else ())
    leader.pace.length = 160 if why == "settled" else 159
    race = race_of(leader)
    if why == "slow":  # ten times as many of everything
        leader.used, race.search.in_turn = 10 * used, 10_000  # type: ignore[misc]
        leader.marks = [(100, Score(0, 100))]
    found = race._other()
    assert (found is not None) is goes and len(race.others) == goes
    assert found is None or found.score == Score(0, 77)


def test_without_others_the_leader_goes_on_while_it_gains() -> None:
    race = race_of(runner(100, used=900, marks=(120, 110, 100)))
    assert race._other() is None and race.others == []


@pytest.mark.parametrize(
    ("value", "used", "beaten"),
    [
        (102, 100, False),  # as far behind as it may be of where the leader stood after as many
        (103, 100, True),
        (99, 301, False),  # it promises more
        (101, 300, False),
        (101, 301, True),  # it has had more than the leader
        (100, 301, True),  # and promises as much
        (10**9, 99, False),  # the leader is not known to have been anywhere then
    ],
)
def test_who_is_given_up(value: int, used: int, beaten: bool) -> None:
    leader = runner(100, used=300, marks=(100, 100))
    race = race_of(leader, runner(value, used=used))
    assert race._beaten(race.others[0]) is beaten
    race._part_with_the_beaten()
    assert len(race.others) == (not beaten) and len(race.crossing.kept) == beaten  # type: ignore[attr-defined]


@pytest.mark.parametrize(("over", "beaten"), [(0, False), (1, True)])
def test_who_does_not_fit_where_the_leader_did_is_given_up(over: int, beaten: bool) -> None:
    race = race_of(runner(100, used=300, marks=(100, 100)))
    assert race._beaten(runner(101, over=over, used=200)) is beaten


@pytest.mark.parametrize(("settled", "least"), [(False, 100), (True, 320)])
def test_beside_a_leader_that_has_come_to_a_stop_others_have_some_simulations_at_least(
    settled: bool, least: int
) -> None:
    leader = runner(100, used=900, marks=(100, 100, 100))
    leader.pace.length = 160 if settled else 100
    race = race_of(leader)
    assert [race._beaten(runner(500, used=used)) for used in (least - 1, least)] == [False, True]


def test_one_that_overtakes_the_leader_takes_its_place() -> None:
    leader, other, third = runner(100, used=500), runner(99, used=500), runner(101, used=10)
    race = race_of(leader, other, third)
    race._compare(other)
    assert race.leader is other and race.others == [third, leader]
    race._compare(third)
    assert race.leader is other


def test_the_first_epochs_of_few_ops_are_longer() -> None:
    plan: Any = None
    lengths = [race_of(runner(1), ops=ops)._runner(Scored(Score(0, 5), plan)).pace.length for ops in (48, 49)]
    assert lengths == [192, 64]
    fresh = race_of(runner(1))._runner(Scored(Score(0, 5), plan))
    assert (fresh.used, fresh.gain, fresh.marks, fresh.joined) == (0, 0, [], None)


def test_as_good_as_the_leader_does_not_lead() -> None:
    leader, other = runner(100, used=500), runner(100, used=100)
    race = race_of(leader, other)
    race._compare(other)
    assert race.leader is leader


@pytest.mark.parametrize(("simulations", "evolves"), [(1_999, False), (2_000, True)])
def test_evolution_has_its_turn_once_and_late(simulations: int, evolves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    race: Any = race_of(runner(1), simulations=simulations)
    asked = []

    @contextmanager
    def keeping(**given: Any) -> Iterator[Any]:
        asked.append(given)
        yield SimpleNamespace(best=None, best_score=Score(0, 4))

    race.search.keeping, race.evolved = keeping, False
    monkeypatch.setattr(racing, "EVOLVING", SimpleNamespace(optimize=lambda _: "a plan"))
    assert race._evolve() == ([Scored(Score(0, 4), "a plan")] if evolves else [])  # type: ignore[arg-type]
    assert race._evolve() == [] and asked == [{"simulations": 400}] * evolves


def test_stretches_of_others_are_for_a_leader_that_has_settled() -> None:
    leader = runner(100, used=500, marks=(100,))
    race: Any = race_of(leader)
    better = Scored(Score(0, 90), leader.plan)

    def improve(given: Scored) -> Scored:
        assert given.score == Score(0, 100)
        race.search.in_turn += 30
        return better

    race.crossing.improve, leader.pace.length = improve, 159
    race._cross()
    assert leader.score == Score(0, 100)
    race.crossing.improve, leader.pace.length = lambda given: given, 160  # nothing is due
    race._cross()
    assert leader.score == Score(0, 100) and leader.used == 500 and leader.marks == [(100, Score(0, 100))]
    race.crossing.improve = improve
    race._cross()
    assert leader.score == Score(0, 90) and leader.used == 530 and leader.marks == [(530, Score(0, 90))]
    same: Any = SimpleNamespace(name="as good")

    def level(given: Scored) -> Scored:
        race.search.in_turn += 10
        return Scored(given.score, same)

    race.crossing.improve, leader.joined = level, same
    race._cross()
    assert leader.plan is better.plan and leader.joined is same and leader.used == 540
