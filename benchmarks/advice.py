"""What `plan` advises to do next: whether commands run, keep what was asked, and reach what they state.

Fifty cases of the zoo, clusters and options. Each is planned and saved; the actions of its report are run as they are
printed. An action is reached where its run gains at least half of what it states within the time it states.

    python benchmarks/advice.py [--cases 50] [--seconds 2] [--out advice.json]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import tempfile
from itertools import islice, product
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from loadmaster.cli.verbs import app

MODELS = (
    "inception-v3", "gnmt-2", "transformer-xl-4", "resnet50", "bert-base", "nmt", "wavenet-2x18", "vit-base",
    "unet-ddpm/infer", "rnnlm",
)  # fmt: skip
# (cluster, options): of every kind that a command must keep.
ASKED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("4xp100-pcie", ()),
    ("2xa100-nvlink", ("--method", "expert")),
    ("4xp100-pcie", ("--fusion", "none", "--seed", "3")),
    ("2xv100-nvlink", ("--memory-limit", "15GiB", "--recompute", "none")),
    ("2xp100-pcie", ("--objective", "peak-memory", "--method", "heft")),
)
MAY_CHANGE = {
    "auto": {"--method"},
    "longer": {"--seconds"},
    "split": {"--split", "--seconds"},
    "allowed": {"--recompute", "--offload"},
    "batch": {"--batch"},
    "fused": {"--fusion"},
    "pipeline": {"--microbatches"},
    "replicated": {"--replicate"},
    "more-devices": {"--on"},
    "fewer": {"--on"},
    "host": {"--on"},
}
SLACK = 0.02  # of the goal, where fewer devices were to do as well
LATE = 1.5  # times the seconds that a search was given, for its last steps


def cases(count: int) -> list[tuple[str, str, tuple[str, ...]]]:
    """(model, cluster, options), spread over models first."""
    pairs = product(ASKED, MODELS)
    return [(f"zoo:{model}", on, options) for (on, options), model in islice(pairs, count)]


def run(words: list[str]) -> tuple[int, dict[str, Any]]:
    """(exit code, JSON answer) of a command; no plans found before, so that cases do not help each other."""
    extra = ["--no-experience"] if words[0] == "plan" and "--microbatches" not in words else []
    done = CliRunner().invoke(app, [*words, *extra, "--json"])
    try:
        return done.exit_code, json.loads(done.stdout)
    except json.JSONDecodeError:
        return done.exit_code, {"error": done.output[-300:]}


def options_of(words: list[str]) -> dict[str, str]:
    """Name and value of each option of a command of `plan`."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            found[word] = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else ""
    return found


def judged(action: dict[str, Any], asked: dict[str, str], existing: set[str]) -> dict[str, Any]:
    """One action: whether its command ran, kept all else, wrote a new file, and gained what it states."""
    words = shlex.split(action["command"])[1:]
    typed = options_of(words)
    changed = {name for name in {*asked, *typed} if asked.get(name) != typed.get(name)} - {"--save"}
    code, answer = run(words)
    value = answer.get("value", answer.get("step_ns", 0))
    if action["kind"] == "pipeline":
        value /= int(typed["--microbatches"])
    fits = bool(answer.get("fits", True)) and "error" not in answer
    gain = 1 - value / action["before"] if action["before"] else 0.0
    wanted = action["gain"] / 2 if action["kind"] != "fewer" else -SLACK
    seconds = float(answer.get("seconds", 0.0))
    return {
        "kind": action["kind"],
        "command": action["command"],
        "stated": action["gain"],
        "gained": gain,
        "ran": code == 0,
        "keeps": fits and changed <= MAY_CHANGE[action["kind"]] and typed.get("--save") not in existing,
        "reached": code == 0 and gain >= wanted and seconds <= LATE * action["seconds"] + 1,
        "no_op": not changed or (action["kind"] != "fewer" and gain < 0.001),
        "seconds": seconds,
    }


def judge(model: str, on: str, options: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """One case: planned, saved, and its actions run."""
    words = ["plan", model, "--on", on, "--seconds", f"{seconds:g}", *options]
    code, _ = run([*words, "--save", "plan.json"])
    row: dict[str, Any] = {"case": shlex.join(words), "exit": code, "actions": []}
    if code:
        return row
    code, report = run(["explain", "plan.json", "--seconds", f"{max(1.0, 0.2 * seconds):g}"])
    existing = set(os.listdir())
    asked = {**options_of(words), "--no-experience": ""}
    row["actions"] = [judged(action, asked, existing) for action in report.get("actions", [])]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows, home = [], Path.cwd()
    for number, case in enumerate(cases(given.cases), 1):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            rows.append(judge(*case, given.seconds))
            os.chdir(home)
        told = [f"{one['kind']} {one['stated']:.0%} -> {one['gained']:.0%}" for one in rows[-1]["actions"]]
        print(f"{number:3} {rows[-1]['case']}: {', '.join(told) or 'no action'}", flush=True)
        if given.out:
            given.out.write_text(json.dumps(rows, indent=1))
    every = [action for row in rows for action in row["actions"]]
    first = [row["actions"][0] for row in rows if row["actions"]]
    print(f"{len(rows)} cases, {len(first)} with an action, {len(every)} actions")
    for name in ("ran", "keeps", "no_op"):
        print(f"{name}: {sum(action[name] for action in every)} of {len(every)}")
    print(f"first action reached: {sum(action['reached'] for action in first)} of {len(first)}")


if __name__ == "__main__":
    main()
