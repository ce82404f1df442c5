"""Trains the policies that ship, and their controls: python benchmarks/train_papers.py CORPUS OUT [--cores 4-15].

CORPUS is a folder that `loadmaster lab corpus` made. Each lane is a run of `loadmaster lab train` on cores of its own.
REGAL, its control that says the same for all ops, and GAS learn for a while by 400 evaluations, then by the paper's
5,000 from the means they have. Called again with more minutes, every lane goes on where it stands in OUT.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

FIRST = 3.0  # minutes of the lanes that begin with short searches
LANGUAGE = "families=rnnlm-family,nmt-family"
# lane -> (policy, settings); the first lanes get the cores that are left over
LANES = {
    "regal": ("regal", ("valid_graphs=48",)),
    "regal-graph": ("regal", ("says=graph",)),
    "go": ("go", ("valid_graphs=48", "steps=100000")),
    "gas": ("gas", ()),
    "placeto-2": ("placeto", (LANGUAGE, "cluster=placeto-2", "steps=20000")),
}
EXTRA = ("regal", "go", "regal", "regal-graph", "gas", "regal")  # who gets a core more, in turn


def corpora(policy: str, corpus: Path) -> tuple[str, ...]:
    train, valid = f"{corpus}/train.jsonl.xz", f"{corpus}/valid.jsonl.xz"
    if policy == "placeto":
        return "--corpus", str(corpus)
    first = "zoo,generated" if policy == "go" else "generated"
    return "--corpus", f"{first},{train}", "--valid", valid if policy == "go" else f"generated,{valid}"


def train(lane: str, policy: str, settings: tuple[str, ...], cores: list[int], minutes: float, rest: list[str]) -> None:
    """One run of `loadmaster lab train` on these cores, until it ends; what it says goes to a log."""
    threads = "2" if policy == "go" and len(cores) > 1 else "1"
    words = [
        "lab",
        "train",
        policy,
        "--minutes",
        f"{minutes:g}",
        "--workers",
        str(len(cores)),
        "--device",
        "cpu",
        *rest,
    ]
    for setting in settings:
        words += ["--set", setting]
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-u", "-m", "loadmaster", *words]
    with Path(f"{lane}.log").open("a") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "LOADMASTER_THREADS": "1"}
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False)


def run_lane(lane: str, out: Path, corpus: Path, cores: list[int], minutes: float) -> None:
    policy, settings = LANES[lane]
    rest = list(corpora(policy, corpus))
    if policy in ("regal", "gas"):
        first = out / f"{lane}-400"
        short = (*settings, "evaluations=400", "steps=100000")
        if not (first / "card.json").is_file():
            train(str(first), policy, short, cores, min(FIRST, minutes / 2), [*rest, "--out", str(first)])
        settings = (*settings, f"start={first}/{policy}.safetensors", "steps=100000")
        minutes -= FIRST
    train(str(out / lane), policy, settings, cores, max(0.1, minutes), [*rest, "--out", str(out / lane)])


def deal(lanes: list[str], cores: list[int]) -> dict[str, list[int]]:
    """Cores of each lane: one each, and those that are left over."""
    more = [lane for lane in (*EXTRA, *lanes) if lane in lanes]
    takers = [*lanes, *more * len(cores)][: max(len(cores), len(lanes))]
    dealt: dict[str, list[int]] = {lane: [] for lane in lanes}
    for turn, lane in enumerate(takers):
        dealt[lane].append(cores[turn % len(cores)])
    return dealt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cores", default=f"0-{(os.cpu_count() or 1) - 1}")
    parser.add_argument("--minutes", type=float, default=8.5, help="of all sittings")
    parser.add_argument("--start", action="append", default=[], metavar="LANE=FILE", help="weights to begin from")
    parser.add_argument("--lanes", default=",".join(LANES), help="which, with commas")
    given = parser.parse_args()
    low, _, high = given.cores.partition("-")
    given.out.mkdir(parents=True, exist_ok=True)
    for lane, _, file in (each.partition("=") for each in given.start):
        LANES[lane] = (LANES[lane][0], (*LANES[lane][1], f"start={file}"))
    begun = time.monotonic()
    lanes = [
        threading.Thread(target=run_lane, args=(lane, given.out, given.corpus, cores, given.minutes))
        for lane, cores in deal(given.lanes.split(","), list(range(int(low), int(high or low) + 1))).items()
    ]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()
    print(f"{len(lanes)} runs in {time.monotonic() - begun:.0f} s")
    for path in sorted(given.out.glob("*.log")):
        print(path.name, *path.read_text().splitlines()[-2:], sep="\n  ")


if __name__ == "__main__":
    main()
