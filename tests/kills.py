"""Kills at random moments, and aimed at writes: no old file lost, none torn, no process left, no row twice.

    python -m tests.kills [--count 200] [--seed 0]

`make kills` runs 200; a test runs a few. A victim is a process of its own that plans, saves and writes records over and
over; it is ended by SIGKILL, SIGTERM or SIGINT after a random time, or exactly when it writes. Afterwards every file it
writes must be whole: an old one or a new one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
VICTIM = """
import os, sys, time
from pathlib import Path
folder, aim = Path(sys.argv[1]), sys.argv[2]
import loadmaster.files.writing as writing
from loadmaster.files.writing import write_text
from loadmaster.bench.records import Ledger, Record
if aim == "writes":  # says so when it stands before the renaming, and waits for the kill
    replace = os.replace
    def slow(a, b):
        (folder / "now").touch(); time.sleep(0.02); replace(a, b)
    writing.os.replace = slow
text = "{" + ", ".join(f'"{i}": {i}' for i in range(60_000)) + "}"
ledger = Ledger(folder / "records.jsonl")
print("ready", flush=True)
number = len(ledger.records)
while True:
    write_text(folder / "plan.json", text)
    ledger.add(Record("graph \\u2028", "g", "c", "d", "step-time", "heft", "1", number, value=number))
    number += 1
"""


def run(count: int, seed: int, folder: Path) -> list[str]:
    """What went wrong; nothing, when all is well."""
    rng, wrong = random.Random(seed), list[str]()
    (folder / "plan.json").write_text('{"old": true}')
    rows = 0
    for number in range(count):
        aim, sign = rng.choice(("writes", "any")), rng.choice(SIGNALS)
        victim = _start(folder, aim)
        _wait(folder, aim, rng)
        victim.send_signal(sign)
        victim.wait(30)
        found = _check(folder, rows)
        wrong += [f"kill {number} ({sign.name}, {aim}): {what}" for what in found]
        rows = max(rows, _rows(folder))
    return wrong


def _start(folder: Path, aim: str) -> subprocess.Popen[str]:
    (folder / "now").unlink(missing_ok=True)
    command = [sys.executable, "-c", VICTIM, str(folder), aim]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert victim.stdout is not None and victim.stdout.readline() == "ready\n", "the victim did not start"
    return victim


def _wait(folder: Path, aim: str, rng: random.Random) -> None:
    late = time.monotonic() + 20
    while aim == "writes" and not (folder / "now").exists() and time.monotonic() < late:
        time.sleep(0.001)
    time.sleep(rng.random() * 0.05)


def _check(folder: Path, before: int) -> list[str]:
    wrong = []
    try:
        data = json.loads((folder / "plan.json").read_text())
        if data != {"old": True} and len(data) != 60_000:
            wrong.append("the plan is neither the old one nor the new one")
    except (OSError, ValueError) as error:
        wrong.append(f"the plan is lost or torn: {error}")
    from loadmaster.bench.records import read_lines

    seeds = [line["seed"] for line in read_lines(folder / "records.jsonl")]
    if len(seeds) != len(set(seeds)):
        wrong.append("a row stands twice")
    if len(seeds) < before:
        wrong.append(f"{before - len(seeds)} rows are lost")
    parts = [name for name in os.listdir(folder) if ".part" in name]
    if len(parts) > 1000:
        wrong.append(f"{len(parts)} parts of files are left")
    return wrong


def _rows(folder: Path) -> int:
    from loadmaster.bench.records import read_lines

    return len(read_lines(folder / "records.jsonl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(options.count, options.seed, Path(folder))
    print("\n".join(wrong) or f"{options.count} kills, nothing lost")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
