"""What processes of REGAL's training are asked, and how many at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from loadmaster.learn.examples import Key
from loadmaster.learn.regal2020 import rollouts
from loadmaster.search import Score


class Pool:
    """Counts what is under way."""

    def __init__(self) -> None:
        self.open = self.most = 0

    def submit(self, function: Any, job: Any) -> Any:
        self.open += 1
        self.most = max(self.most, self.open)

        def result() -> Any:
            self.open -= 1
            return function(job)

        return SimpleNamespace(result=result)


@pytest.mark.parametrize(("window", "most"), [(1, 1), (3, 3), (9, 5)])
def test_results_come_in_order_with_so_many_under_way(window: int, most: int) -> None:
    pool: Any = Pool()
    assert list(rollouts.in_order(pool, lambda job: job * 2, range(5), window)) == [0, 2, 4, 6, 8]
    assert (pool.most, pool.open) == (most, 0)


@pytest.mark.parametrize(("over", "value", "worth"), [(0, 7, 7), (0, 0, 1), (1, 7, 15), (5, 7, 19)])
def test_a_plan_that_does_not_fit_counts_double_and_what_it_is_over_by(over: int, value: int, worth: int) -> None:
    search: Any = SimpleNamespace(best_score=Score(over, value))
    assert rollouts._value(search) == worth


def test_each_action_and_standard_brkga_have_so_many_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def search(problem: Any, budget: Any, seed: int) -> Any:
        asked.append((problem, budget.simulations, seed))
        return SimpleNamespace(best_score=Score(0, 40 + len(asked)))

    class Brkga:
        def __init__(self, evaluations: int) -> None:
            asked.append(evaluations)

        def optimize(self, _: Any) -> None: ...

    monkeypatch.setattr(rollouts, "Search", search)
    monkeypatch.setattr(rollouts, "Brkga", Brkga)
    monkeypatch.setattr(rollouts, "run_action", lambda search, features, *given: asked.append(given))
    monkeypatch.setattr(rollouts.examples, "make_problem", lambda key: f"problem {key.line}")
    monkeypatch.setattr(rollouts.examples, "make_features", lambda key: f"features {key.line}")
    assert rollouts.standard_job((Key(3, 0), 25)) == 41 and asked == [("problem 3", 25, 1), 25]
    asked.clear()
    assert rollouts.action_job((Key(3, 0), ["a", "b"], 7, 25)) == [41, 43]  # type: ignore[list-item]
    alone = rollouts.ALONE
    assert asked == [("problem 3", 25, 7), ("a", alone, 25), ("problem 3", 25, 7), ("b", alone, 25)]
    assert (alone.hedge, alone.patience, alone.finish) == (0, 0, None)


@pytest.mark.parametrize(("known", "elite"), [(0, "found 9"), (None, None), ("kept", "kept")])
def test_elites_that_are_known_are_not_looked_for(known: Any, elite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts.examples, "find_elite", lambda key, simulations: f"found {simulations}")
    monkeypatch.setattr(rollouts.examples, "make_features", lambda key: "features")
    wanted = (Key(1, 2), elite, None if elite is None else "features")
    assert rollouts.elite_job((Key(1, 2), known, 9)) == wanted
