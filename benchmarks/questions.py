"""The figures of docs/questions.md: python benchmarks/questions.py QUESTION [--evaluations N] [--seeds N].

Every question is one function that prints the rows of its table. Simulations are counted alike for all methods.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from loadmaster.columns import Ints, ints
from loadmaster.cost import price
from loadmaster.importers import load
from loadmaster.learn.decoding import critical_ranks, device_of_groups
from loadmaster.optimizers.grouping import GROUPERS, coarsen
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve
from loadmaster.simulate import simulate_many

MODELS = (
    ("inception-v3-b32", "2xp100-pcie"),
    ("transformer-xl-4", "4xp100-pcie"),
    ("wavenet-2x18", "2xp100-pcie"),
    ("rnnlm-2", "2xp100-pcie"),
    ("amoebanet-4", "4xp100-pcie"),
    ("nmt", "4xk80+1xcpu"),
)
GROUPS = 64


def problems() -> Iterator[tuple[str, Problem]]:
    for name, cluster in MODELS:
        yield f"{name} on {cluster}", price(load(f"zoo:{name}/train"), cluster)


def balance(evaluations: int, seeds: int) -> None:
    """Is load balance the right measure? Rank correlation of balance, and of bytes sent, with the step time."""
    for name, problem in problems():
        device = _mixed_plans(problem, evaluations)
        scores = simulate_many(problem, device, critical_ranks(problem, device))
        load_ns, sent = _loads(problem, device), _sent(problem, device)
        fair = load_ns.max(axis=1) / load_ns.sum(axis=1)
        good = np.argsort(scores.step_ns)[: evaluations // 5]
        figures = (_rank(fair, scores.step_ns), _rank(sent, scores.step_ns))
        among = (_rank(fair[good], scores.step_ns[good]), _rank(sent[good], scores.step_ns[good]))
        print(f"| {name} | {figures[0]:+.2f} | {figures[1]:+.2f} | {among[0]:+.2f} | {among[1]:+.2f} |", flush=True)


def _mixed_plans(problem: Problem, count: int) -> Ints:
    """[count, ops] placements from random to smooth: windows of the mirrored order of all widths, some groups moved."""
    rng = np.random.default_rng(0)
    label = coarsen(problem, GROUPS)
    rows = []
    for _ in range(count):
        window = coarsen(problem, int(rng.integers(problem.num_devices, GROUPS + 1)), "window")
        by_window = rng.integers(problem.num_devices, size=int(window.max()) + 1)[window]
        by_group = rng.integers(problem.num_devices, size=int(label.max()) + 1)[label]
        moved = rng.random(int(label.max()) + 1)[label] < rng.random()
        rows.append(np.where(moved, by_group, by_window))
    return device_of_groups(problem, ints(np.arange(problem.num_ops)), np.stack(rows))


def _loads(problem: Problem, device: Ints) -> NDArray[np.float64]:
    """[plans, devices] time of the ops on each device."""
    times = problem.op_ns[np.arange(problem.num_ops)[None], device]
    return np.stack(
        [np.bincount(row, time, problem.num_devices) for row, time in zip(device, times, strict=True)]
    ).astype(np.float64)


def _sent(problem: Problem, device: Ints) -> NDArray[np.float64]:
    """[plans] bytes that are read on another device than the one that made them, once for each device."""
    graph = problem.graph
    reader = np.repeat(np.arange(problem.num_ops), np.diff(graph.read_start))
    maker = graph.producer[graph.reads]
    inside = maker >= 0
    tensor, reader, maker = graph.reads[inside], reader[inside], maker[inside]
    total = []
    for row in device:
        apart = row[reader] != row[maker]
        pairs = np.unique(tensor[apart] * problem.num_devices + row[reader[apart]])
        total.append(graph.nbytes[pairs // problem.num_devices].sum())
    return np.array(total, np.float64)


def _rank(one: NDArray[np.generic], two: NDArray[np.generic]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(one, two).statistic)


def grouping(evaluations: int, seeds: int) -> None:
    """Which grouping is best? The same climb over groups made in five ways, 64 at most; step ms, mean of seeds."""
    for name, problem in problems():
        values = []
        for by in GROUPERS:
            label = coarsen(problem, GROUPS, by)
            values.append(np.mean([climb(problem, label, evaluations, seed) for seed in range(seeds)]) / 1e6)
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |", flush=True)


def climb(problem: Problem, label: Ints, evaluations: int, seed: int) -> int:
    """Moves of one group at a time, kept when not worse, from all on the fastest device; the best step in ns."""
    search = Search(problem, Budget(None, evaluations), seed)
    groups = int(label.max()) + 1
    place = np.full(groups, int(problem.op_ns.astype(np.float64).sum(axis=0).argmin()))
    best = _measure(search, label, place[None])[0]
    while not search.spent:
        tries = np.repeat(place[None], 8, axis=0)
        rows = np.arange(8)
        tries[rows, search.rng.integers(groups, size=8)] = search.rng.integers(problem.num_devices, size=8)
        values = _measure(search, label, tries)
        if min(values) <= best:
            best, place = min(values), tries[int(np.argmin(values))]
    return search.best_score.value


def _measure(search: Search, label: Ints, place: NDArray[np.integer]) -> list[tuple[int, int]]:
    device = device_of_groups(search.problem, label, place)
    over, value = search.score_many(device, critical_ranks(search.problem, device))
    return list(zip(over.tolist(), value.tolist(), strict=True))


def autotuning(evaluations: int, seeds: int) -> None:
    """How does this differ from autotuning? Equal evaluations over the same groups; step ms, mean of seeds."""
    specs = ("rnn", "placeto", "go-one", "anneal", "auto")
    for name, problem in problems():
        label = coarsen(problem, GROUPS)
        rows = [np.mean([way(problem, label, evaluations, s) for s in range(seeds)]) for way in (tpe, climb)]
        rows += [
            np.mean([solve(problem, spec, Budget(None, evaluations), s).value for s in range(seeds)]) for spec in specs
        ]
        print(f"| {name} | " + " | ".join(f"{value / 1e6:.1f}" for value in rows) + " |", flush=True)


def tpe(problem: Problem, label: Ints, evaluations: int, seed: int) -> int:
    """Bayesian optimisation by tree-structured Parzen estimators (Optuna), one categorical variable per group."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = Search(problem, Budget(None, evaluations), seed)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True))
    choices = list(range(problem.num_devices))
    while not search.spent:
        trials = [study.ask() for _ in range(min(8, search.room))]
        place = np.array(
            [[t.suggest_categorical(str(g), choices) for g in range(int(label.max()) + 1)] for t in trials]
        )
        for trial, (over, value) in zip(trials, _measure(search, label, place), strict=True):
            study.tell(trial, value / 1e6 + over / 1e3)
    return search.best_score.value


QUESTIONS: dict[str, Callable[[int, int], None]] = {"balance": balance, "grouping": grouping, "autotuning": autotuning}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=list(QUESTIONS))
    parser.add_argument("--evaluations", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    begun = time.monotonic()
    QUESTIONS[given.question](given.evaluations, given.seeds)
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
