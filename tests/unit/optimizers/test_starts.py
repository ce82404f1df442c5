"""Which starts there are for which problem, in which order; which are too far behind or too much alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.errors import MissingExtra
from loadmaster.graph.columns import ints
from loadmaster.optimizers import starts
from loadmaster.optimizers.starts import (
    Scored,
    StartRecipe,
    far,
    made,
    of_another,
    of_each_family,
    ordered,
    orders,
    unlike,
)
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search


def tasks(on: str = "2xp100-pcie", objective: Any = "step-time", scope: str = "", **given: Any) -> Problem:
    """Ten ops in a row, of a hundred bytes each."""
    build = GraphBuilder("tasks")
    last = build.tensor(100, "input")
    for op in range(10):
        read, last = last, build.tensor(100)
        build.op(f"op{op}", "any", [read], [last], time_ns=1_000 + op, scope=scope)
    return price(build.build(), on, objective=objective, **given)


def families(problem: Problem) -> Counter[str]:
    return Counter(start.family for start in starts.starts(Search(problem, Budget(None, 9))))


def test_lists_that_mind_memory_are_for_problems_of_which_four_times_the_tensors_do_not_fit() -> None:
    """Eleven tensors, two devices: of 2,200 bytes each, it is four times as much."""
    roomy, tight = (families(tasks(memory_limit=limit)) for limit in (2_200, 2_199))
    assert roomy["list"] == len(starts.LISTS)
    assert tight["list"] == len(starts.LISTS) + len(starts.WHEN_TIGHT)
    assert tight["contiguous"] == roomy["contiguous"] + 1, "a cut by what devices hold"


def test_on_one_device_nothing_is_parted() -> None:
    one = families(tasks("1xa100-nvlink", memory_limit=1_100))
    assert set(one) == {"contiguous", "list"}
    assert families(tasks("1xa100-nvlink", "peak-memory"))["balanced"] == 0


def test_groups_by_module_are_for_graphs_that_know_modules() -> None:
    without = sum(way.by != "scope" for way in starts.GROUPED)
    assert families(tasks())["grouped"] == without < len(starts.GROUPED)
    assert families(tasks(scope="body"))["grouped"] == len(starts.GROUPED)


def test_for_peak_memory_placements_are_balanced_and_dealt_and_not_grouped() -> None:
    found = starts.starts(Search(tasks(objective="peak-memory", scope="body"), Budget(None, 9)))
    kinds = Counter(start.family for start in found)
    assert kinds["balanced"] == 4 and kinds["grouped"] == 0 and kinds["dealt"] > 0
    assert {start.price for start in found if start.family == "dealt"} == {starts.DEALT_PRICE}
    price_of = [start.price for start in found if start.family == "balanced"]
    assert price_of == [starts.BALANCED // 10] * 2 + [starts.BALANCED] * 2, "the first two come early"
    assert [start.family for start in found[1:3]] == ["balanced"] * 2
    assert kinds["contiguous"] > families(tasks())["contiguous"], "cuts by what devices hold"
    for start in found:
        if start.family in ("balanced", "dealt"):
            assert start.make().device.shape == (10,)


def test_those_that_take_long_come_last_the_cheapest_of_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = starts.starts(Search(tasks(), Budget(None, 9)))
    slow = found[-len(starts.PARTITIONS) - len(starts.SPLITS) :]
    assert [start.price for start in slow] == sorted([*starts.PARTITIONS.values(), *starts.SPLITS.values()])
    assert {start.family for start in slow} == {"partition", "contiguous"}
    for most, count in ((10, len(starts.PARTITIONS)), (9, 1)):
        monkeypatch.setattr(starts, "MOST_PARTITIONED", most)
        assert families(tasks())["partition"] == count


def test_where_no_order_counts_splits_are_by_load() -> None:
    with_order, without = families(tasks()), families(tasks(objective="throughput"))
    more = len(starts.LOAD_SPLITS) - len(starts.SPLITS)
    assert without["contiguous"] == with_order["contiguous"] + more


def test_plans_are_made_once_each_and_those_that_lack_a_package_not_at_all() -> None:
    problem = tasks()
    search = Search(problem, Budget(None, 9))
    one, same, order = (
        Plan.of(problem, [0] * 10),
        Plan.of(problem, [0] * 10, np.arange(10) * 7),
        Plan.of(problem, [0] * 10, np.arange(10)[::-1].copy()),
    )
    sends = replace(one, send_rank=ints(np.zeros((problem.graph.num_tensors, 2), np.int64)))

    def lacking() -> Plan:
        raise MissingExtra("metis", "it")

    plans = [one, same, order, sends]
    some = [StartRecipe(1, "dealt", lacking), *(StartRecipe(1, "list", lambda plan=plan: plan) for plan in plans)]  # type: ignore[misc]
    found = list(made(search, some))
    assert [start.plan for start in found] == [one, order, sends] and {start.family for start in found} == {"list"}
    search.halt()
    assert list(made(search, some)) == []
    fresh = Search(problem, Budget(None, 9))
    fresh.halt()
    assert [start.plan for start in made(fresh, some)] == [one], "one at least"


def scored(value: int, device: list[int], family: Any = "given", over: int = 0) -> Scored:
    plan: Any = SimpleNamespace(device=np.array(device))
    return Scored(Score(over, value), plan, family)


@pytest.mark.parametrize(
    ("score", "is_far"),
    [((0, 125), False), ((0, 126), True), ((1, 50), True), ((0, 50), False)],
)
def test_a_start_is_far_that_is_a_quarter_worse_or_shorter_of_memory(score: tuple[int, int], is_far: bool) -> None:
    assert far(Score(*score), Score(0, 100)) is is_far
    assert far(Score(3, 100), Score(3, 100)) is False
    assert far(Score(0, 200), Score(0, 100), 2.0) is False and far(Score(0, 201), Score(0, 100), 2.0) is True


def test_plans_are_unlike_that_place_more_than_a_tenth_of_ops_elsewhere() -> None:
    first = scored(1, [0] * 10)
    one, two = scored(2, [1] + [0] * 9), scored(3, [1, 1] + [0] * 8)
    other, last = scored(4, [0] * 8 + [1, 1]), scored(5, [1] * 10)
    assert unlike([first, one, two, other, last], 9) == [first, two, other, last]
    assert unlike([first, one, two, other, last], 2) == [first, two]
    assert unlike([], 3) == []


def test_the_best_of_each_family_go_first_where_they_are_not_very_far() -> None:
    lead = scored(100, [0] * 10, "list")
    second = scored(120, [1] * 10, "list")
    cut = scored(200, [0] * 5 + [1] * 5, "contiguous")
    behind = scored(201, [1] * 5 + [0] * 5, "dealt")
    too_far = scored(126, [0, 1] * 5, "list")
    found = [lead, second, too_far, cut, behind]
    assert of_each_family(found, 9) == [lead, cut, second]
    assert of_each_family(found, 2) == [lead, cut]


def test_the_best_few_are_tried_in_the_orders_that_they_are_not_in_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tasks()
    search = Search(problem, Budget(None, 99))
    plan = Plan.of(problem, [0] * 10)
    other = Plan.of(problem, [0, 1] * 5, np.arange(10)[::-1].copy())
    given = [Scored(search.score(each), each, "list") for each in (other, plan)]
    swapped = np.arange(10)
    swapped[:2] = 1, 0

    def tried(search: Search, plan: Plan) -> list[Plan]:
        return [plan.with_rank(ints(rank)) for rank in (np.arange(10) * 3, swapped, swapped * 5)]

    monkeypatch.setattr(starts, "orders", tried)
    found = ordered(search, given, 1)
    assert [start.score for start in found] == sorted(start.score for start in found)
    (more,) = [start for start in found if start not in given]
    assert (more.plan.device == 0).all() and more.plan.rank.tolist() == swapped.tolist() and more.family == "list"
    assert len(ordered(search, given, 2)) == 2 + 1 + 2, "the other is in none of these orders"
    sends = replace(plan, send_rank=ints(np.zeros((problem.graph.num_tensors, 2), np.int64)))
    assert len(ordered(search, [Scored(Score(0, 1), sends)], 1)) == 1 + 2, "its sends are in no order of these"
    search.halt()
    assert ordered(search, given, 2) == sorted(given, key=lambda start: start.score)


def test_which_orders_are_usual() -> None:
    def count(problem: Problem, sends: bool = False) -> int:
        plan = Plan.of(problem, [0] * 10, np.arange(10)[::-1].copy())
        if sends:
            plan = replace(plan, send_rank=ints(np.zeros((problem.graph.num_tensors, 2), np.int64)))
        return len(list(orders(Search(problem, Budget(None, 99)), plan)))

    assert count(tasks()) == count(tasks(), sends=True) == 3
    assert count(tasks(objective="peak-memory")) == 2 and count(tasks(objective="throughput")) == 0
    problem = tasks()
    search = Search(problem, Budget(None, 9))
    search.halt()
    assert len(list(orders(search, Plan.of(problem, [0] * 10)))) == 2, "first come, first served takes a simulation"


def test_given_plans_and_that_of_another_method_are_scored_while_there_is_something_left() -> None:
    problem = tasks()
    given, made_by = Plan.of(problem, [0] * 10), Plan.of(problem, [1] * 10)
    also: Any = SimpleNamespace(optimize=lambda part: made_by)
    search = Search(problem, Budget(None, 9))
    search.starts = (given,)
    assert [start.plan for start in of_another(search, also)] == [given, made_by]
    assert [start.plan for start in of_another(search, None)] == [given]
    search.halt()
    assert list(of_another(search, also)) == []
    fresh = Search(problem, Budget(None, 9))
    fresh.halt()
    assert [start.plan for start in of_another(fresh, also)] == [made_by]
