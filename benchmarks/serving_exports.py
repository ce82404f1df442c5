"""Exports read back: plans of language models in the words of every runtime, held against the plan and against memory.

    python benchmarks/serving_exports.py [--models 4] [--seconds 0.3] [--csv FILE]

For each model and set of devices: the plan made for each runtime, and one made for none, exported to it. A line ends in
`kept` (the words are the plan and fit), `refused` (they are not, with the nearest that is) or `no plan` (nothing fits).
A plan made for its runtime that is refused, or a `kept` one that needs more than there is, is a fault, and exit code 1.
With llama.cpp's `llama-fit-params` on the path, its own account of memory: tests/unit/serving/test_gguf.py.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from serving import MODELS

from loadmaster import LoadmasterError
from loadmaster.cluster import Cluster
from loadmaster.serving.documents import module_plan
from loadmaster.serving.exports import TARGETS, ExportTarget
from loadmaster.serving.phases import Served, serve
from loadmaster.serving.planning import plan_serving, priced
from loadmaster.serving.readback import exported
from loadmaster.serving.requests import Requests

FIRST = ("llama-1b", "qwen2-7b", "gpt2-xl", "qwen3-4b", "llama-8b", "gemma-2b")
# Memory of two GPUs as shares of the model's weights, 2 GiB more each, and whether a host is beside them.
CLUSTERS = ((1.0, 0.5, ""), (0.5, 0.9, "+cpu"), (0.6, 0.3, "+cpu"))
ASKED = Requests(prompt=512, new=64, batch=2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    rows, faults = [], 0
    for name in FIRST[: given.models]:
        for row in triples(name, served(name), given.seconds):
            rows.append(row)
            faults += row[-1]
            print(*row[:-1], sep="\t", flush=True)
    if given.csv is not None:
        with open(given.csv, "w", newline="") as file:
            csv.writer(file).writerows(row[:-1] for row in rows)
    print(f"{len(rows)} triples: {dict(Counter((row[3], row[4]) for row in rows))}; faults: {faults}")
    raise SystemExit(1 if faults else 0)


def served(name: str) -> Served:
    """The model, captured once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.mkdir()
        (path / "config.json").write_text(json.dumps(MODELS[name]))
        return serve(path, ASKED)


def triples(name: str, model: Served, seconds: float) -> Iterator[tuple[str, str, str, str, str, str, int]]:
    """(model, devices, runtime, planned for it or for none, outcome, fullest share of memory, fault)."""
    weights = priced(model, Cluster.preset("1xh200")).weight_bytes.sum() / 2**30
    for first, second, host in CLUSTERS:
        on = f"4090:{first * weights + 2:.1f}GiB+3090:{second * weights + 2:.1f}GiB{host}"
        cluster = Cluster.preset(on)
        service = priced(model, cluster)
        free = plan_serving(model, service, None, seconds=seconds)
        for target in TARGETS.values():
            own_service = priced(model, cluster, target=target)
            own = plan_serving(model, own_service, target, seconds=seconds)
            for kind, result, of in (("for it", own, own_service), ("for none", free, service)):
                if not result.best.fits:
                    yield name, on, target.name, kind, "no plan", "-", 0
                    continue
                outcome, share = judged(module_plan(name, of, result.best), target)
                fault = (kind == "for it" and outcome == "refused") or (outcome == "kept" and share > 1)
                yield name, on, target.name, kind, outcome, f"{share:.2f}", int(fault)


def judged(plan: object, target: ExportTarget) -> tuple[str, float]:
    """(outcome, fullest share of the memory of a device)."""
    try:
        found = exported(plan, target)  # type: ignore[arg-type]
    except LoadmasterError as error:
        return ("refused", 0.0) if error.fix else ("silent", 2.0)
    limits = zip(found.plan.devices, found.plan.memory_bytes, strict=True)
    return "kept", max(found.peak_bytes[name] / limit for name, limit in limits)


if __name__ == "__main__":
    main()
