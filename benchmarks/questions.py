"""The figures of docs/questions.md: python benchmarks/questions.py QUESTION [--evaluations N] [--seeds N] [--limit N].

Every question is one function that prints the rows of its table. Simulations are counted alike for all methods; `race`
is one of seconds: [--seconds S]. With a limit, the first N problems alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.bench.rows import Source, SuiteRow, go_rows
from loadmaster.catalog.specs import make_method
from loadmaster.cost import price
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.importers import load
from loadmaster.papers.decoding import critical_ranks, device_of_groups
from loadmaster.papers.features import features_of
from loadmaster.passes.groups import GROUPERS, group_ops
from loadmaster.problem import Problem
from loadmaster.search import Budget, Method, Moment, Score, Search, solve
from loadmaster.simulator import simulate_many
from loadmaster.zoo.synthetic import generate

MODELS = (
    ("inception-v3-b32", "2xp100-pcie"),
    ("transformer-xl-4", "4xp100-pcie"),
    ("wavenet-2x18", "2xp100-pcie"),
    ("rnnlm-2", "2xp100-pcie"),
    ("amoebanet-4", "4xp100-pcie"),
    ("nmt", "4xk80+1xcpu"),
)
GROUPS = 64


def problems(limit: int | None) -> Iterator[tuple[str, Problem]]:
    for name, cluster in MODELS[:limit]:
        yield f"{name} on {cluster}", price(load(f"zoo:{name}/train"), cluster)


def balance(evaluations: int, seeds: int, limit: int | None) -> None:
    """Is load balance the right measure? Rank correlation of balance, and of bytes sent, with the step time."""
    for name, problem in problems(limit):
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
    label = group_ops(problem, GROUPS)
    rows = []
    for _ in range(count):
        window = group_ops(problem, int(rng.integers(problem.num_devices, GROUPS + 1)), "window")
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


def grouping(evaluations: int, seeds: int, limit: int | None) -> None:
    """Which grouping is best? The same climb over groups made in five ways, 64 at most; step ms, mean of seeds."""
    for name, problem in problems(limit):
        values = []
        for by in GROUPERS:
            label = group_ops(problem, GROUPS, by)
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


def autotuning(evaluations: int, seeds: int, limit: int | None) -> None:
    """How does this differ from autotuning? Equal evaluations over the same groups; step ms, mean of seeds."""
    specs = ("rnn", "placeto", "go-one", "anneal", "placement")
    for name, problem in problems(limit):
        label = group_ops(problem, GROUPS)
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
        trials = [study.ask() for _ in range(min(8, search.simulations_left))]
        place = np.array(
            [[t.suggest_categorical(str(g), choices) for g in range(int(label.max()) + 1)] for t in trials]
        )
        for trial, (over, value) in zip(trials, _measure(search, label, place), strict=True):
            study.tell(trial, value / 1e6 + over / 1e3)
    return search.best_score.value


def visiting(evaluations: int, seeds: int, limit: int | None) -> None:
    """Does the order of visiting matter? Placeto with each order of visits; step ms, mean of seeds."""
    _specs([f"placeto:traversal={order}" for order in ("topological", "reverse", "random")], evaluations, seeds, limit)


def failing(evaluations: int, seeds: int, limit: int | None) -> None:
    """What happens when a placement fails? Measurements that fail at random; step ms, mean of seeds."""
    chances = (0, 0.1, 0.3)
    specs = [f"{name}:failures={chance}" for name in ("rnn", "placeto") for chance in chances]
    _specs(specs, evaluations, seeds, limit)


def noise(evaluations: int, seeds: int, limit: int | None) -> None:
    """Noise on what the policy measures, as deviation of the logarithm; the plan is judged without; step ms."""
    specs = [f"{name}:noise={amount}" for name in ("rnn", "placeto") for amount in (0, 0.1, 0.3)]
    _specs(specs, evaluations, seeds, limit)


def learning(evaluations: int, seeds: int, limit: int | None) -> None:
    """What does learning on the graph add? Each method beside itself without a step of learning; step ms, mean of
    seeds."""
    still = {"rnn": "rate=0", "hdp": "rate=0", "placeto": "rate=0,last_rate=0", "go-one": "rate=0"}
    _specs([spec for name, control in still.items() for spec in (name, f"{name}:{control}")], evaluations, seeds, limit)


def fusing(evaluations: int, seeds: int, limit: int | None) -> None:
    """What could a policy gain that says in one pass what to fuse? Percent over the expert without fusion, on its
    placement and order: greedy, the best of that and eight at random, a search; what the search has over those nine."""
    gaps = []
    for row in go_rows(Source(limit=limit)):
        problem = price(row.graph(), row.cluster)
        expert = solve(problem, "expert", Budget(None, 1)).value
        greedy = solve(problem, "greedy-fusion:inner=expert", Budget(None, 2)).value
        nine = min(greedy, solve(problem, "random-fusion:inner=expert", Budget(None, 8)).value)
        found = [
            solve(problem, "anneal-fusion:inner=expert", Budget(None, evaluations), seed).value for seed in range(seeds)
        ]
        searched = min(nine, *found)
        gaps.append(np.log(nine / searched))
        cells = " | ".join(f"{100 * (expert / value - 1):+.1f} %" for value in (greedy, nine, searched))
        print(f"| {row.name} | {cells} | {100 * (nine / searched - 1):+.2f} % |", flush=True)
    print(f"left for a policy, geometric mean: {100 * (np.exp(np.mean(gaps)) - 1):+.2f} %")


def _specs(specs: list[str], evaluations: int, seeds: int, limit: int | None) -> None:
    print("| problem | " + " | ".join(specs) + " |")
    for name, problem in problems(limit):
        values = [
            np.mean([solve(problem, spec, Budget(None, evaluations), seed).value for seed in range(seeds)]) / 1e6
            for spec in specs
        ]
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |", flush=True)


def transfer(evaluations: int, seeds: int, limit: int | None) -> None:
    """Why do some policies fail to transfer? What REGAL leaves of the headroom against the distance to what it was
    trained on. Reads the corpora beside the checkout, and the records that `bench regal --out results` has left."""
    shared = Path(os.environ.get("LOADMASTER_SHARED", "../shared")) / "corpus"
    trained = np.stack([_portrait(graph) for graph in _training_graphs(shared / "train.jsonl.xz", every=2)])
    middle, spread = trained.mean(axis=0), trained.std(axis=0) + 1e-6
    values: dict[str, dict[str, list[int]]] = {}
    if not Path("results/regal.jsonl").exists():
        sys.exit("there are no records in results/regal.jsonl: run loadmaster lab bench regal first")
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


class _Reached(Exception):
    """The target of a race."""


class Heat(NamedTuple):
    """One problem of a race: the best of the first method and when it had it, when each other was there, if ever."""

    name: str
    target: Moment
    reached: tuple[Moment | None, ...]

    def ratio(self, other: int) -> float:
        """How many times sooner; 0 for never."""
        at = self.reached[other]
        return self.target.seconds / max(1e-3, at.seconds) if at else 0.0


def race(seconds: float, limit: int | None) -> None:
    """How much sooner does GO reach HDP's best? Both alone on each of GO's workloads, seed 0, for so many seconds; the
    seconds of loading compiled loops and weights are nobody's."""
    others = ("go-one", "go")
    small = price(next(iter(generate("layered", 1, 1, (60, 60)))), "2xp100-pcie")
    for spec in ("hdp", *others):
        run_until(small, spec, Budget(1.0, 200))
    print("| workload | HDP's best, ms | at, s | " + " | ".join(f"{o}, s | times sooner" for o in others) + " |")
    heats = []
    for row in go_rows(Source(limit=limit)):
        heats.append(heat(row, "hdp", others, Budget(seconds)))
        print(_line(heats[-1]), flush=True)
    for number, other in enumerate(others):
        ratios = [each.ratio(number) for each in heats]
        there = sum(ratio > 0 for ratio in ratios)
        print(f"{other}: there on {there} of {len(heats)}, {np.median(ratios):.1f} times as soon in the median")


def heat(row: SuiteRow, first: str, others: Sequence[str], budget: Budget) -> Heat:
    problem = price(row.graph(), row.cluster, objective=row.objective)
    history = run_until(problem, first, budget)
    target = min(history, key=lambda moment: moment.score)
    return Heat(row.name, target, tuple(first_at(problem, spec, budget, target.score) for spec in others))


def first_at(problem: Problem, method: Method | str, budget: Budget, target: Score) -> Moment | None:
    """When a method first is as good as that, or better."""
    history = run_until(problem, method, budget, target)
    return next((moment for moment in history if moment.score <= target), None)


def run_until(problem: Problem, method: Method | str, budget: Budget, target: Score | None = None) -> list[Moment]:
    """The improvements of a run, which ends soon after it is as good as the target."""

    def stop(part: Search) -> None:
        if target is not None and part.problem is problem and part.best_score <= target:
            raise _Reached

    search = Search(problem, budget, 0, listener=stop)
    with suppress(_Reached):
        chosen = make_method(method) if isinstance(method, str) else method
        search.score(chosen.optimize(search))
    return search.history


def _line(heat: Heat) -> str:
    cells = [f"{heat.target.score.value / 1e6:.1f}", f"{heat.target.seconds:.1f}"]
    for number, at in enumerate(heat.reached):
        cells += [f"{at.seconds:.2f}", f"{heat.ratio(number):.1f}"] if at else ["never", "0"]
    return f"| {heat.name} | " + " | ".join(cells) + " |"


QUESTIONS: dict[str, Callable[[int, int], None]] = {
    "balance": balance,
    "grouping": grouping,
    "autotuning": autotuning,
    "visiting": visiting,
    "failing": failing,
    "fusing": fusing,
    "learning": learning,
    "noise": noise,
    "transfer": transfer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=[*QUESTIONS, "race"])
    parser.add_argument("--evaluations", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each method on each workload of the race")
    parser.add_argument("--limit", type=int, help="so many problems, the first ones")
    given = parser.parse_args()
    begun = time.monotonic()
    if given.question == "race":
        race(given.seconds, given.limit)
    else:
        QUESTIONS[given.question](given.evaluations, given.seeds, given.limit)
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
