"""REGAL and GAS on graphs they did not learn from: folds of a training corpus, alike graphs in the same fold.

    python benchmarks/regal_folds.py train.jsonl.xz results/regal_folds --seconds 420 --workers 12

Gathers plans of long runs (which go on from what the folder holds), fits every network once for every fold to the plans
of the other folds, and runs each graph under the network that has not seen it, beside controls with the same search:
random weights (untrained), the same for all ops (constant), and the portfolio. `--full yes` also fits the networks to
all graphs, for as many steps as did best on the folds: the weights to ship. Rows go to rows.csv as they come; a second
call takes up what is there.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import loadmaster as lm
from loadmaster.learn import examples
from loadmaster.learn.examples import Key
from loadmaster.learn.regal2020.losses import Example
from loadmaster.learn.regal2020.rollouts import compile_all
from loadmaster.learn.regal2020.settings import RegalSettings
from loadmaster.learn.regal2020.training import RegalRun, example_keys, join_elites

COLUMNS = ("line", "name", "fold", "ops", "method", "seed", "value", "seconds")
POLICY = {"both": "regal", "graph": "regal", "sequence": "gas"}


@dataclass(frozen=True)
class Job:
    """A network, by the fold that it does not learn from; -1: it learns from all."""

    kind: str
    fold: int
    steps: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}{'' if self.fold < 0 else f'-{self.fold}'}"


def gather(settings: RegalSettings, lines: Sequence[int], workers: int) -> list[Example]:
    """Plans to imitate, with features; those of the folder first."""
    generated = examples.add_generated(settings.generated)
    keys = example_keys([*lines, *generated], settings)
    with examples.crew(workers) as pool:
        run = RegalRun(settings, pool, keys, time.monotonic())
        found = run.gather()
    join_elites(Path(settings.out))
    return found


def best_steps(out: Path, kind: str, folds: Sequence[int], most: int) -> int:
    """The number of steps after which the plans of graphs that were kept apart are guessed best, over all folds."""
    held: dict[int, list[float]] = {}
    for fold in folds:
        for row in _rows(weights(out, kind, fold).with_name("curves.csv")):
            if row["held"]:
                held.setdefault(int(row["step"]), []).append(float(row["held"]))
    whole = {step: float(np.mean(values)) for step, values in held.items() if len(values) == len(folds)}
    print(f"{kind}: " + ", ".join(f"{step} {value:.4f}" for step, value in sorted(whole.items())), flush=True)
    return min(whole, key=lambda step: whole[step]) if whole else most


def fit_all(jobs: Sequence[Job], settings: RegalSettings, found: list[Example], seconds: float) -> None:
    """Every network in a process of its own, forked with the examples; the GPU is theirs alone."""
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_fit, args=(job, settings, found, seconds)) for job in jobs]
    for child in children:
        child.start()
    for child in children:
        child.join()


def _fit(job: Job, settings: RegalSettings, found: list[Example], seconds: float) -> None:
    torch.set_num_threads(1)
    given = replace(
        settings,
        out=str(Path(settings.out) / job.name),
        policy=POLICY[job.kind],
        network=job.kind,
        fit_steps=job.steps,
        device="auto",
        minutes=seconds / 60,
        gather_share=0.0,
        fit_share=1.0,
    )
    run = RegalRun(given, None, [], time.monotonic())  # type: ignore[arg-type]
    if job.fold >= 0:
        run.apart = frozenset(e.key.line for e in found if _fold(e.key.line, settings) == job.fold)
    run.say(f"{job.name}: {sum(e.key.line not in run.apart for e in found)} examples")
    run.fit(found)
    run.export(run.known())
    run.save()
    run.checkpoint.unlink()  # nothing goes on from it; the weights and the curves are kept


def _fold(line: int, settings: RegalSettings) -> int:
    return examples.fold_of(line, settings.folds) if b'"mode"' in examples.line_of(line) else -1


def weights(out: Path, kind: str, fold: int) -> Path:
    return out / Job(kind, fold).name / f"{POLICY[kind]}.safetensors"


def evaluate(job: tuple[int, int, dict[str, str], int]) -> list[dict[str, object]]:
    """One graph under every method, the same evaluations for each."""
    line, seed, methods, evaluations = job
    problem, rows = examples.make_problem(Key(line, 0, "regal")), []
    for name, spec in methods.items():
        begun = time.monotonic()
        result = lm.solve(problem, spec, lm.Budget(None, evaluations), seed=seed)
        known = {"line": line, "name": problem.graph.name, "ops": problem.num_ops, "method": name, "seed": seed}
        rows.append({**known, "value": result.value, "seconds": round(time.monotonic() - begun, 2)})
    return rows


def evaluations(
    out: Path, given: argparse.Namespace, lines: Sequence[int], settings: RegalSettings
) -> Iterator[tuple[int, int, dict[str, str], int]]:
    kinds = kinds_of(given)
    for line in lines:
        fold = -1 if given.valid else examples.fold_of(line, settings.folds)
        if not all(weights(out, kind, fold).is_file() for kind in kinds):
            continue
        methods = {"brkga-5k": "brkga-5k"}
        methods |= {kind: f"regal:checkpoint={weights(out, kind, fold)}" for kind in kinds}
        methods |= dict(pair.split("=", 1) for pair in given.beside.split(";") if pair)
        yield line, given.seed, methods, given.evaluations


def measure(out: Path, given: argparse.Namespace, settings: RegalSettings, lines: Sequence[int], last: float) -> None:
    """Rows as they come, graphs in an order of their own, until the time is gone."""
    path = out / "rows.csv"
    done = {int(row["line"]) for row in _rows(path)}
    todo = evaluations(out, given, [line for line in lines if line not in done], settings)
    with path.open("a", newline="") as file, examples.crew(given.workers) as pool:
        writer = csv.DictWriter(file, COLUMNS)
        if not done:
            writer.writeheader()
        running = {pool.submit(evaluate, job) for _, job in zip(range(2 * given.workers), todo, strict=False)}
        while running and time.monotonic() < last:
            ended, running = wait(running, max(0.1, last - time.monotonic()), FIRST_COMPLETED)
            for one in ended:
                for row in one.result():
                    writer.writerow({**row, "fold": examples.fold_of(int(str(row["line"])), settings.folds)})
                running |= {pool.submit(evaluate, job) for _, job in zip(range(1), todo, strict=False)}
            file.flush()
        for one in running:
            one.cancel()
        for worker in list(pool._processes.values()):  # type: ignore[attr-defined]
            worker.terminate()


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def tell(out: Path) -> None:
    """The mean improvement over brkga-5k with its 95 % interval, over graphs that every method has done."""
    rows = _rows(out / "rows.csv")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        table.setdefault(row["line"], {})[row["method"]] = int(row["value"])
    whole = [values for values in table.values() if len(values) == len(methods)]
    print(f"{len(whole)} graphs")
    for method in methods if whole else ():
        gain = np.array([100 * (1 - values[method] / values["brkga-5k"]) for values in whole])
        half = 1.96 * gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
        worse = (gain < -0.5).mean()
        print(f"{method:>12} {gain.mean():+.2f} ± {half:.2f} %, more than 0.5 % worse on {worse:.0%}", flush=True)


def kinds_of(given: argparse.Namespace) -> list[str]:
    return [kind for kind in given.kinds.split(",") if kind]


def prepare(given: argparse.Namespace, settings: RegalSettings, lines: Sequence[int], begun: float) -> None:
    """Plans, and the networks fitted to them."""

    def say(what: str) -> None:
        print(f"[{time.monotonic() - begun:.0f} s] {what}", flush=True)

    compile_all(lines[0])
    say("compiled")
    found = gather(settings, lines, given.workers)
    folds = [int(fold) for fold in given.only.split(",")] if given.only else [*range(given.folds)]
    folds = [] if given.only == "-1" else folds
    jobs = [Job(kind, fold, given.fit_steps) for kind in kinds_of(given) for fold in folds]
    jobs = [job for job in jobs if not weights(given.out, job.kind, job.fold).is_file()]
    say(f"{len(found)} examples, {len(jobs)} networks to fit")
    fit_all(jobs, settings, found, given.fit)
    if given.full == "yes":
        jobs = [Job(kind, -1, best_steps(given.out, kind, folds, given.fit_steps)) for kind in kinds_of(given)]
        fit_all(jobs, settings, found, given.fit)
    say("fitted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("corpus")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--gather", type=float, help="seconds for plans; else 0.48 of all")
    parser.add_argument("--fit", type=float, help="seconds for networks; else 0.23 of all")
    parser.add_argument("--limit", type=int, help="so many graphs are measured at most")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--kinds", default="both,graph,sequence", help="networks; none: only what is beside them")
    parser.add_argument("--only", default="", help="some of the folds, with commas; -1: none")
    parser.add_argument("--valid", default="", help="other graphs, measured under the networks that learned from all")
    parser.add_argument("--full", default="no", choices=("yes", "no"))
    parser.add_argument("--warm", type=int, default=6_000)
    parser.add_argument("--elite-simulations", type=int, default=4_000)
    parser.add_argument("--fit-steps", type=int, default=4_000)
    parser.add_argument("--fit-look", type=int, default=250, help="steps between two looks at the fold kept apart")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=0.01)
    parser.add_argument("--evaluations", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    beside = "constant=regal:policy=constant;untrained=regal:checkpoint=none;placement=placement"
    parser.add_argument("--beside", default=beside, help="NAME=SPEC;NAME=SPEC")
    given = parser.parse_args()
    begun = time.monotonic()
    given.gather = 0.48 * given.seconds if given.gather is None else given.gather
    given.fit = 0.23 * given.seconds if given.fit is None else given.fit
    given.out.mkdir(parents=True, exist_ok=True)
    settings = RegalSettings(
        given.corpus,
        str(given.out),
        folds=given.folds,
        warm=given.warm,
        elite_simulations=given.elite_simulations,
        fit_steps=given.fit_steps,
        fit_look=given.fit_look,
        dropout=given.dropout,
        decay=given.decay,
        workers=given.workers,
        device="cpu",
        minutes=given.gather / 60,
        gather_share=1.0,
        fit_share=1.0,
    )
    lines, _ = examples.read_corpus(given.corpus, 1.0)
    if kinds_of(given):
        prepare(given, settings, lines, begun)
    if given.valid:
        lines, _ = examples.read_corpus(given.valid, 1.0)
    order = np.random.default_rng(7).permutation(np.array(lines)).tolist()[: given.limit]
    measure(given.out, given, settings, order, begun + given.seconds)
    tell(given.out)


if __name__ == "__main__":
    main()
