"""Evolution strategies (Salimans et al. 2017, arXiv 1703.03864) on the weights of the list scheduler.

Every worker keeps problems of its own. A generation: each worker draws directions, plans a few of its problems with the
weights a step along each and a step against it, and says by how much the one was better. In the second phase a short
search goes on from the policy's plan, and what it reaches is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import ints
from loadmaster.learn.examples import alone
from loadmaster.learn.scheduling.examples import ScheduleKey, make_example
from loadmaster.optimizers.annealing.anneal import improve
from loadmaster.optimizers.annealing.chains import Chains, Decisions, start_of
from loadmaster.optimizers.policy.policy import decoded, net_of
from loadmaster.optimizers.policy.proposing import NO_LOG, proposals
from loadmaster.optimizers.policy.views import View
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Score, Search

Floats = NDArray[np.float64]
# Part of how the weights that are shipped were trained: what a plan that does not fit counts for, in factors of e, and
# more by what it is over.
TOO_FULL = 1.0
ASKED = 2  # times that the scores are asked for in a short search
ROUNDS = 2  # of the policy on one problem
MOST_GAIN = 0.3  # that one problem says of a direction


@dataclass(frozen=True)
class Settings:
    """Of a run.

    Attributes:
        step: deviation of directions.
        rate: of Adam.
        each: pairs of plans of each worker in a generation.
        simulations: of the search that goes on from the policy's plan; 0: none does.
        proposes: scores say where moves of that search go, and it begins from the plan by rules.
        decay: of weights, times the rate.
    """

    step: float = 0.05
    rate: float = 0.02
    each: int = 24
    simulations: int = 0
    proposes: bool = False
    decay: float = 1e-3


def worth(problem: Problem, score: Score) -> float:
    """The logarithm of a value; of what does not fit, more."""
    over = score.over_bytes / max(1, int(problem.memory_bytes.sum()))
    return float(np.log(max(1, score.value)) + (TOO_FULL + 4 * over if score.over_bytes else 0.0))


def reached(problem: Problem, view: View, given: Plan, weights: Floats, simulations: int, seed: int = 0) -> float:
    """What the plans of these weights are worth, mostly that of the best: from a plan by rules, then from the best of
    those; or what a search makes of it."""
    net, search = net_of(weights), Search(problem, Budget(None, 10**9), seed)
    worths = list[float]()
    for _ in range(ROUNDS):
        worths += [worth(problem, search.score(plan)) for plan in decoded(problem, view, net, given)]
        assert search.best is not None
        given = search.best
    if simulations:
        part = Search(problem, Budget(None, simulations), seed)
        improve(part, given, 0.0, 0.0, chains=1)
        return min(min(worths), worth(problem, part.best_score))
    return 0.7 * min(worths) + 0.3 * float(np.mean(worths))


def proposed(problem: Problem, view: View, given: Plan, weights: Floats | None, simulations: int, seed: int) -> float:
    """What a search from the plan comes to whose moves go where the scores of these weights say."""
    net, search = None if weights is None else net_of(weights), Search(problem, Budget(None, simulations), seed)
    search.score(given)
    start = start_of(search, coarse := coarsen(problem, ints(np.arange(problem.num_ops))), given, search.best_score)
    chains = Chains(search, coarse, Decisions(evict=True), [start])
    for _ in range(ASKED):
        if search.best is not None and not search.spent:
            asked = None if net is None else proposals(problem, view, net, search.best)
            chains.cool(simulations // ASKED, 0.0, 0.0, asked, None if asked is None else [NO_LOG])
    return worth(problem, search.best_score)


def directions(seed: int, size: int, count: int) -> Floats:
    return np.random.default_rng([seed, 5]).standard_normal((count, size))


def _against(example: tuple[Problem, View, Plan], weights: Floats, settings: Settings) -> float:
    """What is reached, against the plan by rules, or what a search as long makes of that."""
    problem, view, given = example
    if settings.proposes:
        by_hand = proposed(problem, view, given, None, settings.simulations, 0)
        return outcome(example, weights, settings, 0) - by_hand
    search = Search(problem, Budget(None, settings.simulations + 1))
    search.score(given)
    if settings.simulations:
        improve(search, given, 0.0, 0.0, chains=1)
    return outcome(example, weights, settings, 0) - worth(problem, search.best_score)


def outcome(example: tuple[Problem, View, Plan], weights: Floats, settings: Settings, seed: int) -> float:
    if settings.proposes:
        return proposed(*example, weights, settings.simulations, seed)
    return reached(*example, weights, settings.simulations, seed)


def _work(keys: Sequence[ScheduleKey], held: Sequence[ScheduleKey], pipe: Any) -> None:
    """A worker: answers until it is told to end."""
    alone()
    mine = [example for key in keys if (example := make_example(key)) is not None]
    kept = [example for key in held if (example := make_example(key)) is not None]
    pipe.send((len(mine), len(kept)))
    while (asked := pipe.recv()) is not None:
        kind, weights, seed, settings = asked
        if kind == "held":
            pipe.send([_against(example, weights, settings) for example in kept])
            continue
        rng = np.random.default_rng([seed, 9])
        along = directions(seed, len(weights), settings.each)
        gains = []
        for row in along:
            example = mine[int(rng.integers(len(mine)))]
            up, down = (outcome(example, weights + sign * settings.step * row, settings, seed) for sign in (1, -1))
            gains.append(float(np.clip(down - up, -MOST_GAIN, MOST_GAIN)))
        pipe.send(gains)


class ForkedCrew:
    """Workers that are forked from this process, each with a part of the examples."""

    def __init__(self, keys: Sequence[ScheduleKey], held: Sequence[ScheduleKey], workers: int) -> None:
        context = get_context("fork")
        self.pipes, self.jobs = [], []
        for number in range(workers):
            here, there = context.Pipe()
            job = context.Process(target=_work, args=(keys[number::workers], held[number::workers], there), daemon=True)
            job.start()
            self.pipes.append(here)
            self.jobs.append(job)
        self.counts = [pipe.recv() for pipe in self.pipes]

    def ask(self, kind: str, weights: Floats, seeds: Sequence[int], settings: Settings) -> list[list[float]]:
        for pipe, seed in zip(self.pipes, seeds, strict=True):
            pipe.send((kind, weights, seed, settings))
        return [pipe.recv() for pipe in self.pipes]

    def held_out(self, weights: Floats, settings: Settings) -> Floats:
        return np.concatenate(self.ask("held", weights, [0] * len(self.pipes), settings))

    def gradient(self, weights: Floats, turn: int, settings: Settings) -> tuple[Floats, float]:
        """(The way up, how much the gains of directions differ)."""
        seeds = [turn * len(self.pipes) + number for number in range(len(self.pipes))]
        gains = self.ask("train", weights, seeds, settings)
        along = np.concatenate([directions(seed, len(weights), settings.each) for seed in seeds])
        gain = np.concatenate(gains)
        return along.T @ gain / (2 * settings.step * len(gain)), float(gain.std())

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for job in self.jobs:
            job.join(10)


@dataclass
class Ascent:
    """Where training stands: the weights, what Adam (Kingma and Ba 2014) remembers, and the best weights so far."""

    weights: Floats
    mean: Floats
    square: Floats
    best_weights: Floats
    best: float = -np.inf
    turn: int = 0

    @staticmethod
    def of(weights: Floats) -> Ascent:
        nothing = np.zeros(len(weights))
        return Ascent(weights.copy(), nothing, nothing.copy(), weights.copy())

    def step(self, gradient: Floats, rate: float) -> None:
        """Uphill."""
        self.turn += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.99 * self.square + 0.01 * gradient**2
        mean, square = self.mean / (1 - 0.9**self.turn), self.square / (1 - 0.99**self.turn)
        self.weights = self.weights + rate * mean / (np.sqrt(square) + 1e-8)

    def keep(self, gain: float) -> None:
        """The weights, if they are the best so far on the problems held out."""
        if gain > self.best:
            self.best, self.best_weights = gain, self.weights.copy()


def ascend(
    crew: ForkedCrew, ascent: Ascent, settings: Settings, seconds: float, steps: int,
    tell: Callable[[dict[str, float], Ascent], None], every: int = 10,
) -> Floats:  # fmt: skip
    """Goes on for so many seconds, or to that generation, with smaller and smaller steps; the weights that were best on
    the problems held out."""
    begun = time.monotonic()
    while ascent.turn < steps and (used := (time.monotonic() - begun) / max(1e-9, seconds)) < 1:
        gradient, spread = crew.gradient(ascent.weights, ascent.turn, settings)
        rate = settings.rate * max(0.1, 1 - max(used, ascent.turn / steps))
        ascent.step(gradient - settings.decay * ascent.weights, rate)
        if ascent.turn % every == 0 or ascent.turn == steps:
            gain = -crew.held_out(ascent.weights, settings)
            ascent.keep(float(gain.mean()))
            rough = 1.96 * float(gain.std()) / len(gain) ** 0.5
            row = {"turn": ascent.turn, "seconds": time.monotonic() - begun, "gain": float(gain.mean())}
            tell({**row, "rough": rough, "spread": spread}, ascent)
    return ascent.best_weights
