"""Is `placement` the best of its parts, and `auto` of all? All searches on the rows of some suites, over budgets.

    python benchmarks/quality.py FOLDER [--rows go:0,1 placeto:0,1] [--budgets 100 1000 6s] [--seeds 5] [--workers 2]

Each run is one call of `solve` on one thread, or `--threads`, in a warm worker process. FOLDER/quality.csv gets a
line for each run and is gone on from when the command is given again. Two tables say, for each suite and budget,
placement ÷ the best of the other methods that fuse nothing, and auto ÷ the best of all, and on which rows they are
behind: seed by seed, against the best of as many draws as there are methods; and over the seeds that all have run, the
mean against that of the method that is best in the mean, which is what somebody who cannot know the seed is told. With
three seeds or more a third table has each seed against the method that is best on the other seeds of the row: to be
chosen by the values that it is then compared by makes the best of several look better than it is. A line for each
budget says on how many rows a method that is exactly as good as the best other would be behind by chance: fewer cannot
be told from none with so many seeds. A last table says how often each method is within 0.5 % of the best of all.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import cache
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import stdev
from typing import Any

SUITES = ("go", "placeto", "synthetic-time", "synthetic-unlike", "zoo")
BUDGETS = ("100", "300", "1000", "3000", "2s", "6s", "15s")
METHODS = (
    *("placement", "local-search", "local-search:start=expert", "anneal", "anneal:start=expert"),
    *("brkga", "brkga:by=edges,blocks=64"),
)
SHOTS = (  # their plans depend on no seed and no budget: each is made once for a row
    *("heft", "etf", "cpop", "sct", "expert", "pipeline", "metis", "gp-dfs", "rolling", "memory-order", "m-etf"),
    *("m-heft", "one-device"),
)
ONCE = "once"  # their budget
GENERATED = ("synthetic-regal", "synthetic-unlike")  # peak memory, two devices and four
LEARNED = {  # policies, each on the suites that its paper is about
    **dict.fromkeys(("regal", "gas"), ("regal", "regal-unlike", "regal-time", "zoo", *GENERATED)),
    **dict.fromkeys(("placeto", "placeto:checkpoint=none"), ("placeto",)),
    **dict.fromkeys(("go-one", "go:finetune=50"), ("go",)),
}
FUSING = (
    *("auto", "joint", "separate", "anneal-fusion", "greedy-fusion:inner=placement"),
    "greedy-fusion:inner=[anneal:start=expert]",
)
FOCI: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("placement", FUSING),
    ("auto", ()),
)  # who is compared, and with whom not
BEHIND = 1.005  # times the best other
TWINS = 400  # draws
COLUMNS = ("suite", "row", "ops", "budget", "seed", "method", "over", "value", "simulations", "seconds")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("folder", type=Path)
    given.add_argument("--suites", nargs="+", default=list(SUITES))
    given.add_argument("--budgets", nargs="+", default=list(BUDGETS))
    given.add_argument("--methods", nargs="+", default=[*METHODS, *SHOTS, *LEARNED, *FUSING])
    given.add_argument("--limit", type=int, default=12, help="rows of each suite")
    given.add_argument("--numbers", nargs="+", type=int, help="of the rows, from 0; in place of --limit")
    given.add_argument("--rows", nargs="+", help="SUITE:NUMBER,NUMBER…, in place of --suites and --numbers")
    given.add_argument("--seeds", type=int, default=1)
    given.add_argument("--workers", type=int, default=2)
    given.add_argument("--threads", type=int, default=1, help="of each worker")
    given.add_argument("--stop", type=float, default=1e9, help="no run begins so many seconds after loops are compiled")
    words = given.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    path = words.folder / "quality.csv"
    done = read(path)
    jobs = [job for job in wanted(words) if job not in done]
    compile_all(words.methods)
    run_all(jobs, path, words.workers, words.threads, time.monotonic() + words.stop)
    show(path)


Job = tuple[str, int, str, int, str]  # suite, number of the row, budget, seed, method


def wanted(words: argparse.Namespace) -> list[Job]:
    """One seed after another, so that what there is time for is whole; of each the long runs first."""
    seconds = {text: float(text[:-1]) if text.endswith("s") else int(text) / 1000 for text in words.budgets}
    runs = [(0, ONCE)]
    runs += [
        (seed, budget) for seed in range(words.seeds) for budget in sorted(seconds, key=lambda text: -seconds[text])
    ]
    return [
        (suite, number, budget, seed, method)
        for seed, budget in runs
        for suite, number in _chosen(words)
        for method in words.methods
        if (method in SHOTS) == (budget == ONCE) and _asked(method, suite)
    ]


def _asked(method: str, suite: str) -> bool:
    """Policies where they belong, all others everywhere."""
    return suite in LEARNED.get(method, (suite,))


def _chosen(words: argparse.Namespace) -> list[tuple[str, int]]:
    if words.rows:
        given = (text.partition(":")[::2] for text in words.rows)
        return [(suite, int(number)) for suite, numbers in given for number in numbers.split(",")]
    return [(suite, number) for suite in words.suites for number in words.numbers or range(words.limit)]


@cache
def rows(suite: str, limit: int) -> list[object]:
    from loadmaster.bench.rows import Source
    from loadmaster.bench.suite import SUITES

    return list(SUITES[suite].rows(Source(limit=limit)))


@cache
def problem_of(suite: str, number: int) -> object:
    from loadmaster.cost import price

    found = rows(suite, 1000 if suite in ("go", "placeto") else 30)
    if number >= len(found):
        return None
    row = found[number]
    return row.name, price(row.graph(), row.cluster, objective=row.objective)  # type: ignore[attr-defined]


def run_one(job: Job) -> tuple[object, ...] | None:
    from loadmaster.search import Budget, solve

    suite, number, budget, seed, method = job
    found = problem_of(suite, number)
    if found is None:
        return None
    name, problem = found  # type: ignore[misc]
    if budget == ONCE:
        budget = "100"
    limit = Budget(float(budget[:-1]), None) if budget.endswith("s") else Budget(None, int(budget))
    result = solve(problem, method, limit, seed)
    spent = (result.simulations, round(result.seconds, 2))
    return suite, f"{number} {name}", problem.num_ops, job[2], seed, method, *result.score, *spent


def begin(threads: int, places: Any = None) -> None:
    """Of a worker; where it has several threads, it also has cores of its own."""
    os.environ["LOADMASTER_THREADS"], os.environ["OMP_NUM_THREADS"] = str(threads), "1"
    if threads > 1 and places is not None:
        with places.get_lock():
            mine, places.value = places.value, places.value + 1
        every = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {every[(mine * threads + core) % len(every)] for core in range(threads)})


def compile_all(methods: list[str]) -> None:
    """Compiled loops are made once, here; the workers read them from the cache."""
    from loadmaster.catalog.specs import make_method
    from loadmaster.cluster import Cluster
    from loadmaster.errors import MissingExtra
    from loadmaster.search import warm_up

    clock = time.monotonic()
    for objective in ("step-time", "peak-memory"):
        for method in methods:
            with suppress(MissingExtra):  # its runs are told one by one
                warm_up(make_method(method), Cluster.preset("2xp100-pcie"), objective)
    print(f"loops are compiled or loaded after {time.monotonic() - clock:.0f} s", flush=True)


def run_all(jobs: list[Job], path: Path, workers: int, threads: int, until: float) -> None:
    begin(threads)
    spawn = get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, begin, (threads, spawn.Value("i", 0)))
    with pool, path.open("a", newline="") as out:
        write = csv.writer(out)
        if path.stat().st_size == 0:
            write.writerow(COLUMNS)
        waiting = {pool.submit(_unless_late, job, until - time.monotonic() + time.time()) for job in jobs}
        for count, ready in enumerate(as_completed(waiting)):
            try:
                line = ready.result()
            except Exception as error:  # one method that fails on one row is told, and the rest goes on
                print("failed:", repr(error)[:200], flush=True)
                continue
            if line is not None:
                write.writerow(line)
                out.flush()
            if count % 100 == 99:
                print(f"{count + 1} of {len(jobs)} runs", flush=True)


def _unless_late(job: Job, until: float) -> tuple[object, ...] | None:
    return run_one(job) if time.time() < until else None


def read(path: Path) -> set[Job]:
    if not path.exists():
        return set()
    with path.open() as lines:
        return {
            (line["suite"], int(line["row"].split()[0]), line["budget"], int(line["seed"]), line["method"])
            for line in csv.DictReader(lines)
        }


Values = dict[str, dict[int, tuple[int, int]]]  # of a row under a budget: method, seed, score


def show(path: Path) -> None:
    """A line for each row and budget where one of them is behind, and summaries for each suite and budget."""
    found: dict[tuple[str, str, str], Values] = defaultdict(lambda: defaultdict(dict))
    with path.open() as lines:
        for line in csv.DictReader(lines):
            key = (line["suite"], line["budget"], line["row"])
            found[key][line["method"]][int(line["seed"])] = (int(line["over"]), int(line["value"]))
    _repeat_shots(found)
    for title, compare in (("seed by seed", _by_seed), ("over seeds", _over_seeds), ("held out", _held_out)):
        ratios: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for (suite, budget, row), values in sorted(found.items()):
            for focus, left_out in FOCI:
                for seed, best, ratio in compare(values, focus, {focus, *left_out}):
                    for name in (suite, "all"):
                        ratios[name, budget, focus].append(ratio)
                    if ratio > BEHIND:
                        print(f"behind, {title}: {suite} {row}, {budget}{seed}: {focus} {ratio:.4f} of {best}")
        _summary(title, ratios)
    _twins(found)
    _near(found)


def _twins(found: dict[tuple[str, str, str], Values]) -> None:
    """On how many rows a twin of the best other method would be behind over the seeds: its values, and those of all
    others, are drawn again from the seeds that there are."""
    behind: dict[tuple[str, str], list[float]] = defaultdict(list)
    rng = Random(0)
    for (_, budget, _), values in sorted(found.items()):
        for focus, left_out in FOCI:
            seeds = sorted(values.get(focus, {}))
            others = {m: some for m, some in values.items() if m not in (focus, *left_out) and set(seeds) <= set(some)}
            if len(seeds) >= 3 and others:
                behind[budget, focus].append(_late(rng, others, seeds))
    for (budget, focus), some in behind.items():
        count = f"{sum(some):.1f} of {len(some)} rows"
        print(f"{budget}, {focus}: a twin of the best other would be behind on {count}")


def _late(rng: Random, others: Values, seeds: list[int]) -> float:
    """How often the twin is behind by more than 0.5 %."""
    best = min(others, key=lambda method: _mean_score(others[method], seeds))
    late = 0
    for _ in range(TWINS):
        mine, theirs = rng.choices(seeds, k=len(seeds)), rng.choices(seeds, k=len(seeds))
        rival = min(_mean_score(some, theirs) for some in others.values())
        late += _ratio(_mean_score(others[best], mine), rival) > BEHIND
    return late / TWINS


def _near(found: dict[tuple[str, str, str], Values]) -> None:
    """How often each method that fuses nothing is within 0.5 % of the best of them all, seed by seed, and its mean over
    that best: what the figures of one method mean shows beside those of the others."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (_, budget, _), values in found.items():
        plain = {method: some for method, some in values.items() if method not in FUSING}
        for seed in {seed for some in plain.values() for seed in some} if budget != ONCE else ():
            scores = {method: some[seed] for method, some in plain.items() if seed in some}
            for method, score in scores.items():
                ratios[budget, method].append(_ratio(score, min(scores.values())))
    print("| budget | method | runs | within 0.5 % of the best of all | mean over it |\n|---|---|--:|--:|--:|")
    for (budget, method), some in sorted(ratios.items(), key=lambda item: (item[0][0], _mean(item[1]))):
        near = sum(ratio <= BEHIND for ratio in some) / len(some)
        print(f"| {budget} | {method} | {len(some)} | {near:.0%} | {_mean(some):.3f} |")


def _repeat_shots(found: dict[tuple[str, str, str], Values]) -> None:
    """What was made once counts under every budget and for every seed."""
    for suite, budget, row in [key for key in found if key[1] != ONCE]:
        values = found[suite, budget, row]
        seeds = {seed for some in values.values() for seed in some}
        for method, some in found.get((suite, ONCE, row), {}).items():
            values[method] = dict.fromkeys(seeds, some[0])


def _by_seed(values: Values, focus: str, left_out: set[str]) -> Iterator[tuple[str, str, float]]:
    for seed, mine in sorted(values.get(focus, {}).items()):
        others = {method: some[seed] for method, some in values.items() if method not in left_out and seed in some}
        if others:
            best = min(others, key=lambda method: others[method])
            yield f", seed {seed}", best, _ratio(mine, others[best])


def _over_seeds(values: Values, focus: str, left_out: set[str]) -> Iterator[tuple[str, str, float]]:
    """Once: geometric means over the seeds that the focus has run; methods that lack one of them do not count."""
    seeds = sorted(values.get(focus, {}))
    if not seeds:
        return
    means = {method: _mean_score(some, seeds) for method, some in values.items() if set(seeds) <= set(some)}
    others = {method: mean for method, mean in means.items() if method not in left_out}
    if others:
        best = min(others, key=lambda method: others[method])
        yield f", {len(seeds)} seeds", best, _ratio(means[focus], others[best])


def _held_out(values: Values, focus: str, left_out: set[str]) -> Iterator[tuple[str, str, float]]:
    """Once: the geometric mean, over seeds, of the focus over the method that is best in the mean of the others."""
    seeds = sorted(values.get(focus, {}))
    others = {method: some for method, some in values.items() if method not in left_out and set(seeds) <= set(some)}
    if len(seeds) < 3 or not others:
        return
    ratios, chosen = [], []
    for seed in seeds:
        rest = [other for other in seeds if other != seed]
        best = min(others, key=lambda method: _mean_score(others[method], rest))
        ratios.append(_ratio(values[focus][seed], others[best][seed]))
        chosen.append(best)
    error = stdev(map(log, ratios)) / len(seeds) ** 0.5
    yield f", {len(seeds)} seeds, ± {100 * error:.1f} %", " or ".join(dict.fromkeys(chosen)), _mean(ratios)


def _mean_score(some: dict[int, tuple[int, int]], seeds: list[int]) -> tuple[float, float]:
    return sum(some[seed][0] for seed in seeds) / len(seeds), _mean([max(1, some[seed][1]) for seed in seeds])


def _ratio(mine: tuple[float, float], theirs: tuple[float, float]) -> float:
    return mine[1] / max(1, theirs[1]) if mine[0] == theirs[0] else (0.5 if mine < theirs else 2.0)


def _mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def _summary(title: str, ratios: dict[tuple[str, str, str], list[float]]) -> None:
    print(f"| {title}: suite | budget | method | rows | mean of ÷ best other | worst | behind by over 0.5 % |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for (suite, budget, focus), values in sorted(ratios.items()):
        behind = sum(value > BEHIND for value in values)
        print(f"| {suite} | {budget} | {focus} | {len(values)} | {_mean(values):.4f} | {max(values):.3f} | {behind} |")


if __name__ == "__main__":
    main()
