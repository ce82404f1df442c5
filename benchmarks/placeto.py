"""Trains Placeto's weights and its ablations: python benchmarks/placeto.py CORPUS OUT [MINUTES].

Three processes of one core each: the weights for two devices, those for four, and one after the other the ablations of
docs/papers/placeto2019.md, a fifth of the time each, on unrolled language models alone. CORPUS is what `loadmaster lab
corpus` writes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from pathlib import Path

FAMILIES = "nas-cells,rnnlm-family,nmt-family"  # as in the paper: searched cells, language models, translation
ABLATIONS: dict[str, dict[str, object]] = {
    "as-published": {},
    "random-order": {"traversal": "random"},
    "one-pool": {"pools": "one"},
    "simple-aggregator": {"rounds": 0},
    "simple-partitioner": {"rounds": 0, "pools": "one"},
}


def train(corpus: str, out: Path, minutes: float, **settings: object) -> None:
    import torch

    from loadmaster.papers import placeto2019

    torch.set_num_threads(1)
    given: dict[str, object] = {
        "families": FAMILIES,
        "steps": 1_000_000,
        "minutes": minutes,
        "device": "cpu",
        **settings,
    }
    try:
        placeto2019.train(placeto2019.PlacetoTrainingSettings(corpus, str(out), **given))  # type: ignore[arg-type]
    except Exception:
        traceback.print_exc()


def ablate(corpus: str, out: Path, minutes: float) -> None:
    for name, settings in ABLATIONS.items():
        print(f"== {name}", flush=True)
        train(corpus, out / name, minutes / len(ABLATIONS), families="rnnlm-family", valid_every=25, **settings)


def main(corpus: str, out: Path, minutes: float) -> None:
    os.environ["OMP_NUM_THREADS"] = os.environ["LOADMASTER_THREADS"] = "1"
    spawn = multiprocessing.get_context("spawn")
    jobs = [
        spawn.Process(target=train, args=(corpus, out / "placeto-2", minutes), kwargs={"cluster": "placeto-2"}),
        spawn.Process(target=train, args=(corpus, out / "placeto-4", minutes), kwargs={"cluster": "placeto-4"}),
        spawn.Process(target=ablate, args=(corpus, out / "ablations", minutes)),
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 7.0)
