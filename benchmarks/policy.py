"""What a learned list scheduler is worth: how far a search of 1 or 5 s is from a long one, training, and the search
with the policy beside the search without it and beside controls.

    python benchmarks/policy.py headroom OUT [--sets large,tight,small] [--workers 4] [--seconds 400]
    python benchmarks/policy.py train OUT [--corpus FILE] [--workers 10] [--plans 160] [--search 90] [--proposing 100]
    python benchmarks/policy.py measure OUT [--weights FILE] [--sets …] [--workers 12] [--seconds 400]
    python benchmarks/policy.py lists OUT --corpus FILE [--weights FILE]
    python benchmarks/policy.py summary OUT

OUT keeps a line per run; a command that is repeated goes on where it stopped, and no run is begun after `--seconds`.
One thread each. `large`: 10,000 to 60,000 ops. `tight`: 1.1 to 1.5 times the least memory, equal and unlike devices.
`small`: under 6,000 ops. None of these graphs, nor their families, are trained on.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LARGE = (
    ("zoo:gnmt-8/train", "8xp100-pcie"),
    ("zoo:rnnlm-8/train", "8xp100-pcie"),
    ("zoo:gnmt-4/train", "4xp100-pcie"),
    ("zoo:gnmt-8/infer", "8xp100-pcie"),
    ("zoo:gnmt-8/train", "4xp100-pcie+4xk80"),
    ("zoo:gnmt-4/train", "8xa100-nvlink"),
    ("zoo:rnnlm-8/train", "4xp100-pcie+4xk80"),
    ("layered:12000:16", "8xp100-pcie"),
    ("layered:24000:32", "16xp100-pcie"),
    ("layered:50000:32", "16xp100-pcie"),
    ("branching:6000:1", "8xp100-pcie"),
    ("branching:12000:2", "4xp100-pcie+4xk80"),
    ("branching:20000:3", "8xa100-nvlink"),
    ("built:amoebanet:60", "8xp100-pcie"),
    ("built:rnnlm:6x80", "8xp100-pcie"),
    ("built:gnmt:3x60", "6xp100-pcie"),
)
TIMES = (1.25, 1.1, 1.5)
SMALL = (
    ("zoo:transformer-xl-4/train", "4xp100-pcie"),
    ("zoo:vit-base/train", "4xp100-pcie"),
    ("zoo:resnet50/train", "4xp100-pcie"),
    ("zoo:inception-v3-b32/train", "2xp100-pcie"),
    ("zoo:wavenet-2x18/train", "2xp100-pcie"),
    ("zoo:bert-base/train", "2xa100-nvlink+2xp100-pcie"),
    ("zoo:t5-base/train", "4xp100-pcie"),
    ("zoo:rnnlm-2/train", "2xp100-pcie"),
    ("zoo:amoebanet-4/train", "4xp100-pcie"),
    ("zoo:gpt2/train", "4xp100-pcie"),
    ("zoo:unet-ddpm/train", "8xp100-pcie"),
    ("zoo:nasnet/train", "4xp100-pcie+4xk80"),
)
# As many further plans by rules, in place of what the policy makes.
MORE = "[best-of:of=[rolling,[heft:thrift=0.5],[heft:thrift=1],[heft:thrift=0.5,memory=yes],m-sct]]"
COUNTED = 50  # budgets from here on are simulations, not seconds
LONG = (1.0, 5.0, 30.0)
GROUPS, WRONG = (64, 256, 1024), (0.05, 0.2)  # of imitators
ROWS = ("set", "problem", "cluster", "ops", "devices", "variant", "budget", "seed", "value", "over", "simulations")


class Job(NamedTuple):
    """All runs on one problem with one seed."""

    kind: str
    problem: str
    cluster: str
    seed: int


def problem_of(job: Job) -> Any:
    """Priced; graphs of models are captured or read here."""
    from loadmaster.bench.rows import LEAST_BYTES
    from loadmaster.cluster import Cluster
    from loadmaster.cost import price
    from loadmaster.importers import load

    kind, _, rest = job.problem.partition(":")
    cluster = Cluster.of(job.cluster)
    if job.kind == "tight":
        name, times = rest.split("@")
        small = tuple(
            replace(device, memory_bytes=int(np.ceil(float(times) * LEAST_BYTES[name][1])))
            for device in cluster.devices
        )
        return price(load(f"zoo:{name}/train"), replace(cluster, devices=small))
    if kind == "zoo":
        return price(load(job.problem), cluster)
    return price(_made(kind, rest), cluster)


def _made(kind: str, rest: str) -> Any:
    if kind == "layered":
        import tempfile

        from scale import layered

        from loadmaster import load

        ops, widest = map(int, rest.split(":"))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "layered.json"
            path.write_text("".join(layered(ops, widest, seed=7)))
            return load(path)
    if kind == "branching":
        from loadmaster.learn.go2020.drawing import branching_step

        most, seed = map(int, rest.split(":"))
        return branching_step(np.random.default_rng([seed, 99]), most)
    from loadmaster.zoo.capture import capture_entry
    from loadmaster.zoo.entry import ZooEntry

    name, size = rest.split(":")
    if name == "amoebanet":
        return capture_entry(
            ZooEntry(name, "cells:amoebanet", {"cells": int(size), "channels": 256, "batch": 16}, "", ""), True
        )
    layers, steps = map(int, size.split("x"))
    sizes = {"layers": layers, "width": 1024, "vocabulary": 16_000, "batch": 64, "steps": steps}
    return capture_entry(ZooEntry(name, f"rnn:{name}", sizes, "", ""), True)


def jobs_of(sets: list[str], seeds: int) -> Iterator[Job]:
    from loadmaster.bench.rows import LEAST_BYTES

    tight = [(f"zoo:{name}@{times}", _unlike(devices)) for times in TIMES for name, (devices, _) in LEAST_BYTES.items()]
    tight += [(f"zoo:{name}@1.25", f"{devices}xp100-pcie") for name, (devices, _) in LEAST_BYTES.items() if devices > 2]
    named = {"large": LARGE, "tight": tuple(tight), "small": SMALL}
    for seed in range(seeds):
        rows = [[Job(kind, problem, cluster, seed) for problem, cluster in named[kind]] for kind in sets]
        for some in zip_longest(*rows):  # so that every set has some of its rows where time is short
            yield from (job for job in some if job is not None)


def _unlike(devices: int) -> str:
    """As many devices, but at least four; half of them slow."""
    devices = max(4, devices)
    return f"{devices // 2}xp100-pcie+{devices - devices // 2}xk80"


def control_weights(folder: Path) -> dict[str, Path]:
    """Files of weights that were not learned: nothing beside HEFT's rule, and random ones as large as learned ones."""
    from loadmaster.optimizers.policy.decoding import PAIR
    from loadmaster.optimizers.policy.policy import HIDDEN, first_weights, size_of
    from loadmaster.optimizers.policy.weights import write_weights

    rng, random = np.random.default_rng(5), first_weights(5)
    random[:PAIR], random[-HIDDEN:] = rng.standard_normal(PAIR) * 0.3, rng.standard_normal(HIDDEN) * 0.3
    found = {"by hand": np.zeros(size_of()), "random": random}
    for name, weights in found.items():
        write_weights(folder / f"{name.replace(' ', '-')}.safetensors", weights, {})
    return {name: folder / f"{name.replace(' ', '-')}.safetensors" for name in found}


def imitations(problem: Any, plan: Any, seed: int) -> Iterator[tuple[str, Any]]:
    """What an imitator of the plan would say that knew it as well as its means allow: the device of most of the work of
    each of so many groups, in the best of three ways to make them; or every op's device but for some that are drawn at
    random."""
    from loadmaster.graph.columns import ints
    from loadmaster.optimizers.lists.schedulers import critical_rank
    from loadmaster.optimizers.ordering import best_of
    from loadmaster.optimizers.simple import legal
    from loadmaster.passes.groups import group_ops
    from loadmaster.plans import Plan
    from loadmaster.search import Budget, Search

    rng = np.random.default_rng(seed)

    def with_devices(device: Any) -> Any:
        device = legal(problem, ints(device))
        return Plan.of(problem, device, critical_rank(problem, device))

    yield "devices alone", with_devices(plan.device)
    for most in GROUPS:
        plans = []
        for by in ("scope", "edges", "window"):
            label = group_ops(problem, most, by)
            work = np.zeros((int(label.max()) + 1, problem.num_devices))
            np.add.at(work, (label, plan.device), problem.best_ns + 1.0)
            plans.append(with_devices(work.argmax(axis=1)[label]))
        yield f"{most} groups", best_of(Search(problem, Budget(None, 9)), iter(plans))[0]
    for wrong in WRONG:
        label = group_ops(problem, GROUPS[-1], "edges")
        lost = rng.random(int(label.max()) + 1) < wrong
        drawn = rng.integers(0, problem.num_devices, len(lost))
        yield f"{wrong:.0%} of groups wrong", with_devices(np.where(lost[label], drawn[label], plan.device))


def headroom(job: Job, method: str, until: float) -> list[dict[str, Any]]:
    """How far short searches are from a long one, and what one gains that is told of the long one's plan."""
    os.environ["LOADMASTER_THREADS"] = "1"
    from loadmaster.search import Budget, Search, solve
    from loadmaster.search.search import Start

    try:
        problem, rows = problem_of(job), list[dict[str, Any]]()
    except Exception as error:  # a row that fails must not lose the others
        print(f"failed: {job}: {type(error).__name__}: {error}", flush=True)
        return []

    def note(variant: str, budget: float, value: int, over: int, simulations: int) -> None:
        facts = (*job[:3], problem.num_ops, problem.num_devices, variant, budget, job.seed, value, over, simulations)
        rows.append(dict(zip(ROWS, facts, strict=True)))

    for budget in LONG:
        found = solve(problem, method, Budget(budget), seed=job.seed)
        note("without", budget, found.value, found.timeline.over_bytes, found.simulations)
    for variant, plan in imitations(problem, found.plan, job.seed):
        search = Search(problem, Budget(None, 1))
        score = search.score(plan)
        note(variant, 0.0, score.value, score.over_bytes, 1)
        if time.time() < until:
            told = solve(problem, method, Budget(LONG[0]), seed=job.seed, starts=[Start(plan, "an imitator")])
            note(variant, LONG[0], told.value, told.timeline.over_bytes, told.simulations)
    return rows


def anew(problem: Any) -> Any:
    """The same problem, of which no earlier run has left anything behind."""
    from loadmaster.cost import price

    fresh = price(replace(problem.source), problem.cluster)
    gc.collect()
    return fresh


def run(
    job: Job, variants: dict[str, str], budgets: tuple[float, ...], long: float, done: set[tuple[str, float]]
) -> Iterator[dict[str, Any]]:
    """A row for each variant and budget, and for a long search without any of them."""
    os.environ["LOADMASTER_THREADS"] = "1"
    from loadmaster.search import solve

    problem = problem_of(job)
    for method in variants.values():  # loads what is compiled
        solve(problem, method, allowed(budgets[0] if budgets[0] >= COUNTED else 0.1), seed=job.seed)
    wanted = [(budget, variant) for budget in budgets for variant in variants] + [(long, "without")] * (long > 0)
    for budget, variant in wanted:
        if (variant, budget) not in done:
            found = solve(anew(problem), variants[variant], allowed(budget), seed=job.seed)
            over = int(np.maximum(0, found.timeline.peak_bytes - problem.memory_bytes).sum())
            yield dict(
                zip(
                    ROWS,
                    (
                        *job[:3],
                        problem.num_ops,
                        problem.num_devices,
                        variant,
                        budget,
                        job.seed,
                        found.value,
                        over,
                        found.simulations,
                    ),
                    strict=True,
                )
            )


def allowed(budget: float) -> Any:
    """Seconds; from 50 on, simulations."""
    from loadmaster.search import Budget

    return Budget(None, int(budget)) if budget >= COUNTED else Budget(budget)


def run_all(
    job: Job,
    variants: dict[str, str],
    budgets: tuple[float, ...],
    long: float,
    done: set[tuple[str, float]],
    until: float,
) -> list[dict[str, Any]]:
    rows = []
    try:
        for row in run(job, variants, budgets, long, done):
            rows.append(row)
            if time.time() > until:
                break
    except Exception as error:  # a row that fails must not lose the others
        print(f"failed: {job}: {type(error).__name__}: {error}", flush=True)
    return rows


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open())) if path.exists() else []


def write(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def measure(
    out: Path, given: argparse.Namespace, variants: dict[str, str], budgets: tuple[float, ...], name: str
) -> None:
    path, until = out / name, time.time() + given.seconds
    done: dict[Job, set[tuple[str, float]]] = {}
    for row in rows_of(path):
        key = Job(row["set"], row["problem"], row["cluster"], int(row["seed"]))
        done.setdefault(key, set()).add((row["variant"], float(row["budget"])))
    waiting = [job for job in jobs_of(given.sets.split(","), given.seeds)][: given.limit]
    spent = sum(budget for budget in budgets if budget < COUNTED) * len(variants) + given.long
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        running: set[Any] = set()
        while waiting or running:
            while waiting and len(running) < given.workers and time.time() < until - 0.5 * spent:
                job = waiting.pop(0)
                if name == "headroom.csv":
                    if job not in done:
                        running.add(pool.submit(headroom, job, given.method, until))
                    continue
                running.add(pool.submit(run_all, job, variants, budgets, given.long, done.get(job, set()), until))
            if not running:
                break
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for one in ended:
                rows = one.result()
                write(path, ROWS, rows)
                for row in rows:
                    print(*row.values(), flush=True)


def train(out: Path, given: argparse.Namespace) -> None:
    """Three phases: plans; what a short search makes of them; moves of a short search. Weights of each are kept."""
    from loadmaster.files.text import read_lines
    from loadmaster.learn.examples import add_lines
    from loadmaster.learn.go2020.examples import is_held_out
    from loadmaster.learn.scheduling import training
    from loadmaster.learn.scheduling.examples import ScheduleKey
    from loadmaster.learn.scheduling.training import ForkedCrew, Settings
    from loadmaster.optimizers.policy.policy import first_weights
    from loadmaster.optimizers.policy.weights import read_weights, write_weights

    keys, held = (
        [ScheduleKey(-1, seed) for seed in range(given.examples)],
        [ScheduleKey(-1, 10**6 + seed) for seed in range(96)],
    )
    if given.corpus:
        lines = [line for line in read_lines(given.corpus) if not is_held_out(line)]
        first = add_lines(lines)
        numbers = [first + at for at in range(len(lines))]
        keys += [ScheduleKey(line, seed) for seed in range(2) for line in numbers[: -len(numbers) // 6]]
        held += [ScheduleKey(line, 0) for line in numbers[-len(numbers) // 6 :]]
    begun = time.monotonic()
    crew = ForkedCrew(keys, held, given.workers)
    print("examples of each worker, and held out", crew.counts, f"{time.monotonic() - begun:.0f} s", flush=True)
    weights = read_weights(given.weights) if given.weights else first_weights(0)
    phases = (
        ("plans", given.plans, Settings()),
        ("search", given.search, Settings(each=8, simulations=64, rate=0.01)),
        ("proposing", given.proposing, Settings(each=8, simulations=192, proposes=True)),
    )
    for phase, seconds, settings in phases:
        if seconds <= 0:
            continue

        def tell(row: dict[str, float], now: Any, phase: str = phase) -> None:
            row = {"phase": phase, **{key: round(value, 5) for key, value in row.items()}}  # type: ignore[dict-item]
            print(row, flush=True)
            write(out / "curves.csv", ("phase", "turn", "seconds", "gain", "rough", "spread"), [row])
            np.save(out / f"last-{phase}.npy", now.weights)

        found = training.ascend(crew, training.Ascent.of(weights), settings, seconds, 10**6, tell)
        write_weights(out / f"{phase}.safetensors", found, {"phase": phase, "seconds": seconds})
        weights = found if phase == "plans" else weights
    crew.close()


LISTS = ("heft", "m-heft", "etf", "m-etf", "expert")
ALONE = 8  # simulations of each


def lists(out: Path, given: argparse.Namespace) -> None:
    """The scheduler by itself beside others, all with the same few simulations: models of the zoo, and graphs of a
    corpus that it was not trained on, on drawn clusters; memory is short for half of these."""
    from loadmaster.cost import price
    from loadmaster.files import graph_from_json
    from loadmaster.files.text import parse_json, read_lines
    from loadmaster.learn.go2020.drawing import vary
    from loadmaster.learn.scheduling.examples import draw_cluster, tightened
    from loadmaster.search import Budget, solve

    files = control_weights(out) | ({"learned": given.weights} if given.weights else {})
    named = {"learned": "learned-list"} | {name: f"learned-list:weights={path}" for name, path in files.items()}
    named |= {name: name for name in LISTS}
    problems = [("zoo", problem, problem_of(Job("small", problem, cluster, 0))) for problem, cluster in SMALL]
    for number, line in enumerate(read_lines(given.corpus) if given.corpus else []):
        rng = np.random.default_rng([number, 31])
        problem = price(vary(graph_from_json(parse_json(line, "corpus"), "corpus"), rng), draw_cluster(rng))
        problems.append(("corpus", str(number), tightened(problem, 1.25, rng) if number % 2 else problem))
    for kind, name, problem in problems[: given.limit]:
        for variant, method in named.items():
            found = solve(problem, method, Budget(None, ALONE))
            facts = (kind, name, "", problem.num_ops, problem.num_devices, variant, ALONE, 0)
            row = dict(zip(ROWS, (*facts, found.value, found.timeline.over_bytes, found.simulations), strict=True))
            write(out / "measured.csv", ROWS, [row])
        print(kind, name, problem.num_ops, flush=True)


def sample(row: dict[str, str]) -> tuple[str, str, str, str, str]:
    return row["set"], row["problem"], row["cluster"], row["seed"], row["budget"]


def interval(values: np.ndarray) -> str:
    rough = 1.96 * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{values.mean():+.2f} ± {rough:.2f} % ({len(values)})"


def summary(out: Path) -> None:
    """Gains of one variant over another in pairs, by set and budget, where both fit; and who fits."""
    rows = rows_of(out / "measured.csv")
    known = {(*sample(row), row["variant"]): (int(row["over"]), float(row["value"])) for row in rows}
    others = [name for name in dict.fromkeys(row["variant"] for row in rows) if name != "learned"]
    for kind in dict.fromkeys(row["set"] for row in rows):
        for budget in dict.fromkeys(row["budget"] for row in rows):
            for other in others:
                keys = {sample(row) for row in rows if (row["set"], row["budget"]) == (kind, budget)}
                keys = {key for key in keys if (*key, "learned") in known and (*key, other) in known}
                both = [(known[*key, "learned"], known[*key, other]) for key in keys]
                gains = np.array([100 * (b[1] / a[1] - 1) for a, b in both if a[0] == b[0] == 0])
                fits = [sum(one[at][0] == 0 for one in both) for at in (0, 1)]
                if len(gains):
                    said = f"{interval(gains)}; fits {fits[0]} : {fits[1]} of {len(both)}"
                    print(f"{kind}, {budget}: learned over {other}: {said}")
    summary_of_long(known)
    summary_of_headroom(rows_of(out / "headroom.csv"))


def summary_of_long(known: dict[tuple[str, ...], tuple[int, float]]) -> None:
    """How far each variant with each budget is above the longest search without, where both fit."""
    budgets = sorted({float(key[4]) for key in known if key[5] == "without"})
    if len(budgets) < 2:
        return
    for kind, budget, variant in dict.fromkeys((key[0], key[4], key[5]) for key in known):
        pairs = [
            (value, known[*key[:4], str(budgets[-1]), "without"])
            for key, value in known.items()
            if (key[0], key[4], key[5]) == (kind, budget, variant) and (*key[:4], str(budgets[-1]), "without") in known
        ]
        above = np.array([100 * (a[1] / b[1] - 1) for a, b in pairs if a[0] == b[0] == 0])
        if len(above) and float(budget) < budgets[-1]:
            print(f"{kind}: {variant}, {budget} s above {budgets[-1]:g} s without: {interval(above)}")


def summary_of_headroom(rows: list[dict[str, str]]) -> None:
    """Of each variant and budget, how far it is above the longest run, and what it gains over the short one."""
    known = {
        (row["set"], row["problem"], row["cluster"], row["seed"], row["variant"], float(row["budget"])): row
        for row in rows
    }
    for kind, variant, budget in dict.fromkeys((key[0], key[4], key[5]) for key in known):
        mine = [key for key in known if (key[0], key[4], key[5]) == (kind, variant, budget)]
        pairs = [(known[key], *(known[*key[:4], "without", at] for at in (LONG[0], LONG[-1]))) for key in mine]
        fits = [rows for rows in pairs if all(row["over"] == "0" for row in rows)]
        if fits:
            value = np.array([[float(row["value"]) for row in rows] for rows in fits])
            above, over = 100 * (value[:, 0] / value[:, 2] - 1), 100 * (value[:, 1] / value[:, 0] - 1)
            said = f"{interval(above)} above {LONG[-1]:g} s, {interval(over)} over {LONG[0]:g} s without"
            print(f"{kind}, {variant}, {budget:g} s: {said}; {len(pairs) - len(fits)} do not fit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("headroom", "train", "measure", "lists", "summary"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", default="large,tight,small")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--method", default="placement")
    parser.add_argument("--variants", default="without,learned,by hand,random,more starts")
    parser.add_argument("--budgets", default="1,5", help="seconds; from 50 on, simulations")
    parser.add_argument("--long", type=float, default=0.0, help="seconds of a search without, to compare with")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=400.0, help="no run is begun later")
    parser.add_argument("--examples", type=int, default=700)
    parser.add_argument("--plans", type=float, default=160.0, help="seconds of the first phase of training")
    parser.add_argument("--search", type=float, default=90.0, help="of the second")
    parser.add_argument("--proposing", type=float, default=100.0, help="of the third")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    given.out.mkdir(parents=True, exist_ok=True)
    if given.command == "train":
        train(given.out, given)
    elif given.command == "lists":
        lists(given.out, given)
    elif given.command == "headroom":
        measure(given.out, given, {"without": given.method}, LONG, "headroom.csv")
    elif given.command == "measure":
        files = control_weights(given.out) | ({"learned": given.weights} if given.weights else {})
        all_of = {"learned": f"{given.method}:also=learned-list"}
        all_of |= {name: f"{given.method}:also=[learned-list:weights={path}]" for name, path in files.items()}
        all_of |= {"without": given.method, "more starts": f"{given.method}:also={MORE}"}
        wanted = {name: all_of[name] for name in given.variants.split(",")}
        measure(given.out, given, wanted, tuple(map(float, given.budgets.split(","))), "measured.csv")
    summary(given.out)


if __name__ == "__main__":
    main()
