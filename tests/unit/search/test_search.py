"""Search: its parts, its progress, and what `solve` takes of what a method returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Budget, Score, Search, solve
from loadmaster.simulator import simulate
from tests.graphs import GRAPHS, pair
from tests.problems import problem_of


def plans_of(problem: Problem) -> list[Plan]:
    """Two plans, the worse one first: dealt out op by op, and all on one device."""
    dealt = Plan.of(problem, np.arange(problem.num_ops) // 2 % 2)
    ladder = [Plan.of(problem, np.zeros(problem.num_ops)), Plan.of(problem, np.ones(problem.num_ops))]
    return sorted([dealt, ladder[0]], key=lambda plan: -Search(problem, Budget(None, 1)).score(plan).value)


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores some plans and returns another."""

    scored: tuple[Plan, ...]
    returned: Plan

    def optimize(self, search: Search) -> Plan:
        for plan in self.scored:
            search.score(plan)
        return self.returned


def test_the_better_of_what_was_scored_and_what_was_returned_is_reported() -> None:
    problem = problem_of(8)
    worse, better = plans_of(problem)
    values = [Search(problem, Budget(None, 1)).score(plan).value for plan in (worse, better)]
    assert values[0] > values[1]
    for scored, returned in (((worse,), better), ((better,), worse), ((worse, better), worse), ((), better)):
        assert solve(problem, Scored(scored, returned), Budget(None, 5)).value == values[1]


def test_progress_is_that_of_whichever_limit_is_nearer() -> None:
    search = Search(problem_of(4), Budget(1_000.0, 100))
    assert search.progress < 0.01
    search.count(50)
    assert search.progress == pytest.approx(0.5)
    search.count(50)
    assert search.progress == 1.0 and search.spent
    timed = Search(problem_of(4), Budget(1e-9, 10**9))
    assert timed.progress == 1.0 and timed.spent


@pytest.mark.parametrize(("seconds", "in_turn"), [(None, 10), (600.0, 3)])
def test_simulations_of_several_cores_are_one_after_another_only_where_they_are_the_budget(
    seconds: float | None, in_turn: int
) -> None:
    search = Search(problem_of(4), Budget(seconds, 100))
    search.part().count(10, 4)
    assert (search.simulations, search.simulations_left, search.in_turn) == (10, 90, in_turn)
    alone = np.zeros(search.problem.num_ops, np.int64)
    search.score(Plan.of(search.problem, alone))
    search.score_many(np.stack([alone] * 5))
    search.timeline(Plan.of(search.problem, alone, np.arange(len(alone))[::-1]))
    assert (search.simulations, search.in_turn) == (17, in_turn + 7)


def test_a_part_draws_on_from_where_the_whole_is_and_counts_with_it() -> None:
    search, twin = (Search(problem_of(4), Budget(None, 100), seed=5) for _ in range(2))
    expected = twin.rng.integers(0, 10**9, 8).tolist()
    part = search.part(0.5)
    assert [*part.rng.integers(0, 10**9, 3).tolist(), *search.rng.integers(0, 10**9, 2).tolist()] == expected[:5]
    assert search.part().rng.integers(0, 10**9, 3).tolist() == expected[5:]
    part.count(20)
    assert (search.simulations, search.simulations_left, part.simulations_left) == (20, 80, 30)
    assert search.part(0.5, simulations=10).simulations_left == 10
    assert search.part(0.5, simulations=90).simulations_left == 40


def test_every_plan_that_is_scored_counts_once_and_the_best_is_kept() -> None:
    problem = problem_of(8)
    worse, better = plans_of(problem)
    search = Search(problem, Budget(None, 10))
    scores = [search.score(plan) for plan in (worse, better, worse)]
    assert search.simulations == 3 and scores[0] == scores[2] > scores[1] == search.best_score
    assert search.best is better
    assert [(moment.simulations, moment.score) for moment in search.history] == [(1, scores[0]), (2, scores[1])]
    assert not search.offer(better, scores[1])  # as good is not better
    assert search.simulations == 3 and len(search.history) == 2
    part = search.part(0.5)
    part.score(worse)  # the best of the part, no improvement of the whole
    assert part.best is worse and len(search.history) == 2


def test_what_a_part_claims_of_a_coarser_problem_counts_until_the_whole_knows_better() -> None:
    problem = problem_of(8)
    worse, better = plans_of(problem)
    search = Search(problem, Budget(None, 10))
    first = search.score(worse)
    coarser = search.part(problem=problem_of(4))
    coarser.offer(plans_of(coarser.problem)[0], Score(0, 1))
    assert [moment.score for moment in search.history] == [first, Score(0, 1)]
    second = search.score(better)
    assert [moment.score for moment in search.history] == [first, second]


@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_the_history_of_a_portfolio_goes_down_to_what_it_found(objective: str) -> None:
    result = solve(problem_of(12, objective=objective), "auto", Budget(None, 3_000))
    scores = [moment.score for moment in result.history]
    assert scores == sorted(set(scores), reverse=True) and scores[-1] == result.score
    assert [m.simulations for m in result.history] == sorted(m.simulations for m in result.history)


def test_what_came_first_is_simulated_once_and_scored_for_nothing() -> None:
    problem = problem_of(30)
    search = Search(problem, Budget(None, 3))
    device = ints(np.arange(problem.num_ops) % 2)
    plan = search.part().first_come(device)
    assert search.simulations == 1 and search.has_run(plan) and search.best is None
    line = simulate(problem, plan)
    assert search.score(replace(plan)) == Score.of(problem, line) and search.simulations == 1
    assert not search.has_run(plan) and search.score(plan) == search.best_score and search.simulations == 2
    assert search.timeline(plan).step_ns == line.step_ns and search.simulations == 2
    other = Search(problem, Budget(None, 1))  # one that is not of the same search knows nothing of it
    assert not other.has_run(plan) and other.score(plan) == search.best_score and other.simulations == 1
    assert other.first_come(device).rank.tolist() == plan.rank.tolist()  # past the budget, not counted,
    assert not other.has_run(plan) and other.simulations == 1
    other.score(plan)  # so that to score it is
    assert other.simulations == 2


def test_timelines_are_remembered_by_all_that_a_plan_says() -> None:
    problem = problem_of(8)
    search, plan = Search(problem, Budget(None, 9)), plans_of(problem)[0]
    plain = search.timeline(plan)
    assert search.timeline(replace(plan)) is plain
    assert search.simulations == 1
    backwards = np.arange(problem.graph.num_tensors * problem.num_devices)[::-1]
    sends = ints(backwards.reshape(problem.graph.num_tensors, problem.num_devices))
    ordered = search.timeline(replace(plan, send_rank=sends))
    assert search.timeline(replace(plan, send_rank=sends.copy())) is ordered
    assert search.timeline(plan) is plain
    assert search.simulations == 2


@pytest.mark.parametrize("fused", [False, True])
def test_of_many_plans_those_past_the_budget_are_not_simulated(fused: bool) -> None:
    problem = problem_of(8)
    plans = [*plans_of(problem), plans_of(problem)[0]]
    alone = [Search(problem, Budget(None, 1)).score(plan) for plan in plans]
    device, rank, kernel = (np.stack([getattr(plan, name) for plan in plans]) for name in ("device", "rank", "kernel"))
    for left in (3, 2, 1, 0):
        search = Search(problem, Budget(None, 5))
        search.count(5 - left)
        found = search.score_fused(device, rank, kernel) if fused else search.score_many(device, rank)
        scores = [Score(int(over), int(value)) for over, value in zip(*found, strict=True)]
        assert scores == [*alone[:left], *[WORST] * (3 - left)]
        assert search.simulations == 5 and search.best_score == min(scores)
        if left:
            assert search.best is not None
            np.testing.assert_array_equal(search.best.device, device[scores.index(min(scores))])


def test_a_search_keeps_the_best_of_its_part_and_what_it_proved_of_the_same_problem() -> None:
    problem = problem_of(8)
    worse, better = plans_of(problem)
    search = Search(problem, Budget(None, 10))
    search.score(worse)
    with search.keeping(0.5) as part:
        assert part.best is None and part.bound == search.bound == 0
        part.score(better)
        part.prove(7)
        part.prove(3)  # less than is known
    assert search.best is better and search.bound == 7 and search.simulations == 2
    other = search.part(problem=problem_of(4))
    assert other.bound == 0
    other.prove(10**15)
    assert not search.keep(other) and search.bound == 7
    assert search.part().bound == 7


def test_a_search_ends_where_it_is_halted_or_meets_its_bound() -> None:
    problem = problem_of(8)
    search = Search(problem, Budget(None, 10))
    part = search.part()
    search.halt()
    assert search.spent and part.spent
    part.resume()
    assert not search.spent and not part.spent
    score = search.score(plans_of(problem)[1])
    search.prove(score.value - 1)
    assert not search.closed and not search.spent
    search.prove(score.value)
    assert search.closed and search.spent


def test_ranks_are_one_row_for_all_or_a_row_each_or_the_program() -> None:
    problem = problem_of(8)
    device = np.stack([plan.device for plan in plans_of(problem)])
    orders = np.stack([np.arange(problem.num_ops)[::-1], np.arange(problem.num_ops)])
    for rank in (None, orders[0], orders[:1], orders):
        rows = [None, None] if rank is None else np.broadcast_to(rank, device.shape)
        plans = [Plan.of(problem, place, row) for place, row in zip(device, rows, strict=True)]
        alone = [Search(problem, Budget(None, 1)).score(plan) for plan in plans]
        search = Search(problem, Budget(None, 9))
        over, value = search.score_many(device, rank)
        assert [*zip(over.tolist(), value.tolist(), strict=True)] == alone
        best = plans[alone.index(min(alone))]
        assert search.best is not None
        np.testing.assert_array_equal(search.best.device, best.device)
        np.testing.assert_array_equal(search.best.rank, best.rank)


def test_a_part_has_its_share_of_the_seconds() -> None:
    search = Search(problem_of(4), Budget(1_000.0, None))
    assert 900 < search.seconds_left <= 1_000 and not search.counts_simulations
    part = search.part(0.25)
    assert 200 < part.seconds_left <= 250 and not part.spent
    search.count(10**6)
    assert search.progress < 0.1 and search.simulations_left > 10**9
    spent = Search(problem_of(4), Budget(1e-9, None)).part()
    assert spent.seconds_left < 1 and not spent.counts_simulations


def test_optimal_is_what_fits_and_meets_the_bound() -> None:
    problem = price(GRAPHS["chain"](), pair())
    result = solve(problem, "one-device", Budget(None, 1))
    met, missed = (replace(result, lower_bound=bound) for bound in (result.value, result.value - 1))
    assert met.optimal and not missed.optimal
    tight = solve(replace(problem, memory_bytes=ints([1, 1])), "one-device", Budget(None, 1))
    assert not tight.fits and not replace(tight, lower_bound=tight.value).optimal
