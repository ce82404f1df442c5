"""Settings of the published methods, as `--method` has them. Nothing here needs torch: a paper's file opens on use.

`optimize` scores one device's plan first, which is kept where nothing beats it, then hands the search to the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal

from loadmaster.baselines.expert import Expert
from loadmaster.baselines.simple import OneDevice
from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.passes.groups import Grouper
from loadmaster.plans import Plan
from loadmaster.search import Method, Search

Control = Literal["none", "constant", "random"]  # as in `controls`, which needs torch
GO_TASKS = ("fusion", "placement", "schedule")


@dataclass(frozen=True)
class Rnn:
    """Device placement by reinforcement learning (Mirhoseini et al. 2017, arXiv 1706.04972): a recurrent network learns
    on the graph at hand to place one group of ops after another.

    Differs from the paper: told at the top of `papers.mirhoseini2017`.

    Attributes:
        by: how ops are joined; readers: as published.
        groups: at most so many.
        features: published: kinds, shapes and wiring; costs: time, memory and links, too.
        attention, feed, aligned: parts of the network that can be left out.
        control: a policy that reads no graph in its place.
        samples: placements per step.
        hidden: width of the LSTMs.
        rate: of Adam; 0: the network never learns.
    """

    PAPER: ClassVar = "mirhoseini2017"
    COUNTS: ClassVar = ("groups", "samples", "hidden")

    by: Grouper = "readers"
    groups: int = 64
    features: Literal["published", "costs"] = "published"
    attention: bool = True
    feed: bool = True
    aligned: bool = True
    control: Control = "none"
    samples: int = 8
    hidden: int = 64
    rate: float = 3e-3

    def __post_init__(self) -> None:
        check_counts(self, "rnn")

    def optimize(self, search: Search) -> Plan:
        return learned(self, search)


@dataclass(frozen=True)
class Hdp:
    """Hierarchical device placement (Mirhoseini et al. 2018, "A Hierarchical Model for Device Placement", ICLR): a
    network groups ops, another places the groups, and both learn together on the graph at hand.

    Differs from the paper: told at the top of `papers.hdp2018`.

    Attributes:
        groups: learned: the grouper draws them, as published; else given by this rule, and the placer learns alone.
        most: groups; 0: min(256, 20 · devices), as published.
        aligned: the decoder sees the group it places beside what it attends to.
        control: a policy that reads no graph in its place.
        samples: placements per step.
        hidden: width of the LSTMs.
        rate: of Adam; 0: the networks never learn.
    """

    PAPER: ClassVar = "hdp2018"
    COUNTS: ClassVar = ("samples", "hidden")

    groups: Literal["learned", "edges", "readers", "scope", "window"] = "learned"
    most: int = 0
    aligned: bool = False
    control: Control = "none"
    samples: int = 4
    hidden: int = 64
    rate: float = 3e-3

    def __post_init__(self) -> None:
        check_counts(self, "hdp")

    def optimize(self, search: Search) -> Plan:
        return learned(self, search)


@dataclass(frozen=True)
class Placeto:
    """Placeto (Addanki et al. 2019, arXiv 1906.08879): each group of ops is visited once and given a device by a policy
    that reads messages passed along the graph. It learns on the graph at hand, from trained weights where it has some.

    Differs from the paper: told at the top of `papers.placeto2019`.

    Attributes:
        checkpoint: shipped: weights for two devices that learned on recurrent language models; or a .safetensors file
            that was trained for so many devices; empty or none: untrained.
        tune: learn on the graph until the budget is spent.
        samples: episodes drawn without tuning.
        episodes: side by side.
        groups: at most so many.
        by: how ops are joined.
        traversal: the order in which an episode comes to the groups.
        rounds: of messages, up and down.
        pools: three: ancestors, descendants and parallel groups apart, as published; one: all together.
        rate: of Adam while it tunes; 0: it never learns.
        entropy: weight of the bonus for even choices while it tunes.
    """

    PAPER: ClassVar = "placeto2019"
    COUNTS: ClassVar = ("groups", "episodes")

    checkpoint: str = ""
    tune: bool = True
    samples: int = 31
    episodes: int = 8
    groups: int = 32
    by: Grouper = "scope"
    traversal: Literal["topological", "random"] = "topological"
    rounds: int = 8
    pools: Literal["three", "one"] = "three"
    rate: float = 1e-3
    entropy: float = 0.01

    def __post_init__(self) -> None:
        check_counts(self, "placeto")

    def optimize(self, search: Search) -> Plan:
        return learned(self, search)


@dataclass(frozen=True)
class Go:
    """GO (Zhou et al. 2020, arXiv 2010.12438): one network decides fusion, placement and schedule of the whole graph
    at once. By default zero-shot: the best of `samples` plans drawn from trained heads, and no search.

    `finetune=N` goes on with N steps of PPO on the graph; `go-one` learns on the graph alone, from random weights,
    until the budget is spent. Untrained (checkpoint=none), every decision is as likely as any other: that is the
    random control, too. Differs from the paper: told at the top of `papers.go2020`.

    Attributes:
        checkpoint: a .safetensors file; empty: the shipped weights; none: untrained.
        samples: plans that are simulated zero-shot, the likeliest first.
        tasks: or with fusion; without placement: on the devices of `inner`.
        finetune: steps of PPO on the graph.
        scratch: no trained weights: PPO on the graph alone.
        rollouts: plans that are simulated in a step of PPO.
        rate: of Adam; 0: the network never learns.
        epochs: looks at the plans of a step.
        entropy: weight of the bonus for even chances.
        groups: at most so many decide.
        embedding, attention, modulation: parts of a network from scratch that can be left out.
        inner: gives the devices where placement is none of the tasks.
    """

    PAPER: ClassVar = "go2020"
    COUNTS: ClassVar = ("samples", "epochs", "groups")

    checkpoint: str = ""
    samples: int = 8
    tasks: str = "placement,schedule"
    finetune: int = 0
    scratch: bool = False
    rollouts: int = 20
    rate: float = 1e-3
    epochs: int = 2
    entropy: float = 0.003
    groups: int = 32
    embedding: bool = True
    attention: bool = True
    modulation: bool = True
    inner: Method = field(default_factory=Expert)

    def __post_init__(self) -> None:
        check_counts(self, "go")
        if not self.wanted or any(task not in GO_TASKS for task in self.wanted):
            raise InvalidSetting(f"tasks '{self.tasks}'", "go", f"give some of {', '.join(GO_TASKS)}")
        if self.rollouts < 2:
            raise InvalidSetting(f"rollouts={self.rollouts}", "go", "they are compared: give 2 or more")

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(task.strip() for task in self.tasks.strip("[]").split(",") if task.strip())

    def optimize(self, search: Search) -> Plan:
        return learned(self, search, alone="fusion" in self.wanted)


@dataclass(frozen=True)
class Regal:
    """REGAL (Paliwal et al. 2020, arXiv 1905.02494): a graph network reads the graph once and gives, op by op, the mean
    and variance of the distributions that BRKGA draws its genes from, and how often they come from the elite parent.

    `gas` is the paper's control that reads the ops as a sequence. Untrained (checkpoint=none) it is plain BRKGA.
    Differs from the paper: told at the top of `papers.regal2020`.

    Attributes:
        checkpoint: a .safetensors file; empty: the shipped weights; none: untrained.
        network: graph, or sequence: the ops in program order.
        actions: policy, or random: every level as likely, a control.
        levels: all, as published; means: variances and elite biases are plain BRKGA's.
        evaluations: simulations, at most.
        population: chromosomes of a generation; as many as evaluations: draws of the policy alone.
    """

    PAPER: ClassVar = "regal2020"
    COUNTS: ClassVar = ("evaluations", "population")

    checkpoint: str = ""
    network: Literal["graph", "sequence"] = "graph"
    actions: Literal["policy", "random"] = "policy"
    levels: Literal["all", "means"] = "all"
    evaluations: int = 5_000
    population: int = 100

    def __post_init__(self) -> None:
        check_counts(self, "regal")

    def optimize(self, search: Search) -> Plan:
        return learned(self, search)


def check_counts(settings: Any, name: str) -> None:
    for count in settings.COUNTS:
        if getattr(settings, count) < 1:
            raise InvalidSetting(f"{count}={getattr(settings, count)}", name, "give 1 or more")


def learned(settings: Any, search: Search, alone: bool = False) -> Plan:
    """The best plan that was measured while the paper's policy learned on this problem; `alone`: one device leaves
    something to decide, too."""
    first = OneDevice().optimize(search)
    if search.problem.num_devices == 1 and not alone:
        return first
    if search.simulations_left:
        search.score(first)
    paper_of(settings.PAPER).learn(settings, search)
    return search.best or first


def paper_of(name: str) -> Any:
    """The paper's module."""
    try:
        return import_module(f"loadmaster.papers.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtra.of(str(error.name or "torch"), "torch", "a learned policy") from error
