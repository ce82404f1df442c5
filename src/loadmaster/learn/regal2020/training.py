"""How REGAL's policies learn: imitation of long classical runs, then reinforcement by what BRKGA reaches.

With `folds`, the graphs of one fold are kept apart: `held` in the curves is the loss on their plans, and validation is
on them. What is chosen by folds (steps, dropout, decay) is chosen without a look at any other graphs.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch

from loadmaster.errors import InvalidSetting
from loadmaster.learn import examples
from loadmaster.learn.examples import Elite, Key, load_elites, save_elites
from loadmaster.learn.regal2020.actions import CHOICES, FIRST, RegalAction
from loadmaster.learn.regal2020.losses import (
    Example,
    choice_log_chance,
    draw_actions,
    imitation_loss,
    level_log_chance,
    likeliest_action,
)
from loadmaster.learn.regal2020.networks import Batch, Outputs, PolicyNetwork, batch_of
from loadmaster.learn.regal2020.rollouts import (
    action_job,
    compile_all,
    elite_job,
    features_job,
    in_order,
    standard_job,
    whole_job,
)
from loadmaster.learn.regal2020.settings import RegalSettings
from loadmaster.papers import training

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
COLUMNS = ("phase", "step", "seconds", "loss", "reward", "accuracy", "held", "guessed", "entropy", *examples.SETTINGS)
IN_A_FILE = 64  # elites
AT_ONCE = 16  # held-out examples in one pass


@dataclass
class RegalState:
    """Where training stands, besides the weights.

    Attributes:
        elites: how many examples the fit uses.
        standard: what standard BRKGA reaches, by example and evaluations.
    """

    phase: str = "fit"
    step: int = 0
    elites: int = 0
    standard: dict[str, int] = field(default_factory=dict)
    best: float = -1e9
    constant: list[int] = field(default_factory=lambda: list(FIRST))
    results: dict[str, float] = field(default_factory=dict)


class RegalRun(training.TrainingRun):
    """A run with a pool of processes and elites to imitate."""

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    settings: RegalSettings
    state: RegalState

    def __init__(self, settings: RegalSettings, pool: Executor, keys: list[Key], begun: float) -> None:
        torch.manual_seed(settings.seed)
        network = PolicyNetwork(CHOICES, settings.kind, dropout=settings.dropout)
        network.lean(FIRST)
        super().__init__(settings, network, RegalState(), settings.fit_rate, begun)
        self._begin_adam(settings.fit_rate)
        if settings.average:
            self.average = copy.deepcopy(self.network).eval()
        self.pool, self.keys = pool, keys
        self.valid: list[Key] = []
        self.apart: frozenset[int] = frozenset()  # lines of the corpus that are not learned from

    def _begin_adam(self, rate: float) -> None:
        self.adam = torch.optim.AdamW(self.network.parameters(), lr=rate, weight_decay=self.settings.decay)

    @property
    def policy(self) -> PolicyNetwork:
        """The network as it would be used: averaged, nothing dropped."""
        return cast(PolicyNetwork, self.network if self.average is None else self.average).eval()

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
        for key, elite, features in in_order(self.pool, elite_job, jobs, self.settings.window):
            count += 1
            if key not in known:
                fresh.append((key, elite))
            if elite is not None and features is not None:
                found.append(Example(key, features, elite))
            if len(fresh) >= IN_A_FILE:
                self._keep(folder, fresh, count)
            if not started and self.late(self.settings.gather_share):
                break
        self._keep(folder, fresh, count)
        self.state.elites = count
        self.say(f"{len(found)} examples with elites")
        return found

    def _keep(self, folder: Path, fresh: list[tuple[Key, Elite | None]], count: int) -> None:
        if fresh:
            save_elites(folder / f"{count:06d}.npz", [key for key, _ in fresh], [elite for _, elite in fresh])
            self.say(f"{count} elites")
            fresh.clear()

    def fit(self, found: list[Example]) -> None:
        """Imitation: devices and order of the elites, by maximum likelihood."""
        settings = self.settings
        known = [example for example in found if example.key.line not in self.apart]
        held = [example for example in found if example.key.line in self.apart]
        while self.state.phase == "fit" and self.state.step < settings.fit_steps and not self.late(settings.fit_share):
            rng = self.rng(1, self.state.step)
            self.set_rate(settings.fit_rate * (0.05 + 0.95 * (1 - self._fit_share()) ** 1.5))
            chosen = [known[i] for i in rng.choice(len(known), min(settings.graphs, len(known)), replace=False)]
            torch.manual_seed(int(rng.integers(2**62)))  # what is dropped
            loss, accuracy = imitation_loss(self.network.train()(self._batch(chosen)), chosen)
            self.descend(loss)
            self._follow()
            self.state.step += 1
            if self.state.step % 50 == 0:
                self.note(loss=float(loss.detach()), accuracy=accuracy)
            if held and self.state.step % settings.fit_look == 0:
                self._look(held)
            self.save_now_and_then()
        if self.state.phase == "fit":
            self.state.phase, self.state.step = "reinforce", 0
            self.network.load_state_dict(self.policy.state_dict())
            self._begin_adam(settings.rate)
            self.validate()
            self.save()

    def _follow(self) -> None:
        """The average of the weights takes a step towards them; a short one at first counts for all before it."""
        if self.average is not None:
            stays = min(self.settings.average, (self.state.step + 1) / (self.state.step + 10))
            with torch.no_grad():
                for mean, now in zip(self.average.parameters(), self.network.parameters(), strict=True):
                    mean.lerp_(now, 1 - stays)

    def _look(self, held: list[Example]) -> None:
        """How well the plans of the graphs that are kept apart are guessed."""
        losses, guesses = [], []
        with torch.no_grad():
            for first in range(0, len(held), AT_ONCE):
                some = held[first : first + AT_ONCE]
                loss, guessed = imitation_loss(self.policy(self._batch(some)), some)
                losses.append(float(loss) * len(some))
                guesses.append(guessed * len(some))
        self.note(held=sum(losses) / len(held), guessed=sum(guesses) / len(held))
        self.say(f"step {self.state.step}: held {sum(losses) / len(held):.4f}, guessed {sum(guesses) / len(held):.4f}")

    def _fit_share(self) -> float:
        by_step = self.state.step / self.settings.fit_steps
        if self.settings.minutes is None:
            return by_step
        spent = (time.monotonic() - self.begun) / 60 / self.settings.minutes
        first, last = self.settings.gather_share, self.settings.fit_share
        return max(by_step, min(1.0, max(0.0, (spent - first) / max(1e-9, last - first))))

    def reinforce(self, found: list[Example]) -> None:
        """Actions drawn for a few graphs, judged by BRKGA under them; likelier where better than their group."""
        settings = self.settings
        known = [example for example in found if example.key.line not in self.apart]
        while self.state.step < settings.steps and not self.late(0.97):
            rng = self.rng(2, self.state.step)
            chosen = [known[i] for i in rng.choice(len(known), min(settings.graphs, len(known)), replace=False)]
            batch = self._batch(chosen)
            with torch.no_grad():
                outputs = self.network.eval()(batch)
            actions = draw_actions(outputs, chosen, settings.samples, rng)
            rewards = self._rewards(chosen, actions)
            loss, entropy = self._learn(batch, chosen, actions, outputs, rewards)
            self.state.step += 1
            self.note(loss=loss, reward=float(rewards.mean()), entropy=entropy)
            self._tell(float(rewards.mean()), entropy)
            if self.state.step % settings.valid_every == 0:
                self.validate()
            self.save_now_and_then()

    def _rewards(self, chosen: list[Example], actions: list[list[RegalAction]]) -> np.ndarray:
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
        for i, value in zip(fresh, in_order(self.pool, standard_job, jobs, self.settings.window), strict=True):
            self.state.standard[names[i]] = value
        return np.array([self.state.standard[name] for name in names], np.float64)

    def _learn(
        self, batch: Batch, chosen: list[Example], actions: list[list[RegalAction]], old: Outputs, rewards: np.ndarray
    ) -> tuple[float, float]:
        # A floor under the deviation: where all samples end alike, their order is noise.
        scaled = (rewards - rewards.mean(axis=1, keepdims=True)) / (rewards.std(axis=1, keepdims=True) + 0.003)
        advantage = torch.tensor(scaled, dtype=torch.float32, device=self.device).clamp(-3, 3)
        picks = torch.tensor(np.array([[a.choices for a in drawn] for drawn in actions]), device=self.device)
        before = choice_log_chance(old.choices, picks)[0]
        self.set_rate(self.settings.rate)
        for _ in range(self.settings.epochs):
            outputs = self.network(batch)
            now, entropy = choice_log_chance(outputs.choices, picks)
            ratio = (now - before).exp()
            clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
            gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
            gain = gain + (level_log_chance(outputs, batch, chosen, actions) * advantage).mean()
            imitation = imitation_loss(outputs, chosen)[0]
            loss = -gain - self.settings.entropy * entropy + self.settings.imitate * imitation
            self.descend(loss)
            self._follow()
        return float(loss.detach()), float(entropy.detach())

    def validate(self) -> None:
        """The likeliest action on graphs kept apart, against standard BRKGA with the same evaluations."""
        evaluations = self.settings.valid_evaluations
        if not self.valid:
            return
        features = list(in_order(self.pool, features_job, self.valid, self.settings.window))
        actions = []
        with torch.no_grad():
            for each in features:
                outputs = self.policy(batch_of([each], self.device))
                actions.append(likeliest_action(outputs, each))
        jobs = [(key, [action], 0, evaluations) for key, action in zip(self.valid, actions, strict=True)]
        reached = np.array(
            [values[0] for values in in_order(self.pool, whole_job, jobs, self.settings.window)], np.float64
        )
        gain = 100 * (1 - reached / self._standard(self.valid, evaluations))
        names = np.array([key.setting for key in self.valid])
        means = {name: float(gain[names == name].mean()) for name in examples.SETTINGS if (names == name).any()}
        self.note(**means)
        self._keep_if_best(means, actions)

    def _keep_if_best(self, means: dict[str, float], actions: list[RegalAction]) -> None:
        mark = means.get("regal", 0.0) + 0.1 * sum(value for name, value in means.items() if name != "regal")
        rows = np.stack([action.choices for action in actions])
        common = [int(np.bincount(column).argmax()) for column in rows.T]
        self.say(
            f"step {self.state.step}: "
            + ", ".join(f"{name} {value:+.2f} %" for name, value in means.items())
            + f" {common}"
        )
        if mark > self.state.best:
            self.state.best, self.state.constant, self.state.results = mark, common, means
            self.export(self.known())

    def _batch(self, chosen: list[Example]) -> Batch:
        return batch_of([example.features for example in chosen], self.device)

    def _tell(self, reward: float, entropy: float) -> None:
        if self.state.step % 10 == 0:
            self.say(f"step {self.state.step}: reward {reward:+.4f}, entropy {entropy:.2f}")

    def known(self) -> dict[str, object]:
        """What the file of the weights says of itself."""
        return {"network": self.settings.kind, "choices": CHOICES, "constant": self.state.constant}


def train(settings: RegalSettings) -> Path:
    """Trains a policy, or goes on with what `out` holds; returns the file of the weights."""
    begun = time.monotonic()
    examples.forget_corpora()
    lines, corpus_digest = examples.read_corpus(settings.corpus, 1.0, seed=settings.seed)
    valid_lines, valid_digest = _kept_apart(settings, lines, corpus_digest)
    apart = frozenset(valid_lines)
    if not set(lines) - apart:
        raise InvalidSetting(
            f"'{settings.corpus}' has too few graphs to learn from", "", "give a corpus of many graphs"
        )
    if not settings.folds:  # plans of a fold are found all the same: other folds learn from them
        lines = sorted(set(lines) - apart)
    lines = [*lines, *examples.add_generated(settings.generated)]
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    keys = example_keys(lines, settings)
    compile_all(lines[0])
    with examples.crew(settings.workers or os.cpu_count(), settings.ray) as pool:
        run = RegalRun(settings, pool, keys, begun)
        run.valid, run.apart = valid_keys(pool, valid_lines, settings), apart
        run.resume()
        found = run.gather()
        run.fit(found)
        run.reinforce(found)
        run.validate()
        run.save()
        run.card(
            corpus_digest=corpus_digest,
            valid_digest=valid_digest,
            examples=run.state.elites,
            steps=run.state.step,
            improvement_over_brkga_percent=run.state.results,
            constant=run.state.constant,
        )
        join_elites(out)
    return run.weights


def _kept_apart(settings: RegalSettings, lines: list[int], digest: str) -> tuple[list[int], str]:
    """Graphs to validate on, and the digest of the corpus they are from."""
    if settings.folds:
        return [line for line in lines if examples.fold_of(line, settings.folds) == settings.fold], digest
    return examples.read_corpus(settings.valid, 1.0) if settings.valid else (lines[::16], digest)


def example_keys(lines: Sequence[int], settings: RegalSettings) -> list[Key]:
    """Every graph once in random order, then again with another seed, and so on."""
    keys: list[Key] = []
    turn = 1
    while len(keys) < settings.warm:
        order = np.random.default_rng([settings.seed, 3, turn]).permutation(np.array(lines))
        keys += [Key(int(line), turn) for line in order]
        turn += 1
    return keys[: settings.warm]


def valid_keys(pool: Executor, lines: Sequence[int], settings: RegalSettings) -> list[Key]:
    """A fixed few graphs as they are: two thirds on two equal devices, the rest on the other settings."""
    order = np.random.default_rng(5).permutation(np.array(lines))[: 3 * settings.valid_graphs].tolist()
    names = ("regal", "regal", "regal", "regal", "unlike", "bandwidth")
    fits = in_order(pool, examples.suits, [Key(line, 0, "regal") for line in order], len(order))
    good = [line for line, fit in zip(order, fits, strict=True) if fit][: settings.valid_graphs]
    return [Key(line, 0, names[i % len(names)]) for i, line in enumerate(good)]


def join_elites(out: Path) -> None:
    """One file in place of many: simpler to carry."""
    files = sorted(out.glob("elites*.npz")) + sorted((out / "elites").glob("[0-9]*[0-9].npz"))
    known: dict[Key, Elite | None] = {}
    for path in files:
        known |= load_elites(path)
    save_elites(out / "elites.npz", list(known), list(known.values()))
    for path in files:
        if path.parent != out:
            path.unlink()


SETTINGS = RegalSettings
