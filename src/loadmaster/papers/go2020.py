"""Transferable Graph Optimizers for ML Compilers (GO): Zhou et al. 2020, arXiv 2010.12438.

One network decides fusion, placement and schedule of a whole graph at once, and serves graphs it has never seen. Read
`go2020_network` first: features, graph embedding, attention, modulation, heads. Then from the top here: decoding of
decisions into plans (section 3.1), sampling in passes (3.3), the objective (PPO, 3.6), GO-one, zero-shot and
fine-tuning (4). `go2020_training` trains one network on many graphs. No rule proposes a placement anywhere.

Differs from the paper (docs/papers/go2020.md has the runs): groups of ops decide, at most 32, since single ops scatter
neighbours; a device is scored by its features, so any number of unlike devices will do; neighbours before and after are
pooled apart; the reward of a sample counts against the others of its graph, not against a learned value; PPO clips each
decision by itself; levels move a group from its place in the critical-path order. Sizes of the network are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.graph.columns import Ints, ints
from loadmaster.papers.adam import Adam
from loadmaster.papers.decoding import critical_ranks, device_of_groups, ranks_with_levels
from loadmaster.papers.go2020_network import (
    LEVELS,
    GoBatch,
    GoDecisions,
    GoGraph,
    GoNetwork,
    GoPass,
    GoShape,
    Noise,
    batch_of,
    read_problem,
)
from loadmaster.papers.weights import read_policy, seeded, shipped
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search

if TYPE_CHECKING:
    from loadmaster.papers.methods import Go

Rewards = NDArray[np.float64]

PASSES = 2  # each reads the decisions of the one before
INVALID = 10.0  # reward of a plan that does not fit, less what it is over
CLIP = 0.2  # of PPO's ratio
CLIP_NORM = 1.0  # of the gradient
FLOOR = 1e-3  # of the deviation of rewards: where all samples end alike, their order is noise

# ---------------------------------------------------------------- from decisions to plans: section 3.1


@dataclass(frozen=True, eq=False)
class GoDecoder:
    """What decisions for groups stand for. `fixed`: its devices stand where placement is not decided."""

    problem: Problem
    label: Ints  # [ops]
    tasks: tuple[str, ...]
    fixed: Plan | None = None

    @property
    def given(self) -> Ints | None:
        """[groups] the device that has most of each group's time in the fixed plan."""
        if self.fixed is None:
            return None
        count, devices = int(self.label.max()) + 1, self.problem.num_devices
        slot = self.label * devices + self.fixed.device
        return ints(np.bincount(slot, self.problem.best_ns + 1.0, count * devices).reshape(count, -1).argmax(axis=1))

    def score(self, search: Search, fusion: Ints, device: Ints, level: Ints) -> tuple[Ints, Ints]:
        """(over_bytes, value) of each row of decisions [rows, groups]; the search keeps the best plan."""
        if self.fixed is None:
            placed = device_of_groups(self.problem, self.label, device)
        else:
            placed = ints(np.repeat(self.fixed.device[None], len(device), axis=0))
        ranks = critical_ranks(self.problem, placed)
        if "schedule" in self.tasks:
            ranks = ranks_with_levels(ranks, level[:, self.label], LEVELS)
        if "fusion" not in self.tasks:
            return search.score_many(placed, ranks)
        merges = Merges.of(self.problem)
        search.fusing = merges.sharing
        return search.score_fused(placed, ranks, merges.kernels(placed, self.priorities(merges, fusion)))

    def priorities(self, merges: Merges, fusion: Ints) -> NDArray[np.float64]:
        """[rows, ops] merges are tried by the priority of the group, within it by the bytes that they save; ops of
        groups of priority 0 join none of their readers."""
        saved = np.bincount(merges.producers, merges.saved, self.problem.num_ops)
        within = np.argsort(np.argsort(saved, kind="stable")) / (self.problem.num_ops + 1.0)
        priority = fusion[:, self.label]
        return np.where(priority > 0, priority + within, -1.0)


def rewards(problem: Problem, over_bytes: Ints, value: Ints) -> Rewards:
    """[rows] minus the root of the step time, in units of the shortest; -10 and less where a plan does not fit."""
    fits = over_bytes == 0
    unit = float(max(1, value[fits].min(initial=2**62)))
    over = np.minimum(1.0, over_bytes / max(1, int(problem.memory_bytes.sum())))
    cost = np.sqrt(np.minimum(value / unit, INVALID**2))
    return -np.where(fits, cost, INVALID * (1 + over))


# ---------------------------------------------------------------- sampling: passes, each conditioned on the last


@dataclass(frozen=True, eq=False)
class GoDraw:
    """Samples of each graph, as they were drawn: the last pass is what counts.

    Attributes:
        lean: [rows, hidden] which way the placements of each sample lean.
    """

    passes: list[GoPass]
    lean: Tensor  # [rows, hidden]


@torch.no_grad()
def draw(
    network: GoNetwork, batch: GoBatch, temperature: Tensor, generator: torch.Generator, passes: int = PASSES
) -> GoDraw:
    """Samples at these temperatures [samples], the same for each graph; 0: the likeliest decisions."""
    embedded, rows = network.embed(batch), len(batch.ops) * len(temperature)
    lean = torch.randn(rows, network.shape.hidden, generator=generator, device=temperature.device)
    warmth = temperature.repeat(len(batch.ops))
    noise = Noise(lean * (warmth > 0)[:, None], warmth, generator)
    found: list[GoPass] = []
    for _ in range(passes):
        last = found[-1].made if found else None
        found.append(network.decide(batch, embedded, len(temperature), last, noise))
    return GoDraw(found, noise.lean)


def look_again(network: GoNetwork, batch: GoBatch, drawn: GoDraw) -> tuple[Tensor, Tensor]:
    """([passes, rows, tasks, groups] log-probabilities of what was drawn, the entropies) as the network is now."""
    embedded, samples = network.embed(batch), len(drawn.lean) // len(batch.ops)
    lasts = [None, *(each.made for each in drawn.passes[:-1])]
    again = [
        network.decide(batch, embedded, samples, last, Noise(drawn.lean, again=each.made))
        for last, each in zip(lasts, drawn.passes, strict=True)
    ]
    return torch.stack([each.chance for each in again]), torch.stack([each.entropy for each in again])


def decided(made: GoDecisions, rows: slice, groups: int) -> tuple[Ints, Ints, Ints]:
    """(fusion, device, level) of these rows, without padding."""
    fusion, device, level = (ints(each[rows, :groups].numpy()) for each in made)
    return fusion, device, level


# ---------------------------------------------------------------- the objective: PPO


def advantages(reward: Rewards) -> Rewards:
    """[rows] of one graph: rewards less their mean, in deviations, so that all graphs teach alike."""
    gained: Rewards = np.clip((reward - reward.mean()) / (reward.std() + FLOOR), -2, 2)
    return gained


def ppo_loss(
    network: GoNetwork, batch: GoBatch, drawn: GoDraw, advantage: Tensor, entropy: float
) -> tuple[Tensor, float]:
    """(loss, mean entropy): minus the mean over decisions of min(ratio * A, clip(ratio) * A), and a bonus for even
    chances (Schulman et al. 2017, equation 7)."""
    samples = len(advantage) // len(batch.ops)
    chance, even = look_again(network, batch, drawn)
    before = torch.stack([each.chance for each in drawn.passes])
    made = (batch.decides[:, :, None] & batch.there[:, None]).repeat_interleave(samples, dim=0)[None]
    ratio = (chance - before).exp()
    gain = advantage[None, :, None, None]
    clipped = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    many = made.sum() * len(drawn.passes)
    spread = (even * made).sum() / many
    return -(clipped * made).sum() / many - entropy * spread, float(spread.detach())


# ---------------------------------------------------------------- one graph: GO-one, zero-shot, fine-tuning (section 4)


def learn(go: Go, search: Search) -> None:
    """Zero-shot samples of the trained network, the likeliest first; then steps of PPO on this graph from there.
    GO-one starts from random weights and goes on until the budget is spent."""
    decoder, graph = scene(go, search)
    network = load_network(go, search.seed)
    batch = batch_of([graph], [decoder.tasks], [decoder.given])
    generator = torch.Generator().manual_seed(search.seed)
    if not go.scratch:
        keep(network, batch, decoder, search, torch.linspace(0, 1, go.samples), generator)
    adam = Adam(network.parameters(), go.rate, (0.9, 0.98))
    step = 0
    while not search.spent and (go.scratch or step < go.finetune):
        drawn, reward = keep(network, batch, decoder, search, torch.ones(go.rollouts), generator)
        if go.rate and len(reward) == go.rollouts:
            advantage = torch.from_numpy(advantages(reward)).float()
            for _ in range(go.epochs):
                adam.descend(ppo_loss(network, batch, drawn, advantage, go.entropy)[0], CLIP_NORM)
        step += 1


def scene(go: Go, search: Search) -> tuple[GoDecoder, GoGraph]:
    """How decisions are read, and what the network reads."""
    problem = search.problem
    fixed = None
    if "placement" not in go.wanted:
        fixed = go.inner.optimize(search.part(0.5))
        search.score(fixed)
    graph = read_problem(problem, go.groups)
    return GoDecoder(problem, graph.label, go.wanted, fixed), graph


def keep(
    network: GoNetwork, batch: GoBatch, decoder: GoDecoder, search: Search, temperature: Tensor, rng: torch.Generator
) -> tuple[GoDraw, Rewards]:
    """Draws once, simulates the last pass of each sample; the search keeps the best. Rewards of what was simulated."""
    drawn = draw(network, batch, temperature, rng)
    count = min(len(temperature), search.simulations_left)
    found = decided(drawn.passes[-1].made, slice(None), int(batch.there.sum()))
    over, value = decoder.score(search, *(each[:count] for each in found)) if count else (ints([]), ints([]))
    return drawn, rewards(search.problem, over, value)


def load_network(go: Go, seed: int) -> GoNetwork:
    """Trained weights; as the seed makes it for GO-one, and where the checkpoint is none."""
    if go.scratch or go.checkpoint == "none":
        with seeded(seed):
            shape = GoShape(embedding=go.embedding, attention=go.attention, modulation=go.modulation)
            return GoNetwork(shape)
    return read_network(go.checkpoint or shipped("go"))


def read_network(path: Path | str) -> GoNetwork:
    names = [field.name for field in fields(GoShape)]
    return read_policy(path, "go", lambda known: GoNetwork(GoShape(**{name: known[name] for name in names})))
