"""How much a better choice of starts could bring: every start of a race alone, and what the race makes of them.

    python benchmarks/headroom.py FOLDER [--rows go:0,7 placeto:5] [--seeds 2] [--seconds 2] [--at 1000 10000]

Each start of `auto` (those that its race begins with, and those that it goes on to) has an epoch after another for some
seconds of one thread; FOLDER/headroom.jsonl gets a line for each, and is gone on from. Then, for each number of
simulations, over the best value that any of them came to: the start that is best at first; the mean of all; the one
that is best then, in hindsight, of one seed and of all; and `auto` itself with so many simulations in all. What the
race could gain by choosing better is between the third of these and the last.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
from quality import problem_of

from loadmaster.optimizers import joint
from loadmaster.optimizers.fusion.sharing import sharing_of
from loadmaster.optimizers.racing import MORE
from loadmaster.optimizers.starts import VERY_FAR, Scored, far, unlike
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve

ROWS = ("go:0,1,3,6,7,9,11,12", "placeto:0,1,2,3,4,5")
AT = (1_000, 3_000, 10_000, 30_000)


def race_of(search: Search) -> tuple[joint.JointRace, list[Scored]]:
    """The race that `auto` begins where simulations are counted, and its starts in the order in which it takes them."""
    search.fusing = sharing_of(search.problem)
    kernels, waiting = joint.finalists(search), joint.Later(search)
    fused = joint.FusedStarts(search, next((kernel for kernel in kernels if joint.fuses(kernel)), kernels[0]))
    first = sorted([*fused.first(), *joint.placed_first(search, waiting, fused)], key=joint.by_score)
    race = joint.JointRace(joint.JointEpochs(joint.Joint(), search), waiting, first, fused)
    near = [start for start in first if not far(start.score, first[0].score, VERY_FAR)]
    return race, unlike([*race.first, *near], len(race.first) + MORE)


def followed(problem: Problem, seeds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Each start alone: how good its plan was after how many simulations."""
    search = Search(problem, Budget(None, 2**40))
    race, starts = race_of(search)
    for seed in range(seeds):
        for number, start in enumerate(starts):
            search.rng = np.random.default_rng(1_000 * seed + number)
            epochs, runner, begun = joint.JointEpochs(joint.Joint(), search), race._runner(start), time.perf_counter()
            while time.perf_counter() - begun < seconds:
                epochs.go_on(runner)  # type: ignore[arg-type]
            marks = [(0, start.score.value), *((used, score.value) for used, score in runner.marks)]
            yield {"seed": seed, "start": number, "family": start.family, "marks": marks}


def after(run: dict[str, Any], simulations: int) -> int:
    return min(value for used, value in run["marks"] if used <= simulations)


def reaches(runs: list[dict[str, Any]], simulations: int) -> bool:
    return min(run["marks"][-1][0] for run in runs) >= simulations


def mean(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def columns(row: str, runs: list[dict[str, Any]], simulations: int) -> list[float]:
    """What the five of the table are after so many simulations, over the best of all runs at their ends."""
    suite, _, number = row.partition(":")
    problem: Any = problem_of(suite, int(number))[1]  # type: ignore[index]
    best, seeds = min(after(run, 2**40) for run in runs), sorted({run["seed"] for run in runs})
    first = mean([after(run, simulations) for run in runs if run["start"] == 0])
    hindsight = mean([min(after(run, simulations) for run in runs if run["seed"] == seed) for seed in seeds])
    of_all = min(after(run, simulations) for run in runs)
    auto = mean([solve(problem, "auto", Budget(None, simulations), seed).value for seed in seeds])
    every = mean([after(run, simulations) for run in runs])
    return [value / best for value in (first, every, hindsight, of_all, auto)]


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("folder", type=Path)
    given.add_argument("--rows", nargs="+", default=list(ROWS), help="SUITE:NUMBER,NUMBER…")
    given.add_argument("--seeds", type=int, default=2)
    given.add_argument("--seconds", type=float, default=2.0, help="for each start and seed")
    given.add_argument("--at", nargs="+", type=int, default=list(AT), help="simulations")
    words = given.parse_args()
    os.environ["LOADMASTER_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    words.folder.mkdir(parents=True, exist_ok=True)
    path, known = words.folder / "headroom.jsonl", defaultdict[str, list[dict[str, Any]]](list)
    for line in path.read_text().splitlines() if path.exists() else []:
        known[json.loads(line)["row"]].append(json.loads(line))
    for suite, _, numbers in (text.partition(":") for text in words.rows):
        for number in numbers.split(","):
            row, problem = f"{suite}:{number}", problem_of(suite, int(number))
            if row not in known:  # a row is written as a whole, so that one that was cut off is run again
                known[row] = list(followed(problem[1], words.seeds, words.seconds))  # type: ignore[index]
                with path.open("a") as out:
                    out.writelines(json.dumps({"row": row, **run}) + "\n" for run in known[row])
            print(f"{row}: {len(known[row])} runs", flush=True)
    print("simulations  rows  best at first  mean  best in hindsight  of all seeds  auto")
    for simulations in words.at:
        told = [columns(row, runs, simulations) for row, runs in known.items() if reaches(runs, simulations)]
        if told:
            print(simulations, len(told), *(f"{mean(list(column)):.4f}" for column in zip(*told, strict=True)))


if __name__ == "__main__":
    main()
