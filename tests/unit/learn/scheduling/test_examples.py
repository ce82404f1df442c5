"""Which problems schedules are learned from, with random numbers that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.learn.scheduling import examples
from loadmaster.learn.scheduling.examples import ScheduleKey


class Drawn:
    """A generator whose next numbers are told; what it chooses from is written down."""

    def __init__(self, *numbers: float) -> None:
        self.numbers, self.asked = list(numbers), list[Any]()

    def random(self) -> float:
        return self.numbers.pop(0)

    def integers(self, *bounds: int) -> int:
        self.asked.append(bounds)
        return 0

    def choice(self, some: Any) -> Any:
        self.asked.append(some)
        return some[0]

    def uniform(self, low: float, high: float) -> float:
        self.asked.append((low, high))
        return low


@pytest.mark.parametrize(
    ("number", "made"),
    [(0.44, "branching"), (0.46, "unrolled"), (0.79, "unrolled"), (0.81, "layered"), (0.94, "layered")],
)
def test_graphs_by_what_is_drawn(number: float, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng: Any = Drawn(number)
    monkeypatch.setattr(examples, "branching_step", lambda rng: "branching")
    monkeypatch.setattr(examples, "unrolled_step", lambda rng: "unrolled")
    monkeypatch.setattr(examples.synthetic, "generate", lambda name, count, seed, ops: [(name, count, seed, ops)])
    found: Any = examples.draw_graph(rng)
    assert found == (("layered", 1, 0, (80, 800)) if made == "layered" else made)
    assert rng.asked == ([(2**31,)] if made == "layered" else [])
    other: Any = Drawn(0.96)
    kinds = sorted(examples.synthetic.KINDS)
    assert examples.draw_graph(other)[0] == kinds[0]  # type: ignore[index]
    assert other.asked == [(len(kinds),), (2**31,)]


@pytest.mark.parametrize(("ops", "suits"), [(23, False), (24, True), (None, False)])
@pytest.mark.parametrize(("number", "tight"), [(0.49, True), (0.51, False)])
def test_an_example_is_made_coarser_and_half_of_them_tight(
    ops: int | None, suits: bool, number: float, tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, asked = Drawn(number), list[Any]()
    small = None if ops is None else SimpleNamespace(num_ops=ops)
    seeds: list[Any] = []
    monkeypatch.setattr(np.random, "default_rng", lambda seed: seeds.append(seed) or rng)
    for name, gives in {
        "draw_graph": lambda rng: "drawn",
        "vary": lambda graph, rng: f"{graph} varied",
        "graph_of": lambda line: f"line {line}",
        "draw_cluster": lambda rng: "cluster",
        "price": lambda graph, cluster: graph,
        "tightened": lambda problem, spare, rng: f"{problem} tight {spare}",
        "coarser": lambda problem, most: asked.append((problem, most)) or small,
        "view_of": lambda problem: "view",
        "first_plan": lambda problem, kind: f"plan {kind}",
    }.items():
        monkeypatch.setattr(examples, name, gives)
    make = examples.make_example.__wrapped__
    rng.numbers = [number, number]
    found = make(ScheduleKey(-1, 5))
    assert found == ((small, "view", "plan 0") if suits else None)  # type: ignore[comparison-overlap]
    make(ScheduleKey(0, 6))
    words = " tight 1.1" if tight else ""
    assert asked == [(f"drawn{words}", 200), (f"line 0 varied{words}", 200)]
    assert seeds == [[0, 5, 7], [1, 6, 7]]
    one = [*([(1.1, 1.8)] if tight else []), [200, 600, examples.MOST_OPS], *([(1, 6)] if suits else [])]
    assert rng.asked == one * 2


@pytest.mark.parametrize(
    ("kind", "by", "searches"), [(1, 1, False), (2, 2, False), (3, 3, False), (4, 3, True), (5, 3, True)]
)
def test_first_plans_are_by_rules_or_of_a_short_search(
    kind: int, by: int, searches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Search:
        def __init__(self, problem: Any, budget: Any) -> None:
            assert budget.simulations == 60
            self.best = found[0]

    asked: list[Any] = []
    monkeypatch.setattr(examples, "best_by_rule", lambda problem, kinds: f"by {kinds}")
    monkeypatch.setattr(examples, "Search", Search)
    monkeypatch.setattr(
        examples, "improve", lambda search, plan, hot, cold, chains: asked.append((plan, hot, cold, chains))
    )
    problem: Any = None
    for best in ("better", None):
        asked.clear()
        found = [best]
        assert examples.first_plan(problem, kind) == ((best or "by 3") if searches else f"by {by}")
        assert asked == ([("by 3", 0.0, 0.0, 1)] if searches else [])


@pytest.mark.parametrize(
    ("ops", "blocks", "chains", "found"),
    [
        (50, 9, 9, 50),
        (51, 9, 8, 9),
        (51, None, 8, 8),
        (51, None, None, 51),
        (51, 2_000, 8, 2_000),
        (51, 99_999, 8, None),
    ],
)
def test_a_problem_of_too_many_ops_becomes_blocks_or_chains(
    ops: int, blocks: int | None, chains: int | None, found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def coarse(count: int | None) -> Any:
        return None if count is None else SimpleNamespace(problem=SimpleNamespace(num_ops=count))

    monkeypatch.setattr(examples, "blocks", lambda problem, most: coarse(blocks) if most == 50 else 0)
    monkeypatch.setattr(examples, "chain_small_ops", lambda problem, share: coarse(chains) if share == 1 / 64 else 0)
    problem: Any = SimpleNamespace(num_ops=ops)
    small = examples.coarser(problem, 50)
    assert (None if small is None else small.num_ops) == found


def test_twice_as_many_ops_as_there_should_be_will_still_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "blocks", lambda *_: None)
    monkeypatch.setattr(examples, "chain_small_ops", lambda *_: None)
    for more, fits in ((0, True), (1, False)):
        problem: Any = SimpleNamespace(num_ops=2 * examples.MOST_OPS + more)
        assert (examples.coarser(problem, 50) is problem) == fits
