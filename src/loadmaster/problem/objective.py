"""What a plan is judged by: one small class per objective, and its numbers for one cluster.

An objective says, in one place, what a timeline is worth, when a run may stop early, which lower bound holds, and in
which words and unit people read it. Everything else asks it. Values are whole numbers, and less is better.

Compiled loops know no classes: an objective gives them a `Goal`, a kind and a few prices (`simulator.loop.value_of` is
the same in machine code as `Goal.values` here). To add one: a subclass of Objective with its words, a `goal` in these
numbers and a `bound` from the parts of `Least`, and a line in `catalog.OBJECTIVES`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster import catalog
from loadmaster.cluster import Cluster
from loadmaster.errors import InvalidCluster, InvalidSetting
from loadmaster.graph.columns import Ints, ints

Unit = Literal["ns", "bytes", "pJ"]
# Kinds of goal: what the step and busy devices cost together; the largest peak; the busiest device or channel.
SUM, PEAK, BUSIEST = range(3)
NOTHING = ints([])


class Goal(NamedTuple):
    """An objective in numbers, for one cluster, as the compiled loops take it (`simulator.loop.value_of`).

    Attributes:
        kind: SUM (what the step and busy devices cost together), PEAK (the largest peak) or BUSIEST (the busiest device
            or channel).
        step_price: of a ns of the step; 0: how long it takes does not count.
        busy_price: [devices] of a ns in which the device computes, on top of that; empty: nothing.
        held_up: [devices] 1: transfers keep it from computing; empty where nobody asks.
    """

    kind: int
    step_price: int
    busy_price: Ints = NOTHING
    held_up: Ints = NOTHING

    def values(self, step_ns: NDArray[np.int64], peak_bytes: Ints, busy_ns: Ints) -> Ints:
        """[...] what steps are worth, from [...] times, [..., devices] peaks and busy times (`Timeline.busy_ns`)."""
        if self.kind == PEAK:
            return ints(peak_bytes.max(axis=-1))
        if self.kind == BUSIEST:
            devices = len(self.held_up)
            load = busy_ns[..., :devices] + busy_ns[..., -devices:] * self.held_up
            return ints(np.maximum(load.max(axis=-1), busy_ns[..., devices:-devices].max(axis=-1, initial=0)))
        return ints(step_ns * self.step_price + busy_ns[..., : len(self.busy_price)] @ self.busy_price)


class Least(Protocol):
    """What no plan of a problem can go under, part by part; `bounds` works them out, each only when an objective asks
    for it, since some take seconds on large graphs."""

    def step_ns(self) -> int:
        """Of the step time."""
        ...

    def peak_bytes(self) -> int:
        """Of the largest peak of any device."""
        ...

    def shared_ns(self) -> int:
        """Of the busiest device, however work is shared out."""
        ...

    def work(self, price: Ints) -> int:
        """What all ops cost where each runs on the device on which its time x price is least."""
        ...


@dataclass(frozen=True)
class Objective:
    """What all objectives say of themselves. `str` of one is its name, as files and the command line have it.

    >>> objective = objective_named("energy")
    >>> str(objective), objective.unit, objective.option
    ('energy', 'pJ', ' --objective energy')

    Attributes:
        name: as typed after `--objective`.
        unit: of its values: "ns", "bytes" or "pJ".
        of_memory: bytes count, not time: orders and groups are chosen for memory.
        of_order: the order of ops counts, not only where they are.
        of_step: its value is the time of the step.
        subject: "The step" goes from 3 ms to 2 ms.
        wanted: planned "for a short step".
        each: 3 ms "a step".
        column: head of a column of its own in tables, which all have the step and the peaks.
        sentence: what {value} says beside the step time.
        binds: what stands in place of the bound on time that binds.
    """

    name: ClassVar[str]
    unit: ClassVar[Unit]
    of_memory: ClassVar[bool] = False
    of_order: ClassVar[bool] = True
    of_step: ClassVar[bool] = False
    subject: ClassVar[str]
    wanted: ClassVar[str]
    each: ClassVar[str]
    column: ClassVar[str] = ""
    sentence: ClassVar[str] = ""
    binds: ClassVar[str] = ""

    def goal(self, cluster: Cluster) -> Goal:
        """Its numbers for the cluster. Raises InvalidCluster where the cluster does not say what it needs, such as
        watts."""
        raise NotImplementedError

    def bound(self, goal: Goal, least: Least) -> int:
        """What no plan can go under, in its unit, from the parts that are known."""
        raise NotImplementedError

    @property
    def option(self) -> str:
        """What asks for it on the command line; nothing where it is what a command is for unasked."""
        return "" if self.of_step else f" --objective {self.name}"

    def __str__(self) -> str:
        return self.name


class StepTime(Objective):
    """The time from the start of a step to the end of its last op (rule 10 of the simulator). The default."""

    name = "step-time"
    of_step = True
    unit = "ns"
    subject = "The step"
    wanted = "for a short step"
    each = "a step"

    def goal(self, cluster: Cluster) -> Goal:
        return Goal(SUM, 1)

    def bound(self, goal: Goal, least: Least) -> int:
        return least.step_ns()


class PeakMemory(Objective):
    """The most bytes that any device holds at once (rule 9 of the simulator): REGAL's objective, and the one for a
    model that barely fits. How long the step takes then counts for nothing."""

    name = "peak-memory"
    unit = "bytes"
    of_memory = True
    subject = "The largest peak"
    wanted = "for little memory"
    each = "at most, on any device"
    sentence = "The fullest device holds {value}."
    binds = "The goal is memory: the fullest device uses {memory} of what it has."

    def goal(self, cluster: Cluster) -> Goal:
        return Goal(PEAK, 0)

    def bound(self, goal: Goal, least: Least) -> int:
        return least.peak_bytes()


class Energy(Objective):
    """What all devices draw in a step: their watts while they compute, their idle watts for the rest of it.

    A whole number of picojoules, since watts are taken in whole milliwatts. Links draw nothing.
    """

    name = "energy"
    unit = "pJ"
    subject = "The energy of a step"
    wanted = "for little energy"
    each = "a step"
    column = "energy"
    sentence = "It draws {value}."

    def goal(self, cluster: Cluster) -> Goal:
        for device in cluster.devices:
            if device.watts is None:
                what = f"device '{device.name}' has no watts, so the energy of a step is not known"
                raise InvalidCluster(what, cluster.name, "give every device watts (and idle_watts) in the cluster file")
        idle = [round(1000 * (device.idle_watts or 0.0)) for device in cluster.devices]
        busy = [round(1000 * (device.watts or 0.0)) for device in cluster.devices]
        return Goal(SUM, sum(idle), ints(np.subtract(busy, idle)))

    def bound(self, goal: Goal, least: Least) -> int:
        return goal.step_price * least.step_ns() + least.work(goal.busy_price)


class Throughput(Objective):
    """The time per step of a plan that is repeated for ever: that of its busiest device or channel.

    A device that overlaps is busy while it computes. One that does not (`overlap: false` in the cluster) is busy while
    it receives and sends, too: as long as each transfer to it takes, and for what it sends once as long as the longest
    transfer of that tensor, however many devices read it. That is the load of Tarnawski et al. (2020).
    """

    name = "throughput"
    unit = "ns"
    of_order = False
    subject = "The time per step, repeated for ever,"
    wanted = "for many steps an hour"
    each = "a step, repeated for ever"
    column = "per step"
    sentence = "Repeated for ever, with the next steps begun before the last ones end, it gives a step every {value}."

    def goal(self, cluster: Cluster) -> Goal:
        return Goal(BUSIEST, 0, held_up=ints([not device.overlap for device in cluster.devices]))

    def bound(self, goal: Goal, least: Least) -> int:
        return least.shared_ns()


def objective_named(name: str | Objective) -> Objective:
    """The objective of that name; an objective is taken as it is. Raises InvalidSetting with the names there are.

    >>> objective_named("peak-memory").unit
    'bytes'
    """
    if isinstance(name, Objective):
        return name
    if not isinstance(name, str) or name not in catalog.OBJECTIVES:
        raise InvalidSetting(f"objective '{name}' is unknown", "", f"use one of {', '.join(catalog.OBJECTIVES)}")
    module, _, kind = catalog.OBJECTIVES[name].partition(":")
    made: Objective = getattr(importlib.import_module(module), kind)()
    return made
