"""solve: runs a method and reports only what it simulated itself.

Around a method stand the same steps for all: compile what it needs before the clock runs (`warming`), score the starts,
run it, take the better of what it returned and what it scored, settle its order, check it, simulate it afresh, and work
out a lower bound of the class of plans that it chose from. A tenth of the seconds, and no less than BOUND_S, may go
into that bound, counted as work: at any load it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from loadmaster.catalog.specs import make_method, spec_of
from loadmaster.errors import InvalidSetting
from loadmaster.plans import Plan, check
from loadmaster.plans.expansion import keeps_to, whole
from loadmaster.problem import Problem, check_problem
from loadmaster.problem.bounds import Bound, Sharing, bound_of
from loadmaster.search.budget import Budget, Score, as_budget, is_whole
from loadmaster.search.result import Result
from loadmaster.search.search import BOUND_SHARE, UNFUSED, Method, Search, Start
from loadmaster.simulator import settle, simulate

# Seconds that the bound may take after a search, however short that was, so that no budget is passed by half a second.
BOUND_S = 0.3


def solve(
    problem: Problem,
    method: Method | str = "auto",
    budget: Budget | float | None = None,
    seed: int = 0,
    *,
    listener: Callable[[Search], None] | None = None,
    starts: Sequence[Start] = (),
) -> Result:
    """Searches for a plan, then settles, checks and simulates what was found: no method reports its own score.

    >>> from loadmaster import GraphBuilder, price
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(4)]
    >>> result = solve(price(g.build(), "2xp100-pcie"), "anneal", Budget(None, 50), seed=1)
    >>> result.value, result.optimal
    (200, True)

    Args:
        problem: what `price` made.
        method: a name with settings, such as "auto" or "anneal:temperature=0.1" (`loadmaster tools list methods` has
            them all), or an object with `optimize(search)`.
        budget: seconds, or a Budget; ten seconds by default.
        seed: of all random choices, a whole number of at least 0.
        listener: called with the Search every tenth of a second.
        starts: plans that are scored first, so that no method ends up worse than the best of them.

    Returns:
        Result: also where nothing fits: look at `fits`. Ctrl-C ends the search, and what it had found is returned
            (`interrupted`).

    Raises:
        InvalidSetting: an argument is of the wrong kind.
        UnknownName: no such method is there.
        InvalidPlan: a start is of another problem, or a method of your own returns a plan that breaks a rule.
    """
    _check_call(problem, method, seed)
    chosen: Any = make_method(method) if isinstance(method, str) else method
    allowed = as_budget(budget)
    if allowed.seconds is not None and (isinstance(method, str) or _is_ours(chosen)):
        from loadmaster.search.warming import warm_up  # a budget of simulations needs no clock

        warm_up(chosen, problem.cluster, problem.objective)
    search = Search(problem, allowed, seed, listener=listener)
    _begin(search, starts)
    plan, interrupted = _run(chosen, search)
    counts = (max(1, search.simulations), search.seconds, interrupted)
    check(plan, problem)
    settled = settle(problem, plan, simulate(problem, plan))
    check(settled, problem)
    line = simulate(problem, settled)
    name = method if isinstance(method, str) else spec_of(chosen)
    adding = settled.added is not None
    told = search.fusing
    kept = isinstance(told, Sharing) and keeps_to(problem, settled, told)
    fusing = told if kept else settled.fuses or bool(told)
    fits, seconds = line.over_bytes == 0 and not search.adding, _bound_seconds(allowed)
    bound = bound_of(problem, fusing=fusing, fitting=fits, adding=adding, seconds=seconds)
    bound = _best_known(search, bound)
    if bound.value == problem.value(line):
        bound = _of_more_plans(problem, bound, seconds)
    if "sizes" in problem.source.assumed.values():
        bound = replace(bound, value=0)  # nothing is proven over sizes that nobody knows
    origins = tuple(dict.fromkeys(start.origin for start in starts))
    rest = (bound.value, *counts, origins, bound.among, bound.cut)
    return Result(whole(problem, settled), settled, line, name, seed, tuple(search.history), *rest)


def _best_known(search: Search, bound: Bound) -> Bound:
    """That, or what the search has shown of a class that has all plans of this one. An exact method that was ended by
    the clock could have shown more."""
    shown = [Bound(search.bound, replace(UNFUSED, parts=bound.among.parts)), *search.proofs]
    for other in shown:
        if other.value > bound.value and other.among.covers(bound.among):
            ended = other.cut or other.value < search.best_score.value
            bound = Bound(other.value, bound.among, ended)
    return bound


def _of_more_plans(problem: Problem, bound: Bound, seconds: float | None) -> Bound:
    """What is optimal in one class may be so in a wider one: any kernels, and ops added too."""
    for adding in (bound.among.adding, True):
        wider = bound_of(problem, fusing=True, fitting=bound.among.fitting, adding=adding, seconds=seconds)
        if wider.value == bound.value and wider.among.covers(bound.among):
            bound = wider
    return bound


def _bound_seconds(budget: Budget) -> float | None:
    return None if budget.seconds is None else max(BOUND_S, BOUND_SHARE * budget.seconds)


def _begin(search: Search, starts: Sequence[Start]) -> None:
    if not isinstance(starts, Sequence) or not all(isinstance(start, Start) for start in starts):
        raise InvalidSetting.instead_of("list of starts", starts, "solve", "give [Start(plan, where it comes from), …]")
    for start in starts:
        check(start.plan, search.problem)
        search.score(start.plan)
    search.starts = tuple(start.plan for start in starts)


def _check_call(problem: object, method: object, seed: object) -> None:
    check_problem(problem, "solve")
    if not isinstance(method, (str, Method)):
        fix = "give a name ('auto'), or an object with a function optimize(search)"
        raise InvalidSetting.instead_of("method", method, "solve", fix)
    if not (is_whole(seed) and seed >= 0):  # type: ignore[operator]
        raise InvalidSetting(f"{seed!r} is no seed", "solve", "give a whole number of at least 0")


def _run(method: Method, search: Search) -> tuple[Plan, bool]:
    """(plan, whether Ctrl-C ended the search): what the method returns, or the best it scored if that is better."""
    try:
        plan = method.optimize(search)
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return search.best, True
    if search.best is None or search.best is plan:
        return plan, False
    score = Score.of(search.problem, simulate(search.problem, plan))
    return (plan if score <= search.best_score else search.best), False


def _is_ours(method: object) -> bool:
    return type(method).__module__.startswith("loadmaster.")
