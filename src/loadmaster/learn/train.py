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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.pool import Pool
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
from loadmaster.learn.features import Features
from loadmaster.learn.networks import Batch, Kind, Outputs, PolicyNetwork, batch_of
from loadmaster.learn.regal2020 import (
    BIAS,
    CHOICES,
    FIRST,
    LEVELS,
    SPREAD,
    STRENGTH,
    WIDTH,
    Action,
    Regal,
    level_targets,
    likeliest_choices,
    run_action,
)
from loadmaster.optimizers.genetic import Brkga
from loadmaster.search import Budget, Search

POLICIES: dict[str, Kind] = {"regal": "graph", "gas": "sequence"}
NOISE = 0.5  # deviation of drawn levels around their targets, in levels
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


@dataclass(frozen=True, eq=False)
class Example:
    key: Key
    features: Features
    elite: Elite


class Run:
    """One training run: its pool, its network and its files."""

    def __init__(self, settings: Settings, pool: Pool, keys: list[Key], valid: list[Key]) -> None:
        self.settings, self.pool, self.keys, self.valid = settings, pool, keys, valid
        self.begun = time.monotonic()
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
                self._note(loss=float(loss), accuracy=accuracy)
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
        return float(loss), float(entropy)

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
        mark = means.get("regal", 0.0) + 0.25 * sum(value for name, value in means.items() if name != "regal")
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
    examples.forget_corpora()
    lines, corpus_digest = examples.read_corpus(settings.corpus, seed=settings.seed)
    valid_lines, valid_digest = (
        examples.read_corpus(settings.valid, 1.0) if settings.valid else (lines[::16], corpus_digest)
    )
    lines = lines if settings.valid else sorted(set(lines) - set(valid_lines))
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    keys = example_keys(lines, settings)
    standard_job((Key(lines[0], 1), 4))  # compiles before the processes part
    with multiprocessing.get_context("fork").Pool(settings.workers or os.cpu_count(), examples.alone) as pool:
        run = Run(settings, pool, keys, valid_keys(pool, valid_lines, settings))
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


def valid_keys(pool: Pool, lines: Sequence[int], settings: Settings) -> list[Key]:
    """A fixed few graphs as they are: two thirds on two equal devices, the rest on the other settings."""
    order = np.random.default_rng(5).permutation(np.array(lines))[: 3 * settings.valid_graphs].tolist()
    names = ("regal", "regal", "regal", "regal", "unlike", "bandwidth")
    fits = pool.map(examples.suits, [Key(line, 0, "regal") for line in order])
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
    aside.replace(path)


def _lean(network: PolicyNetwork, choices: Sequence[int], by: float = 1.0) -> None:
    """Lets the untrained policy prefer these choices."""
    last = network.choose[-1]
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        for first, choice in zip(np.cumsum([0, *CHOICES[:-1]]).tolist(), choices, strict=True):
            last.bias[first + choice] += by


# -------------------------------------------------------------------- what the processes do


def in_order(pool: Pool, function: Callable[[Any], Any], jobs: Iterable[Any], window: int) -> Iterator[Any]:
    """Results in the order of the jobs, with at most `window` of them under way."""
    waiting: deque[Any] = deque()
    for job in jobs:
        waiting.append(pool.apply_async(function, (job,)))
        if len(waiting) >= window:
            yield waiting.popleft().get()
    while waiting:
        yield waiting.popleft().get()


def elite_job(job: tuple[Key, Elite | int | None, int]) -> tuple[Key, Elite | None, Features | None]:
    key, known, simulations = job
    elite = examples.find_elite(key, simulations) if isinstance(known, int) else known
    return key, elite, None if elite is None else examples.make_features(key)


def features_job(key: Key) -> Features:
    return examples.make_features(key)


def standard_job(job: tuple[Key, int]) -> int:
    """What standard BRKGA reaches."""
    key, evaluations = job
    search = Search(examples.make_problem(key), Budget(None, evaluations), 1)
    Brkga(evaluations=evaluations).optimize(search)
    return _value(search)


def action_job(job: tuple[Key, list[Action], int, int]) -> list[int]:
    """What BRKGA reaches under each action."""
    key, actions, seed, evaluations = job
    values = []
    for action in actions:
        search = Search(examples.make_problem(key), Budget(None, evaluations), seed)
        run_action(search, examples.make_features(key), action, Regal(), evaluations)
        values.append(_value(search))
    return values


def _value(search: Search) -> int:
    """The objective; a plan that does not fit counts double and what it is over by."""
    score = search.best_score
    return max(1, score.value if not score.over_bytes else 2 * score.value + score.over_bytes)


# -------------------------------------------------------------------- what the network is judged by


def imitation_loss(outputs: Outputs, chosen: list[Example]) -> tuple[Tensor, float]:
    """Cross-entropy of the elites' devices, heavy ops counting more, and the squared error of their places."""
    device = outputs.chance.device
    first, picks, at = 0, [], []
    for example in chosen:
        devices = example.features.num_devices
        picks.append(first + np.arange(len(example.elite.device)) * devices + example.elite.device)
        at.append((example.elite.turn + 0.5) / len(example.elite.turn))
        first += len(example.elite.device) * devices
    pick = torch.from_numpy(np.concatenate(picks)).to(device)
    place = torch.from_numpy(np.concatenate(at).astype(np.float32)).to(device)
    weight = torch.from_numpy(np.concatenate([e.features.weight for e in chosen])).to(device)
    likely = outputs.chance[pick]
    smooth = -(0.95 * likely + 0.05 * outputs.chance.clamp(min=-10).mean())
    error = (outputs.place - place).square()
    loss = (weight * smooth).sum() / weight.sum() + 5 * error.mean()
    return loss, float((likely.detach() > np.log(0.5)).float().mean())


def draw_actions(outputs: Outputs, chosen: list[Example], samples: int, rng: np.random.Generator) -> list[list[Action]]:
    """[graphs][samples] actions drawn from the policy."""
    logits = outputs.choices.cpu().numpy().astype(np.float64)
    actions: list[list[Action]] = []
    for index, part in enumerate(_parts(outputs, [example.features for example in chosen])):
        drawn = []
        for _ in range(samples):
            choices = _draw_choices(logits[index], rng)
            drawn.append(_levels_around(part, chosen[index].features, choices, rng))
        actions.append(drawn)
    return actions


def likeliest_action(outputs: Outputs, features: Features) -> Action:
    choices = likeliest_choices(outputs.choices[0].cpu().numpy())
    return _levels_around(next(_parts(outputs, [features])), features, choices, None)


def _parts(outputs: Outputs, many: Sequence[Features]) -> Iterator[tuple[np.ndarray, ...]]:
    """Chances, places and shifts of each problem of a batch."""
    chance, place, shift = (t.cpu().numpy() for t in (outputs.chance, outputs.place, outputs.shift))
    pair = op = 0
    for features in many:
        pairs, ops = features.num_ops * features.num_devices, features.num_ops
        yield chance[pair : pair + pairs], place[op : op + ops], shift[op : op + ops]
        pair, op = pair + pairs, op + ops


def _draw_choices(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    noisy = logits + rng.gumbel(size=len(logits))
    return likeliest_choices(noisy)


def _levels_around(
    part: tuple[np.ndarray, ...], features: Features, choices: np.ndarray, rng: np.random.Generator | None
) -> Action:
    chance, place, shift = part
    levels = []
    for target in level_targets(chance, shift, choices, features.num_devices):
        noise = 0.0 if rng is None else NOISE * rng.standard_normal(len(target))
        levels.append(np.clip(np.round(target + noise), 0, LEVELS - 1).astype(np.uint8))
    return Action(choices, levels[0], levels[1], levels[2], levels[3], chance, place)


def choice_log_chance(logits: Tensor, picks: Tensor) -> tuple[Tensor, Tensor]:
    """[graphs, samples] log-probability of the choices, and the mean entropy of a choice."""
    total = torch.zeros(picks.shape[:2], device=logits.device)
    entropy = torch.zeros((), device=logits.device)
    for index, part in enumerate(logits.split(list(CHOICES), dim=1)):
        chance = part.log_softmax(dim=1)
        total = total + chance.gather(1, picks[:, :, index])
        entropy = entropy - (chance.exp() * chance).sum(dim=1).mean() / len(CHOICES)
    return total, entropy


def level_log_chance(outputs: Outputs, batch: Batch, chosen: list[Example], actions: list[list[Action]]) -> Tensor:
    """[graphs, samples] log-density of the drawn levels around their targets, the mean over ops."""
    device, count = outputs.chance.device, batch.num_graphs
    graph_of_pair = batch.graph_of_op[batch.op_of_pair]
    even = torch.tensor([1 / e.features.num_devices for e in chosen], device=device)[graph_of_pair]
    chance = outputs.chance.exp()
    centred = torch.where(chance >= even, 0.5 + 0.5 * (chance - even) / (1 - even).clamp(min=1e-9), 0.5 * chance / even)
    columns = []
    for sample in range(len(actions[0])):
        drawn = [row[sample] for row in actions]
        picks = np.stack([action.choices for action in drawn])

        def per_graph(table: Sequence[float], column: int, picks: np.ndarray = picks) -> Tensor:
            return torch.tensor([float(table[i]) for i in picks[:, column]], device=device)

        def levels(name: str, drawn: list[Action] = drawn) -> Tensor:
            return torch.from_numpy(np.concatenate([getattr(a, name) for a in drawn]).astype(np.float32)).to(device)

        mean = (0.5 + (centred - 0.5) * per_graph(STRENGTH, 0)[graph_of_pair]) * LEVELS
        variance = per_graph(SPREAD, 1)[graph_of_pair] + outputs.shift[batch.op_of_pair, 1]
        width = per_graph(WIDTH, 3)[batch.graph_of_op] + outputs.shift[:, 0]
        bias = per_graph(BIAS, 4)[batch.graph_of_op] + outputs.shift[:, 2]
        by_pair = (levels("mean") - mean).square() + (levels("variance") - variance).square()
        by_op = (levels("width") - width).square() + (levels("bias") - bias).square()
        columns.append(
            _mean_per_graph(by_pair, graph_of_pair, count) + _mean_per_graph(by_op, batch.graph_of_op, count)
        )
    return -torch.stack(columns, dim=1) / (2 * NOISE**2)


def _mean_per_graph(values: Tensor, graph: Tensor, count: int) -> Tensor:
    size = torch.zeros(count, device=values.device).index_add(0, graph, torch.ones_like(values))
    return torch.zeros(count, device=values.device).index_add(0, graph, values) / size


def main(arguments: Sequence[str] | None = None) -> None:
    """python -m loadmaster.learn.train regal --corpus FILE --out DIR"""
    parser = argparse.ArgumentParser(prog="loadmaster train")
    parser.add_argument("policy", choices=sorted(POLICIES))
    for name, spec in Settings.__dataclass_fields__.items():
        if name != "policy":
            kind = {"str": str, "int": int}.get(str(spec.type), float)
            required = name in ("corpus", "out")
            given = {} if required else {"default": spec.default}
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, required=required, **given)
    train(Settings(**vars(parser.parse_args(arguments))))


if __name__ == "__main__":
    main()
