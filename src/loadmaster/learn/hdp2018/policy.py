"""The policy of HDP 2018: a grouper of ops and a placer of groups, drawn together and learned together.

A draw is a group for each unit and a device for each group; its likelihood is that of both. What the placer reads is
made of the grouping that was drawn, sample by sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.mirhoseini2017.policy import chance_of
from loadmaster.learn.recurrent.inputs import (
    DIMS,
    KINDS,
    OUTPUTS,
    SHAPES,
    able_groups,
    kinds_of,
    one_hot,
    output_shapes,
    totals,
    wires,
)
from loadmaster.learn.recurrent.reinforce import Drawn, Likelihood
from loadmaster.learn.recurrent.seq2seq import Placer, PlacerShape, Scene, gumbel, moved
from loadmaster.papers.adam import Adam
from loadmaster.passes.groups import mirrored_position
from loadmaster.problem import Problem

MATES = 20  # adjacency entries of an op
WAVES = 7  # half a period of the finest is a 64th of the program
UNIT_WIDTH = KINDS + OUTPUTS * DIMS + MATES + 2 * WAVES
GROUPER_HIDDEN = 64  # as published
GROUPER_RATE = 0.03  # of the placer's
NOISY, SETTLED = 0.1, 0.8  # shares of the budget: logit noise ends, groups are no longer drawn but the likeliest


@dataclass(frozen=True, eq=False)
class GrouperUnits:
    """What the grouper acts on: ops, or what the first coarsening of a large graph left of them.

    Attributes:
        kinds: [units, KINDS] counts of op kinds.
        shapes: [units, SHAPES] summed output shapes.
        able: [units, devices] bool.
    """

    vectors: Tensor  # [units, UNIT_WIDTH]
    kinds: Tensor  # [units, KINDS]
    shapes: Tensor  # [units, SHAPES]
    able: Tensor  # [units, devices]
    wires: Tensor  # [wires, 2]

    @property
    def num_devices(self) -> int:
        return self.able.shape[1]


def units_of(problem: Problem, label: Ints) -> GrouperUnits:
    count = int(label.max()) + 1
    kinds = totals(label, one_hot(kinds_of(problem), KINDS), count)
    shapes = totals(label, output_shapes(problem), count)
    beside = wires(problem, label)
    last = np.zeros(count, np.int64)
    np.maximum.at(last, label, np.arange(problem.num_ops))
    own = np.log2(1 + output_shapes(problem)[last]) / 16
    columns = [one_hot(ints(kinds_of(problem)[last]), KINDS), own, _mates(beside, count)]
    vectors = np.concatenate([*columns, _places(problem, label, count)], axis=1)
    able = able_groups(problem, label, count)

    def floats(values: NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32))

    return GrouperUnits(
        floats(vectors), floats(kinds), floats(shapes), torch.from_numpy(able), torch.from_numpy(beside.copy())
    )


def _places(problem: Problem, label: Ints, count: int) -> NDArray[np.float64]:
    """[units, 2 · WAVES] the place in the program with a backward op beside its forward op, as waves of rising
    frequency: a small network tells neighbours apart by them."""
    place = np.argsort(np.argsort(mirrored_position(problem), kind="stable"), kind="stable") / problem.num_ops
    mean = np.bincount(label, place, count) / np.bincount(label, minlength=count)
    angle = np.pi * mean[:, None] * 2.0 ** np.arange(WAVES)[None, :]
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def _mates(beside: Ints, count: int) -> NDArray[np.float64]:
    """[units, MATES] places of the units that each reads from or is read by, 0 to 1; -1 where there are fewer."""
    both = np.concatenate([beside, beside[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    first = np.searchsorted(both[:, 0], np.arange(count))
    turn = np.arange(len(both)) - first[both[:, 0]]
    mates = np.full((count, MATES), -1.0)
    kept = turn < MATES
    mates[both[kept, 0], turn[kept]] = both[kept, 1] / count
    return mates


class HdpPolicy(nn.Module):
    """Draws a group for each unit, then a device for each group."""

    def __init__(self, units: GrouperUnits, groups: int, hidden: int) -> None:
        super().__init__()
        self.units, self.groups = units, groups
        self.grouper = nn.Sequential(
            nn.Linear(UNIT_WIDTH, GROUPER_HIDDEN), nn.ReLU(), nn.Linear(GROUPER_HIDDEN, groups)
        )
        self.placer = Placer(PlacerShape(KINDS + SHAPES + groups, units.num_devices, hidden, both_ways=True))

    def move(self, device: torch.device) -> None:
        self.units = moved(self.units, device)
        self.to(device)

    @property
    def num_choices(self) -> int:
        return self.groups

    def rates(self, rate: float) -> list[dict[str, Any]]:
        """Parameters and how fast they learn: the grouper slowly, or it puts all into one group before the placer has
        learned to use several."""
        slow = {"params": list(self.grouper.parameters()), "lr": rate * GROUPER_RATE}
        return [slow, {"params": list(self.placer.parameters()), "lr": rate}]

    def draw(self, samples: int, rng: np.random.Generator, share: float, greedy: bool = False) -> Drawn:
        device = self.units.vectors.device
        count = len(self.units.vectors)
        noise = torch.zeros(count, self.groups)
        if share < NOISY and not greedy:
            noise = torch.from_numpy(rng.standard_normal((count, self.groups)).astype(np.float32)) * (1 - share / NOISY)
        noise = noise.to(device)
        group = self._draw_groups(samples, rng, noise, greedy or share > SETTLED)
        scene = self.scene(group)
        shape = (samples, self.groups, self.units.num_devices)
        picks, so_far = self.placer.draw(scene, (torch.zeros(shape) if greedy else gumbel(rng, *shape)).to(device))
        return Drawn(ints(picks.gather(1, group).cpu().numpy()), (group, picks, so_far, noise))

    @torch.no_grad()
    def _draw_groups(self, samples: int, rng: np.random.Generator, noise: Tensor, likeliest: bool) -> Tensor:
        """[samples, units]"""
        chances = (self.grouper(self.units.vectors) + noise).softmax(dim=1)
        if likeliest:
            likely: Tensor = chances.argmax(dim=1).expand(samples, -1)
            return likely
        level = torch.from_numpy(rng.random((samples, len(chances), 1)).astype(np.float32)).to(chances.device)
        drawn = torch.searchsorted(chances.cumsum(dim=1), level.permute(1, 0, 2)[:, :, 0].contiguous())
        held: Tensor = drawn.clamp(max=self.groups - 1).T.contiguous()
        return held

    def scene(self, group: Tensor) -> Scene:
        """Group vectors of each sample's grouping: counts of op kinds, summed shapes, adjacency."""
        units, (samples, count) = self.units, group.shape
        slot = (group + self.groups * torch.arange(samples, device=group.device)[:, None]).reshape(-1)

        def summed(columns: Tensor) -> Tensor:
            total = columns.new_zeros(samples * self.groups, columns.shape[1])
            total.index_add_(0, slot, columns.expand(samples, count, -1).reshape(samples * count, -1))
            return total.view(samples, self.groups, -1)

        one, two = slot.view(samples, count)[:, units.wires[:, 0]], group[:, units.wires[:, 1]]
        beside = torch.zeros(samples * self.groups, self.groups, device=group.device)
        beside.view(-1)[(one * self.groups + two).reshape(-1)] = 1
        beside = beside.view(samples, self.groups, self.groups)
        able = summed((~units.able).float()) == 0
        able = able | ~able.any(dim=2, keepdim=True)
        parts = [summed(units.kinds).log1p(), (1 + summed(units.shapes)).log2() / 8, beside]
        return Scene(torch.cat(parts, dim=2), able)

    def likelihood(self, drawn: Drawn) -> Likelihood:
        group, picks, so_far, noise = drawn.choices
        chances = self.placer.logits(self.scene(group), picks, so_far)
        grouping = (self.grouper(self.units.vectors) + noise).log_softmax(dim=1)
        grouped = _picked(grouping, group)
        # Groups that hold nothing are undecided for ever, and of no account.
        filled = torch.zeros(picks.shape, device=picks.device).scatter_(1, group, 1.0)
        entropy = -((chances.exp() * chances).sum(dim=2) * filled).sum(dim=1).mean()
        most = float(filled.sum(dim=1).mean()) * np.log(chances.shape[2])
        return Likelihood(chance_of(chances, picks) + grouped, entropy, most)


def _picked(chances: Tensor, group: Tensor) -> Tensor:
    """[samples] log-probability of all units' groups together."""
    return chances[torch.arange(len(chances), device=group.device), group].sum(dim=1)


def fit_grouper(policy: HdpPolicy, wanted: Ints, steps: int = 200) -> None:
    """Starts the grouper at a grouping: nothing is simulated for it."""
    adam = Adam(policy.grouper.parameters(), 0.01)
    target = torch.from_numpy(np.array(wanted)).to(policy.units.vectors.device)
    for _ in range(steps):
        adam.zero_grad()
        nn.functional.cross_entropy(policy.grouper(policy.units.vectors), target).backward()  # type: ignore[no-untyped-call]
        adam.step()
