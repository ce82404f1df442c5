"""The figures of docs/questions.md: python benchmarks/questions.py QUESTION [--evaluations N] [--seeds N].

Every question is one function that prints the rows of its table. Simulations are counted alike for all methods.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadmaster.columns import Ints, ints
from loadmaster.cost import price
from loadmaster.graph import Graph
from loadmaster.importers import load
from loadmaster.learn.decoding import critical_ranks, device_of_groups
from loadmaster.learn.features import features_of
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


def visiting(evaluations: int, seeds: int) -> None:
    """Does the order of visiting matter? Placeto with each order of visits; step ms, mean of seeds."""
    _specs([f"placeto:traversal={order}" for order in ("topological", "reverse", "random")], evaluations, seeds)


def failing(evaluations: int, seeds: int) -> None:
    """What happens when a placement fails? Measurements that fail at random; step ms, mean of seeds."""
    chances = (0, 0.1, 0.3)
    _specs([f"{name}:failures={chance}" for name in ("rnn", "placeto") for chance in chances], evaluations, seeds)


def noise(evaluations: int, seeds: int) -> None:
    """Noise on what the policy measures, as deviation of the logarithm; the plan is judged without; step ms."""
    _specs([f"{name}:noise={amount}" for name in ("rnn", "placeto") for amount in (0, 0.1, 0.3)], evaluations, seeds)


def _specs(specs: list[str], evaluations: int, seeds: int) -> None:
    print("| problem | " + " | ".join(specs) + " |")
    for name, problem in problems():
        values = [
            np.mean([solve(problem, spec, Budget(None, evaluations), seed).value for seed in range(seeds)]) / 1e6
            for spec in specs
        ]
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |", flush=True)


def transfer(evaluations: int, seeds: int) -> None:
    """Why do some policies fail to transfer? What REGAL leaves of the headroom against the distance to what it was
    trained on. Reads the corpora beside the checkout, and the records that `bench regal --out results` has left."""
    shared = Path(os.environ.get("LOADMASTER_SHARED", "../shared")) / "corpus"
    trained = np.stack([_portrait(graph) for graph in _training_graphs(shared / "train.jsonl.xz", every=2)])
    middle, spread = trained.mean(axis=0), trained.std(axis=0) + 1e-6
    values: dict[str, dict[str, list[int]]] = {}
    for line in Path("results/regal.jsonl").read_text().splitlines():
        record = json.loads(line)
        values.setdefault(record["graph"], {}).setdefault(record["spec"], []).append(record["value"])
    rows = []
    for graph in _training_graphs(shared / "valid.jsonl.xz", every=1):
        known = values.get(graph.digest, {})
        if "regal" in known and "brkga-5k" in known:
            apart = np.abs((_portrait(graph) - middle) / spread - (trained - middle) / spread).mean(axis=1).min()
            rows.append((apart, 100 * (1 - np.mean(known["regal"]) / np.mean(known["brkga-5k"]))))
    table = np.array(sorted(rows))
    for part in np.array_split(table, 4):
        low, high = part[:, 0].min(), part[:, 0].max()
        gain, share = part[:, 1].mean(), (part[:, 1] > 0).mean()
        print(f"| {low:.2f} to {high:.2f} | {len(part)} | {gain:+.2f} % | {share:.0%} | {part[:, 1].min():+.1f} % |")
    print(f"rank correlation of distance and improvement {_rank(table[:, 0], table[:, 1]):+.2f}")


def _training_graphs(path: Path, every: int) -> Iterator[Graph]:
    from loadmaster.files import load_records

    number = 0
    for graph, origin in load_records(path):
        if origin.get("mode") == "training":
            if number % every == 0:
                yield graph
            number += 1


def _portrait(graph: Graph) -> NDArray[np.float64]:
    """A graph as REGAL's policy sees it, in the mean: its own columns, and those of its ops."""
    features = features_of(price(graph, "regal", objective="peak-memory"))
    return np.concatenate([features.graph, features.ops.mean(axis=0), features.ops.std(axis=0)]).astype(np.float64)


QUESTIONS: dict[str, Callable[[int, int], None]] = {
    "balance": balance,
    "grouping": grouping,
    "autotuning": autotuning,
    "visiting": visiting,
    "failing": failing,
    "noise": noise,
    "transfer": transfer,
}


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
