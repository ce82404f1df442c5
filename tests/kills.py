"""Kills at random moments, and aimed at writes: no old file lost, none torn, no process left, no row twice.

    python -m tests.kills [--count 200] [--seed 0]

`make kills` runs 200; a test runs a few. A victim is a process of its own, one that saves a plan and writes records
over and over, or (every fourth) a verb: `plan` with a page and a trace, `train` with two workers, which goes on where
the last one was killed, or `measure`. It is ended by SIGKILL, SIGTERM or SIGINT after a random time, or exactly when it
writes. Afterwards every file must be whole, an old one or a new one, no row of a training's curves may stand twice,
whatever the victim started must be gone, and Ctrl-C must not have left a traceback.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadmaster.bench.records import read_lines
from loadmaster.errors import LoadmasterError
from loadmaster.files import graph_to_json, load_plan
from loadmaster.zoo.synthetic import generate

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# A shell that starts something in the background has it ignore SIGINT, and all that it starts.
LISTENS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
VICTIM = """
import os, sys, time
from pathlib import Path
folder, aim = Path(sys.argv[1]), sys.argv[2]
import loadmaster.files.writing as writing
from loadmaster.files.writing import write_text
from loadmaster.bench.records import RunLedger, RunRecord
if aim == "writes":  # says so when it stands before the renaming, and waits for the kill
    replace = os.replace
    def slow(a, b):
        (folder / "now").touch(); time.sleep(0.02); replace(a, b)
    writing.os.replace = slow
text = "{" + ", ".join(f'"{i}": {i}' for i in range(60_000)) + "}"
ledger = RunLedger(folder / "records.jsonl")
print("ready", flush=True)
number = len(ledger.records)
while True:
    write_text(folder / "plan.json", text)
    ledger.add(RunRecord("graph \\u2028", "g", "c", "d", "step-time", "heft", "1", number, value=number))
    number += 1
"""
VERBS = """
import sys
from pathlib import Path
from loadmaster.__main__ import main
import loadmaster.cli.verbs
folder, kind = Path(sys.argv[1]), sys.argv[2]
plan = ["plan", folder / "g.json", "--on", "2xp100-pcie", "--simulations", "20", "--save", folder / "verb.json"]
plan += ["--report", folder / "page.html", "--trace", folder / "trace.json"]
train = ["lab", "train", "gas", "--corpus", folder / "g.jsonl", "--out", folder / "run", "--workers", "2"]
train += ["--set", "steps=100000", "--device", "cpu"]
print("ready", flush=True)
measure = ["measure", "victim:module", "--seconds", "60"]
sys.argv = ["loadmaster", *(str(word) for word in {"plan": plan, "train": train, "measure": measure}[kind])]
main()
"""
MODULE = """
import torch
def module():
    layers = [torch.nn.Linear(40 + i, 41 + i) for i in range(40)]
    return torch.nn.Sequential(*layers), (torch.randn(4, 40),)
"""
VERBS_KILLED = ("plan", "train", "measure")
MARK = "LOADMASTER_KILLED_IN"  # in the environment of a victim and of all that it starts
MOST_PARTS = 8  # that may lie about: a kill leaves one of a file, which the next writer of that file removes
EVERY = 4  # kills, of which one is of a verb
LONGEST = {"writes": 0.05, "any": 0.05, "plan": 6.0, "train": 12.0, "measure": 12.0}  # seconds until the kill


def run(count: int, seed: int, folder: Path, verbs: bool = True) -> list[str]:
    """What went wrong; nothing, when all is well."""
    rng, wrong = random.Random(seed), list[str]()
    (folder / "plan.json").write_text('{"old": true}')
    graph = json.dumps(graph_to_json(next(generate("layered", 1, seed=0, ops=12))))
    (folder / "g.json").write_text(graph)
    (folder / "g.jsonl").write_text((graph + "\n") * 3)
    (folder / "victim.py").write_text(MODULE)
    rows = 0
    for number in range(count):
        verb = verbs and number % EVERY == EVERY - 1
        aim, sign = rng.choice(VERBS_KILLED if verb else ("writes", "any")), rng.choice(SIGNALS)
        victim = _start(folder, aim)
        _wait(folder, aim, rng)
        victim.send_signal(sign)
        victim.wait(30)
        found = _check(folder, rows) + _left(folder)
        if sign == signal.SIGINT and verb and "Traceback" in (said := (folder / "stderr").read_text()):
            found.append(f"Ctrl-C left a traceback: {said[-300:]}")
        wrong += [f"kill {number} ({sign.name}, {aim}): {what}" for what in found]
        rows = max(rows, _rows(folder))
    return wrong


def _start(folder: Path, aim: str) -> subprocess.Popen[str]:
    (folder / "now").unlink(missing_ok=True)
    code = LISTENS + (VERBS if aim in VERBS_KILLED else VICTIM)
    command = [sys.executable, "-c", code, str(folder), aim]
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, MARK: str(folder), "PYTHONPATH": path}
    if aim == "measure":
        environment["LOADMASTER_CACHE"] = str(folder / "cache")
    with (folder / "stderr").open("w") as said:
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment)
    assert victim.stdout is not None and victim.stdout.readline() == "ready\n", "the victim did not start"
    return victim


def _wait(folder: Path, aim: str, rng: random.Random) -> None:
    late = time.monotonic() + 20
    while aim == "writes" and not (folder / "now").exists() and time.monotonic() < late:
        time.sleep(0.001)
    time.sleep(rng.random() * LONGEST[aim])


def _check(folder: Path, before: int) -> list[str]:
    wrong = []
    try:
        data = json.loads((folder / "plan.json").read_text())
        if data != {"old": True} and len(data) != 60_000:
            wrong.append("the plan is neither the old one nor the new one")
    except (OSError, ValueError) as error:
        wrong.append(f"the plan is lost or torn: {error}")
    wrong += _torn(folder)
    seeds = [line["seed"] for line in read_lines(folder / "records.jsonl")]
    if len(seeds) != len(set(seeds)):
        wrong.append("a row stands twice")
    if len(seeds) < before:
        wrong.append(f"{before - len(seeds)} rows are lost")
    parts = [name for name in os.listdir(folder) if ".part" in name]
    if len(parts) > MOST_PARTS:
        wrong.append(f"{len(parts)} parts of files are left")
    return wrong


def _torn(folder: Path) -> list[str]:
    """Files of verbs that are there and cannot be read."""
    wrong = []
    for name, read in (("verb.json", load_plan), ("trace.json", lambda path: json.loads(path.read_text()))):
        try:
            if (folder / name).exists():
                read(folder / name)
        except (OSError, ValueError, LoadmasterError) as error:
            wrong.append(f"{name} is torn: {error}")
    for path in (folder / "cache" / "measured").glob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError as error:
            wrong.append(f"{path.name} is torn: {error}")
    wrong += _twice(folder / "run" / "curves.csv")
    page = folder / "page.html"
    if page.exists() and not page.read_text().rstrip().endswith("</html>"):
        wrong.append("the page is torn")
    for name in (folder / "run").glob("*.safetensors"):
        size = int.from_bytes(name.read_bytes()[:8], "little")
        if not json.loads(name.read_bytes()[8 : 8 + size]):
            wrong.append(f"{name} is torn")
    return wrong


def _twice(curves: Path) -> list[str]:
    """Rows of a training's curves that note the same of one step."""
    if not curves.exists():
        return []
    with curves.open(newline="") as file:
        rows = [
            (row["phase"], row["step"], tuple(k for k, value in row.items() if value)) for row in csv.DictReader(file)
        ]
    return [f"row {row[:2]} of the curves stands twice" for row in set(rows) if rows.count(row) > 1]


def _left(folder: Path) -> list[str]:
    """Processes of the victim that live on; they get a while to notice. Known only where there is /proc."""
    late = time.monotonic() + 30
    while (left := _marked(folder)) and time.monotonic() < late:
        time.sleep(0.05)
    return [f"process {pid} is left" for pid in left]


def _marked(folder: Path) -> list[int]:
    found, mark = list[int](), f"{MARK}={folder}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            if not dead and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _rows(folder: Path) -> int:
    return len(read_lines(folder / "records.jsonl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(options.count, options.seed, Path(folder))
    print("\n".join(wrong) or f"{options.count} kills from seed {options.seed}, nothing lost")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
