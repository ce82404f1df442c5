"""`loadmaster train list`: the weights of the learned list scheduler, from a user's corpus and generated graphs.

Two phases: first the plans themselves count, then what a short search makes of them. Weights are kept that are best on
problems held out; a run that was stopped goes on.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import UnreadableFile
from loadmaster.files.writing import write_text, writing
from loadmaster.learn import examples
from loadmaster.learn.scheduling.examples import ScheduleKey
from loadmaster.learn.scheduling.training import Ascent, ForkedCrew, Settings, ascend
from loadmaster.optimizers.policy.policy import first_weights
from loadmaster.optimizers.policy.weights import read_weights, write_weights
from loadmaster.papers.training import TrainingSettings

PHASES = {"plans": 0.75, "search": 1.0}  # share of the time after which each ends
CHECKPOINT = "checkpoint.npz"
HELD_OUT = 10**6  # seeds of generated problems that nothing is learned from begin here


@dataclass(frozen=True)
class ScheduleSettings(TrainingSettings):
    """What is learned from, and how.

    Attributes:
        generated: problems besides those of the corpus.
        kept: generated ones to choose weights by; and one graph in six of the corpus, where none are given.
        draws: problems of each graph of the corpus.
        weights: a file to begin from.
        steps: generations of each phase, at most.
        step: deviation of what is tried around the weights.
        simulations: of the search of the second phase.
    """

    generated: int = 400
    kept: int = 64
    draws: int = 2
    weights: str = ""
    steps: int = 320
    step: float = 0.05
    rate: float = 0.02
    simulations: int = 64


SETTINGS = ScheduleSettings


def train(settings: TrainingSettings) -> Path:
    """Two phases: the plans themselves, then what a short search makes of them. A run that was stopped goes on."""
    assert isinstance(settings, ScheduleSettings)
    keys, held, corpus = _keys(settings)
    run = Run.begun(settings)
    crew = ForkedCrew(keys, held, settings.workers or os.cpu_count() or 1)
    run.say(f"{len(keys)} problems to learn from, {len(held)} to choose by")
    try:
        run.climb(crew)
    finally:
        crew.close()
    return run.export(corpus)


@dataclass
class Run:
    """Where a run stands, and its files.

    Attributes:
        seconds: that the run had used before it was stopped.
    """

    settings: ScheduleSettings
    ascent: Ascent
    phase: str = "plans"
    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    clock: float = field(default_factory=time.monotonic)

    @property
    def used(self) -> float:
        return self.seconds + time.monotonic() - self.clock

    def say(self, text: str) -> None:
        print(f"[{self.used:6.1f} s] {text}", flush=True)

    def climb(self, crew: ForkedCrew) -> None:
        """The phases that are left, each to the end of its share of the time."""
        for phase in list(PHASES)[list(PHASES).index(self.phase) :]:
            if phase != self.phase:
                self.phase, self.ascent = phase, Ascent.of(self.ascent.best_weights)
            minutes = self.settings.minutes
            left = float("inf") if minutes is None else PHASES[phase] * 60 * minutes - self.used
            ascend(crew, self.ascent, self._how(), left, self.settings.steps, self._note)
            self._save()

    def _how(self) -> Settings:
        given = self.settings
        if self.phase == "plans":
            return Settings(given.step, given.rate)
        return Settings(given.step, given.rate / 2, each=8, simulations=given.simulations)

    def _note(self, row: dict[str, float], ascent: Ascent) -> None:
        self.rows.append({"phase": self.phase, **{name: round(value, 5) for name, value in row.items()}})
        self.say(f"{self.phase}: generation {row['turn']:.0f}, {100 * row['gain']:+.1f} % on those held out")
        self._save()

    def _save(self) -> None:
        Path(self.settings.out).mkdir(parents=True, exist_ok=True)
        out, columns = Path(self.settings.out), ("phase", "turn", "seconds", "gain", "rough", "spread")
        known = {"phase": self.phase, "rows": json.dumps(self.rows), "seconds": self.used, **vars(self.ascent)}
        with writing(out / CHECKPOINT) as part, part.open("wb") as file:
            np.savez(file, **known)
        with writing(out / "curves.csv") as part, part.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)

    @staticmethod
    def begun(settings: ScheduleSettings) -> Run:
        """From its checkpoint, where there is one."""
        path = Path(settings.out) / CHECKPOINT
        if not path.is_file():
            weights = read_weights(settings.weights) if settings.weights else first_weights(settings.seed)
            return Run(settings, Ascent.of(weights))
        try:
            with np.load(path) as held:
                columns = {name: held[name] for name in ("weights", "mean", "square", "best_weights")}
                ascent = Ascent(**columns, best=float(held["best"]), turn=int(held["turn"]))
                return Run(settings, ascent, str(held["phase"]), json.loads(str(held["rows"])), float(held["seconds"]))
        except (OSError, ValueError, KeyError) as error:
            fix = "move it away to begin anew, or give another --out folder"
            raise UnreadableFile(f"'{path}' is no checkpoint of this policy: {error}", "", fix) from error

    def export(self, corpus: str) -> Path:
        """The weights to ship and their card."""
        path = Path(self.settings.out) / f"{self.settings.policy}.safetensors"
        given = {k: v for k, v in vars(self.settings).items() if k not in ("corpus", "valid", "out", "ray", "device")}
        card = {
            "policy": self.settings.policy,
            "corpus": corpus,
            "settings": given,
            "curves": "curves.csv",
            "gain": max((row["gain"] for row in self.rows if row["phase"] == self.phase), default=None),
            "hardware": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(self.used),
        }
        write_text(path.with_name("card.json"), json.dumps(card, indent=1) + "\n")
        write_weights(path, self.ascent.best_weights, {"corpus": corpus})
        return path


def _keys(settings: ScheduleSettings) -> tuple[list[ScheduleKey], list[ScheduleKey], str]:
    """(Problems to learn from, to choose by, the digest of the corpus)."""
    lines, corpus = examples.read_corpus(settings.corpus, seed=settings.seed)
    mixed = np.random.default_rng(settings.seed).permutation(lines).tolist()
    if settings.valid:
        kept, _ = examples.read_corpus(settings.valid, seed=settings.seed)
    else:
        kept, mixed = mixed[: len(mixed) // 6], mixed[len(mixed) // 6 :]
    keys = [ScheduleKey(-1, seed) for seed in range(settings.generated)]
    keys += [ScheduleKey(line, draw) for draw in range(settings.draws) for line in mixed]
    held = [ScheduleKey(-1, HELD_OUT + seed) for seed in range(settings.kept)] + [ScheduleKey(line, 0) for line in kept]
    return keys, held, corpus
