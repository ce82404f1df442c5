"""What all training runs share: settings, random numbers, curves, checkpoints, the weights to ship and their card.

Every random number comes from (seed, phase, step) alone, so a run that was killed and taken up again ends as one that
was not; on a GPU, sums may round differently. How a policy learns is in its own module.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from loadmaster.errors import InvalidSetting, UnknownName
from loadmaster.files import load_records
from loadmaster.files.writing import write_bytes, write_text, writing
from loadmaster.graph import Graph
from loadmaster.importers import load
from loadmaster.papers import TRAINERS
from loadmaster.papers.weights import foreign, read_tensors
from loadmaster.search.workers import end_with_parent
from loadmaster.simulator import threads


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    Attributes:
        start: weights to begin from.
        minutes: of all sittings together, after which it stops.
        steps: of Adam, whose rate falls from `rate` to `last_rate`.
        valid: graphs to choose the checkpoint by; none: some of the corpus are kept apart.
        workers: processes for simulations; 0: one per core.
    """

    CORPUS: ClassVar[str] = ""  # where none is given

    corpus: str
    out: str
    valid: str = ""
    start: str = ""
    policy: str = ""
    seed: int = 0
    workers: int = 0
    device: str = "auto"
    minutes: float | None = None
    save_seconds: float = 30.0
    steps: int = 10_000
    rate: float = 1e-3
    last_rate: float = 1e-4
    valid_every: int = 100

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InvalidSetting("torch finds no GPU here", "device cuda", "use cpu, or auto")

    @property
    def torch_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)


@dataclass
class Standing:
    """Where training stands, besides the weights.

    Attributes:
        best: the least of all validations.
        known: of examples, what need not be found out again.
    """

    step: int = 0
    best: float = float("inf")
    results: dict[str, float] = field(default_factory=dict)
    known: dict[str, float] = field(default_factory=dict)


class TrainingRun:
    """One training run: its network and its files. A paper says what a step is, and how to validate.

    Attributes:
        columns: of the curves.
        known: what a file of weights says of its network.
    """

    columns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: TrainingSettings, network: nn.Module, known: Mapping[str, Any], begun: float) -> None:
        self.settings, self.state, self.known, self.begun = settings, Standing(), known, begun
        self.out, self.device = Path(settings.out), settings.torch_device
        self.network: Any = network.to(self.device)
        self.adam = torch.optim.Adam(self.network.parameters(), lr=settings.rate)
        self.rows: list[dict[str, Any]] = []
        self.earlier = 0.0  # seconds of the sittings before this one
        self.saved = time.monotonic()
        self.out.mkdir(parents=True, exist_ok=True)
        if settings.start:
            fix = "give weights of such a network"
            _, tensors = read_tensors(settings.start, "policy", fix)
            with foreign(settings.start, fix):
                self.network.load_state_dict(_under("network.", tensors))

    def step(self, rng: np.random.Generator) -> dict[str, float]:
        """A step of Adam; what of it the curves show."""
        raise NotImplementedError

    def validate(self) -> None:
        raise NotImplementedError

    def learn(self, **facts: Any) -> Path:
        """Learns, or goes on with what `out` holds; returns the file of the best weights. Facts are for their card."""
        self.resume()
        self.validate()
        while self.state.step < self.settings.steps and not self.late(0.96):
            rate = self.settings.rate * (self.settings.last_rate / self.settings.rate) ** self.share
            self.adam.param_groups[0]["lr"] = rate
            seen = self.step(self.rng(1, self.state.step))
            self.state.step += 1
            self.note(**seen, rate=rate)
            if self.state.step % self.settings.valid_every == 0:
                self.validate()
            if time.monotonic() - self.saved > self.settings.save_seconds:
                self.save()
        self.validate()
        self.save()
        self.card(steps=self.state.step, results=self.state.results, **facts)
        return self.weights

    def judge(self, height: float, told: str, **results: float) -> None:
        """Says what a validation came to, the first of the results, and keeps the weights, where none was lower."""
        self.note(valid=next(iter(results.values())))
        self.say(f"step {self.state.step:,} of {self.settings.steps:,}: {told}")
        if height < self.state.best:
            self.state.best, self.state.results = height, {**results, "at_step": self.state.step}
            self.export()

    @property
    def spent(self) -> float:
        """Seconds of all sittings."""
        return self.earlier + time.monotonic() - self.begun

    def late(self, share: float) -> bool:
        """Whether this share of the time is gone."""
        minutes = self.settings.minutes
        return minutes is not None and self.spent > share * minutes * 60

    @property
    def share(self) -> float:
        """How much of the training is done, by steps or by time."""
        return min(1.0, max(self.state.step / self.settings.steps, self.spent / 60 / (self.settings.minutes or 1e9)))

    def rng(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, *numbers])

    def descend(self, loss: Tensor, clip: float = 1.0) -> None:
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), clip)
        self.adam.step()

    def note(self, **values: float) -> None:
        """A row of the curves; in place of the one that noted the same of this step, before a run went on or ended."""
        row = {"step": self.state.step, "seconds": round(self.spent, 1)}
        row |= {name: round(value, 5) for name, value in values.items()}
        at = len(self.rows)
        while at and self.rows[at - 1]["step"] == self.state.step:
            at -= 1
        self.rows[at:] = [*(old for old in self.rows[at:] if old.keys() != row.keys()), row]

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:6.1f} s] {text}", flush=True)

    # ---------------------------------------------------------------- files

    def save(self) -> None:
        """All that is needed to go on, in one file that is put in place whole; then the curves."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for index, held in self.adam.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{name}": torch.as_tensor(value) for name, value in held.items()}
        write_tensors(self.checkpoint, tensors, {"run": {"state": asdict(self.state), "rows": self.rows}})
        with writing(self.out / "curves.csv") as part, part.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)
        self.saved = time.monotonic()

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint.safetensors"

    def resume(self) -> None:
        """Goes on from the checkpoint, if there is one."""
        if not self.checkpoint.is_file():
            return
        fix = "move it away to begin anew, or give another --out folder"
        known, tensors = read_tensors(self.checkpoint, "run", fix)
        with foreign(self.checkpoint, fix):
            self._go_on(known, tensors)
        self.say(f"goes on from step {self.state.step}")

    def _go_on(self, known: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(_under("network.", tensors))
        held: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, index, part = name.split(".")
                held.setdefault(int(index), {})[part] = tensor
        self.adam.load_state_dict({**self.adam.state_dict(), "state": held})
        self.state, self.rows = Standing(**known["state"]), known["rows"]
        self.earlier = max((row["seconds"] for row in self.rows), default=0.0)

    @property
    def weights(self) -> Path:
        return self.out / f"{self.settings.policy}.safetensors"

    def export(self) -> None:
        """The weights to ship, with what is needed to build their network again."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        write_tensors(self.weights, tensors, {"policy": self.known})

    def card(self, **facts: Any) -> None:
        """card.json: how the weights came about."""
        on_gpu = self.device.type == "cuda"
        hardware = torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine()
        given = {k: v for k, v in asdict(self.settings).items() if k not in ("corpus", "valid", "start", "out")}
        card = {
            "policy": self.settings.policy,
            "settings": given,
            "curves": "curves.csv",
            "hardware": f"{hardware}, {os.cpu_count()} cores, torch {torch.__version__}",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(self.spent),
            **facts,
        }
        write_text(self.out / "card.json", json.dumps(card, indent=1) + "\n")


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def crew(processes: int) -> ProcessPoolExecutor:
    """Processes that simulate on a core each, forked now, before this one begins to use a GPU."""
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _alone)
    pool.submit(os.getpid).result()
    return pool


def _alone() -> None:
    end_with_parent()
    os.environ["LOADMASTER_THREADS"] = "1"
    threads._pool.clear()  # a pool of threads does not live through a fork
    torch.set_num_threads(1)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], known: Mapping[str, Any]) -> None:
    """One safetensors file, put in place whole; `known` goes into its header as JSON."""
    held = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_bytes(path, save(held, {name: json.dumps(value) for name, value in known.items()}))


def corpus_graphs(corpus: str, mode: str = "training") -> Iterator[tuple[str, str, Graph]]:
    """(name, family, graph) of a .jsonl file or of a folder: of its train.jsonl.xz where `loadmaster lab corpus` made
    it, else of each model that it holds. A graph that says another mode is left out."""
    path = Path(corpus)
    if path.is_dir() and not (path / "train.jsonl.xz").is_file():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        yield from ((file.name, path.name, load(str(file))) for file in files)
        return
    for graph, origin in load_records(path / "train.jsonl.xz" if path.is_dir() else path):
        if origin.get("mode", mode) == mode:
            yield graph.name, origin.get("family", ""), graph


def settings_of(policy: str) -> type[TrainingSettings]:
    """What can be set when that policy is trained."""
    if policy not in TRAINERS:
        raise UnknownName.among("policy", policy, list(TRAINERS))
    found: type[TrainingSettings] = import_module(TRAINERS[policy]).SETTINGS
    return found


def make_settings(policy: str, given: Mapping[str, str]) -> TrainingSettings:
    """Settings from words, each read as the kind of value it is."""
    kinds = settings_of(policy)
    given = {**given, "corpus": given.get("corpus") or kinds.CORPUS}
    if not given["corpus"]:
        raise InvalidSetting("there is nothing to learn from", policy, "give --corpus")
    types = get_type_hints(kinds)
    known: dict[str, Any] = {}
    for name, text in given.items():
        if name not in types:
            raise UnknownName.among("setting", name, [field.name for field in fields(kinds)])
        known[name] = _read(name, text, types[name])
    return kinds(**{**known, "policy": policy})


def _read(name: str, text: str, kind: Any) -> Any:
    try:
        if kind is bool:
            return {"yes": True, "no": False}[text]
        return text if kind is str else int(text) if kind is int else float(text)
    except (ValueError, KeyError):
        wanted = "yes or no" if kind is bool else "a whole number" if kind is int else "a number"
        raise InvalidSetting(f"'{text}' is no value for {name}", "", f"give {wanted}") from None


def train(settings: TrainingSettings) -> Path:
    """Trains a policy, or goes on with what `out` holds; returns the file of the weights."""
    trained: Path = import_module(TRAINERS[settings.policy]).train(settings)
    return trained
