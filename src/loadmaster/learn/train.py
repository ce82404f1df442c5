"""Training of the policies that guide BRKGA: imitation of long classical runs, then reinforcement.

Every random number comes from (seed, phase, step) alone and results are taken in the order they were asked for, so a
run that was killed and taken up again ends as one that was not; on a GPU, sums may round differently.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from loadmaster.errors import InvalidSetting
from loadmaster.learn import examples
from loadmaster.learn.examples import Elite, Key, load_elites, save_elites
from loadmaster.learn.losses import (
    Example,
    choice_log_chance,
    draw_actions,
    imitation_loss,
    level_log_chance,
    likeliest_action,
)
from loadmaster.learn.networks import Batch, Kind, Outputs, PolicyNetwork, batch_of
from loadmaster.learn.regal2020 import CHOICES, FIRST, Action
from loadmaster.learn.rollouts import action_job, compile_all, elite_job, features_job, in_order, standard_job

POLICIES: dict[str, Kind] = {"regal": "graph", "gas": "sequence"}
COLUMNS = ("phase", "step", "seconds", "loss", "reward", "accuracy", "entropy", *examples.SETTINGS)
IN_A_FILE = 64  # elites


@dataclass(frozen=True)
class Settings:
    """How to train. Steps and examples are counts; `minutes` cuts each phase short by its share of the time."""

    corpus: str
    out: str
    valid: str = ""  # graphs to choose the checkpoint by; none: some of the corpus are kept apart
    policy: str = "regal"
    seed: int = 0
    workers: int = 0  # processes for simulations; 0: one per core
    device: str = "auto"
    minutes: float | None = None
    warm: int = 4_000  # examples with elites
    elite_simulations: int = 8_000
    fit_steps: int = 3_000
    steps: int = 1_000
    graphs: int = 16  # per step
    samples: int = 8  # actions per graph and step
    evaluations: int = 1_000  # of a rollout
    valid_graphs: int = 24
    valid_evaluations: int = 5_000
    valid_every: int = 20
    fit_rate: float = 1e-3
    rate: float = 3e-4
    epochs: int = 3  # passes over a step's samples (PPO)
    clip: float = 0.2
    entropy: float = 0.01
    imitate: float = 0.3  # weight of imitation while reinforcing
    save_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidSetting(f"policy '{self.policy}' is unknown", "", f"use one of {', '.join(POLICIES)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InvalidSetting("torch finds no GPU here", "device cuda", "use cpu, or auto")
        if self.samples < 2:
            raise InvalidSetting(
                "fewer than 2 samples per graph", "", "rewards are compared within a graph: give 2 or more"
            )


@dataclass
class State:
    """Where training stands, besides the weights."""

    phase: str = "fit"
    step: int = 0
    elites: int = 0  # how many examples the fit uses
    standard: dict[str, int] = field(default_factory=dict)  # what standard BRKGA reaches, by example and evaluations
    best: float = -1e9
    constant: list[int] = field(default_factory=lambda: list(FIRST))
    results: dict[str, float] = field(default_factory=dict)


class Run:
    """One training run: its pool, its network and its files."""

    def __init__(self, settings: Settings, pool: ProcessPoolExecutor, keys: list[Key], begun: float) -> None:
        self.settings, self.pool, self.keys, self.begun = settings, pool, keys, begun
        self.valid: list[Key] = []
        self.out = Path(settings.out)
        wanted = settings.device
        self.device = torch.device(
            "cuda" if wanted == "auto" and torch.cuda.is_available() else "cpu" if wanted == "auto" else wanted
        )
        torch.manual_seed(settings.seed)
        self.network = PolicyNetwork(CHOICES, POLICIES[settings.policy]).to(self.device)
        _lean(self.network, FIRST)
        self.adam = torch.optim.Adam(self.network.parameters(), lr=settings.fit_rate)
        self.state = State()
        self.rows: list[dict[str, Any]] = []
        self.saved = time.monotonic()

    def late(self, share: float) -> bool:
        """Whether this share of the time is gone."""
        minutes = self.settings.minutes
        return minutes is not None and time.monotonic() - self.begun > share * minutes * 60

    def rng(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, *numbers])

    # ---------------------------------------------------------------- phases

    def gather(self) -> list[Example]:
        """Elites for every example, from the files where there are some."""
        folder = self.out / "elites"
        folder.mkdir(parents=True, exist_ok=True)
        known: dict[Key, Elite | None] = {}
        for path in sorted(self.out.glob("elites*.npz")) + sorted(folder.glob("[0-9]*[0-9].npz")):
            known |= load_elites(path)
        started = self.state.elites > 0
        keys = self.keys[: self.state.elites] if started else self.keys
        found: list[Example] = []
        fresh: list[tuple[Key, Elite | None]] = []
        jobs = ((key, known.get(key, 0), self.settings.elite_simulations) for key in keys)
        count = 0
        for key, elite, features in in_order(self.pool, elite_job, jobs, self._window()):
            count += 1
            if key not in known:
                fresh.append((key, elite))
            if elite is not None and features is not None:
                found.append(Example(key, features, elite))
            if len(fresh) >= IN_A_FILE:
                self._keep(folder, fresh, count)
            if not started and self.late(0.42):
                break
        self._keep(folder, fresh, count)
        self.state.elites = count
        self._say(f"{len(found)} examples with elites")
        return found

    def _keep(self, folder: Path, fresh: list[tuple[Key, Elite | None]], count: int) -> None:
        if fresh:
            save_elites(folder / f"{count:06d}.npz", [key for key, _ in fresh], [elite for _, elite in fresh])
            self._say(f"{count} elites")
            fresh.clear()

    def fit(self, found: list[Example]) -> None:
        """Imitation: devices and order of the elites, by maximum likelihood."""
        settings = self.settings
        while self.state.phase == "fit" and self.state.step < settings.fit_steps and not self.late(0.58):
            rng = self.rng(1, self.state.step)
            self._rate(settings.fit_rate * (0.05 + 0.95 * (1 - self._fit_share()) ** 1.5))
            chosen = [found[i] for i in rng.choice(len(found), min(settings.graphs, len(found)), replace=False)]
            loss, accuracy = imitation_loss(self.network(self._batch(chosen)), chosen)
            self._descend(loss)
            self.state.step += 1
            if self.state.step % 50 == 0:
                self._note(loss=float(loss.detach()), accuracy=accuracy)
            self._save_now_and_then()
        if self.state.phase == "fit":
            self.state.phase, self.state.step = "reinforce", 0
            self.adam = torch.optim.Adam(self.network.parameters(), lr=settings.rate)
            self.validate()
            self.save()

    def _fit_share(self) -> float:
        by_step = self.state.step / self.settings.fit_steps
        if self.settings.minutes is None:
            return by_step
        spent = (time.monotonic() - self.begun) / 60 / self.settings.minutes
        return max(by_step, min(1.0, max(0.0, (spent - 0.42) / 0.16)))

    def reinforce(self, found: list[Example]) -> None:
        """Actions drawn for a few graphs, judged by BRKGA under them; likelier where better than their group."""
        settings = self.settings
        while self.state.step < settings.steps and not self.late(0.97):
            rng = self.rng(2, self.state.step)
            chosen = [found[i] for i in rng.choice(len(found), min(settings.graphs, len(found)), replace=False)]
            batch = self._batch(chosen)
            with torch.no_grad():
                outputs = self.network(batch)
            actions = draw_actions(outputs, chosen, settings.samples, rng)
            rewards = self._rewards(chosen, actions)
            loss, entropy = self._learn(batch, chosen, actions, outputs, rewards)
            self.state.step += 1
            self._note(loss=loss, reward=float(rewards.mean()), entropy=entropy)
            if self.state.step % settings.valid_every == 0:
                self.validate()
            self._save_now_and_then()

    def _rewards(self, chosen: list[Example], actions: list[list[Action]]) -> np.ndarray:
        """[graphs, samples] how much better than standard BRKGA with as many evaluations, as a logarithm."""
        settings, jobs = self.settings, []
        standard = self._standard([example.key for example in chosen], settings.evaluations)
        for example, drawn in zip(chosen, actions, strict=True):
            half = -(-len(drawn) // 2)
            jobs += [
                (example.key, part, self.state.step, settings.evaluations) for part in (drawn[:half], drawn[half:])
            ]
        values = list(in_order(self.pool, action_job, jobs, len(jobs)))
        reached = np.array([[*one, *two] for one, two in zip(values[::2], values[1::2], strict=True)], np.float64)
        return np.log(standard[:, None] / reached)

    def _standard(self, keys: list[Key], evaluations: int) -> np.ndarray:
        names = [f"{key.line}/{key.seed}/{key.setting}/{evaluations}" for key in keys]
        fresh = [i for i, name in enumerate(names) if name not in self.state.standard]
        jobs = [(keys[i], evaluations) for i in fresh]
        for i, value in zip(fresh, in_order(self.pool, standard_job, jobs, self._window()), strict=True):
            self.state.standard[names[i]] = value
        return np.array([self.state.standard[name] for name in names], np.float64)

    def _learn(
        self, batch: Batch, chosen: list[Example], actions: list[list[Action]], old: Outputs, rewards: np.ndarray
    ) -> tuple[float, float]:
        # A floor under the deviation: where all samples end alike, their order is noise.
        scaled = (rewards - rewards.mean(axis=1, keepdims=True)) / (rewards.std(axis=1, keepdims=True) + 0.003)
        advantage = torch.tensor(scaled, dtype=torch.float32, device=self.device).clamp(-3, 3)
        picks = torch.tensor(np.array([[a.choices for a in drawn] for drawn in actions]), device=self.device)
        before = choice_log_chance(old.choices, picks)[0]
        self._rate(self.settings.rate)
        for _ in range(self.settings.epochs):
            outputs = self.network(batch)
            now, entropy = choice_log_chance(outputs.choices, picks)
            ratio = (now - before).exp()
            clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
            gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
            gain = gain + (level_log_chance(outputs, batch, chosen, actions) * advantage).mean()
            imitation = imitation_loss(outputs, chosen)[0]
            loss = -gain - self.settings.entropy * entropy + self.settings.imitate * imitation
            self._descend(loss)
        return float(loss.detach()), float(entropy.detach())

    def validate(self) -> None:
        """The likeliest action on graphs kept apart, against standard BRKGA with the same evaluations."""
        evaluations = self.settings.valid_evaluations
        if not self.valid:
            return
        features = list(in_order(self.pool, features_job, self.valid, self._window()))
        actions = []
        with torch.no_grad():
            for each in features:
                outputs = self.network(batch_of([each], self.device))
                actions.append(likeliest_action(outputs, each))
        jobs = [(key, [action], 0, evaluations) for key, action in zip(self.valid, actions, strict=True)]
        reached = np.array([values[0] for values in in_order(self.pool, action_job, jobs, self._window())], np.float64)
        gain = 100 * (1 - reached / self._standard(self.valid, evaluations))
        names = np.array([key.setting for key in self.valid])
        means = {name: float(gain[names == name].mean()) for name in examples.SETTINGS if (names == name).any()}
        self._note(**means)
        self._keep_if_best(means, actions)

    def _keep_if_best(self, means: dict[str, float], actions: list[Action]) -> None:
        mark = means.get("regal", 0.0) + 0.1 * sum(value for name, value in means.items() if name != "regal")
        rows = np.stack([action.choices for action in actions])
        common = [int(np.bincount(column).argmax()) for column in rows.T]
        self._say(
            f"step {self.state.step}: "
            + ", ".join(f"{name} {value:+.2f} %" for name, value in means.items())
            + f" {common}"
        )
        if mark > self.state.best:
            self.state.best, self.state.constant, self.state.results = mark, common, means
            self.export()

    # ---------------------------------------------------------------- steps and files

    def _window(self) -> int:
        return 3 * max(1, self.settings.workers or os.cpu_count() or 1)

    def _batch(self, chosen: list[Example]) -> Batch:
        return batch_of([example.features for example in chosen], self.device)

    def _rate(self, rate: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = rate

    def _descend(self, loss: Tensor) -> None:
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.adam.step()

    def _note(self, **values: float) -> None:
        row = {"phase": self.state.phase, "step": self.state.step, "seconds": round(time.monotonic() - self.begun, 1)}
        self.rows.append({**row, **{name: round(value, 5) for name, value in values.items()}})
        if "reward" in values and self.state.step % 10 == 0:
            self._say(f"step {self.state.step}: reward {values['reward']:+.4f}, entropy {values['entropy']:.2f}")

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:6.1f} s] {self.state.phase}: {text}", flush=True)

    def _save_now_and_then(self) -> None:
        if time.monotonic() - self.saved > self.settings.save_seconds:
            self.save()

    def save(self) -> None:
        """All that is needed to go on, in one file that is put in place whole; then the curves."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for index, held in self.adam.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{name}": torch.as_tensor(value) for name, value in held.items()}
        known = {"state": asdict(self.state), "rows": self.rows}
        _write(self.out / "checkpoint.safetensors", tensors, {"policy": self._policy(), "run": known})
        with (self.out / "curves.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)
        self.saved = time.monotonic()

    def resume(self) -> None:
        path = self.out / "checkpoint.safetensors"
        if not path.is_file():
            return
        with safe_open(str(path), "pt") as file:
            known = json.loads(file.metadata()["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.network.load_state_dict(
            {n.removeprefix("network."): t for n, t in tensors.items() if n.startswith("network.")}
        )
        held: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, index, part = name.split(".")
                held.setdefault(int(index), {})[part] = tensor
        self.adam.load_state_dict({**self.adam.state_dict(), "state": held})
        self.state, self.rows = State(**known["state"]), known["rows"]
        self._say(f"goes on from step {self.state.step}")

    def _policy(self) -> dict[str, Any]:
        return {"network": POLICIES[self.settings.policy], "choices": CHOICES, "constant": self.state.constant}

    def export(self) -> None:
        """The weights to ship."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        _write(self.out / f"{self.settings.policy}.safetensors", tensors, {"policy": self._policy()})

    def card(self, corpus_digest: str, valid_digest: str) -> None:
        hardware = (
            torch.cuda.get_device_name() if self.device.type == "cuda" else platform.processor() or platform.machine()
        )
        card = {
            "policy": self.settings.policy,
            "settings": {k: v for k, v in asdict(self.settings).items() if k not in ("corpus", "valid", "out")},
            "corpus_digest": corpus_digest,
            "valid_digest": valid_digest,
            "examples": self.state.elites,
            "steps": self.state.step,
            "curves": "curves.csv",
            "hardware": f"{hardware}, {os.cpu_count()} cores, torch {torch.__version__}",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(time.monotonic() - self.begun),
            "improvement_over_brkga_percent": self.state.results,
            "constant": self.state.constant,
        }
        (self.out / "card.json").write_text(json.dumps(card, indent=1) + "\n")


def train(settings: Settings) -> Path:
    """Trains a policy, or goes on with what `out` holds; returns the file of the weights."""
    begun = time.monotonic()
    examples.forget_corpora()
    lines, corpus_digest = examples.read_corpus(settings.corpus, seed=settings.seed)
    valid_lines, valid_digest = (
        examples.read_corpus(settings.valid, 1.0) if settings.valid else (lines[::16], corpus_digest)
    )
    lines = lines if settings.valid else sorted(set(lines) - set(valid_lines))
    if not lines:
        raise InvalidSetting(
            f"'{settings.corpus}' has too few graphs to learn from", "", "give a corpus of many graphs"
        )
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    keys = example_keys(lines, settings)
    compile_all(lines[0])
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(settings.workers or os.cpu_count(), forked, examples.alone) as pool:
        run = Run(settings, pool, keys, begun)
        run.valid = valid_keys(pool, valid_lines, settings)
        run.resume()
        found = run.gather()
        run.fit(found)
        run.reinforce(found)
        run.validate()
        run.save()
        run.card(corpus_digest, valid_digest)
        _join_elites(out)
    return out / f"{settings.policy}.safetensors"


def example_keys(lines: Sequence[int], settings: Settings) -> list[Key]:
    """Every graph once in random order, then again with another seed, and so on."""
    keys: list[Key] = []
    turn = 1
    while len(keys) < settings.warm:
        order = np.random.default_rng([settings.seed, 3, turn]).permutation(np.array(lines))
        keys += [Key(int(line), turn) for line in order]
        turn += 1
    return keys[: settings.warm]


def valid_keys(pool: ProcessPoolExecutor, lines: Sequence[int], settings: Settings) -> list[Key]:
    """A fixed few graphs as they are: two thirds on two equal devices, the rest on the other settings."""
    order = np.random.default_rng(5).permutation(np.array(lines))[: 3 * settings.valid_graphs].tolist()
    names = ("regal", "regal", "regal", "regal", "unlike", "bandwidth")
    fits = in_order(pool, examples.suits, [Key(line, 0, "regal") for line in order], len(order))
    good = [line for line, fit in zip(order, fits, strict=True) if fit][: settings.valid_graphs]
    return [Key(line, 0, names[i % len(names)]) for i, line in enumerate(good)]


def _join_elites(out: Path) -> None:
    """One file in place of many: simpler to carry."""
    files = sorted(out.glob("elites*.npz")) + sorted((out / "elites").glob("[0-9]*[0-9].npz"))
    known: dict[Key, Elite | None] = {}
    for path in files:
        known |= load_elites(path)
    save_elites(out / "elites.npz", list(known), list(known.values()))
    for path in files:
        if path.parent != out:
            path.unlink()


def _write(path: Path, tensors: dict[str, Tensor], known: dict[str, Any]) -> None:
    aside = path.with_suffix(".tmp")
    held = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(held, str(aside), {name: json.dumps(value) for name, value in known.items()})
    aside.chmod(0o644)
    aside.replace(path)


def _lean(network: PolicyNetwork, choices: Sequence[int], by: float = 1.0) -> None:
    """Lets the untrained policy prefer these choices."""
    last = network.choose[-1]
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        for first, choice in zip(np.cumsum([0, *CHOICES[:-1]]).tolist(), choices, strict=True):
            last.bias[first + choice] += by


def main(arguments: Sequence[str] | None = None) -> None:
    """python -m loadmaster.learn.train regal --corpus FILE --out DIR"""
    parser = argparse.ArgumentParser(prog="loadmaster train")
    parser.add_argument("policy", choices=sorted(POLICIES))
    for name, spec in Settings.__dataclass_fields__.items():
        if name != "policy":
            kind = {"str": str, "int": int}.get(str(spec.type), float)
            required = name in ("corpus", "out")
            default = None if required else spec.default
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, required=required, default=default)
    train(Settings(**vars(parser.parse_args(arguments))))


if __name__ == "__main__":
    main()
