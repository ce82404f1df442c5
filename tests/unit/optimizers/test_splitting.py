"""Which ops are split, along what, where their parts go, and what becomes of a budget; worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, Cluster, GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.optimizers import splitting
from loadmaster.optimizers.auto import Auto
from loadmaster.optimizers.simple import OneDevice, Ready
from loadmaster.optimizers.splitting import SplitResult, solve_split
from loadmaster.passes.splitting import Split, grow, split_region
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Score, Search, solve
from tests.unit.passes.splitting.test_parts import product


def products(count: int = 5, on: str = "4xp100-pcie") -> Problem:
    """Products of 8 by 4 by 6 that do not wait for each other."""
    build = GraphBuilder("products")
    for at in range(count):
        x = build.tensor(4 * 8 * 4, "input", shape=(8, 4))
        w = build.tensor(4 * 4 * 6, "weight", shape=(4, 6))
        y = build.tensor(4 * 8 * 6, shape=(8, 6))
        build.op(f"mm{at}", "aten.mm.default", [x, w], [y], flops=2 * 8 * 4 * 6)
    return price(build.build(), on)


@pytest.mark.parametrize(
    ("whole", "share", "part"),
    [
        (Budget(10.0, None), 0.25, Budget(2.5, None)),
        (Budget(None, 100), 0.25, Budget(None, 25)),
        (Budget(2.0, 3), 0.25, Budget(0.5, 1)),
        (Budget(None, 2), 0.75, Budget(None, 1)),
    ],
)
def test_a_share_of_a_budget_is_one_of_each_limit_and_of_one_simulation_at_least(
    whole: Budget, share: float, part: Budget
) -> None:
    assert splitting._share(whole, share) == part


def line(start: list[int], end: list[int], step: int) -> Any:
    return SimpleNamespace(start_ns=ints(start), end_ns=ints(end), step_ns=step)


def test_what_others_stand_idle_while_an_op_runs() -> None:
    """From 10 to 30: the second device works from 10 to 15 and from 25 on, the third not at all."""
    problem: Any = SimpleNamespace(num_devices=3)
    plan: Any = SimpleNamespace(device=ints([0, 1, 1, 2]))
    start, end = ints([10, 0, 25, 40]), ints([30, 15, 40, 50])
    assert [splitting._idle_ns(problem, plan, start, end, op) for op in range(4)] == [30, 25, 25, 20]


def test_ops_of_one_kernel_keep_their_device_busy_once() -> None:
    problem: Any = SimpleNamespace(num_devices=2)
    plan: Any = SimpleNamespace(device=ints([0, 1, 1]))
    assert splitting._idle_ns(problem, plan, ints([0, 0, 0]), ints([10, 8, 8]), 0) == 0
    assert splitting._idle_ns(problem, plan, ints([5, 5, 5]), ints([25, 13, 13]), 0) == 4


def trial_of(problem: Problem, device: list[int] | None = None) -> Any:
    plan = Plan.of(problem, [0] * problem.num_ops if device is None else device)
    return splitting._Trial(problem, plan, Score(0, 100), ())


def test_ops_that_hold_up_most_come_first_and_short_ones_not_at_all() -> None:
    """A hundredth of the step is long. All on one device: the longer an op the more others stand idle."""
    some = trial_of(products(5))
    assert splitting._seeds(some, line([0, 10, 30, 60, 69], [10, 30, 60, 69, 109], 1_000)) == [4, 2, 1]
    assert splitting._seeds(some, line([0, 10, 30, 60, 69], [10, 30, 39, 68, 78], 1_000)) == [1, 0]
    assert splitting._seeds(some, line([0, 20, 40, 60, 80], [20, 40, 60, 80, 89], 1_000)) == [0, 1, 2]


def test_parts_and_what_no_axis_is_known_of_are_left_whole() -> None:
    build = GraphBuilder("odd")
    for name, kind in (("sort", "aten.sort.default"), ("mm", "aten.mm.default")):
        x, w = build.tensor(4 * 8 * 4, "input", shape=(8, 4)), build.tensor(4 * 4 * 6, "weight", shape=(4, 6))
        build.op(name, kind, [x, w], [build.tensor(4 * 8 * 6, shape=(8, 6))], flops=384)
    problem = price(build.build(), "2xp100-pcie")
    assert splitting._seeds(trial_of(problem), line([0, 10], [10, 20], 20)) == [1]
    graph = problem.source
    made = split_region(graph, grow(graph, Split("mm", 0, 2, 1)))
    again = price(made.graph, "2xp100-pcie")
    ops = again.num_ops
    assert ops > 2
    whole = line(list(range(ops)), list(range(1, ops + 1)), ops)
    assert all("mm" not in again.source.op_name[op] for op in splitting._seeds(trial_of(again), whole))


def test_ops_are_split_into_as_many_parts_as_there_are_devices_or_two() -> None:
    def ways(on: str) -> list[tuple[int, int, int]]:
        return [(way.ops, way.parts, way.axis) for way in splitting._ways(products(1, on), 0)]

    # Axes of 8 rows, 6 columns and 4 that are summed over; six do not go into four.
    assert ways("2xp100-pcie") == [(size, 2, axis) for size in (400, 1) for axis in range(3)]
    both = [(4, 0), (4, 2), (2, 0), (2, 1), (2, 2)]
    assert ways("4xp100-pcie") == [(size, parts, axis) for size in (400, 1) for parts, axis in both]
    assert ways("1xa100-nvlink") == ways("2xp100-pcie")


def test_parts_go_to_idle_devices_first_or_in_the_order_of_devices() -> None:
    problem = products(3, "3xp100-pcie")
    some = trial_of(problem, [0, 1, 0])
    graph = problem.source
    made = split_region(graph, grow(graph, Split("mm1", 0, 2, 1)))
    again = price(made.graph, problem.cluster)
    idle, plain = (
        dict(zip(again.graph.op_name, place.tolist(), strict=True)) for place in splitting._spread(some, made, again, 2)
    )
    assert {idle[name] for name in ("mm0", "mm2")} == {plain[name] for name in ("mm0", "mm2")} == {0}
    part = [name for name in again.graph.op_name if made.origin.get(name) is not None and made.origin[name].part >= 0]
    by_part = sorted(part, key=lambda name: made.origin[name].part)
    assert [idle[name] for name in by_part] == [2, 1]  # two products on the first, one on the second, none on the third
    assert [plain[name] for name in by_part] == [0, 1]
    others = [name for name in again.graph.op_name if name in made.origin and made.origin[name].part < 0]
    assert others and {idle[name] for name in others} == {1}, "what joins the parts stays where the op was"


def test_ops_go_where_they_can_run() -> None:
    problem = products(2, "3xp100-pcie")
    op_ns = problem.op_ns.copy()
    op_ns[0, [0, 2]] = CANNOT
    problem = splitting.replace(problem, op_ns=ints(op_ns))
    assert splitting._able(problem, ints([0, 2])).tolist() == [1, 2]
    assert splitting._able(problem, ints([1, 0])).tolist() == [1, 0]


def test_a_view_is_where_what_it_shows_is() -> None:
    graph = SimpleNamespace(
        op_name=["maker", "view", "of input", "other", "view of view"],
        producer=np.array([0, 1, 3, 4, -1]),
        reads_of=lambda op: {1: [0], 2: [4], 4: [1]}[op],
    )
    problem: Any = SimpleNamespace(source=graph)
    assert splitting._homes(problem, {"maker": 2, "other": 1}) == {0: 2, 1: 2, 2: 0, 3: 1, 4: 2}


def test_a_split_is_tried_once_and_not_when_time_is_up() -> None:
    problem = price(product(rows=8_192, inner=4_096, columns=4_096), "2xp100-pcie")
    trials = splitting._Trials(lambda graph: price(graph, problem.cluster), Budget(None, 40), 0)
    trials.clock = Search(problem, Budget(None, 40))
    plan = Plan.of(problem, [0] * problem.num_ops)
    some = splitting._Trial(problem, plan, solve(problem, Ready(plan), Budget(None, 1)).score, ())
    split = Split("mm", 0, 2, 1)
    found = trials._try(some, split)
    assert found is not None and found.splits == (split,) and found.score < some.score
    assert found.score == solve(found.problem, Ready(found.plan), Budget(None, 1)).score
    assert trials._try(some, split) is None
    other = Split("mm", 1, 2, 1)
    trials.clock.halt()
    assert trials._try(some, other) is None and trials.best(some) is None
    trials.clock.resume()
    assert trials._try(some, other) is not None


@pytest.mark.parametrize(
    ("over", "value", "memory", "searched"),
    [(0, 1.0, 10**9, True), (0, 0.9, 10**9, False), (0, 2.0, 300, False), (10**6, 2.0, 300, True)],
)
def test_a_search_follows_a_split_that_is_about_as_good_and_no_shorter_of_memory(
    over: int, value: float, memory: int, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the better of two placements, which has both parts beside the rest."""
    begun = list[list[int]]()

    class Local:
        def __init__(self, start: Any) -> None:
            begun.append(start.plan.device.tolist())

        def optimize(self, search: Search) -> None:
            return None

    monkeypatch.setattr(splitting, "LocalSearch", Local)

    def spread(trial: Any, made: Any, problem: Problem, parts: int) -> Any:
        return [np.arange(problem.num_ops) % 2, np.zeros(problem.num_ops, np.int64)]

    monkeypatch.setattr(splitting, "_spread", spread)
    problem = price(product(), "2xp100-pcie", memory_limit=memory)
    trials = splitting._Trials(lambda graph: price(graph, "2xp100-pcie", memory_limit=memory), Budget(None, 9), 0)
    trials.clock = Search(problem, Budget(None, 9))
    split = Split("mm", 0, 2, 1)
    again = price(split_region(problem.source, grow(problem.source, split)).graph, "2xp100-pcie")
    alone = solve(again, Ready(Plan.of(again, [0] * again.num_ops)), Budget(None, 1)).value
    plan = Plan.of(problem, [0] * problem.num_ops)
    found = trials._try(splitting._Trial(problem, plan, Score(over, int(value * alone)), ()), split)
    assert found is not None and found.plan.device.tolist() == [0] * again.num_ops
    assert begun == [[0] * again.num_ops] * searched


def test_the_first_op_whose_split_is_better_is_split_the_best_way(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = products(3)
    trials = splitting._Trials(lambda graph: problem, Budget(None, 40), 0)
    some = trial_of(problem)
    monkeypatch.setattr(splitting, "_seeds", lambda trial, line: [0, 1, 2])
    monkeypatch.setattr(splitting, "_ways", lambda problem, op: [(op, way) for way in range(3)])

    def best(values: dict[tuple[int, int], int | None]) -> int | None:
        def tried(trial: Any, split: Any) -> Any:
            value = values.get(split, 100)
            return None if value is None else SimpleNamespace(score=Score(0, value))

        monkeypatch.setattr(trials, "_try", tried)
        found = trials.best(some)
        return None if found is None else found.score.value

    assert best({}) is None, "as good is not better"
    assert best({(1, 0): 95, (1, 1): 90, (1, 2): None, (2, 0): 10}) == 90
    assert best({(2, 2): 99}) == 99


# The whole


class Solved:
    """Results by what is asked: before and after splits; budgets are written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, problem: Problem, before: int, after: int, splits: int) -> None:
        self.budgets, plan = list[int](), Plan.of(problem, [0] * problem.num_ops)

        def result(value: int) -> Any:
            return SimpleNamespace(problem=problem, plan=plan, score=Score(0, value), value=value)

        def solved(problem: Any, optimizer: Any, budget: Budget, seed: int, listener: Any = None) -> Any:
            assert budget.simulations is not None
            self.budgets.append(budget.simulations)
            return result(before)

        def last(trial: Any, optimizer: Any, budget: Budget, seed: int, listener: Any) -> Any:
            assert budget.simulations is not None
            self.budgets.append(budget.simulations)
            return result(after)

        def best(trials: Any, trial: Any) -> Any:
            if len(trial.splits) == splits:
                return None
            return splitting._Trial(problem, plan, trial.score, (*trial.splits, "split"))  # type: ignore[arg-type]

        monkeypatch.setattr(splitting, "solve", solved)
        monkeypatch.setattr(splitting, "_last_search", last)
        monkeypatch.setattr(splitting._Trials, "best", best)
        monkeypatch.setattr(splitting, "_sharded", lambda problem, reprice, found, seed: iter([found]))
        self.found = solve_split(problem, lambda graph: problem, budget=Budget(None, 1_000))


def test_what_trials_do_not_need_the_last_search_has(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = Solved(monkeypatch, products(2), 100, 90, splits=0).budgets
    assert first + last == 1_000
    for splits in (1, 2):
        some = Solved(monkeypatch, products(2), 100, 90, splits)
        assert some.budgets == [first, 1_000 - 2 * first], "as much for trials as for the first"
        assert some.found.splits == ("split",) * splits and some.found.result.score == Score(0, 90)


def test_a_split_that_brings_nothing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for after in (100, 101):
        found = Solved(monkeypatch, products(2), 100, after, splits=1).found
        assert found.splits == () and found.result is found.before


@pytest.mark.parametrize(("sharded", "chosen"), [(89, 89), (90, 90), (91, 90)])
def test_the_best_of_all_is_returned(sharded: int, chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    some = Solved(monkeypatch, products(2), 100, 90, splits=1)
    way = result_of(sharded)
    monkeypatch.setattr(splitting, "_sharded", lambda problem, reprice, found, seed: iter([found, way]))
    found = solve_split(products(2), lambda graph: some.found.result.problem, budget=Budget(None, 10))
    assert found.result.value == chosen and (found is way) is (sharded < 90)


def result_of(value: int) -> Any:
    return SplitResult(SimpleNamespace(value=value, score=Score(0, value), optimizer="some"), (), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("on", "objective", "least", "asked"),
    [
        ("2xp100-pcie", "step-time", 99, True),
        ("2xp100-pcie", "step-time", 100, False),  # it can be no better
        ("2xp100-pcie", "peak-memory", 100, True),  # which a time says nothing of
        ("1xa100-nvlink", "step-time", 99, False),
    ],
)
def test_every_op_on_every_device_is_tried_where_it_may_be_better(
    on: str, objective: Any, least: int, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = price(product(), on, objective=objective)
    ways = list[str]()
    monkeypatch.setattr(splitting, "least_ns", lambda problem, way: least)
    monkeypatch.setattr(splitting, "sharded_graph", lambda graph, cluster, way: ways.append(way))
    found = result_of(100)
    assert list(splitting._sharded(problem, lambda graph: problem, found, 0)) == [found]
    assert ways == list(splitting.WAYS) * asked


def test_where_an_op_cannot_run_everywhere_it_is_not() -> None:
    problem = price(product(), "2xp100-pcie")
    op_ns = problem.op_ns.copy()
    op_ns[0, 1] = CANNOT
    some = splitting.replace(problem, op_ns=ints(op_ns))
    found = result_of(10**12)
    assert list(splitting._sharded(some, lambda graph: price(graph, "2xp100-pcie"), found, 0)) == [found]
    made = list(splitting._sharded(problem, lambda graph: price(graph, "2xp100-pcie"), found, 0))
    assert len(made) > 1
    for one in made[1:]:
        assert one.way in splitting.WAYS and one.result.optimizer == "some" and one.splits == ()


def test_a_method_that_takes_no_start_is_held_against_the_plan_so_far() -> None:
    problem = price(product(rows=8_192, inner=4_096, columns=4_096), Cluster.preset("2xp100-pcie"))
    good = Plan.of(problem, [0] * problem.num_ops)
    bad = Plan.of(problem, [0, 1])
    for plan, method, name in (
        (good, Ready(bad), None),
        (good, "round-robin", "round-robin"),
        (bad, OneDevice(), None),
    ):
        some = splitting._Trial(problem, plan, Score(0, 1), ())
        found = splitting._last_search(some, method, Budget(None, 5), 0, None)
        assert found.plan.device.tolist() == [0] * problem.num_ops
        assert found.optimizer == (name or found.optimizer)
    joined = splitting._last_search(splitting._Trial(problem, good, Score(0, 1), ()), Auto(), Budget(None, 1), 0, None)
    assert joined.score <= solve(problem, Ready(good), Budget(None, 1)).score
