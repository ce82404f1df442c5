"""A Hierarchical Model for Device Placement: Mirhoseini, Goldie, Pham, Steiner, Le and Dean, ICLR 2018.

A feed-forward grouper draws a group for every op; the recurrent placer of the paper before draws a device for every
group. Both learn together, on the one graph at hand, from nothing, by the step times of what they draw. Read from the
top: the grouper (section 2, "grouper"), the placer over the groups it drew, joint objective and training (2.1).
Numbers with "released" are those of the authors' code in TensorFlow (grappler/hierarchical_controller.py).

Differs from the paper (docs/papers/hdp2018.md has the runs): 64 hidden, rate 0.003, 4 samples a step, for a CPU; sizes
as logarithms, kinds one-hot; the baseline starts at the first mean reward, not at the failing signal; after 500 steps
the placer takes its likeliest devices, where the released code repeats its last draw. Effects not measured. Groups that
are given (groups=edges) are ours: RNNLM 142.4 ms against 198.0 as published (1,000 evaluations, seed 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from loadmaster.graph.columns import Ints, ints
from loadmaster.papers.adam import Adam
from loadmaster.papers.controls import Constant, picked
from loadmaster.papers.environment import Simulated, reward
from loadmaster.papers.grouped import KINDS, SHAPES, kinds_of, one_hot, output_shapes, wires
from loadmaster.papers.mirhoseini2017 import Placer, follow
from loadmaster.papers.weights import seeded
from loadmaster.passes.groups import group_ops
from loadmaster.problem import Problem
from loadmaster.search import Search

if TYPE_CHECKING:
    from loadmaster.papers.methods import Hdp

MOST_GROUPS, GROUPS_PER_DEVICE = 256, 20  # released: min(256, 20 · devices)
MATES = 20  # released: adjacency entries of an op
GROUPER_HIDDEN = 64  # released
BASELINE = 0.9  # released: what the moving average keeps of itself in a step
TANH = 1.0  # released: the placer's scores lie between minus this and this, so that it never becomes sure
NOISE, NOISE_STEPS = 0.5, 750  # released: noise on scores, as a share of their root mean square; how long
SAMPLED_STEPS = 500  # released: from then on the placer takes its likeliest devices

# ---------------------------------------------------------------- features


@dataclass(frozen=True, eq=False)
class Ops:
    """What grouper and placer read of the ops.

    Attributes:
        vectors: [ops, width] kind, output shapes, neighbours: the grouper's input.
        kinds, shapes: [ops, ...] to be added up per group.
        able: [ops, devices] bool.
        wires: [wires, 2] the second op waits for the first.
    """

    vectors: Tensor  # [ops, KINDS + SHAPES + MATES]
    kinds: Tensor  # [ops, KINDS]
    shapes: Tensor  # [ops, SHAPES]
    able: Tensor  # [ops, devices]
    wires: Tensor  # [wires, 2]


def ops_of(problem: Problem) -> Ops:
    kinds, shapes = one_hot(kinds_of(problem), KINDS), output_shapes(problem)
    beside = wires(problem, ints(np.arange(problem.num_ops)))
    vectors = np.concatenate([kinds, np.log2(1 + shapes) / 8, mates(beside, problem.num_ops)], axis=1)
    read, kind, shape = (torch.from_numpy(each.astype(np.float32)) for each in (vectors, kinds, shapes))
    return Ops(read, kind, shape, torch.from_numpy(problem.able.copy()), torch.from_numpy(beside.copy()))


def mates(beside: Ints, count: int) -> np.ndarray:
    """[ops, MATES] places in the program, 0 to 1, of the first ops that each reads from or is read by; -1: no more."""
    both = np.concatenate([beside, beside[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    turn = np.arange(len(both)) - np.searchsorted(both[:, 0], np.arange(count))[both[:, 0]]
    found = np.full((count, MATES), -1.0)
    kept = turn < MATES
    found[both[kept, 0], turn[kept]] = both[kept, 1] / count
    return found


# ---------------------------------------------------------------- network


@dataclass(frozen=True, eq=False)
class Drawn:
    """A grouping and a placement of its groups, for each sample, and the noise they were drawn under."""

    group: Tensor  # [samples, ops]
    device: Tensor  # [samples, groups]
    noise: Tensor  # [ops, groups] on the grouper's scores
    placer_noise: Tensor  # [groups, devices] on the placer's scores

    @property
    def placement(self) -> Tensor:
        """[samples, ops] device of each op."""
        return self.device.gather(1, self.group)


class HdpPolicy(nn.Module):
    """Grouper and placer. With `given` groups the grouper is left out."""

    def __init__(self, ops: Ops, groups: int, hdp: Hdp, given: Ints | None = None) -> None:
        super().__init__()
        self.ops, self.groups = ops, groups
        self.given = None if given is None else torch.from_numpy(given.copy())
        # Released: two products and no nonlinearity between.
        self.grouper = nn.Sequential(nn.Linear(ops.vectors.shape[1], GROUPER_HIDDEN), nn.Linear(GROUPER_HIDDEN, groups))
        width = KINDS + SHAPES + 2 * groups
        self.placer = Placer(width, ops.able.shape[1], hdp.hidden, both_ways=True, aligned=hdp.aligned, tanh=TANH)
        self.control: Constant | None = None
        if hdp.control != "none":
            able = torch.ones(groups, ops.able.shape[1], dtype=torch.bool)
            self.control = Constant(able, learns=hdp.control == "constant")
            self.placer.requires_grad_(False)
        self.grouper.requires_grad_(given is None and self.control is None)

    def grouping(self, noise: Tensor) -> Tensor:
        """[ops, groups] log-chances of the grouper."""
        scores = torch.zeros_like(noise) if self.control else self.grouper(self.ops.vectors)
        chances: Tensor = (scores + noise * scores.detach().square().mean().sqrt()).log_softmax(dim=1)
        return chances

    def groups_read(self, group: Tensor) -> tuple[Tensor, Tensor]:
        """([samples, groups, width], [samples, groups, devices] bool): group vectors of each sample's grouping (counts
        of op kinds, summed output shapes, wires to and from other groups), and where the whole group can run."""
        ops, (samples, count) = self.ops, group.shape
        slot = (group + self.groups * torch.arange(samples)[:, None]).reshape(-1)

        def summed(columns: Tensor) -> Tensor:
            total = torch.zeros(samples * self.groups, columns.shape[1])
            total.index_add_(0, slot, columns.expand(samples, count, -1).reshape(samples * count, -1))
            return total.view(samples, self.groups, -1)

        one, two = slot.view(samples, count)[:, ops.wires[:, 0]], group[:, ops.wires[:, 1]]
        beside = torch.zeros(samples * self.groups, self.groups)
        beside.view(-1)[(one * self.groups + two).reshape(-1)] = 1
        beside = beside.view(samples, self.groups, self.groups)
        able = summed((~ops.able).float()) == 0
        able = able | ~able.any(dim=2, keepdim=True)
        read = [summed(ops.kinds).log1p(), (1 + summed(ops.shapes)).log2() / 8, beside, beside.transpose(1, 2)]
        return torch.cat(read, dim=2), able

    def draw(self, samples: int, rng: np.random.Generator, step: int) -> Drawn:
        """Groups of all ops, then devices of all groups."""
        noisy = NOISE if step < NOISE_STEPS else 0.0
        count, devices = self.ops.able.shape
        noise, placer_noise = (noisy * normal(rng, *shape) for shape in ((count, self.groups), (self.groups, devices)))
        group = self.draw_groups(samples, rng, noise)
        gumbels = gumbel(rng, samples, self.groups, devices) * (1.0 if step < SAMPLED_STEPS else 0.0)
        if self.control:
            return Drawn(group, self.control.draw(gumbels), noise, placer_noise)
        device = self.placer.draw(*self.groups_read(group), gumbels, placer_noise)
        return Drawn(group, device, noise, placer_noise)

    @torch.no_grad()
    def draw_groups(self, samples: int, rng: np.random.Generator, noise: Tensor) -> Tensor:
        """[samples, ops]"""
        if self.given is not None:
            return self.given.expand(samples, -1)
        edges = self.grouping(noise).exp().cumsum(dim=1)
        level = torch.from_numpy(rng.random((len(edges), samples)).astype(np.float32))
        return torch.searchsorted(edges, level).clamp(max=self.groups - 1).T.contiguous()

    def log_prob(self, drawn: Drawn) -> Tensor:
        """[samples] of a grouping and its placement together: the sum of both, as the joint gradient has it."""
        if self.control:
            placed = picked(self.control.log_chances(drawn.device), drawn.device)
        else:
            read = self.groups_read(drawn.group)
            placed = picked(self.placer.log_chances(*read, drawn.device, drawn.placer_noise), drawn.device)
        if self.given is not None or self.control:
            return placed
        grouped = self.grouping(drawn.noise)[torch.arange(drawn.group.shape[1]), drawn.group]
        return placed + grouped.sum(dim=1)


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def gumbel(rng: np.random.Generator, *shape: int) -> Tensor:
    """Noise under which the largest log-chance is a draw from the chances."""
    return torch.from_numpy(rng.gumbel(size=shape).astype(np.float32))


def policy_of(problem: Problem, hdp: Hdp, seed: int) -> HdpPolicy:
    """Grouper and placer as the seed makes them."""
    groups = hdp.most or min(MOST_GROUPS, GROUPS_PER_DEVICE * problem.num_devices)
    given = None if hdp.groups == "learned" else group_ops(problem, groups, hdp.groups)
    with seeded(seed):
        return HdpPolicy(ops_of(problem), groups if given is None else int(given.max()) + 1, hdp, given)


# ---------------------------------------------------------------- objective and training: section 2.1


def learn(hdp: Hdp, search: Search) -> HdpPolicy:
    """Policy gradient until the budget is spent; the search keeps the best placement that was measured.

    The gradient of J is the mean over samples of (R - B) · gradient of [log p(groups) + log p(devices | groups)], with
    R = -sqrt(step time), or minus a large constant where the placement failed, and B the moving average of R.
    """
    problem = search.problem
    environment = Simulated(search, ints(np.arange(problem.num_ops)))
    policy = policy_of(problem, hdp, search.seed)
    adam = Adam([each for each in policy.parameters() if each.requires_grad], hdp.rate)
    baseline, step = None, 0
    while environment.measurements_left:
        drawn = policy.draw(hdp.samples, np.random.default_rng([search.seed, 2, step]), step)
        gained = reward(environment.measure(drawn.placement.numpy()), environment.unit_ns)
        mean = float(gained.mean())
        baseline = mean if baseline is None else baseline
        follow(adam, gained - baseline, policy.log_prob(drawn))
        baseline = BASELINE * baseline + (1 - BASELINE) * mean
        step += 1
    return policy
