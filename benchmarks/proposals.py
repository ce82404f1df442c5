"""What a better distribution of moves could be worth to annealing: from one start, with equal simulations, moves that
go where a rule says, anywhere, where a plan of a long run has the ops (an oracle), and where a trained policy says.

    python benchmarks/proposals.py OUT [--weights FILE] [--corpus FILE] [--workers 2] [--seconds 300]

Rows: GO's workloads of up to 6,000 ops on their P100 (`go`), and training steps of a corpus on four unlike devices
(`regal-time`). OUT keeps a line per run; a command that is repeated goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

GO = (
    ("transformer-xl-2", 2),
    ("transformer-xl-4", 4),
    ("transformer-xl-8", 8),
    ("inception-v3-b32", 2),
    ("inception-v3-b64", 2),
    ("wavenet-2x18", 2),
    ("wavenet-4x36", 4),
    ("rnnlm-2", 2),
    ("amoebanet-4", 4),
    ("rnnlm-4", 4),
    ("gnmt-2", 2),
)
UNLIKE = "2xa100-nvlink+2xp100-pcie"
BUDGETS = (500, 2_000)
LONG = 10_000  # simulations of the run whose plan the oracle knows
SURE = {"oracle": 4.0, "half an oracle": 2.0}  # its device is e to that many times as likely as another
ASKED = 500  # simulations between two looks of the policy
HOT, COLD = 1e-3, 1e-4  # as `placement` has them
ROWS = ("set", "problem", "seed", "variant", "simulations", "value", "over", "seconds", "start", "long")


class Job(NamedTuple):
    kind: str
    problem: str
    devices: int
    seed: int


def problem_of(job: Job, corpus: Path | None) -> Any:
    from loadmaster.cost import price
    from loadmaster.files import graph_from_json
    from loadmaster.files.text import parse_json, read_lines
    from loadmaster.importers import load

    if job.kind == "go":
        return price(load(f"zoo:{job.problem}/train"), f"{job.devices}xp100-pcie")
    assert corpus is not None
    line = read_lines(corpus)[int(job.problem)]
    return price(graph_from_json(parse_json(line, "corpus"), "corpus"), UNLIKE)


def run(job: Job, weights: Path | None, corpus: Path | None) -> list[dict[str, Any]]:
    os.environ["LOADMASTER_THREADS"] = "1"
    from go_controls import renamed

    from loadmaster.learn.scheduling.examples import best_by_rule
    from loadmaster.optimizers.policy.policy import named_net
    from loadmaster.optimizers.policy.proposing import proposals, scored
    from loadmaster.optimizers.policy.views import view_of
    from loadmaster.search import Budget, Search, solve

    problem = problem_of(job, corpus)
    start = best_by_rule(problem)
    began = Search(problem, Budget(None, 1))
    began.score(start)
    long = solve(problem, "placement", Budget(None, LONG), seed=100 + job.seed)
    target = renamed(problem, long.plan.device, start.device)
    view, devices, rows = view_of(problem), problem.num_devices, []
    asks: dict[str, Any] = {"by hand": lambda plan: None}
    asks["uniform"] = lambda plan: scored(problem, np.zeros((problem.num_ops, devices)))
    for name, sure in SURE.items():
        asks[name] = lambda plan, sure=sure: scored(problem, sure * np.eye(devices)[target])
    if weights is not None:
        net = named_net(str(weights))
        asks["learned"] = lambda plan: proposals(problem, view, net, plan)
    for variant, ask in asks.items():
        for budget in BUDGETS:
            search, took = walked(problem, start, ask, budget, job.seed)
            score = search.best_score
            found = (*job[:2], job.seed, variant, budget, score.value, score.over_bytes, round(took, 3))
            rows.append(dict(zip(ROWS, (*found, began.best_score.value, long.value), strict=True)))
    return rows


def walked(problem: Any, start: Any, ask: Any, simulations: int, seed: int) -> tuple[Any, float]:
    """One chain from the start; the policy is asked again every so often."""
    from loadmaster.graph.columns import ints
    from loadmaster.optimizers.annealing.chains import Chains, Decisions, start_of
    from loadmaster.optimizers.policy.proposing import NO_LOG
    from loadmaster.passes import coarsen
    from loadmaster.search import Budget, Search

    search = Search(problem, Budget(None, simulations), seed)
    search.score(start)
    coarse = coarsen(problem, ints(np.arange(problem.num_ops)))
    chains = Chains(search, coarse, Decisions(evict=True), [start_of(search, coarse, start, search.best_score)])
    logs = None if ask(start) is None else [NO_LOG]
    chains.cool(1, 0.0, 0.0, ask(start), logs)  # compiles
    begun, rounds = time.process_time(), max(1, simulations // ASKED)
    for turn in range(rounds):
        hot = HOT * (COLD / HOT) ** (turn / rounds)
        chains.cool(simulations // rounds, hot, HOT * (COLD / HOT) ** ((turn + 1) / rounds), ask(search.best), logs)
    return search, time.process_time() - begun


def jobs_of(corpus: Path | None, seeds: int) -> Iterator[Job]:
    from loadmaster.files.text import read_lines

    count = 0 if corpus is None else min(24, len(read_lines(corpus)))
    for seed in range(seeds):
        yield from (Job("go", name, devices, seed) for name, devices in GO)
        yield from (Job("regal-time", str(line), 4, seed) for line in range(count))


def summary(path: Path) -> None:
    from policy import interval, rows_of

    rows = rows_of(path)
    value = {tuple(row[key] for key in ("set", "problem", "seed", "simulations", "variant")): row for row in rows}
    for kind in dict.fromkeys(row["set"] for row in rows):
        for budget in dict.fromkeys(row["simulations"] for row in rows):
            mine = [row for row in rows if row["set"] == kind and row["simulations"] == budget]
            for variant in dict.fromkeys(row["variant"] for row in mine):
                pairs = [
                    (row, value[kind, row["problem"], row["seed"], budget, "by hand"])
                    for row in mine
                    if row["variant"] == variant and (kind, row["problem"], row["seed"], budget, "by hand") in value
                ]
                gains = np.array([100 * (float(b["value"]) / float(a["value"]) - 1) for a, b in pairs])
                left = np.array([100 * (float(a["value"]) / float(a["long"]) - 1) for a, _ in pairs])
                times = np.mean([float(a["seconds"]) / max(1e-9, float(b["seconds"])) for a, b in pairs])
                said = f"{interval(gains)}; above the long run {left.mean():.2f} %; {times:.2f} times the CPU time"
                print(f"{kind}, {budget}: {variant} over by hand {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0, help="no run is begun later")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from policy import rows_of, write

    given.out.mkdir(parents=True, exist_ok=True)
    path, until = given.out / "proposals.csv", time.time() + given.seconds
    done = {(row["set"], row["problem"], int(row["seed"])) for row in rows_of(path)}
    waiting = [job for job in jobs_of(given.corpus, given.seeds) if (job.kind, job.problem, job.seed) not in done]
    waiting = waiting[: given.limit]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn"), initializer=_ready) as pool:
        running = {pool.submit(run, job, given.weights, given.corpus) for job in waiting[: given.workers]}
        waiting = waiting[given.workers :]
        while running:
            ended = next(as_completed(running))
            running.discard(ended)
            rows = ended.result()
            write(path, ROWS, rows)
            for row in rows:
                print(*row.values(), flush=True)
            if waiting and time.time() < until:
                running.add(pool.submit(run, waiting.pop(0), given.weights, given.corpus))
    summary(path)


def _ready() -> None:
    sys.path.insert(0, str(Path(__file__).parent))


if __name__ == "__main__":
    main()
