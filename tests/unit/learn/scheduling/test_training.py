"""Training of the list scheduler: examples that every process makes alike, what counts, and the way uphill."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.graph import Graph
from loadmaster.learn.scheduling import training
from loadmaster.learn.scheduling.examples import ScheduleKey, best_by_rule, make_example, tightened, unrolled_step
from loadmaster.learn.scheduling.training import Ascent, ForkedCrew, Settings, ascend, directions, outcome, worth
from loadmaster.optimizers.policy.policy import first_weights
from loadmaster.search import Score
from loadmaster.simulator import simulate


@cache
def keys() -> list[ScheduleKey]:
    every = (ScheduleKey(-1, seed) for seed in range(12))
    return [key for key in every if (found := make_example(key)) and found[0].num_ops < 300]


def test_an_example_is_the_same_everywhere() -> None:
    first = make_example(keys()[0])
    make_example.cache_clear()
    again = make_example(keys()[0])
    assert first is not None and again is not None
    assert (first[0].op_ns == again[0].op_ns).all()
    assert (first[0].memory_bytes == again[0].memory_bytes).all()
    assert (first[2].device == again[2].device).all()


def test_an_unrolled_step_updates_every_weight_once() -> None:
    graph: Graph = unrolled_step(np.random.default_rng(1))
    updates = [op for op in range(graph.num_ops) if (graph.alias_of[graph.makes_of(op)] >= 0).any()]
    updated = {int(graph.alias_of[tensor]) for op in updates for tensor in graph.makes_of(op)}
    assert len(updates) == len(updated) > 0


def test_tightened_memory_is_that_of_one_device_in_shares() -> None:
    example = make_example(keys()[0])
    assert example is not None
    problem = example[0]
    tight = tightened(problem, 1.5)
    one = simulate(problem, best_by_rule(problem)).peak_bytes.sum()
    assert tight.memory_bytes.sum() > 0
    assert len(set(tight.memory_bytes.tolist())) == 1
    assert tight.memory_bytes.sum() < 4 * one


def test_a_plan_that_fits_counts_for_more_than_a_faster_one_that_does_not() -> None:
    example = make_example(keys()[0])
    assert example is not None
    problem = example[0]
    assert worth(problem, Score(0, 2_000)) < worth(problem, Score(1, 1_000))
    assert worth(problem, Score(0, 1_000)) < worth(problem, Score(0, 2_000))


@pytest.mark.parametrize(
    "settings", [Settings(each=3), Settings(each=2, simulations=8), Settings(each=2, simulations=16, proposes=True)]
)
def test_the_gradient_is_that_of_the_outcomes(settings: Settings) -> None:
    weights = first_weights(0)
    crew = ForkedCrew(keys()[:1], [], 1)
    try:
        gradient, _ = crew.gradient(weights, 4, settings)
    finally:
        crew.close()
    example = make_example(keys()[0])
    assert example is not None
    along = directions(4, len(weights), settings.each)
    gains = [
        outcome(example, weights - settings.step * row, settings, 4)
        - outcome(example, weights + settings.step * row, settings, 4)
        for row in along
    ]
    expected = sum(gain * row for gain, row in zip(np.clip(gains, -0.3, 0.3), along, strict=True))
    assert np.allclose(gradient, expected / (2 * settings.step * settings.each))


def test_adam_goes_uphill() -> None:
    ascent = Ascent.of(np.array([3.0, -2.0]))
    for _ in range(400):
        ascent.step(-2 * ascent.weights, 0.05)
    assert np.abs(ascent.weights).max() < 0.05


def test_training_returns_the_weights_that_were_best_on_problems_held_out() -> None:
    told: list[tuple[float, np.ndarray]] = []
    crew = ForkedCrew(keys()[:1], keys()[:1], 1)
    try:
        found = ascend(
            crew,
            Ascent.of(first_weights(0)),
            Settings(each=2),
            float("inf"),
            4,
            lambda row, now: told.append((row["gain"], now.weights)),
            every=1,
        )
    finally:
        crew.close()
    assert len(told) == 4
    assert (found == max(told, key=lambda one: one[0])[1]).all()


def test_what_is_reached_is_mostly_the_best_plan_or_what_a_search_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are numbers, and worth their logarithms."""
    rounds = {"given": [8, 4, 16], 4: [2, 4]}
    asked: list[Any] = []

    class Found:
        def __init__(self, problem: Any, budget: Any, seed: int = 0) -> None:
            self.best: Any = None
            self.best_score = Score(0, 1 << 60)
            asked.append((budget.simulations, seed))

        def score(self, plan: int) -> Score:
            if self.best is None or plan < self.best:
                self.best, self.best_score = plan, Score(0, plan)
            return Score(0, plan)

    def improve(search: Any, plan: Any, hot: float, cold: float, chains: int) -> None:
        assert (hot, cold, chains) == (0.0, 0.0, 1)
        search.score(found_by_search[0])

    problem: Any = SimpleNamespace(memory_bytes=np.array([10]))
    monkeypatch.setattr(training, "Search", Found)
    monkeypatch.setattr(training, "net_of", lambda weights: None)
    monkeypatch.setattr(training, "improve", improve)
    monkeypatch.setattr(training, "ROUNDS", 2)
    monkeypatch.setattr(training, "decoded", lambda problem, view, net, given: rounds[given])
    view: Any = None
    given: Any = "given"
    logs = np.log([8, 4, 16, 2, 4])
    found_by_search = [0]
    plain = training.reached(problem, view, given, np.zeros(1), 0, 3)
    assert plain == pytest.approx(0.7 * logs.min() + 0.3 * logs.mean()) and asked == [(10**9, 3)]
    for found, wanted in ((1, 0.0), (9, np.log(2))):
        found_by_search[0] = found
        assert training.reached(problem, view, given, np.zeros(1), 50, 3) == pytest.approx(wanted)
        assert asked[-1] == (50, 3)


@pytest.mark.parametrize(("simulations", "improved"), [(0, 20), (6, 10)])
def test_what_is_held_out_is_against_rules_or_a_search_as_long(
    simulations: int, improved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found:
        def __init__(self, problem: Any, budget: Any) -> None:
            assert budget.simulations == simulations + 1

        def score(self, plan: Any) -> None:
            self.best_score = Score(0, 20)

    def improve(search: Any, *_: Any, chains: int) -> None:
        search.best_score = Score(0, 10)

    monkeypatch.setattr(training, "Search", Found)
    monkeypatch.setattr(training, "improve", improve)
    monkeypatch.setattr(training, "outcome", lambda example, weights, settings, seed: 5.0 + seed)
    monkeypatch.setattr(training, "proposed", lambda *given: 2.0 if given[3] is None and given[5] == 0 else 9.0)
    problem: Any = SimpleNamespace(memory_bytes=np.array([10]))
    example: Any = (problem, None, None)
    settings = Settings(simulations=simulations)
    assert training._against(example, np.zeros(1), settings) == pytest.approx(5.0 - np.log(improved))
    assert training._against(example, np.zeros(1), replace(settings, proposes=True)) == 3.0


@pytest.mark.parametrize(("spent_after", "cooled"), [(99, 4), (2, 2)])
def test_scores_are_asked_a_few_times_while_there_are_simulations(
    spent_after: int, cooled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[Any] = []

    class Found:
        best, best_score = "best", Score(0, 100)

        def __init__(self, problem: Any, budget: Any, seed: int) -> None:
            assert (budget.simulations, seed) == (90, 5)

        def score(self, plan: Any) -> None: ...

        @property
        def spent(self) -> bool:
            return len(walked) >= spent_after

    class Chains:
        def __init__(self, search: Any, coarse: Any, decisions: Any, starts: Any) -> None: ...

        def cool(self, *given: Any) -> None:
            walked.append(given)

    monkeypatch.setattr(training, "Search", Found)
    monkeypatch.setattr(training, "Chains", Chains)
    monkeypatch.setattr(training, "ASKED", 4)
    monkeypatch.setattr(training, "start_of", lambda *_: None)
    monkeypatch.setattr(training, "coarsen", lambda *_: None)
    monkeypatch.setattr(training, "net_of", lambda weights: "net")
    monkeypatch.setattr(training, "proposals", lambda problem, view, net, best: (net, best))
    problem: Any = SimpleNamespace(num_ops=3, memory_bytes=np.array([10]))
    view: Any = None
    plan: Any = None
    for weights, asked in ((np.zeros(1), ("net", "best")), (None, None)):
        walked.clear()
        assert training.proposed(problem, view, plan, weights, 90, 5) == pytest.approx(np.log(100))
        logs = None if asked is None else [training.NO_LOG]
        assert walked == [(22, 0.0, 0.0, asked, logs)] * cooled


def test_of_equal_gains_the_first_weights_stay_and_decay_pulls_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ascent = Ascent.of(np.array([1.0]))
    ascent.keep(2.0)
    ascent.weights = np.array([3.0])
    ascent.keep(2.0)
    assert ascent.best_weights.tolist() == [1.0]
    steps: list[Any] = []
    monkeypatch.setattr(Ascent, "step", lambda self, gradient, rate: steps.append(gradient) or setattr(self, "turn", 9))
    crew: Any = SimpleNamespace(gradient=lambda *_: (np.array([5.0]), 0.0), held_out=lambda *_: np.zeros(2))
    training.ascend(crew, ascent, Settings(decay=0.5), float("inf"), 9, lambda *_: None)
    assert steps == [np.array([5.0 - 0.5 * 3.0])]


class Crew:
    """Knows the gradient of a bowl, and counts."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.asked, self.held = clock, list[int](), 0

    def gradient(self, weights: Any, turn: int, _: Any) -> tuple[Any, float]:
        self.clock[0] += 1.0
        self.asked.append(turn)
        return -weights, 0.5

    def held_out(self, weights: Any, _: Any) -> Any:
        self.held += 1
        return np.array([1.0, 3.0]) * float(abs(weights).sum())


@pytest.mark.parametrize(
    ("seconds", "steps", "turns", "told"),
    [(100.0, 7, 7, [4, 7]), (3.0, 99, 3, []), (4.0, 99, 4, [4]), (0.0, 99, 1, []), (100.0, 8, 8, [4, 8])],
)
def test_an_ascent_ends_with_its_seconds_or_its_steps(
    seconds: float, steps: int, turns: int, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [50.0]
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    crew, ascent, rows = Crew(clock), Ascent.of(np.array([4.0, -2.0])), list[dict[str, float]]()
    rates = []
    own = Ascent.step

    def step(self: Ascent, gradient: Any, rate: float) -> None:
        rates.append(rate)
        own(self, gradient, rate)

    monkeypatch.setattr(Ascent, "step", step)
    settings = Settings(0.1, 0.5)
    best = ascend(crew, ascent, settings, seconds, steps, lambda row, _: rows.append(row), every=4)  # type: ignore[arg-type]
    assert crew.asked == list(range(turns)) and ascent.turn == turns
    assert [row["turn"] for row in rows] == told and crew.held == len(told)
    wanted = [0.5 * max(0.1, 1 - max(turn / max(1e-9, seconds), turn / steps)) for turn in range(turns)]
    assert rates == pytest.approx(wanted)
    if told:
        assert rows[-1]["seconds"] == told[-1] and rows[-1]["spread"] == 0.5
        assert rows[-1]["rough"] == pytest.approx(1.96 * abs(rows[-1]["gain"]) / 2 / 2**0.5)
        assert best is ascent.best_weights and ascent.best == max(row["gain"] for row in rows)
