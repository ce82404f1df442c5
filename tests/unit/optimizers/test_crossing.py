"""Crossing two plans that are each best in another half of the step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster import Budget, GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.optimizers import crossing
from loadmaster.optimizers.crossing import Crossing, renamed_like
from loadmaster.optimizers.starts import Scored
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.problem.symmetry import alike_devices
from loadmaster.search import Score, Search
from loadmaster.simulator import simulate

PAIRS = 12  # pairs of tasks, one pair after the other


def ladder(colocated: bool = False) -> Problem:
    """Pairs of equal tasks that could run at the same time; the next pair waits for both. Nothing is sent."""
    build = GraphBuilder("ladder")
    before: list[str] = []
    for pair in range(PAIRS):
        # Of a group: the first of each of the last three pairs.
        group = {"colocate": 0} if colocated and pair >= PAIRS - 3 else {}
        build.op(f"one {pair}", "task", [], [], time_ns=1_000, after=before, **group)
        build.op(f"other {pair}", "task", [], [], time_ns=1_000, after=before)
        before = [f"one {pair}", f"other {pair}"]
    return price(build.build(), "2xp100-pcie")


def half_apart(problem: Problem, first: bool, name: int) -> Plan:
    """The pairs of one half on two devices, the others one after the other on the device of that name."""
    device = np.full(problem.num_ops, name)
    half = slice(0, PAIRS) if first else slice(PAIRS, None)
    device[half] = np.tile([name, 1 - name], PAIRS // 2)
    return Plan.of(problem, ints(device))


def searching(problem: Problem, simulations: int = 4_000, seed: int = 0) -> Search:
    search = Search(problem, Budget(None, simulations), seed)
    search.count(simulations // 2)  # what the plans took to find
    return search


@pytest.mark.parametrize("name", [0, 1])
@pytest.mark.parametrize("colocated", [False, True])
def test_the_better_half_of_each(name: int, colocated: bool) -> None:
    problem = ladder(colocated)
    mine, other = half_apart(problem, True, 0), half_apart(problem, False, name)
    best = PAIRS * int(problem.op_ns[0, 0])
    search = searching(problem)
    cross = Crossing(search)
    cross.keep(other, 10_000)
    given_score = Score.of(problem, simulate(problem, mine))
    assert given_score.value == best * 3 // 2
    found = cross.improve(Scored(given_score, mine))
    check(found.plan, problem)
    assert found.score == Score.of(problem, simulate(problem, found.plan)) == search.best_score
    assert found.score.value == best


def test_what_it_uses_is_counted_and_no_more_than_its_share() -> None:
    problem = ladder()
    search = searching(problem, 20_000)
    cross, best = Crossing(search), Scored(Score(0, 1), Plan.of(problem, ints(np.tile([0, 1], PAIRS))))
    assert cross.due == 0 and cross.improve(best) is best  # nothing to cross with
    cross.keep(half_apart(problem, False, 0), crossing.TRIED * problem.num_ops - 1)
    assert cross.due == 0 and cross.improve(best) is best  # hardly tried
    assert cross.used == 0 and cross.share == crossing.SHARE
    cross.keep(half_apart(problem, False, 0), crossing.TRIED * problem.num_ops)
    before, due = search.simulations, cross.due
    assert due == int(crossing.SHARE * before)
    mine = half_apart(problem, True, 0)
    cross.improve(Scored(Score.of(problem, simulate(problem, mine)), mine))
    assert 0 < search.simulations - before == cross.used <= due
    assert cross.due == 0  # until the search has done more
    search.count(8_000)
    assert cross.due == int(crossing.SHARE * search.simulations) - cross.used >= crossing.LEAST
    search.halt()
    assert cross.due == 0 and cross.improve(best) is best  # the search has ended


def test_by_the_clock_one_of_its_simulations_counts_for_several() -> None:
    """Moves of a walk are simulated in part, its plans whole."""
    problem = ladder()
    search = Search(problem, Budget(600.0, None))
    cross = Crossing(search)
    cross.keep(half_apart(problem, False, 0), 10_000)
    search.count(5_999)
    assert cross.due == 0
    search.count(1)
    assert cross.due == 200
    mine = half_apart(problem, True, 0)
    cross.improve(Scored(Score.of(problem, simulate(problem, mine)), mine))
    assert 0 < cross.used == 3 * (search.simulations - 6_000) <= 600


def test_what_brings_nothing_is_tried_less_until_it_does() -> None:
    problem = ladder()
    search = Search(problem, Budget(None, 100_000))
    cross = Crossing(search)
    best = Plan.of(problem, ints(np.tile([0, 1], PAIRS)))
    cross.keep(half_apart(problem, False, 0), 10_000)
    score = Score.of(problem, simulate(problem, best))
    for times, more in ((1, 2_000), (2, 8_000)):
        search.count(more)
        assert cross.improve(Scored(score, best)).plan is best
        assert cross.share == crossing.SHARE * crossing.LESS**times
    search.count(30_000)
    mine = half_apart(problem, True, 0)
    assert cross.improve(Scored(Score.of(problem, simulate(problem, mine)), mine)).score == score
    assert cross.share == crossing.SHARE


def test_the_last_few_are_kept() -> None:
    problem = ladder()
    cross = Crossing(searching(problem))
    plans = [half_apart(problem, True, 0) for _ in range(crossing.KEPT + 2)]
    for plan in plans:
        cross.keep(plan, 10_000)
    assert [id(plan) for plan in cross.plans] == [id(plan) for plan in plans[2:]]


@given(st.permutations(range(4)), st.integers(0, 99))
def test_names_are_those_that_agree_on_most_of_the_work(names: list[int], seed: int) -> None:
    build = GraphBuilder("tasks")
    for at in range(12):
        build.op(f"op {at}", "task", [], [], time_ns=1_000 * (at + 1))
    problem = price(build.build(), "4xp100-pcie")
    like = np.random.default_rng(seed).integers(0, 4, 12)
    found = renamed_like(problem, ints(np.array(names)[like]), ints(like), alike_devices(problem))
    assert (found == like).all()


def test_unlike_devices_keep_their_names() -> None:
    problem = ladder()
    nothing_alike = np.zeros((2, 2), bool)
    device = half_apart(problem, True, 1).device
    assert (renamed_like(problem, device, ints(1 - device), nothing_alike) == device).all()


# Stretches, by draws that are told


class Draws:
    """Lengths as halvings of the step, where stretches begin, and who lends them."""

    def __init__(self, halvings: list[float], first: list[int], lenders: list[int]) -> None:
        self.halvings, self.first, self.lenders = np.array(halvings), np.array(first), np.array(lenders)
        self.most: list[int] = []

    def uniform(self, low: float, high: float, count: int) -> Any:
        assert (low, high, count) == (crossing.WIDEST, crossing.NARROWEST, len(self.first))
        return self.halvings

    def integers(self, low: int, high: Any = None, size: int | None = None) -> Any:
        if size is not None:
            assert (low, size) == (2, len(self.first))
            return self.lenders
        assert low == 0
        self.most = np.asarray(high).tolist()
        return self.first


def test_a_stretch_is_what_is_dispatched_one_after_another_and_what_must_be_with_it() -> None:
    rng: Any = Draws([1.0, 7.0, 1.0], [1, 3, 2], [0, 0, 1])
    turn, together = ints([3, 1, 0, 2]), ints([0, 1, 2, 1])
    lent = ints([[9, 8, 7, 8], [5, -1, 6, -1]])
    rows = crossing._stretches(rng, turn, lent, ints([0, 0, 0, 0]), together, 3)
    assert rng.most == [3, 4, 3], "half of four ops, and one at least"
    # Turns 1 and 2 are ops 1 and 3; turn 3 is op 0; turns 2 and 3 are ops 3 and 0, and 1, which must be with 3.
    assert rows.tolist() == [[0, 8, 0, 8], [9, 0, 0, 0], [5, 0, 0, 0]]
    alone: Any = Draws([1.0], [0], [0])
    assert crossing._stretches(alone, turn, lent, ints([0, 0, 0, 0]), together, 1).tolist() == [[0, 8, 7, 8]]
    group: Any = Draws([2.0], [2], [0])
    assert crossing._stretches(group, turn, lent, ints([0, 0, 0, 0]), together, 1).tolist() == [[0, 8, 0, 8]]


def test_what_must_be_together_is_lent_together_where_all_of_it_can_run() -> None:
    able = np.ones((6, 2), bool)
    able[[3, 4, 5], 1] = False  # of a group, where all of it can run
    problem: Any = SimpleNamespace(able=able)
    together = ints([0, 1, 0, 3, 4, 3])
    lent = crossing._lent(problem, [ints([1, 1, 0, 1, 1, 0]), ints([0, 0, 1, 0, 0, 1])], together)
    assert lent.tolist() == [[1, 1, 1, -1, -1, -1], [0, 0, 0, 0, 0, 0]]


class Rows:
    """A search that scores rows as it is told, batch by batch."""

    spent, rng = False, None

    def __init__(self, problem: Problem, values: list[int]) -> None:
        self.problem, self.values, self.scored = problem, iter(values), list[int]()

    def timeline(self, plan: Plan) -> Any:
        return SimpleNamespace(turn=np.arange(self.problem.num_ops))

    def score_many(self, rows: Any, rank: Any) -> tuple[Any, Any]:
        self.scored.append(len(rows))
        best = next(self.values)
        return np.zeros(len(rows), np.int64), np.array([best + 5] * (len(rows) - 1) + [best])


def crossed(
    monkeypatch: pytest.MonkeyPatch, values: list[int], most: int, same: int = 0
) -> tuple[list[int], list[int], int]:
    """(stretches asked for, rows scored, what came of 100); `same` of each batch are as the plan is."""
    monkeypatch.setattr(crossing, "BATCH", 2)
    monkeypatch.setattr(crossing, "MOST", 5)
    asked = list[int]()

    def stretches(rng: Any, turn: Any, lent: Any, device: Any, together: Any, count: int) -> Any:
        asked.append(count)
        rows = np.tile(device, (count, 1))
        rows[min(same, count) :, len(asked) % 24] ^= 1
        return rows

    monkeypatch.setattr(crossing, "_stretches", stretches)
    problem = ladder()
    search: Any = Rows(problem, values)
    plan, score = crossing._crossed(search, half_apart(problem, True, 0), Score(0, 100), [], most)
    assert len(plan.device) == problem.num_ops
    return asked, search.scored, score.value


def test_batches_grow_until_something_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crossed(monkeypatch, [100] * 9, 16) == ([2, 4, 5, 5], [2, 4, 5, 5], 100), "as good is no gain"
    assert crossed(monkeypatch, [100, 90, 95, 90, 80, 99], 17) == ([2, 4, 2, 4, 5], [2, 4, 2, 4, 5], 80)
    assert crossed(monkeypatch, [100] * 9, 8) == ([2, 4, 2], [2, 4, 2], 100), "no more than are due"


def test_what_is_as_the_plan_is_is_not_scored_and_it_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crossed(monkeypatch, [100] * 9, 6, same=1) == ([2, 4, 2, 1], [1, 3, 1], 100)
    asked, scored, _ = crossed(monkeypatch, [], 4, same=99)
    assert asked == [2, 3, 2, 1] and scored == []
