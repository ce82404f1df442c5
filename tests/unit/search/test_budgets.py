"""Budgets and what is left of them, at their borders and by a clock that is told."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.search import Budget, Score, Search, search, solve, workers
from loadmaster.search.budget import WORST, as_budget
from tests.graphs.tiny import GRAPHS, pair
from tests.problems import ALL, problem_of


class Clock:
    """One that stands until it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(search, "_clock", lambda: self.now)


@pytest.mark.parametrize(
    "given",
    [
        (0.0, None),
        (-1.0, None),
        (True, None),
        ("2", None),
        (None, 0),
        (None, -3),
        (None, 1.5),
        (None, True),
        (None, None),
    ],
)
def test_a_budget_has_a_limit_and_it_is_positive(given: Any) -> None:
    with pytest.raises(InvalidSetting):
        Budget(*given)


def test_what_people_write_for_a_budget() -> None:
    assert Budget(1e-9).seconds == 1e-9 and Budget(None, 1).simulations == 1
    assert Budget(np.float32(2), np.int32(3)).simulations == 3 and Budget(2, 1).seconds == 2
    assert as_budget(np.int64(3)) == Budget(3.0) and as_budget(None) == Budget(10.0)
    for given in (True, "ten", [1]):
        with pytest.raises(InvalidSetting):
            as_budget(given)  # type: ignore[arg-type]


def test_seconds_go_down_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    whole = Search(problem_of(4), Budget(10.0, 400))
    assert (whole.seconds, whole.seconds_left, whole.progress, whole.bound_seconds) == (0.0, 10.0, 0.0, 0.3)
    clock.now += 4
    assert whole.seconds_left == 6.0 and whole.progress == pytest.approx(0.4) and not whole.spent
    assert whole.bound_seconds == pytest.approx(0.18)
    part = whole.part(0.5)
    assert part.seconds_left == pytest.approx(3.0) and part.simulations_left == 200
    assert part.progress == pytest.approx(4 / 7)  # of what the whole had until the part ends
    clock.now += 3
    assert part.spent and not whole.spent
    clock.now += 3
    assert whole.spent and whole.seconds_left == 0.0 and whole.progress == 1.0
    clock.now += 1
    assert whole.seconds_left == 0.0 and whole.progress == 1.0
    assert whole.part().seconds_left == pytest.approx(1e-3)  # a part has some time


def test_simulations_go_down_to_nothing() -> None:
    whole = Search(problem_of(4), Budget(None, 8))
    assert whole.bound_seconds is None and whole.counts_simulations and whole.seconds_left == float("inf")
    assert [whole.part(share).simulations_left for share in (1.0, 0.5, 0.3, 0.01)] == [8, 4, 2, 1]
    assert [whole.part(0.5, simulations=some).simulations_left for some in (1, 3, 4, 5)] == [1, 3, 4, 4]
    whole.count(6)
    assert whole.simulations_left == 2 and whole.progress == 0.75 and not whole.spent
    whole.count(3)
    assert whole.simulations_left == 0 and whole.progress == 1.0 and whole.spent
    endless = Search(problem_of(4), Budget(1e6, None))
    assert endless.simulations_left == 2**31
    assert endless.part(simulations=7).simulations_left == 7 and endless.part(0.5).simulations_left == 2**31


def test_the_last_eight_timelines_are_remembered() -> None:
    problem = problem_of(8)
    plans = [Plan.of(problem, np.arange(problem.num_ops) >= at) for at in range(10)]
    whole = Search(problem, Budget(None, 100))
    for plan in plans[:8]:
        whole.timeline(plan)
    assert whole.simulations == 8
    whole.timeline(plans[0])
    assert whole.simulations == 8
    whole.timeline(plans[8])  # the oldest goes
    whole.timeline(plans[1])
    assert whole.simulations == 9
    whole.timeline(plans[0])
    assert whole.simulations == 10
    whole.score(plans[9])
    whole.timeline(plans[9])  # what was scored is remembered, too
    assert whole.simulations == 11


def test_a_timeline_past_the_budget_is_not_counted_and_a_plan_is() -> None:
    problem = problem_of(4)
    plans = [Plan.of(problem, np.arange(problem.num_ops) >= at) for at in range(3)]
    whole = Search(problem, Budget(None, 1))
    whole.timeline(plans[0])
    whole.timeline(plans[1])
    assert whole.simulations == 1
    whole.score(plans[2])
    assert whole.simulations == 2


def test_a_listener_is_told_every_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), list[int]()
    whole = Search(problem_of(4), Budget(None, 100), listener=lambda each: told.append(each.simulations))
    for passed in (0.05, 0.04, 0.02, 0.05, 0.04, 0.02, 0.3):
        clock.now += passed
        whole.count(1)
    assert told == [3, 6, 7]


def test_what_a_part_says_of_its_plans_holds_for_the_whole() -> None:
    problem = problem_of(4)
    for said in ("fusing", "adding"):
        whole = Search(problem, Budget(None, 9))
        part, other = whole.part(), whole.part(problem=problem_of(8))
        setattr(other, said, True)
        whole.keep(other)
        assert not getattr(whole, said)  # it is about another problem
        setattr(part, said, True)
        part.prove(5)
        whole.keep(part)
        assert getattr(whole, said) is True and whole.bound == 5
        whole.keep(whole.part())
        assert getattr(whole, said) is True
    adding = Search(problem, Budget(None, 9))
    adding.adding = True
    part = adding.part()
    part.prove(7)
    adding.keep(part)
    assert adding.bound == 0  # what limits of memory force is none


def test_the_gap_is_a_share_of_the_bound() -> None:
    result = solve(price(GRAPHS["chain"](), pair()), "one-device", Budget(None, 1))
    assert replace(result, lower_bound=result.value).gap == 0.0
    assert replace(result, lower_bound=result.value * 4).gap == pytest.approx(-0.75)
    assert replace(result, lower_bound=0).gap == float("inf")
    assert result.simulations == 1


def test_an_interrupt_before_any_plan_is_passed_on() -> None:
    class Interrupted:
        def __init__(self, plan: Plan | None) -> None:
            self.plan = plan

        def optimize(self, whole: Search) -> Plan:
            if self.plan is not None:
                whole.score(self.plan)
            raise KeyboardInterrupt

    problem = problem_of(4)
    with pytest.raises(KeyboardInterrupt):
        solve(problem, Interrupted(None), Budget(None, 3))
    found = solve(problem, Interrupted(Plan.of(problem, np.zeros(problem.num_ops))), Budget(None, 3))
    assert found.interrupted and found.simulations == 1


def test_scores_are_compared_by_what_is_over_and_then_by_value() -> None:
    assert Score(0, 9) < Score(1, 0) < Score(1, 1) < WORST == Score(2**63 - 1, 2**63 - 1)
    whole = Search(problem_of(4), Budget(None, 3))
    assert whole.best_score == WORST and not whole.closed
    whole.prove(4)
    plan = Plan.of(whole.problem, np.zeros(whole.problem.num_ops))
    assert whole.offer(plan, Score(1, 1)) and not whole.closed  # it does not fit
    assert whole.offer(plan, Score(0, 4)) and whole.closed


class Pool:
    """Of processes that break, so many times in a row."""

    made = 0
    breaks: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.breaking, Pool.made = Pool.breaks[Pool.made] if Pool.made < len(Pool.breaks) else 99, Pool.made + 1

    def submit(self, _: Any, same: bytes, job: bytes) -> Future[Any]:
        done: Future[Any] = Future()
        if self.breaking == 0:
            done.set_exception(BrokenProcessPool())
        else:
            self.breaking -= 1
            done.set_result(workers._unpack_and_run(same, job))
        return done


class Proving:
    """Claims a bound, and returns a plan that it has."""

    def __init__(self, plan: Plan, bound: int) -> None:
        self.plan, self.bound = plan, bound

    def optimize(self, whole: Search) -> Plan:
        whole.prove(self.bound)
        return self.plan


def test_what_was_proved_holds_for_plans_that_fit_fuse_nothing_and_add_nothing() -> None:
    problem, far = ALL["tight"](), 10**15
    added = solve(problem, "recompute", Budget(None, 30), seed=2).plan
    assert added.added is not None
    assert solve(problem, Proving(added, far), Budget(None, 3)).lower_bound < far
    wide = replace(problem, memory_bytes=ints([2**40, 2**40]))
    plain = Plan.of(wide, np.zeros(wide.num_ops))
    assert solve(wide, Proving(plain, far), Budget(None, 3)).lower_bound == far
    assert solve(problem, Proving(plain, far), Budget(None, 3)).lower_bound < far  # it does not fit
    kernel = np.arange(wide.num_ops)
    kernel[wide.graph.op_name.index("act 0 0")] = wide.graph.op_name.index("mm 0 0")
    fused = Plan.of(wide, np.zeros(wide.num_ops), None, kernel)
    assert solve(wide, Proving(fused, far), Budget(None, 3)).lower_bound < far
