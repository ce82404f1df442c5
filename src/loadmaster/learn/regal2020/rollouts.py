"""What the processes of a training run do: find elites, run BRKGA, run it under actions.

Jobs are functions of plain data, named by example and seed, so that results do not depend on which process ran them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from loadmaster.baselines.genetic.brkga import Brkga
from loadmaster.learn import examples
from loadmaster.learn.examples import Elite, Key
from loadmaster.learn.regal2020.actions import STANDARD, RegalAction, constant_action
from loadmaster.learn.regal2020.method import Regal, run_action
from loadmaster.papers.features import Features
from loadmaster.search import Budget, Search

ALONE = Regal(hedge=0, patience=0, finish=None)


def compile_all(line: int) -> None:
    """Calls what the processes will call, so that it is compiled once, before they part."""
    for setting in ("regal", "bandwidth"):
        key = Key(line, 0, setting)
        examples.find_elite(key, 100)
        action_job((key, [constant_action(examples.make_features(key), STANDARD)], 0, 8))
        standard_job((key, 8))


def in_order(pool: Executor, function: Callable[[Any], Any], jobs: Iterable[Any], window: int) -> Iterator[Any]:
    """Results in the order of the jobs, with at most `window` of them under way."""
    waiting: deque[Future[Any]] = deque()
    for job in jobs:
        waiting.append(pool.submit(function, job))
        if len(waiting) >= window:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def elite_job(job: tuple[Key, Elite | int | None, int]) -> tuple[Key, Elite | None, Features | None]:
    key, known, simulations = job
    elite = examples.find_elite(key, simulations) if isinstance(known, int) else known
    return key, elite, None if elite is None else examples.make_features(key)


def features_job(key: Key) -> Features:
    return examples.make_features(key)


def standard_job(job: tuple[Key, int]) -> int:
    """What standard BRKGA reaches."""
    key, evaluations = job
    search = Search(examples.make_problem(key), Budget(None, evaluations), 1)
    Brkga(evaluations=evaluations).optimize(search)
    return _value(search)


def action_job(job: tuple[Key, list[RegalAction], int, int], settings: Regal = ALONE) -> list[int]:
    """What BRKGA reaches under each action alone, so that what it is worth shows."""
    key, actions, seed, evaluations = job
    values = []
    for action in actions:
        search = Search(examples.make_problem(key), Budget(None, evaluations), seed)
        run_action(search, examples.make_features(key), action, settings, evaluations)
        values.append(_value(search))
    return values


def whole_job(job: tuple[Key, list[RegalAction], int, int]) -> list[int]:
    """What the method reaches with each action, hedged as it ships, but with BRKGA to the end."""
    return action_job(job, Regal(finish=None))


def _value(search: Search) -> int:
    """The objective; a plan that does not fit counts double and what it is over by."""
    score = search.best_score
    return max(1, score.value if not score.over_bytes else 2 * score.value + score.over_bytes)
