"""What learning adds to GO's search on one problem: every learned row beside controls that differ in one thing.

    python benchmarks/go_controls.py FOLDER [--evaluations 6000] [--seeds 3] [--limit N] [--workers 2] [--seconds 500]

All variants begin from the same candidates and walk the same chains, at equal simulations:

- learns: go-one as it is. rate 0: the same, but no step of learning is taken. uniform: and draws ask nobody.
- by hand: the same chains with what the annealing engine proposes by itself.
- oracle: scores are those of a network that knows the plan of a long run (devices only).
- tuned: go:finetune from the shipped weights; tuned, rate 0; tuned, random: with random weights in their place.

FOLDER keeps a line per run (runs.csv) and what was seen of the gradient (watched.csv); a run that is repeated goes on
where it stopped, and no run is begun after `--seconds`.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WORKLOADS = (
    ("transformer-xl-4", 4),
    ("inception-v3-b32", 2),
    ("rnnlm-4", 4),
    ("wavenet-2x18", 2),
    ("amoebanet-4", 4),
    ("gnmt-2", 2),
    ("resnet50", 4),
    ("vit-base", 4),
)
VARIANTS = ("learns", "rate 0", "uniform", "by hand", "oracle", "tuned", "tuned, rate 0", "tuned, random")
LONG = 40_000  # simulations of the run whose plan the oracle knows
SURE = 4.0  # of the oracle: its device is e^4 times as likely as another
WATCHED = 6  # every so many steps the gradient is looked at
RUNS = ("workload", "variant", "seed", "value", "start", "steps", "seconds")
SEEN = (
    "workload",
    "variant",
    "seed",
    "step",
    "rows",
    "gaining",
    "gain",
    "deviation",
    "cosine",
    "sample",
    "whole",
    "sure",
)


class Job(NamedTuple):
    workload: str
    devices: int
    variant: str
    seed: int
    simulations: int


def run(job: Job, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    os.environ["LOADMASTER_THREADS"] = "1"
    import torch

    from loadmaster.cost import price
    from loadmaster.importers import load
    from loadmaster.learn.go2020.optimizer import Go
    from loadmaster.search import Budget, Search

    torch.set_num_threads(1)
    problem = price(load(f"zoo:{job.workload}/train"), f"{job.devices}xp100-pcie")
    tuned, still = job.variant.startswith("tuned"), "rate 0" in job.variant
    uniform = 1.0 if job.variant == "uniform" else 0.05
    settings = Go(finetune=50, uniform=uniform) if tuned else Go(scratch=True, uniform=uniform)
    search = Search(problem, Budget(None, job.simulations), job.seed)
    begun = time.perf_counter()
    target = _long_plan(job, problem, folder) if job.variant == "oracle" else None
    agent = agents()(settings, search, job.variant, still or not job.variant.startswith(("learns", "tuned")), target)
    agent.learn(50 if tuned else None)
    took = time.perf_counter() - begun
    found = (job.workload, job.variant, job.seed, search.best_score.value, agent.began, agent.steps, round(took, 1))
    seen = [{**dict(zip(SEEN, (*job[:1], *job[2:4]), strict=False)), **row} for row in agent.seen]
    return dict(zip(RUNS, found, strict=True)), seen


def _long_plan(job: Job, problem: Any, folder: Path) -> Any:
    """Devices of the best plan of a long run, found once for each workload."""
    path = folder / f"long-{job.workload}.npy"
    if not path.exists():
        from loadmaster.search import Budget, solve

        plan = solve(problem, "placement", Budget(None, LONG), seed=100).plan
        part = path.with_suffix(f".{os.getpid()}.npy")
        np.save(part, plan.device)
        part.replace(path)
    return np.load(path)


def agents() -> Any:
    """The class of an agent with one thing changed; torch is imported when it is made."""
    import torch

    from loadmaster.learn.go2020.agent import Agent
    from loadmaster.learn.go2020.losses import policy_loss, sample_loss
    from loadmaster.learn.go2020.network import GoNetwork
    from loadmaster.optimizers.annealing.proposals import Policy

    class Changed(Agent):
        def __init__(self, settings: Any, search: Any, variant: str, still: bool, target: Any) -> None:
            super().__init__(settings, search)
            self.variant, self.still, self.target = variant, still, target
            self.steps, self.began, self.seen = 0, 0, list[dict[str, Any]]()

        def _start(self) -> None:
            super()._start()
            self.began = self.search.best_score.value
            if self.variant == "tuned, random":
                self.network = GoNetwork(self.network.shape)
            if self.target is not None and self.search.best is not None:
                self.target = renamed(self.problem, self.target, self.search.best.device)

        def _policy(self, outputs: Any, last: Any) -> Any:
            said = super()._policy(outputs, last)
            if self.variant == "by hand":
                return None
            if self.target is None:
                return said
            ops, devices = self.problem.num_ops, self.problem.num_devices
            place = SURE * np.eye(devices)[self.target]
            level = np.zeros((ops, said.level.shape[1]))
            return Policy(np.arange(ops), place, level, said.fusion, said.fused, said.uniform)

        def _learn_from(self, adam: Any, outputs: Any, last: Any, whole: Any, sample: Any, left: float) -> None:
            self.steps += 1
            if self.variant in ("learns", "rate 0", "tuned") and self.steps % WATCHED == 1:
                self.seen.append({"step": self.steps, **self._look_at(outputs, last, whole, sample)})
            if not self.still:
                super()._learn_from(adam, outputs, last, whole, sample, left)

        def _look_at(self, outputs: Any, last: Any, whole: Any, sample: Any) -> dict[str, Any]:
            """Of the gradient: what each loss weighs, and how alike those of two halves of the draws are."""
            scores = self._scores(outputs, last)
            halves = [_rows(sample, np.arange(len(sample.kind)) % 2 == half) for half in range(2)]
            one, other = (self._gradient(sample_loss(scores, half)) for half in halves)
            drawn = self._gradient(policy_loss(outputs, self.batch, [whole[0]], [whole[1]]))
            cosine = float(one @ other / (one.norm() * other.norm()).clamp(min=1e-12))
            return {
                "rows": len(sample.kind),
                "gaining": float((sample.gain > 0).mean()),
                "gain": float(sample.gain.mean()),
                "deviation": float(sample.gain.std()),
                "cosine": cosine,
                "sample": float(((one + other) / 2).norm()),
                "whole": float(drawn.norm()),
                "sure": float(scores[0].detach().softmax(dim=2).amax(dim=2).mean()),
            }

        def _gradient(self, loss: Any) -> Any:
            weights = [weight for weight in self.network.parameters() if weight.requires_grad]
            parts = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
            there = zip(weights, parts, strict=True)
            return torch.cat([(weight * 0 if part is None else part).reshape(-1).detach() for weight, part in there])

    return Changed


def _rows(sample: Any, chosen: Any) -> Any:
    from dataclasses import fields, replace

    return replace(sample, **{field.name: getattr(sample, field.name)[chosen] for field in fields(sample)})


def renamed(problem: Any, device: Any, like: Any) -> Any:
    """The placement with equal devices named so that most of the work lies where the other one has it."""
    from scipy.optimize import linear_sum_assignment

    common = np.zeros((problem.num_devices, problem.num_devices))
    np.add.at(common, (device, like), problem.best_ns)
    old, new = linear_sum_assignment(-common)
    name = np.empty(problem.num_devices, np.int64)
    name[old] = new
    return name[device]


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open())) if path.exists() else []


def jobs(folder: Path, given: argparse.Namespace) -> Iterator[Job]:
    done = {(row["workload"], row["variant"], int(row["seed"])) for row in rows_of(folder / "runs.csv")}
    for seed in range(given.seeds):
        for workload, devices in WORKLOADS:
            for variant in VARIANTS:
                wanted = not given.only or workload in given.only.split(",")
                if wanted and (workload, variant, seed) not in done:
                    yield Job(workload, devices, variant, seed, given.evaluations)


def write(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def summary(folder: Path) -> None:
    """How much longer than the control each takes, in pairs of workload and seed, with a 95 % interval over pairs."""
    value = {(r["workload"], int(r["seed"]), r["variant"]): float(r["value"]) for r in rows_of(folder / "runs.csv")}
    pairs = [("learns", other) for other in VARIANTS[1:5]] + [("tuned", other) for other in ("learns", *VARIANTS[6:])]
    pairs += [(other, "by hand") for other in ("rate 0", "uniform", "oracle")]
    for one, other in pairs:
        both = [key[:2] for key in value if key[2] == one and (*key[:2], other) in value]
        if len(both) > 1:
            gain = np.array([value[*key, other] / value[*key, one] - 1 for key in both]) * 100
            rough = 1.96 * gain.std(ddof=1) / len(gain) ** 0.5
            print(f"{one} over {other}: {gain.mean():+.2f} ± {rough:.2f} % ({len(gain)} pairs)", flush=True)
    seen = rows_of(folder / "watched.csv")
    for variant in dict.fromkeys(row["variant"] for row in seen):
        mine = [row for row in seen if row["variant"] == variant]
        figures = {name: np.mean([float(row[name]) for row in mine]) for name in SEEN[4:]}
        print(variant, *(f"{name} {figure:.4g}" for name, figure in figures.items()), sep=", ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--evaluations", type=int, default=6_000, help="simulations of each run")
    parser.add_argument("--limit", type=int, default=None, help="runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no run is begun later")
    parser.add_argument("--only", default="", help="workloads, with commas")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    begun, waiting = time.monotonic(), list(jobs(given.folder, given))[: given.limit]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run, job, given.folder) for job in waiting[: given.workers]}
        waiting = waiting[given.workers :]
        while running:
            ended = next(as_completed(running))
            running.discard(ended)
            found, seen = ended.result()
            write(given.folder / "runs.csv", RUNS, [found])
            write(given.folder / "watched.csv", SEEN, seen)
            print(found, flush=True)
            if waiting and time.monotonic() - begun < given.seconds:
                running.add(pool.submit(run, waiting.pop(0), given.folder))
    summary(given.folder)


if __name__ == "__main__":
    main()
