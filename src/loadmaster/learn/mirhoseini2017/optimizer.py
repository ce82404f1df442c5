"""Mirhoseini 2017: a recurrent network learns, on the graph at hand, to place one group of ops after another.

The first of the line of learned placers, and the baseline of the later ones. It learns from nothing on each graph, by
simulated placements alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints
from loadmaster.learn.recurrent.optimizer import Recurrent
from loadmaster.passes.groups import Grouper, group_ops
from loadmaster.problem import Problem

if TYPE_CHECKING:
    from loadmaster.learn.mirhoseini2017.policy import RnnPolicy

MOST_GROUPS = 2_000  # the decoder takes a step for each


@dataclass(frozen=True)
class Rnn(Recurrent):
    """Device placement by reinforcement learning (Mirhoseini et al. 2017, arXiv 1706.04972).

    An LSTM reads the groups in program order; another, with attention, gives each a device and is fed the one before.
    REINFORCE on the root of the step time with a moving-average baseline, one reward at the end of a placement. It
    learns on this graph alone until the budget is spent; the best placement it measured is the answer. Several
    controllers draw, measure and send gradients to shared parameters, each when it is ready: by processes, or over Ray.
    One controller gives the same plan for the same seed and simulations; several do not.

    Differs from the paper: with features=full (published: without) the network also sees time, memory and links, and
    scores unlike devices by what they are; of equal devices the unused one of lowest number comes first. The decoder
    sees the group it places beside what it attends to; attention is by dot product. Placements that do not fit are left
    out of the baseline and count as three deviations below it, once half way from even to sure choices as nothing;
    where none fits, those over by less count as better. An entropy bonus is steered so that choices go from even to
    sure with the time, or with simulations whatever their budget. Step times come from the simulator, ops in
    critical-path order. Sizes and rates are ours.

    Attributes:
        by: how ops are joined into groups, as `passes.groups.group_ops` has it; readers: as published.
        groups: at most so many.
        features: published: kinds, shapes and wiring alone; full: time, memory and links, too.
    """

    POLICY: ClassVar = "rnn"
    COUNTS: ClassVar = ("groups", *Recurrent.COUNTS)
    TRAINED: ClassVar = ("by", "groups", "features", "hidden")

    by: Grouper = "readers"
    groups: int = 280
    features: Literal["full", "published"] = "full"

    def label_of(self, problem: Problem) -> Ints:
        label = group_ops(problem, self.groups, self.by)
        count = int(label.max()) + 1
        if count > MOST_GROUPS:
            what = f"by={self.by} makes {count} groups of '{problem.graph.name}'"
            raise InvalidSetting(what, "rnn", f"at most {MOST_GROUPS} can be placed one by one: use another grouping")
        return label

    def policy_of(self, problem: Problem, label: Ints, seed: int) -> RnnPolicy:
        """The network, as the seed makes it or with the checkpoint's weights."""
        from loadmaster.learn.mirhoseini2017.policy import RnnPolicy
        from loadmaster.learn.recurrent.inputs import scene_of
        from loadmaster.learn.recurrent.weights import load_into, seeded

        scene = scene_of(problem, label, max(self.groups, int(label.max()) + 1), self.features == "full")
        with seeded(seed):
            policy = RnnPolicy(scene, self.hidden)
        if self.checkpoint:
            load_into(policy, self.checkpoint, "rnn", problem.num_devices)
        return policy
