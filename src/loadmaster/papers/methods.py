"""Settings of the published methods, as `--method` has them. Nothing here needs torch: a paper's file opens on use.

`optimize` scores one device's plan first, which is kept where nothing beats it, then hands the search to the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

from loadmaster.baselines.simple import OneDevice
from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.passes.groups import Grouper
from loadmaster.plans import Plan
from loadmaster.search import Search

Control = Literal["none", "constant", "random"]  # as in `controls`, which needs torch
Order = Literal["critical", "fifo", "program"]  # as in `environment`


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
        order: in which order a device takes its ops.
        noise: of the measured times, as deviation of their logarithm.
        failures: chance that a measurement fails.
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
    order: Order = "critical"
    noise: float = 0.0
    failures: float = 0.0

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
        order: in which order a device takes its ops.
        noise: of the measured times, as deviation of their logarithm.
        failures: chance that a measurement fails.
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
    order: Order = "critical"
    noise: float = 0.0
    failures: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "hdp")

    def optimize(self, search: Search) -> Plan:
        return learned(self, search)


@dataclass(frozen=True)
class PlacetoPublished:
    """Placeto as published (Addanki et al. 2019, arXiv 1906.08879): each group of ops is visited once and given a
    device by a policy that reads messages passed along the graph. `placeto` is our variant, with weights.

    Differs from the paper: told at the top of `papers.placeto2019`.

    Attributes:
        checkpoint: a .safetensors file; empty: what is shipped for so many devices; none: untrained.
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
        order: in which order a device takes its ops.
        noise: of the measured times, as deviation of their logarithm.
        failures: chance that a measurement fails.
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
    order: Order = "critical"
    noise: float = 0.0
    failures: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "placeto")

    def optimize(self, search: Search) -> Plan:
        return learned(self, search)


def check_counts(settings: Any, name: str) -> None:
    for count in settings.COUNTS:
        if getattr(settings, count) < 1:
            raise InvalidSetting(f"{count}={getattr(settings, count)}", name, "give 1 or more")


def learned(settings: Any, search: Search) -> Plan:
    """The best plan that was measured while the paper's policy learned on this problem."""
    first = OneDevice().optimize(search)
    if search.problem.num_devices == 1:
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
