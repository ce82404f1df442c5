"""What windows found is taken where it helps: all of it, or the half that gained most."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.optimizers.annealing.moves.order import TOP_RANK
from loadmaster.optimizers.multilevel import multilevel, refine
from loadmaster.optimizers.multilevel.refine import FoundWindow
from loadmaster.optimizers.multilevel.slack import latest_starts
from loadmaster.plans import Plan
from loadmaster.search import Score, Search
from loadmaster.simulator import simulate
from tests.graphs.tiny import chain, diamond, fork, ladder, pair


class Judge:
    """A search whose scores are given: by the ops that are on the second device."""

    spent, simulations_left = False, 10

    def __init__(self, problem: Any, values: dict[tuple[int, ...], int]) -> None:
        self.problem, self.values, self.best_score, self.seen = problem, values, Score(0, 100), list[Any]()

    def score(self, plan: Plan) -> Score:
        moved = tuple(np.flatnonzero(plan.device).tolist())
        self.seen.append(moved)
        return Score(0, self.values[moved])


@pytest.mark.parametrize(
    ("both", "one", "kept", "looks"),
    [(90, 95, (0, 2), 1), (120, 95, (2,), 2), (120, 110, (), 2)],
)
def test_all_or_the_better_half_or_nothing(both: int, one: int, kept: tuple[int, ...], looks: int) -> None:
    problem = price(ladder(), pair())
    plan = Plan.of(problem, [0] * problem.num_ops)
    found = [FoundWindow(ints([0]), ints([1]), ints([0]), 0.1), FoundWindow(ints([2]), ints([1]), ints([0]), 0.3)]
    judge: Any = Judge(problem, {(0, 2): both, (2,): one})
    better = refine._better(judge, plan, found)
    assert tuple(np.flatnonzero(better.device).tolist()) == kept
    assert judge.seen == [(0, 2), (2,)][:looks]


def test_the_limits_of_what_is_too_large_are_not_too_large() -> None:
    class Size:
        def __init__(self, num_ops: int, num_devices: int) -> None:
            self.num_ops, self.num_devices = num_ops, num_devices

    def large(ops: int, devices: int) -> bool:
        size: Any = Size(ops, devices)
        return multilevel.too_large(size)

    assert not large(40_000, 1) and large(40_001, 1)
    assert not large(6_250, 64) and large(6_251, 64), "400,000 ops x devices"


# Windows, of 9 ops or two for each device


def sized(monkeypatch: pytest.MonkeyPatch, ops: int, devices: int = 4, left: int = 10**6) -> Any:
    monkeypatch.setattr(refine, "OPS", 9)
    monkeypatch.setattr(refine, "OPS_PER_DEVICE", 2)
    problem = SimpleNamespace(num_ops=ops, num_devices=devices)
    return SimpleNamespace(problem=problem, simulations_left=left, seed=70, spent=False, count=lambda count: None)


@pytest.mark.parametrize(
    ("turn", "odd", "lows"),
    [
        (0, False, [0, 18, 36]),
        (0, True, [9, 27]),
        (1, False, [-3, 15, 33]),
        (1, True, [6, 24]),
        (2, False, [-6, 12, 30]),
        (3, True, [9, 27]),
    ],
)
def test_every_other_window_begins_a_third_earlier_each_pass(
    turn: int, odd: bool, lows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = sized(monkeypatch, 40)
    assert refine._lows(search, 19, turn, odd)[0].tolist() == lows
    assert refine.window_ops(search.problem) == 9
    assert refine.window_ops(sized(monkeypatch, 40, devices=6).problem) == 12


@pytest.mark.parametrize(("left", "windows"), [(1, 0), (9, 0), (10, 1), (18, 1), (19, 2), (99, 3)])
def test_there_are_as_many_windows_as_the_budget_pays_for_beside_a_look(
    left: int, windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 simulations each and of twice the ops, in a graph of 40: as long as nine of the whole."""
    lows, cost = refine._lows(sized(monkeypatch, 40, left=left), 19, 0, False)
    assert len(lows) == windows and cost == 9.0


def test_a_window_ends_with_the_step_and_counts_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    search = sized(monkeypatch, 20)
    counted, asked = list[int](), list[Any]()
    search.count = counted.append
    gains = {0: 0.0, 6: 0.2, 15: -0.1}

    def searched(scene: Any, low: int, high: int, simulations: int, seed: int, known: Any) -> FoundWindow:
        asked.append((low, high, simulations, seed))
        return FoundWindow(ints([low]), ints([0]), ints([0]), gains[low])

    monkeypatch.setattr(refine, "_search_window", searched)
    scene: Any = SimpleNamespace(problem=search.problem)
    found = refine._wave(search, scene, ints([-3, 6, 15]), 2.5, 40, 3)
    assert sorted(asked) == [(0, 6, 40, 73), (6, 15, 40, 73), (15, 20, 40, 73)]
    assert [one.ops.tolist() for one in found] == [[6]] and counted == [7]
    search.spent = True
    assert refine._wave(search, scene, ints([-3, 6]), 2.5, 40, 3) == [] and counted == [7, 0]


def test_a_pass_has_two_waves_and_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    search: Any = SimpleNamespace(spent=False, problem=None, timeline=lambda plan: None)
    monkeypatch.setattr(refine, "_lows", lambda search, simulations, turn, odd: (ints([3] * (not odd)), 1.0))
    monkeypatch.setattr(refine.WindowScene, "of", lambda *_: "scene")
    monkeypatch.setattr(refine, "_wave", lambda *given: asked.append(given[2:]))
    monkeypatch.setattr(refine, "_better", lambda search, plan, found: "better")
    plan: Any = "plan"
    assert refine.refine(search, plan, 7, 2) == "better" and len(asked) == 1, "there is no window in the second"
    search.spent = True
    assert refine.refine(search, plan, 7, 2) == "plan" and len(asked) == 1


def test_what_writes_over_others_or_shares_a_device_stays() -> None:
    build = GraphBuilder("bound")
    weight = build.tensor(8, "weight")
    new = build.tensor(8, "weight", alias_of=weight)
    plain = [build.tensor(8) for _ in range(3)]
    build.op("free", "any", [weight], [plain[0]], time_ns=5)
    build.op("update", "optim.sgd", [weight, plain[0]], [new], time_ns=5)
    build.op("one", "any", [plain[0]], [plain[1]], time_ns=5, colocate="a")
    build.op("two", "any", [plain[0]], [plain[2]], time_ns=5, colocate="a")
    problem = price(build.build(), "2xp100-pcie")
    assert problem.graph.alias_of.max() == 0, "it is the first tensor that is written over"
    names = problem.graph.op_name
    free = dict(zip(names, refine._bound(problem, ints(np.arange(4))).tolist(), strict=True))
    assert free == {"free": False, "update": True, "one": True, "two": True}
    assert refine._bound(problem, ints([names.index("free"), names.index("one")])).tolist() == [False, True]


def test_a_window_begins_as_the_plan_has_it() -> None:
    able = np.array([[False, True], [True, True], [True, True], [True, True], [True, True], [True, False]])
    part: Any = SimpleNamespace(problem=SimpleNamespace(able=able, num_ops=6), ops=ints([2, 4, 7]), first=1)
    plan: Any = SimpleNamespace(device=ints([0, 0, 1, 0, 0, 0, 0, 1]), rank=ints([0, 0, 9, 0, 5, 0, 0, 7]))
    place, rank = refine._start(part, plan)
    assert place.tolist() == [1, 1, 0, 1, 0, 0]
    step = TOP_RANK // 5
    assert rank.tolist() == [0, 3 * step, step, 2 * step, 4 * step, 4 * step]


def test_ops_of_a_window_share_the_ranks_they_had() -> None:
    problem = price(ladder(), pair())
    plan = Plan.of(problem, [0] * problem.num_ops, np.arange(problem.num_ops) * 10)
    found = [FoundWindow(ints([1, 3, 4]), ints([1, 0, 1]), ints([7, 5, 6]), 0.1)]
    moved = refine._with(problem, plan, found)
    assert moved.device.tolist() == [0, 1, 0, 0, 1, *[0] * (problem.num_ops - 5)]
    assert moved.rank[:5].tolist() == [0, 40, 20, 10, 30]


def scene_of(device: list[int], latest: list[int], follower: list[int]) -> refine.WindowScene:
    """The chain a, b, c, whose ends are at 30, 50 and 60 of 100."""
    line: Any = SimpleNamespace(step_ns=100, end_ns=ints([30, 50, 60]))
    problem = price(chain(), pair())
    plan = Plan.of(problem, device)
    return refine.WindowScene(problem, plan, line, ints([0, 1, 2]), ints(latest), ints(follower), ints([0, 0]))


def test_how_long_the_step_goes_on_because_of_what_is_not_in_a_window() -> None:
    """What b makes takes 10 ns to the other device, what a makes 15."""
    apart = scene_of([0, 0, 1], [0, 35, 20], [2, -1, -1])
    assert apart.rest_ns(ints([0, 1])).tolist() == [80 - 50, 80 + 10 - 50]
    assert apart.rest_ns(ints([0])).tolist() == [80 - 70]
    assert scene_of([0, 0, 1], [0, 20, 90], [-1, -1, -1]).rest_ns(ints([0])).tolist() == [80 - 70]
    assert scene_of([0, 1, 1], [0, 20, 90], [-1, -1, -1]).rest_ns(ints([0])).tolist() == [80 + 15 - 70]
    together = scene_of([0, 0, 0], [0, 35, 20], [1, 2, -1])
    assert together.rest_ns(ints([0, 1, 2])).tolist() == [0, 0, 0]
    first = scene_of([0, 0, 0], [0, 35, 20], [-1, 0, -1])
    assert first.rest_ns(ints([1])).tolist() == [100 - 50], "the first op follows it"


def test_a_window_may_have_a_part_of_the_memory_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "SPARE", 4)
    problem = price(chain(), pair(memory_bytes=500))
    line = replace(simulate(problem, Plan.of(problem, [0, 0, 1])), peak_bytes=ints([100, 600]))
    scene = refine.WindowScene.of(problem, Plan.of(problem, [0, 0, 1]), line)
    assert scene.spare_bytes.tolist() == [100, 0] and scene.order.tolist() == [0, 1, 2]


# How late ops could start


def latest(graph: Any, device: list[int]) -> tuple[list[int], list[int]]:
    problem = price(graph, pair())
    plan = Plan.of(problem, device)
    starts, follower = latest_starts(problem, plan.device, simulate(problem, plan))
    return starts.tolist(), follower.tolist()


def test_how_late_each_could_start_by_hand() -> None:
    assert latest(chain(), [0, 0, 1]) == ([0, 10, 40], [1, -1, -1])
    # a 0-10, sent until 25, c 25-55, sent until 64, d 64-74; b has until then.
    assert latest(diamond(), [0, 0, 1, 0]) == ([0, 44, 25, 64], [1, 3, -1, -1])
    # Both tensors of a go over one link, until 21 and 29; b runs 21-31 and d until 41, c whenever.
    assert latest(fork(), [0, 1, 0, 1]) == ([0, 21, 31, 31], [2, 3, -1, -1])


# The whole


@pytest.mark.parametrize(
    ("on", "objective", "windows"),
    [("2xp100-pcie", "step-time", True), ("2xp100-pcie", "peak-memory", False), ("1xa100-nvlink", "step-time", False)],
)
def test_windows_are_for_the_step_time_on_several_devices(
    on: str, objective: Any, windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = price(ladder(), on, objective=objective)
    asked = list[str]()
    plans = [
        Plan.of(problem, [0] * problem.num_ops),
        Plan.of(problem, [0] * problem.num_ops, np.arange(6)[::-1].copy()),
    ]
    monkeypatch.setattr(multilevel.Multilevel, "_plans", lambda self, search, clock: iter(plans))
    monkeypatch.setattr(multilevel.Multilevel, "_windows", lambda self, search, clock: asked.append("windows"))
    search = Search(problem, Budget(None, 5))
    assert multilevel.Multilevel().optimize(search) is search.best and search.simulations == 2
    assert asked == ["windows"] * windows
    few = Search(problem, Budget(None, 1))
    multilevel.Multilevel().optimize(few)
    assert few.simulations == 1 and asked == ["windows"] * windows
    none = Search(problem, Budget(None, 1))
    none.count(1)
    assert multilevel.Multilevel().optimize(none) is plans[0]


def test_passes_over_windows_grow_and_end_where_one_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = price(ladder(), pair())
    search = Search(problem, Budget(None, 50))
    search.score(Plan.of(problem, [0] * problem.num_ops))
    asked = list[tuple[int, int]]()

    def refined(part: Search, plan: Plan, simulations: int, turn: int) -> None:
        asked.append((simulations, turn))
        part.count(1 if turn < 3 else 0)

    monkeypatch.setattr(multilevel, "refine", refined)
    monkeypatch.setattr(multilevel, "LOOKS", (4, 7))
    multilevel.Multilevel()._windows(search, multilevel.TimeLeft(search))
    assert asked == [(4, 0), (7, 1), (7, 2), (7, 3)]
