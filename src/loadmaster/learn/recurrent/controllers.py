"""One controller, or several that share parameters: each draws, measures and sends back gradients when it is ready.

As Mirhoseini 2017 has it, by processes or over Ray. One controller repeats itself for a seed; several do not, since who
is ready first decides.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from loadmaster.graph.columns import Ints
from loadmaster.learn.cooling import Cooling
from loadmaster.learn.examples import alone
from loadmaster.learn.recurrent.reinforce import Learner, LearningRule, Standing, StepSummary, learn, reinforce
from loadmaster.papers.environment import Order, Simulated
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Score, Search
from loadmaster.search.workers import AUTO, connect

Over = Literal["processes", "ray"]


@dataclass(frozen=True, eq=False)
class Workplace:
    """What every controller is given once: the problem, the policy's network, the rule it learns by, the groups of ops,
    the order of ops under a placement, what noise and failures measurements have, and the seed."""

    problem: Problem
    policy: nn.Module
    rule: LearningRule
    label: Ints
    order: Order
    noise: float
    failures: float
    seed: int


class Task(NamedTuple):
    """One step for a controller: the parameters to draw with, where learning stands, how many placements to draw, and
    how far the budget is gone."""

    number: int
    parameters: NDArray[np.float32]
    standing: Standing
    samples: int
    share: float


class Answer(NamedTuple):
    """What a controller sends back for one request: a gradient for the parameters it was given, how the step went, and
    the best plan it measured with its score."""

    number: int
    gradient: NDArray[np.float32]
    outcome: StepSummary
    plan: Plan | None
    score: Score
    simulations: int
    share: float


class Controller:
    """Takes steps on its own copy of the network."""

    def __init__(self, place: Workplace, workers: int = 1) -> None:
        alone()
        os.environ["LOADMASTER_THREADS"] = str(workers)
        torch.set_num_threads(1)
        self.place = place

    def step(self, task: Task) -> Answer:
        place, policy = self.place, self.place.policy
        nn.utils.vector_to_parameters(torch.from_numpy(task.parameters.copy()), policy.parameters())
        policy.zero_grad()
        search = Search(place.problem, Budget(None, task.samples), place.seed)
        environment = Simulated(search, place.label, place.order, place.noise, place.failures)
        environment.rng = np.random.default_rng([place.seed, 3, task.number])
        rng = np.random.default_rng([place.seed, 2, task.number])
        rule = replace(place.rule, samples=task.samples)
        outcome = learn(policy, environment, rule, task.standing, rng, task.share)  # type: ignore[arg-type]
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters()]
        gradient = nn.utils.parameters_to_vector(slopes).numpy()
        return Answer(task.number, gradient, outcome, search.best, search.best_score, search.simulations, task.share)


def run(
    environment: Simulated,
    policy: nn.Module,
    rule: LearningRule,
    trained: bool = False,
    controllers: int = 1,
    workers: int = 1,
    over: Over = "processes",
) -> None:
    """Learns until the budget is spent; the search keeps the best plan. A trained policy is looked at first."""
    search, learner = environment.search, Learner(policy, rule)
    if trained:
        learner.begin_from(environment, np.random.default_rng([search.seed, 4]))
    if controllers == 1 and over == "processes":
        reinforce(learner, environment)
        return
    place = Workplace(
        environment.problem,
        policy,
        learner.rule,
        environment.label,
        environment.order,
        environment.noise,
        environment.failures,
        search.seed,
    )
    with _crew(place, controllers, workers, over) as crew:
        _serve(search, learner, crew, controllers)


class Crew(Protocol):
    """Where controllers run."""

    def submit(self, task: Task) -> None: ...

    def next(self) -> Answer: ...


def _serve(search: Search, learner: Learner, crew: Crew, controllers: int) -> None:
    """Hands out steps with the newest parameters and follows each gradient as it comes."""
    number = promised = under_way = 0
    cooling = Cooling(search)
    while True:
        while under_way < controllers and search.simulations_left > promised and not search.spent:
            samples = min(learner.rule.samples, search.simulations_left - promised)
            weights = nn.utils.parameters_to_vector(learner.policy.parameters()).detach().numpy().copy()
            crew.submit(Task(number, weights, replace(learner.standing), samples, cooling.share))
            number, promised, under_way = number + 1, promised + samples, under_way + 1
        if not under_way:
            return
        answer = crew.next()
        under_way, promised = under_way - 1, promised - answer.simulations
        search.count(answer.simulations)
        if answer.plan is not None:
            search.offer(answer.plan, answer.score)
        _follow(learner, answer)


def _follow(learner: Learner, answer: Answer) -> None:
    slopes, first = torch.from_numpy(answer.gradient), 0
    for parameter in learner.policy.parameters():
        parameter.grad = slopes[first : first + parameter.numel()].view_as(parameter).clone()
        first += parameter.numel()
    learner.follow(answer.outcome, answer.share)


@contextmanager
def _crew(place: Workplace, controllers: int, workers: int, over: Over) -> Iterator[Crew]:
    if over == "ray":
        yield _OnRay(place, controllers, workers)
        return
    fork = multiprocessing.get_context("fork")  # what the workplace holds need not travel
    with ProcessPoolExecutor(controllers, fork, _enter, (place, workers)) as pool:
        yield _Processes(pool)


_mine: list[Controller] = []  # of a process of the pool


def _enter(place: Workplace, workers: int) -> None:
    _mine[:] = [Controller(place, workers)]


def _step(task: Task) -> Answer:
    return _mine[0].step(task)


class _Processes:
    """Controllers as processes of this machine."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool
        self.waiting: set[Future[Answer]] = set()

    def submit(self, task: Task) -> None:
        self.waiting.add(self.pool.submit(_step, task))

    def next(self) -> Answer:
        done, _ = wait(self.waiting, return_when=FIRST_COMPLETED)
        first = min(done, key=lambda future: future.result().number)
        self.waiting.remove(first)
        return first.result()


class _OnRay:
    """Controllers as actors of a Ray cluster: the one this program is connected to, else one on this machine."""

    def __init__(self, place: Workplace, controllers: int, workers: int) -> None:
        self.ray = ray = connect(AUTO)
        shared, kind = ray.put(place), ray.remote(num_cpus=workers)(Controller)
        self.idle = [kind.remote(shared, workers) for _ in range(controllers)]
        self.waiting: dict[Any, Any] = {}

    def submit(self, task: Task) -> None:
        actor = self.idle.pop()
        self.waiting[actor.step.remote(task)] = actor

    def next(self) -> Answer:
        (first, *_), _ = self.ray.wait(list(self.waiting), num_returns=1)
        self.idle.append(self.waiting.pop(first))
        answer: Answer = self.ray.get(first)
        return answer
