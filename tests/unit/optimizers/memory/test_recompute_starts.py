"""What recomputation starts from, with parts that only note what they were asked."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import price
from loadmaster.optimizers.memory import recompute
from loadmaster.optimizers.memory.recompute import Recompute
from loadmaster.plans import Plan
from loadmaster.search import Score
from tests.graphs.tiny import chain, pair


@pytest.mark.parametrize(("first", "done"), [("nothing", []), ("cut", [{1, 2, 7}]), ("inline", ["inlined"])])
def test_what_is_done_before_anything_is_dropped(first: Any, done: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(recompute, "draft_of", lambda *_: "draft")
    monkeypatch.setattr(recompute, "turning_point", lambda _: 5)
    monkeypatch.setattr(recompute, "saved_by_cut", lambda draft, turn: {1, 2} if turn == 5 else set())
    monkeypatch.setattr(recompute, "make_light_again", lambda draft, kept: seen.append(kept))
    monkeypatch.setattr(recompute, "inline_light", lambda draft: seen.append("inlined"))
    search: Any = SimpleNamespace(problem=None)
    assert Recompute._drafted(search, None, first, {7}) == "draft" and seen == done  # type: ignore[arg-type,comparison-overlap]


@pytest.mark.parametrize(
    ("devices", "alone", "rule"), [(1, False, "one"), (1, True, "one"), (2, True, "one"), (2, False, "heft")]
)
def test_which_rule_plans_first(devices: int, alone: bool, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rule:
        def __init__(self, name: str = "heft") -> None:
            self.name = name

        def optimize(self, part: Any) -> str:
            return self.name

    monkeypatch.setattr(recompute, "GreedyFusion", Rule)
    monkeypatch.setattr(recompute, "OneDevice", lambda: "one")
    monkeypatch.setattr(recompute, "one_computes", lambda _: alone)
    scored = list[Any]()
    part: Any = SimpleNamespace(
        problem=SimpleNamespace(num_devices=devices), simulations_left=1, score=scored.append, best=None
    )
    assert Recompute().inner_plan(part) == rule and scored == [rule]  # type: ignore[comparison-overlap]
    part.best, part.simulations_left = "best", 0
    assert Recompute().inner_plan(part) == "best" and scored == [rule]  # type: ignore[comparison-overlap]
    inner: Any = Rule("inner")
    part.best = None
    assert Recompute(inner).inner_plan(part) == "inner"  # type: ignore[comparison-overlap]


class Starting:
    """A search whose best plan is so much over its limits."""

    def __init__(self, over: int, of_memory: bool, spent: bool = False) -> None:
        self.problem: Any = price(chain(), pair(), objective="peak-memory" if of_memory else "step-time")
        self.best_score, self.spent, self.simulations_left = Score(over, 5), spent, 9
        self.kept = list[float]()

    def keeping(self, share: float) -> Any:
        self.kept.append(share)
        return nullcontext(self)

    def part(self, share: float, problem: Any) -> Any:
        return SimpleNamespace(problem=problem, wide=True)


def starts(method: Recompute, search: Starting, monkeypatch: Any, hosts: Any = ()) -> list[str]:
    """The names of the plans that it starts from."""
    problem = search.problem
    names = {"first": [0, 0, 0], "fast": [0, 0, 1], "fused": [0, 1, 0]}
    plans = {name: Plan.of(problem, device, [2, 1, 0]) for name, device in names.items()}
    known = {tuple(device): name for name, device in names.items()}

    def inner(self: Any, part: Any) -> Plan:
        if part is search:
            return plans["first"]
        assert (part.problem.memory_bytes > 2**59).all(), "without limits"
        return plans["fast"]

    monkeypatch.setattr(Recompute, "inner_plan", inner)
    monkeypatch.setattr(Recompute, "_fused", staticmethod(lambda _, plan: plans["fused"]))
    monkeypatch.setattr(recompute, "hosts_of", lambda _: hosts)
    monkeypatch.setattr(
        recompute, "early_updates", lambda problem, plan: Plan.of(problem, plan.device, [1, 2, 0], plan.kernel)
    )
    told = []
    for plan in method._starts(search):  # type: ignore[arg-type]
        order = {(2, 1, 0): "", (0, 1, 2): " plain", (1, 2, 0): " early"}[tuple(plan.rank.tolist())]
        told.append(known[tuple(plan.device.tolist())] + order)
    return told


def test_a_plan_that_fits_is_all_there_is_to_start_from(monkeypatch: pytest.MonkeyPatch) -> None:
    inner: Any = object()
    assert starts(Recompute(inner), Starting(0, of_memory=False), monkeypatch) == ["first"]
    assert starts(Recompute(inner), Starting(3, of_memory=False, spent=True), monkeypatch) == ["first"]
    every = ["first", "fast", "fused", "fast plain"]
    assert starts(Recompute(inner), Starting(1, of_memory=False), monkeypatch) == every
    assert starts(Recompute(inner), Starting(0, of_memory=True), monkeypatch) == every


def test_without_a_method_of_its_own_or_other_kernels_there_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    inner: Any = object()
    plain = Starting(1, of_memory=False)
    assert starts(Recompute(), plain, monkeypatch) == ["first", "fused", "first plain"] and plain.kept == [1.0]
    given = Starting(1, of_memory=False)
    assert starts(Recompute(inner, fuse=False), given, monkeypatch) == ["first", "fast", "fast plain"]
    assert given.kept == [0.3]


def test_updates_run_early_where_residents_may_live_on_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for offload, residents, hosts, early in (
        (True, True, {0: 1}, True), (False, True, {0: 1}, False), (True, False, {0: 1}, False), (True, True, {}, False),
    ):  # fmt: skip
        found = starts(
            Recompute(offload=offload, residents=residents), Starting(1, of_memory=False), monkeypatch, hosts
        )
        assert found == (["first early", "fused early"] if early else ["first", "fused", "first plain"])


class Merged:
    """Kernels of three rules on three ops."""

    producers: Any = np.array([0])

    def kernels(self, device: Any, orders: Any) -> np.ndarray:
        return np.array([[0, 1, 2], [0, 0, 2], [0, 1, 1], [0, 0, 0]])

    def greedy(self, device: Any) -> Any:
        return np.array([0, 1, 1])


@pytest.mark.parametrize(("left", "kernel"), [(9, [0, 1, 1]), (8, [0, 1, 1]), (5, [0, 0, 2]), (3, [0, 1, 2])])
def test_the_kernels_of_the_simple_rule_that_suit_the_limits_best(
    left: int, kernel: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the simulations that are left are for it. The third fits, the second is the fastest of the others."""
    problem = price(chain(), pair())
    plan, merged = Plan.of(problem, [0, 0, 0]), Merged()
    monkeypatch.setattr(recompute.Merges, "of", lambda _: merged)
    over, value = np.array([9, 5, 0, 0]), np.array([1, 2, 4, 5])

    def score(device: Any, rank: Any, kernels: Any) -> Any:
        assert device.shape == rank.shape == kernels.shape and rank[0].tolist() == [0, 1, 2]
        return over[: len(kernels)], value[: len(kernels)]

    search: Any = SimpleNamespace(problem=problem, simulations_left=left, score_fused=score)
    assert Recompute._fused(search, plan).kernel.tolist() == kernel
    search.simulations_left = 1
    assert Recompute._fused(search, plan) is plan
    search.simulations_left, merged.producers = 9, np.array([])
    assert Recompute._fused(search, plan) is plan, "nothing can be fused"


def test_ops_and_copies_are_fused_anew_by_two_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = price(chain(), pair())
    merged = Merged()
    monkeypatch.setattr(recompute.Merges, "of", lambda _: merged)
    monkeypatch.setattr(recompute, "whole", lambda problem, plan: problem)
    plain = Plan.of(problem, [0, 0, 0], [2, 1, 0])
    plan: Any = SimpleNamespace(added="added", device=plain.device, rank=plain.rank)
    scored = list[Any]()
    search: Any = SimpleNamespace(problem=problem, spent=False, score=lambda made: scored.append(made) or len(scored))
    assert list(Recompute._refused(search, plan)) == [1, 2]
    assert [made.kernel.tolist() for made in scored] == [[0, 1, 1], [0, 1, 2]]
    assert scored[0].rank.tolist() == [2, 1, 0]
    search.spent = True
    assert not list(Recompute._refused(search, plan))
    search.spent = False
    assert not list(Recompute._refused(search, plain)), "nothing was added"
    merged.producers = np.array([])
    assert not list(Recompute._refused(search, plan)) and len(scored) == 2
