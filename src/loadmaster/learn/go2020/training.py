"""Training of GO: to choose among candidates, to change plans as a search would; then PPO over many graphs at once.

A step takes as many examples from each process of the pool.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import examples
from loadmaster.learn.go2020.controls import controls
from loadmaster.learn.go2020.examples import BASELINES, GoElite, GoKey, load_elites, save_elites
from loadmaster.learn.go2020.losses import choice_loss, entropy_of, imitation_loss, policy_loss
from loadmaster.learn.go2020.moves import move_loss
from loadmaster.learn.go2020.network import GoBatch, GoNetwork, GoOutputs, LastDecisions, go_batch
from loadmaster.learn.go2020.policy import (
    Decided,
    Drawing,
    Draws,
    advantages,
    decided_key,
    draw_changes,
    rewards,
    stand_of,
)
from loadmaster.learn.go2020.rollouts import (
    GoExample,
    Pools,
    RolloutStart,
    elite_job,
    example_job,
    long_job,
    look_job,
    value_job,
    worth_job,
)
from loadmaster.learn.go2020.settings import GoSettings, GoState
from loadmaster.learn.go2020.zero import Judged, seen_decisions, zero_shot
from loadmaster.papers import training
from loadmaster.search import Score

AGAINST = (*BASELINES, "long", "candidates", "fixed")
COLUMNS = (
    *("phase", "step", "seconds", "loss", "choice", "reward", "entropy"),
    *(f"over_{name}" for name in AGAINST),
)
# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
SAMPLES = 8  # plans of each graph that validation simulates, as `go` does
IN_A_FILE = 64  # elites


class GoRun(training.TrainingRun):
    """A run with processes, examples and graphs to validate on."""

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    settings: GoSettings
    state: GoState

    def __init__(self, settings: GoSettings, pools: Pools, keys: list[GoKey], begun: float) -> None:
        torch.manual_seed(settings.seed)
        super().__init__(settings, GoNetwork(settings.shape), GoState(), settings.fit_rate, begun)
        self.pools, self.keys = pools, keys
        self.valid: list[GoExample] = []
        self.controls: dict[str, np.ndarray] = {}
        self.looked: dict[tuple[GoKey, bytes], Judged] = {}  # the candidates of `valid`: the same in every validation
        self.how = Drawing(
            settings.samples,
            whole=0.4,
            tasks=settings.wanted,
        )

    # ---------------------------------------------------------------- examples

    def gather(self) -> list[GoExample]:
        """Elites from the files, then fresh ones while their share of the time lasts; then what the network sees."""
        settings, started = self.settings, self.state.elites > 0
        if not settings.warm:
            return self._found([(key, None) for key in self.keys[: settings.cold]])
        known = known_elites(self.out)
        keys = self.keys[: self.state.elites] if started else self.keys[: settings.warm]
        jobs = ((key, known.get(key, 0), settings.elite_simulations) for key in keys)
        pairs: list[tuple[GoKey, GoElite | None]] = []
        fresh: list[tuple[GoKey, GoElite | None]] = []
        for key, elite in self.pools.in_order(elite_job, jobs):
            pairs.append((key, elite))
            if key not in known:
                fresh.append((key, elite))
            if len(fresh) >= IN_A_FILE:
                self._keep(fresh, len(pairs))
            if not started and key not in known and self.late(settings.gather_share):
                break
        self._keep(fresh, len(pairs))
        self.state.elites = len(pairs)
        return self._found([pair for pair in pairs if pair[1] is not None])

    def _found(self, pairs: Iterable[tuple[GoKey, GoElite | None]]) -> list[GoExample]:
        kernels = "fusion" in self.settings.wanted
        jobs = ((key, elite, self.settings.groups, kernels) for key, elite in pairs)
        found = [example for example in self.pools.in_order(example_job, jobs) if example is not None]
        self.say(f"{len(found)} examples")
        return found

    def _keep(self, fresh: list[tuple[GoKey, GoElite | None]], count: int) -> None:
        if fresh:
            folder = self.out / "elites"
            folder.mkdir(parents=True, exist_ok=True)
            save_elites(folder / f"{count:06d}.npz", [key for key, _ in fresh], [elite for _, elite in fresh])
            self.say(f"{count} elites")
            fresh.clear()

    def choose(self, found: list[GoExample], rng: np.random.Generator) -> list[GoExample]:
        """A few examples, spread evenly over the processes that have them."""
        homes: dict[int, list[GoExample]] = {}
        for example in found:
            homes.setdefault(self.pools.home(example.key), []).append(example)
        order = [homes[home] for home in sorted(homes)]
        picks = [one[int(rng.integers(len(one)))] for _ in range(self.settings.graphs) for one in order]
        return picks[: min(self.settings.graphs, len(found))]

    # ---------------------------------------------------------------- imitation

    def fit(self, found: list[GoExample]) -> None:
        """Cross-entropy of the elites' decisions in every pass, from several first decisions."""
        settings, begun = self.settings, self._spent()
        if self.state.phase == "fit" and not found:
            what = "none of the graphs gave an example to learn from"
            raise InvalidSetting(what, settings.corpus, "give more graphs, larger ones, or more --minutes")
        while self.state.phase == "fit" and self.state.step < settings.fit_steps and not self.late(settings.fit_share):
            rng = self.rng(1, self.state.step)
            done = max(self.state.step / settings.fit_steps, self._share_done(begun, settings.fit_share))
            self.set_rate(settings.fit_rate * min(1.0, (self.state.step + 1) / 100) * (0.05 + 0.95 * (1 - done) ** 1.5))
            loss, choice = self._imitation(self.choose(found, rng), rng)
            self.descend(loss + choice)
            self.state.step += 1
            if self.state.step % 50 == 0:
                self.note(loss=float(loss.detach()), choice=float(choice.detach()))
                self.say(
                    f"step {self.state.step}: loss {float(loss.detach()):.3f}, choice {float(choice.detach()):.3f}"
                )
            if self.state.step % settings.fit_valid_every == 0:
                self.validate()
            self.save_now_and_then()
        if self.state.phase == "fit":
            self.state.phase, self.state.step = "reinforce", 0
            self.adam = torch.optim.Adam(self.network.parameters(), lr=settings.rate)
            self.validate()
            self.save()

    def _imitation(self, chosen: list[GoExample], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Of what a search changed, and of which candidates are good."""
        batch, starts = self._batch(chosen), self._starts(chosen, rng)
        last = seen_decisions(batch, [start.outcome for start in starts])
        said = self.network(batch, last)
        valued = move_loss(said, [start.outcome.decided for start in starts], [start.moves for start in starts])
        pull = imitation_loss(said, batch, last, *self._targets(chosen, starts))
        return valued + 0.1 * pull, self._choice(chosen, batch)

    def _choice(self, chosen: list[GoExample], batch: GoBatch) -> Tensor:
        value = np.concatenate([example.candidate_value for example in chosen]).astype(np.float32)
        return choice_loss(self.network.choose(batch), batch, torch.from_numpy(value).to(self.device))

    def _starts(self, chosen: list[GoExample], rng: np.random.Generator) -> list[RolloutStart]:
        return [example.starts[int(rng.integers(len(example.starts)))] for example in chosen]

    def _batch(self, chosen: list[GoExample]) -> GoBatch:
        return go_batch([example.one for example in chosen], self.device)

    def _targets(self, chosen: list[GoExample], starts: list[RolloutStart]) -> tuple[Tensor, Tensor]:
        groups = max(example.one.num_groups for example in chosen)
        device, level = (np.zeros((len(chosen), groups), np.int64) for _ in range(2))
        for row, start in enumerate(starts):
            device[row, : len(start.device)], level[row, : len(start.level)] = start.device, start.level
        return torch.from_numpy(device).to(self.device), torch.from_numpy(level).to(self.device)

    # ---------------------------------------------------------------- reinforcement

    def reinforce(self, found: list[GoExample]) -> None:
        """Plans drawn for a few graphs, simulated; likelier where better than what stood, or than the others."""
        settings, begun = self.settings, self._spent()
        while self.state.step < settings.steps and not self.late(0.97):
            rng = self.rng(2, self.state.step)
            chosen = self.choose(found, rng)
            batch, starts = self._batch(chosen), self._starts(chosen, rng)
            last = seen_decisions(batch, [start.outcome for start in starts])
            with torch.no_grad():
                outputs = self.network(batch, last)
            draws, gain, reward = self._rollouts(chosen, starts, batch, outputs, rng)
            done = max(self.state.step / settings.steps, self._share_done(begun, 0.97))
            self.set_rate(settings.rate * (0.05 + 0.95 * (1 - done)))
            for _ in range(settings.epochs):
                said = self.network(batch, last)
                loss = policy_loss(said, batch, draws, gain, settings.clip)
                entropy = entropy_of(said, batch)
                loss = loss - settings.entropy * (1 - done) * entropy + self._pull(said, batch, last, chosen, starts)
                self.descend(loss)
            self.state.step += 1
            self.note(loss=float(loss.detach()), reward=reward, entropy=float(entropy.detach()))
            if self.state.step % 10 == 0:
                self.say(f"step {self.state.step}: reward {reward:+.4f}, entropy {float(entropy.detach()):.3f}")
            if self.state.step % settings.valid_every == 0:
                self.validate()
            self.save_now_and_then()

    def _pull(
        self, said: GoOutputs, batch: GoBatch, last: LastDecisions, chosen: list[GoExample], starts: list[RolloutStart]
    ) -> Tensor | float:
        if not self.settings.imitate or not all(len(example.candidate_value) for example in chosen):
            return 0.0
        pull = imitation_loss(said, batch, last, *self._targets(chosen, starts)) + self._choice(chosen, batch)
        return self.settings.imitate * pull

    def _rollouts(
        self,
        chosen: list[GoExample],
        starts: list[RolloutStart],
        batch: GoBatch,
        outputs: GoOutputs,
        rng: np.random.Generator,
    ) -> tuple[list[Draws], list[np.ndarray], float]:
        """Draws, what each gained, and how much the mean draw gained."""
        stands = [
            stand_of(outputs, batch, row, example.one, start.outcome.decided)
            for row, (example, start) in enumerate(zip(chosen, starts, strict=True))
        ]
        draws = [draw_changes(e.one, stand, self.how, rng, 3) for e, stand in zip(chosen, stands, strict=True)]
        jobs = [(e.key, e.one.label, drawn.decided()) for e, drawn in zip(chosen, draws, strict=True)]
        gain, gained = [], []
        for example, start, drawn, (over, value, all_bytes) in zip(
            chosen, starts, draws, self.pools.in_order(value_job, jobs), strict=True
        ):
            score = start.outcome.score
            reward = rewards(over, value, float(example.plain[0]), all_bytes)
            [standing] = rewards(ints([score.over_bytes]), ints([score.value]), float(example.plain[0]), all_bytes)
            gain.append(advantages(reward, drawn.whole, float(standing)))
            gained.append(reward.mean() - standing)
        return draws, gain, float(np.mean(gained))

    # ---------------------------------------------------------------- validation

    def validate(self) -> None:
        """Zero-shot on graphs kept apart: ratios of step times to those of plain methods, of a long classical run, of
        the best of all candidates and of eight candidates in a fixed order; below 1 is better than they."""
        if not self.valid:
            return
        reached = self.zero_shot(self.valid)
        means = {f"over_{name}": _ratio(reached, value) for name, value in self.controls.items()}
        self.note(**means)
        self.say(f"step {self.state.step}: " + ", ".join(f"{name} {value:.4f}" for name, value in means.items()))
        score = -float(np.log(reached / self.controls["fixed"]).mean())
        if score > self.state.best:
            self.state.best, self.state.results = score, means
            self.state.at = f"{self.state.phase} {self.state.step}"
            self.export(self.known())

    def zero_shot(self, many: list[GoExample]) -> np.ndarray:
        """[examples] the least worth of the samples, as of the candidates that it is compared to."""
        values: list[list[Score]] = []
        for first in range(0, len(many), 16):
            part = many[first : first + 16]

            def judge(wanted: list[list[Decided]], part: list[GoExample] = part) -> list[list[Judged]]:
                return self._look(part, wanted)

            for outcomes in zero_shot(self.network, [e.one for e in part], self._batch(part), SAMPLES, judge):
                values.append([outcome.score for outcome in outcomes])
        jobs = [(example.key, value) for example, value in zip(many, values, strict=True)]
        return np.array(list(self.pools.in_order(worth_job, jobs)), np.float64)

    def _look(self, many: list[GoExample], wanted: list[list[Decided]]) -> list[list[Judged]]:
        """Simulates what was not simulated before."""
        asked = [[((e.key, decided_key(each)), each) for each in some] for e, some in zip(many, wanted, strict=True)]
        fresh = [[each for key, each in some if key not in self.looked] for some in asked]
        jobs = [(e.key, e.one.label, some) for e, some in zip(many, fresh, strict=True) if some]
        for (key, _, some), outcomes in zip(jobs, self.pools.in_order(look_job, jobs), strict=True):
            self.looked |= {(key, decided_key(each)): outcome for each, outcome in zip(some, outcomes, strict=True)}
        return [[self.looked[key] for key, _ in some] for some in asked]

    def _spent(self) -> float:
        minutes = self.settings.minutes
        return 0.0 if minutes is None else (time.monotonic() - self.begun) / 60 / minutes

    def _share_done(self, begun: float, end: float) -> float:
        """How much of a phase is over by the clock."""
        if self.settings.minutes is None:
            return 0.0
        return min(1.0, max(0.0, (self._spent() - begun) / max(1e-6, end - begun)))

    def known(self) -> dict[str, object]:
        """What the file of the weights says of itself."""
        return {"shape": asdict(self.settings.shape), "groups": self.settings.groups}


def _ratio(one: np.ndarray, other: np.ndarray) -> float:
    """The geometric mean of the ratios."""
    return float(np.exp(np.log(one / np.maximum(1, other)).mean()))


def known_elites(out: Path) -> dict[GoKey, GoElite | None]:
    """All elites that lie in the folder."""
    known: dict[GoKey, GoElite | None] = {}
    for path in sorted(out.glob("elites*.npz")) + sorted((out / "elites").glob("*.npz")):
        known |= load_elites(path)
    return known


def train(settings: GoSettings) -> Path:
    """Trains a policy, or goes on with what `out` holds; returns the file of the weights."""
    begun = time.monotonic()
    examples.forget_graphs()
    lines, corpus_digest = examples.read_graphs(settings.corpus)
    if settings.valid:
        valid_lines, valid_digest = examples.read_graphs(settings.valid)
    else:
        valid_lines, valid_digest = lines[::16], corpus_digest
        lines = sorted(set(lines) - set(valid_lines))
    if not lines:
        what = f"'{settings.corpus}' has too few graphs to learn from"
        raise InvalidSetting(what, "", "give a corpus of many graphs")
    keys = examples.example_keys(lines, max(settings.warm, 2 * settings.cold), settings.seed)
    first = GoKey(examples.DRAWN, 4)
    example_job((first, examples.find_elite(first, 300), 64, False))  # so that all is compiled before processes part
    with ExitStack() as stack:
        pools = Pools(stack, settings.processes, settings.ray)
        run = GoRun(settings, pools, keys, begun)
        run.valid = valid_examples(run, valid_lines)
        run.resume()
        found = run.gather()
        run.controls, plain = controls(run.valid, found or run.valid)
        run.say("controls against fixed: " + ", ".join(f"{name} {value:.4f}" for name, value in plain.items()))
        if not run.rows:
            run.validate()  # what random weights reach: candidates by their bound
        if settings.warm:
            run.fit(found)
        elif run.state.phase == "fit":
            run.state.phase, run.state.step = "reinforce", 0
        run.reinforce(found)
        run.validate()
        run.save()
        run.card(
            corpus_digest=corpus_digest,
            valid_digest=valid_digest,
            examples=len(found),
            steps=run.state.step,
            weights_of=run.state.at,
            held_out=examples.HELD_OUT.pattern,
            zero_shot_step_time_ratios=run.state.results,
            controls_over_fixed=plain,
        )
    return run.weights


def valid_examples(run: GoRun, lines: Sequence[int]) -> list[GoExample]:
    """Graphs kept apart, on drawn clusters, with all candidates simulated and a long run to measure against."""
    order = np.random.default_rng(5).permutation(np.array(lines, np.int64)).tolist()
    settings, pairs = run.settings, list[tuple[GoKey, GoElite | None]]()
    jobs = ((GoKey(line, 1_000 + turn), 0, 1) for turn in range(3) for line in order)
    for key, elite in run.pools.in_order(elite_job, jobs):
        if elite is not None:
            pairs.append((key, elite))
        if len(pairs) >= settings.valid_graphs:
            break
    found = run._found(pairs)
    values = run.pools.in_order(long_job, [(example.key, settings.valid_simulations) for example in found])
    return [replace(example, value=value) for example, value in zip(found, values, strict=True)]


SETTINGS = GoSettings
