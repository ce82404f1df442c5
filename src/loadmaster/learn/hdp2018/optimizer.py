"""HDP 2018: a network that groups ops and one that places the groups, learned together on the graph at hand.

A search by policy gradient: every placement it draws is simulated, and the best is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.recurrent.optimizer import Recurrent
from loadmaster.passes.groups import Grouper, group_ops
from loadmaster.problem import Problem

if TYPE_CHECKING:
    from loadmaster.learn.hdp2018.policy import HdpPolicy

MOST_GROUPS, GROUPS_PER_DEVICE = 256, 20  # 256 as published; fewer devices need fewer groups to learn of


@dataclass(frozen=True)
class Hdp(Recurrent):
    """Hierarchical device placement (Mirhoseini et al. 2018, "A Hierarchical Model for Device Placement").

    A feed-forward grouper reads each op (its kind, output shapes, neighbours) and draws one of min(256, 20 · devices)
    groups for it; a placer, bidirectional LSTM and LSTM decoder with attention, reads the groups (counts of op kinds,
    summed shapes, adjacency) and draws a device for each. Both learn together by policy gradient on the root of the
    step time with a moving average of 0.9 as baseline, Adam, gradients clipped at 1; noise on the grouper's logits
    early, its likeliest groups late. It learns on this graph alone until the budget is spent.

    Differs from the paper: of a graph with more than `units` ops, what `by` joins counts as one op; an op's place in
    the program is among its features; the grouper starts at the groups of `warm` (warm=none: at random) and learns at a
    fraction of the placer's rate, since together at one rate they put all ops into one group. Placements that do not
    fit and the entropy of the placer are treated as in Rnn. Step times come from the simulator, ops in critical-path
    order. hidden is 64, not the published 512, for more steps in the same time on a CPU.

    Attributes:
        groups: 0: as published.
        units: what the grouper groups, at most; a graph of more ops is coarsened by `by` first.
        by: how ops are joined into units, as `passes.groups.group_ops` has it.
        warm: the grouping that the grouper starts at; none: at random.
    """

    POLICY: ClassVar = "hdp"
    COUNTS: ClassVar = ("units", *Recurrent.COUNTS)
    TRAINED: ClassVar = ("groups", "hidden")

    groups: int = 0
    units: int = 2_048
    by: Grouper = "readers"
    warm: Literal["edges", "readers", "scope", "window", "none"] = "edges"

    def label_of(self, problem: Problem) -> Ints:
        """[ops] the units that the grouper groups."""
        return group_ops(problem, self.units, "op" if problem.num_ops <= self.units else self.by)

    def groups_on(self, devices: int) -> int:
        return self.groups or min(MOST_GROUPS, GROUPS_PER_DEVICE * devices)

    def policy_of(self, problem: Problem, label: Ints, seed: int) -> HdpPolicy:
        """The two networks, as the seed and `warm` make them or with the checkpoint's weights."""
        from loadmaster.learn.hdp2018.policy import HdpPolicy, fit_grouper, units_of
        from loadmaster.learn.recurrent.weights import load_into, seeded

        groups = self.groups_on(problem.num_devices)
        with seeded(seed):
            policy = HdpPolicy(units_of(problem, label), groups, self.hidden)
        if self.checkpoint:
            load_into(policy, self.checkpoint, "hdp", problem.num_devices)
        elif self.warm != "none":
            fit_grouper(policy, _per_unit(group_ops(problem, groups, self.warm), label))
        return policy


def _per_unit(wanted: Ints, label: Ints) -> Ints:
    """[units] the group of most ops of each unit."""
    count = int(wanted.max()) + 1
    votes = np.bincount(label * count + wanted, minlength=(int(label.max()) + 1) * count)
    return ints(votes.reshape(-1, count).argmax(axis=1))
