"""How chains of draws are begun and how long they walk, with parts in their place that write down what they were
asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import chains
from loadmaster.learn.go2020.chains import Manner, PolicyChains
from loadmaster.optimizers.annealing.state import LEVELS, NEAR, SWAP
from loadmaster.search import WORST, Score


def manner(placing: bool = True, ordering: bool = True, fusing: bool = False, fifo: bool = False) -> Manner:
    return Manner(placing, ordering, fusing, fifo, 0.1)


def made(**parts: Any) -> Any:
    chain: Any = PolicyChains.__new__(PolicyChains)
    vars(chain).update(parts)
    return chain


class Clock:
    """Goes on by a second whenever chains are cooled."""

    def __init__(self, weights: int = 1, one_s: float = 0.5) -> None:
        self.now, self.cooled = 10.0, list[Any]()
        self.walking: Any = SimpleNamespace(
            cool=self.cool, weights=np.array([weights]), pace=SimpleNamespace(one_s=one_s)
        )

    def cool(self, draws: int, hot: float, cold: float, policy: Any, logs: Any) -> None:
        assert hot == cold
        self.cooled.append((draws, hot))
        self.now += 1.0


def walker(clock: Clock, monkeypatch: pytest.MonkeyPatch, spent: bool = False) -> tuple[Any, Any]:
    monkeypatch.setattr(chains, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    logs = [SimpleNamespace(filled=np.array([7]), every=np.array([0])) for _ in range(2)]
    walk = made(search=SimpleNamespace(spent=spent), walking=clock.walking, logs=logs, _sample=lambda: "sample")
    return walk, logs


@pytest.mark.parametrize(("trials", "every"), [(10, 1), (2 * 191, 1), (2 * 192, 2), (2 * 960, 10)])
def test_a_number_of_draws_is_walked_at_once_and_some_are_written_down(
    trials: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    walk, logs = walker(clock, monkeypatch)
    assert walk.walk("policy", lambda: 0.5, None, trials) == "sample"
    assert clock.cooled == [(trials, 0.5)]
    assert [(int(log.filled[0]), int(log.every[0])) for log in logs] == [(0, every)] * 2


@pytest.mark.parametrize(
    ("seconds", "weights", "spent", "times"),
    [(2.5, 1, False, 3), (2.0, 1, False, 2), (2.5, 0, False, 0), (2.5, 1, True, 0)],
)
def test_by_the_clock_draws_go_on_in_slices(
    seconds: float, weights: int, spent: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(weights, one_s=0.004)
    walk, logs = walker(clock, monkeypatch, spent)
    walk.walk("policy", lambda: clock.now, seconds, 0)
    assert clock.cooled == [(2 * 25, 10.0 + turn) for turn in range(times)], "a tenth of a second each"
    assert [int(log.every[0]) for log in logs] == [int(seconds / 0.004) // 96] * 2


def test_the_last_slice_is_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(one_s=0.01)
    walk, _ = walker(clock, monkeypatch)
    walk.walk("policy", lambda: 0.0, 0.05, 0)
    assert clock.cooled == [(2 * 5, 0.0)]
    slow = Clock(one_s=9.0)
    walk, _ = walker(slow, monkeypatch)
    walk.walk("policy", lambda: 0.0, 0.05, 0)
    assert slow.cooled == [(2, 0.0)], "at least one draw of each chain"


@pytest.mark.parametrize(("one_s", "expected"), [(0.0, 16), (0.5, 6), (2.0, 1), (1e-9, 3_000_000)])
def test_draws_that_go_into_a_time_are_by_the_last_round(one_s: float, expected: int) -> None:
    walk = made(walking=SimpleNamespace(pace=SimpleNamespace(one_s=one_s)))
    assert walk.expected(3.0) == expected and walk.draw_s == one_s / 2


def test_what_was_written_down_of_all_chains_is_one_sample() -> None:
    names = ("kind", "share", "pick", "chance", "gain")
    logs = [
        SimpleNamespace(filled=np.array([rows]), **{name: np.arange(5) + at * 10 for at, name in enumerate(names)})
        for rows in (2, 3)
    ]
    sample = made(logs=logs)._sample()
    for at, name in enumerate(names):
        assert getattr(sample, name).tolist() == [10 * at + n for n in (0, 1, 0, 1, 2)]


@pytest.mark.parametrize(
    ("how", "follow", "warmth"),
    [
        (manner(), 0.5, 1.0),
        (manner(ordering=False), 1.0, 1.0),
        (manner(fifo=True), 0.0, 1.0),
        (manner(placing=False, ordering=False, fusing=True), 1.0, 0.06),
        (manner(placing=False, fusing=True), 0.5, 1.0),
    ],
)
def test_the_order_follows_the_critical_path_where_none_is_drawn(how: Manner, follow: float, warmth: float) -> None:
    decisions = how.decisions
    assert (
        tuple(vars(decisions).values())[:4] == (how.placing, how.ordering, how.fusing, follow) and how.warmth == warmth
    )


@pytest.mark.parametrize(
    ("fusing", "left", "fifo", "asked"),
    [(True, 1, False, "ranks"), (True, 1, True, "order"), (True, 0, False, ""), (False, 5, False, "")],
)
def test_fusion_starts_from_rules_where_something_can_be_simulated(
    fusing: bool, left: int, fifo: bool, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "Plan", SimpleNamespace(of=lambda problem, device, rank: (device, rank)))
    monkeypatch.setattr(chains, "simple_fusions", lambda search, plan, count, fifo: (plan, count, fifo))
    walk = made(
        manner=manner(fusing=fusing, fifo=fifo),
        search=SimpleNamespace(simulations_left=left),
        problem=None,
        _rank=lambda plan: "ranks",
    )
    found = walk._fusions(SimpleNamespace(device=[5, 6]))
    if not asked:
        assert found == []
    else:
        (device, rank), count, first_come = found
        assert (device, count, first_come) == ([5, 6], 2, fifo)
        assert rank == "ranks" if asked == "ranks" else rank.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("ordering", "fifo", "rank"), [(True, False, "spread"), (False, False, "its own"), (True, True, [])]
)
def test_ranks_that_chains_begin_with(ordering: bool, fifo: bool, rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "spread_ranks", lambda search, plan: "spread")
    found = made(manner=manner(ordering=ordering, fifo=fifo), search=None)._rank(SimpleNamespace(rank="its own"))
    assert found == rank if isinstance(rank, str) else found.tolist() == rank


@pytest.mark.parametrize(
    ("fusion", "left", "fifo", "score"),
    [
        ([(("kernels",), Score(0, 3)), (("others",), Score(0, 4))], 5, False, Score(0, 3)),
        ([], 5, False, Score(0, 7)),
        ([], 5, True, Score(0, 8)),
        ([], 0, False, WORST),
    ],
)
def test_a_chain_begins_where_rules_fuse_best_or_with_its_plan_simulated(
    fusion: Any, left: int, fifo: bool, score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "Plan", SimpleNamespace(of=lambda problem, device, rank: Score(0, 7)))
    search = SimpleNamespace(simulations_left=left, first_come=lambda device: Score(0, 8), score=lambda plan: plan)
    walk = made(manner=manner(fifo=fifo), search=search, problem=None, _rank=lambda plan: "ranks")
    start = walk._start(SimpleNamespace(device="devices"), fusion)
    assert tuple(vars(start).values())[:3] == ("devices", "ranks", score)
    assert tuple(vars(start).values())[3] == (("kernels",) if fusion else tuple(chains.NOTHING_FUSED))


@pytest.mark.parametrize(
    ("how", "devices", "near"),
    [(manner(), 2, True), (manner(), 1, False), (manner(placing=False), 2, False), (manner(fusing=True), 3, True)],
)
@pytest.mark.parametrize("plans", [1, 2, 3])
def test_two_chains_begin_with_the_first_plans_and_their_ways_to_fuse(
    how: Manner, devices: int, near: bool, plans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    def chained(search: Any, whole: Any, decisions: Any, starts: Any, fusing: Any, fifo: bool) -> Any:
        begun.append((starts, fusing, fifo))
        return SimpleNamespace(weights=np.ones(20))

    monkeypatch.setattr(chains, "Chains", chained)
    monkeypatch.setattr(chains, "coarsen", lambda problem, label: label)
    monkeypatch.setattr(chains, "fusing_for", lambda problem, count, device: [(count, device)])
    monkeypatch.setattr(chains, "make_log", lambda rows, width: (rows, width))
    monkeypatch.setattr(PolicyChains, "_fusions", lambda self, plan: [f"{plan.device} {n}" for n in range(3)])
    monkeypatch.setattr(PolicyChains, "_start", lambda self, plan, fusion: (plan.device, fusion))
    search: Any = SimpleNamespace(problem=SimpleNamespace(num_devices=devices, num_ops=4))
    one: Any = SimpleNamespace(num_groups=3, single=[0] * 5)
    given: Any = [SimpleNamespace(device=name) for name in "abc"[:plans]]
    walk = PolicyChains(search, one, how, given)
    first = ("a", ["a 0"])
    assert begun[0][0] == [first, ("a", ["a 1"]) if plans == 1 else ("b", ["b 0"])]
    assert begun[0][1] == ([(2, None if how.placing else "a")] if how.fusing else []) and begun[0][2] == how.fifo
    assert (walk.walking.weights[NEAR], walk.walking.weights[SWAP]) == ((2.0, 0.0) if near else (1.0, 1.0))
    assert walk.logs == [(192, 5)] * 2  # type: ignore[comparison-overlap]


def test_the_chain_that_stands_best_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(name: str, *score: int) -> Any:
        return SimpleNamespace(score=np.array(score), place=name, rank="r", kernel="k", priority=name)

    monkeypatch.setattr(chains, "fusion_levels", lambda problem, priority: f"levels of {priority}")
    walking = SimpleNamespace(
        chains=[chain("a", 0, 9), chain("b", 0, 8), chain("c", 1, 1)],
        plan=lambda place, rank, kernel: (place, rank, kernel),
    )
    for fusing in (True, False):
        walk = made(walking=walking, manner=manner(fusing=fusing), problem=None)
        plan, fusion, score = walk.standing()
        assert plan == ("b", "r", "k") and score == Score(0, 8)
        assert fusion == "levels of b" if fusing else fusion.tolist() == []


def test_fusion_is_told_by_the_highest_priority_of_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    producers = np.array([0, 0, 2, 3, 3, 4])
    monkeypatch.setattr(chains, "Merges", SimpleNamespace(of=lambda problem: SimpleNamespace(producers=producers)))
    problem: Any = SimpleNamespace(num_ops=5)
    found = chains.fusion_levels(problem, np.array([3.9, 1.0, -2.0, 99.0, 5.0, LEVELS - 0.5]))
    assert found.tolist() == [3, 0, 0, LEVELS - 1, LEVELS - 1] and found.dtype == ints([]).dtype
