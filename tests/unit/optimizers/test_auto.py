"""Epochs of annealing: how long, how hot and on which problem, with walks that are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.optimizers import auto
from loadmaster.optimizers.annealing.chains import Reheating
from loadmaster.optimizers.auto import Auto, Epochs
from loadmaster.optimizers.racing import SMALL, Runner
from loadmaster.optimizers.starts import Scored
from loadmaster.search import Score


class Told:
    """Epochs of 50 ops at a temperature of 0.01, whose walks take ten simulations each and find what they are told."""

    def __init__(self, *found: int, ops: int = 50, small: bool = False, rebalanced: int | None = None) -> None:
        self.asked, self.patience, left = list[tuple[Any, ...]](), list[int](), iter(found)
        self.search: Any = SimpleNamespace(spent=False, in_turn=100, counts_simulations=True)
        epochs: Any = Epochs.__new__(Epochs)
        epochs.settings, epochs.search, epochs.rebalancing = Auto(temperature=0.01), self.search, None
        epochs.problem, epochs.small = SimpleNamespace(num_ops=ops), "smaller" if small else None

        def walk(runner: Runner, length: int, hot: float, small: bool, share: float) -> Scored:
            self.asked.append((length, hot, small, share))
            self.search.in_turn += 10
            return Scored(Score(0, next(left)), "found")  # type: ignore[arg-type]

        def improve(score: Score, plan: Any, patience: int) -> tuple[Score, Any]:
            self.patience.append(patience)
            self.search.in_turn += rebalanced or 0
            return Score(score.over_bytes, score.value - (rebalanced or 0)), plan

        epochs._walk = walk
        if rebalanced is not None:
            epochs.rebalancing = SimpleNamespace(improve=improve)
        self.epochs: Epochs = epochs


def runner(turn: int, *, value: int = 1_000, over: int = 0, used: int = 0, length: int = 64, ops: int = 50) -> Runner:
    marks = [(10 * at, Score(over, value)) for at in range(1, turn + 1)]
    return Runner(Score(over, value), "begun", Reheating(ops, length), used=used, marks=marks)  # type: ignore[arg-type]


def test_the_first_epoch_is_cold_and_sets_no_pace() -> None:
    told = Told(990)
    told.epochs.go_on(some := runner(0, length=500))
    assert told.asked == [(auto.FIRST, 0.0, False, auto.LEAST_ORDER)]
    assert (some.score, some.plan, some.gain, some.used) == (Score(0, 990), "found", 10, 10)
    assert some.marks == [(10, Score(0, 990))] and some.pace.length == 500


@pytest.mark.parametrize(("turn", "times"), [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0), (5, 0.0)])
def test_later_ones_are_warmer_in_turn(turn: int, times: float) -> None:
    told = Told(1_000)
    told.epochs.go_on(some := runner(turn))
    ((length, hot, _, _),) = told.asked
    assert length == 64 and hot == pytest.approx(auto.WARMER * times * 0.01)
    assert some.pace.length > 64 and some.gain == 0 and some.plan == "begun"
    large = Told(1_000, ops=SMALL + 1)
    large.epochs.go_on(runner(turn))
    assert large.asked[0][1] == pytest.approx(times * 0.01) and large.asked[0][3] == 1.0
    short = Told(1_000)
    short.epochs.go_on(runner(turn, over=5))
    assert short.asked[0][1] == pytest.approx(times * 0.01), "where memory is short"
    edge = Told(1_000, ops=SMALL)
    edge.epochs.go_on(runner(turn))
    assert edge.asked[0][1] == pytest.approx(auto.WARMER * times * 0.01)


def test_where_the_last_gained_nothing_it_is_as_hot_as_its_pace_says() -> None:
    told = Told(1_000)
    some = runner(4, length=200)
    some.pace.times = 3.0
    told.epochs.go_on(some)
    assert told.asked[0][1] == pytest.approx(3.0 * 0.01) and some.pace.times == pytest.approx(9.0)


def test_with_many_simulations_for_each_op_it_starts_hotter() -> None:
    told = Told()
    per_op = int(50 * auto.HOTTER)
    assert [told.epochs._warmer(length) for length in (10, per_op, 3 * per_op, 10**6)] == [1.0, 1.0, 3.0, auto.HOTTEST]


@pytest.mark.parametrize(("used", "share"), [(0, 0.05), (10, 0.05), (100, 0.5), (200, 1.0), (900, 1.0)])
def test_moves_of_order_come_with_time(used: int, share: float) -> None:
    told = Told(1_000)
    told.epochs.go_on(runner(2, used=used))
    assert told.asked[0][3] == pytest.approx(share)


def test_two_of_three_epochs_are_on_the_smaller_problem_if_there_is_one() -> None:
    for small in (True, False):
        told = Told(*[1_000] * 7, small=small)
        for turn in range(7):
            told.epochs.go_on(runner(turn))
        assert [asked[2] for asked in told.asked] == [small and turn % 3 > 0 for turn in range(7)]


def test_a_gain_is_one_where_as_many_bytes_are_short() -> None:
    told = Told(400)
    told.epochs.go_on(some := runner(1, over=3))
    assert some.score == Score(0, 400) and some.gain == 0


def test_for_peak_memory_the_first_epoch_goes_along_what_ran() -> None:
    told = Told(990, 900, rebalanced=5)
    told.epochs.go_on(some := runner(0))
    assert told.asked == [] and told.patience == [auto.PATIENT] and (some.used, some.gain) == (5, 5)
    told.epochs.go_on(some)
    assert len(told.asked) == 1 and told.patience[1] == auto.LESS_PATIENT and some.used == 20
    assert some.gain == 5, "990 is what it had by then"
    nothing = Told(990, rebalanced=0)
    nothing.epochs.go_on(runner(0))
    assert len(nothing.asked) == 1, "where that takes nothing it anneals"


def test_a_search_that_has_ended_goes_no_further() -> None:
    told = Told()
    told.search.spent = True
    told.epochs.go_on(some := runner(0))
    assert told.asked == [] and some.marks == []


def test_a_plan_that_came_with_the_problem_is_improved_in_a_few_cool_epochs() -> None:
    told = Told(990, 995, 980, small=True)
    found = told.epochs.improve_given(Scored(Score(0, 1_000), "given"))  # type: ignore[arg-type]
    assert found.score == Score(0, 980) and len(told.asked) == auto.GIVEN == 3
    assert set(told.asked) == {(auto.GIVEN_EACH, auto.GIVEN_WARM * 0.01, True, auto.LEAST_ORDER)}
    level = Told(1_000, 1_000, 1_000)
    same: Any = Scored(Score(0, 1_000), "given")  # type: ignore[arg-type]
    assert level.epochs.improve_given(same).plan == "given" and level.asked[0][2] is False
    level.search.spent = True
    assert level.epochs.improve_given(same).plan == "given" and len(level.asked) == 3


@pytest.mark.parametrize(("simulations", "several"), [(199, False), (200, True)])
def test_several_walk_where_there_are_many_simulations_for_each_op(simulations: int, several: bool) -> None:
    weighed, enlisted = list[float](), list[Any]()

    def enlist(*given: Any) -> int:
        enlisted.append(given)
        return 7

    walking: Any = SimpleNamespace(weigh_order=weighed.append, enlist=enlist)
    assert Told().epochs._set(walking, simulations, 0.4) == 7
    assert enlisted == [(simulations, several)] and weighed == [0.4]


@pytest.mark.parametrize(
    ("counts", "ops", "closes"), [(True, SMALL + 1, True), (False, SMALL, True), (False, SMALL + 1, False)]
)
@pytest.mark.parametrize("ended", [False, True])
def test_beside_a_race_small_problems_are_closed(
    counts: bool, ops: int, closes: bool, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    did = list[str]()

    @contextmanager
    def closing(search: Any) -> Iterator[None]:
        did.append("closing")
        yield

    race: Any = SimpleNamespace(run=lambda: did.append("raced"))
    monkeypatch.setattr(auto, "too_large", lambda problem: False)
    monkeypatch.setattr(auto, "suited", lambda search: [])
    monkeypatch.setattr(auto, "Epochs", lambda settings, search: None)
    monkeypatch.setattr(auto, "Waiting", lambda search, ahead: SimpleNamespace(due=lambda: []))
    monkeypatch.setattr(auto, "of_another", lambda search, also: [])
    monkeypatch.setattr(auto, "made", lambda search, some: [])
    monkeypatch.setattr(auto, "ordered", lambda search, found: [Scored(Score(0, 5), "first")])  # type: ignore[arg-type]
    monkeypatch.setattr(auto, "Race", lambda epochs, waiting, first: race)
    monkeypatch.setattr(auto, "closing", closing)
    search: Any = SimpleNamespace(
        problem=SimpleNamespace(num_ops=ops), counts_simulations=counts, spent=ended, best="best" if ended else None
    )
    assert Auto().optimize(search) == ("best" if ended else "first")  # type: ignore[comparison-overlap]
    assert did == ([] if ended else [*["closing"] * closes, "raced"])
