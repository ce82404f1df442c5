"""Problem: a priced graph on a cluster, all that a method may know.

Columns over ops, tensors and devices, all whole numbers. What can be derived from them (who must share a device, which
devices are alike, what is overwritten) is worked out at first use and kept. A coarser problem, in which kernels are
single ops, and an expanded one, in which ops run again, are Problems too: whatever takes one takes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.errors import InvalidSetting
from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import Bools, Ints, digest, flags, ints, numbered
from loadmaster.problem.objective import Goal, Objective, StepTime, objective_named

if TYPE_CHECKING:
    from loadmaster.plans.additions import Additions
    from loadmaster.plans.expansion import Expansion

CANNOT = -1  # in op_ns: the op cannot run on that device


class Cost(Protocol):
    """What an objective may look at: a Timeline has it, and so has whatever else stands for one."""

    @property
    def step_ns(self) -> int:
        """Of the step."""
        ...

    @property
    def peak_bytes(self) -> Ints:
        """[devices] the largest total of each."""
        ...

    @property
    def busy_ns(self) -> Ints:
        """[devices + channels + devices] as in `Timeline.busy_ns`."""
        ...


def check_problem(given: object, where: str) -> None:
    """Tells what to do where something else than a problem was given."""
    if not isinstance(given, Problem):
        fix = "price it first: price(graph, cluster); or plan(model, on=cluster) does all of it"
        raise InvalidSetting.instead_of("problem", given, where, fix)


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to decide, in whole nanoseconds and bytes: all that a method may know.

    `price` makes one of a Graph and a Cluster. Views are folded away, so that its ops are those that take time;
    `source` is the graph as imported, `source_ops` leads back to it. An op takes launch + max(compute, traffic ÷
    bandwidth) + fixed; what given times take beyond a launch is all fixed, so that a fused kernel is priced by the same
    line (rule 12 of the simulator). `memory_bytes` are limits, and `objective` says what is to be small. Nothing in it
    is random, and nothing is rounded again below it.

    >>> from loadmaster import GraphBuilder, price
    >>> g = GraphBuilder("tiny")
    >>> number = g.op("only", "task", [], [], time_ns=[70, 100])
    >>> problem = price(g.build(), "2xp100-pcie")
    >>> problem.op_ns.tolist(), problem.best_ns.tolist()
    ([[70, 100]], [70])

    Attributes:
        graph: views folded away.
        source: as imported.
        source_ops: [ops] index in the imported graph; of a fused kernel, of its lowest member.
        heads: [ops] of a fused problem: the lowest member of each kernel, in the problem it was made from.
        tie: [ops] who goes first among equal ranks: the op index; of a fused kernel, the lowest of its members'.
        cluster: devices and links; its rates are in the columns below already.
        op_ns: [ops, devices] launch included; CANNOT where it cannot run.
        compute_ns: [ops, devices] arithmetic alone, 0 for given times.
        fixed_ns: [ops, devices] what comes on top of the roofline, below 0 where less is known to be needed; of a given
            time, what it takes beyond its launch.
        traffic_bytes: [ops] read and written, 0 for given times.
        read_bytes: [reads] what each read moves: a slice may be less than the tensor it is taken from.
        bytes_per_s: [devices] of its memory; what known ops reach, where a cost model knows some.
        launch_ns: [devices]
        send_class: [devices, devices] column of send_ns.
        send_ns: [tensors, classes] time of sending the tensor over a link of that class (rule 4).
        memory_bytes: [devices] the limits.
        objective: what is to be small.
        dispatch_ns: [ops] the host's time to ask for it (rule 14); empty: no host.
        spread_ns: [2, ops, devices] quartiles of measured times less their median; empty where nothing was measured.
        rest_ns: [ops] of a part cut out of a step: how long the step goes on after each; empty otherwise.
        basis: what the times rest on, as reports say it: "given", "data sheet", "learned", "measured", or shares.
        expansion: of a problem with ops that a plan added: what it was made from.
    """

    graph: Graph
    source: Graph
    source_ops: Ints  # [ops]
    heads: Ints  # [ops]
    tie: Ints  # [ops]
    cluster: Cluster
    op_ns: Ints  # [ops, devices]
    compute_ns: Ints  # [ops, devices]
    fixed_ns: Ints  # [ops, devices]
    traffic_bytes: Ints  # [ops]
    read_bytes: Ints  # [reads]
    bytes_per_s: Ints  # [devices]
    launch_ns: Ints  # [devices]
    send_class: Ints  # [devices, devices]
    send_ns: Ints  # [tensors, classes]
    memory_bytes: Ints  # [devices]
    objective: Objective = field(default_factory=StepTime)
    dispatch_ns: Ints = field(default_factory=lambda: ints([]))  # [ops]
    spread_ns: Ints = field(default_factory=lambda: ints(np.zeros((2, 0, 0))))  # [2, ops, devices]
    rest_ns: Ints = field(default_factory=lambda: ints([]))  # [ops]
    basis: str = "data sheet"
    expansion: Expansion | None = None

    @property
    def num_ops(self) -> int:
        """Without views; the length of a plan's columns."""
        return self.graph.num_ops

    @property
    def num_devices(self) -> int:
        """Of the cluster."""
        return self.cluster.num_devices

    @property
    def added(self) -> Additions | None:
        """What was added to the graph, where anything was."""
        return None if self.expansion is None else self.expansion.added

    @cached_property
    def resident(self) -> Bools:
        """[tensors] there before the step: weights, states and inputs."""
        there: Bools = ~self.graph.is_made
        return there

    @cached_property
    def updater(self) -> Ints:
        """[tensors] for a resident tensor that is overwritten in place, the first op that does; else -1."""
        graph = self.graph
        updater = np.full(graph.num_tensors, -1, np.int64)
        inplace = np.flatnonzero(graph.is_in_place)[::-1]
        inplace = inplace[np.argsort(-graph.producer[inplace], kind="stable")]
        root = graph.owner[inplace]
        known = ~graph.is_made[root]
        updater[root[known]] = graph.producer[inplace[known]]
        return ints(updater)

    @cached_property
    def is_updated(self) -> Bools:
        """[tensors] there before the step and overwritten in place."""
        return flags(self.updater >= 0)

    @cached_property
    def is_fixed(self) -> Bools:
        """[tensors] there before the step, and the same after it: it lies wherever it is read (rule 7)."""
        return flags(self.resident & ~self.is_updated)

    @cached_property
    def always_fits(self) -> bool:
        """Whether every plan fits into memory: on any device there is room for all tensors, and for the workspaces of
        all ops, which one kernel may need together."""
        graph = self.graph
        return bool(graph.nbytes.sum() + graph.workspace_bytes.sum() <= self.memory_bytes.min())

    @cached_property
    def maker(self) -> Ints:
        """[tensors] the op at whose device it lies first: that which makes it or, of what is there before the step,
        updates it; -1: it is wherever it is read."""
        return ints(np.where(self.graph.is_made, self.graph.producer, self.updater))

    @cached_property
    def stays(self) -> Bools:
        """[tensors] made by the step and alive to its end."""
        lives: Bools = self.graph.is_made & (self.graph.role != ACTIVATION)
        return lives

    @cached_property
    def best_ns(self) -> Ints:
        """[ops] time on the fastest device that can run it."""
        return ints(np.where(self.op_ns == CANNOT, np.iinfo(np.int64).max, self.op_ns).min(axis=1))

    @cached_property
    def launches(self) -> Ints:
        """[ops, devices] what of each op's time is its launch; 0 where it cannot run."""
        return launch_of(self.op_ns, self.launch_ns)

    @cached_property
    def leader(self) -> Ints:
        """[ops] the first op of each op's colocation group: itself where it has none."""
        group, leader = self.graph.colocate, np.arange(self.num_ops)
        members = np.flatnonzero(group >= 0)
        first = np.full(int(group.max(initial=-1)) + 1, self.num_ops)
        np.minimum.at(first, group[members], members)
        leader[members] = first[group[members]]
        return ints(leader)

    @cached_property
    def able(self) -> Bools:
        """[ops, devices] where each op can run together with its whole colocation group; of every op at least one is
        True, since `price` refuses groups that can run nowhere."""
        able: Bools = self.op_ns != CANNOT
        if able.all():
            return able
        able, group = able.copy(), self.graph.colocate
        for number in np.unique(group[group >= 0]):
            able[group == number] = able[group == number].all(axis=0)
        return able

    @cached_property
    def device_kind(self) -> Ints:
        """[devices] devices with equal times and memory are of one kind; kinds in the order of their first device."""
        devices = range(self.num_devices)
        return numbered((digest(self.op_ns[:, device]), int(self.memory_bytes[device])) for device in devices)

    @cached_property
    def goal(self) -> Goal:
        """The objective in numbers for this cluster."""
        return self.objective.goal(self.cluster)

    def value(self, cost: Cost) -> int:
        """What a step is worth by the objective, in its unit; less is better. Memory limits are no part of it: `Score`
        has both."""
        return int(self.goal.values(ints(cost.step_ns), cost.peak_bytes, cost.busy_ns))

    def with_objective(self, objective: Objective | str) -> Problem:
        """The same, judged by something else; times and limits stay. Raises InvalidSetting for a name that is no
        objective's, and InvalidCluster, when it is first asked for a value, where the cluster lacks what the objective
        needs (watts)."""
        return replace(self, objective=objective_named(objective))

    def __repr__(self) -> str:
        return f"Problem({self.graph.name!r}, {self.num_ops} ops, {self.cluster.name!r}, {self.objective})"


def launch_of(op_ns: Ints, launch_ns: Ints) -> Ints:
    """[ops, devices] what of a time is launch: as long as the device takes for one, or all of a shorter time."""
    return ints(np.clip(op_ns, 0, launch_ns[None, :]))


# What was made of a problem is kept with the problem, the last few of it.
# Searches ask again and again for the coarser problem of the same kernels, or the expanded one of the same additions,
# and these are costly to make. `passes.coarse` and `plans.expansion` keep theirs so.

Made = TypeVar("Made")


class _Held(OrderedDict[Hashable, Any]):
    """Stays behind where its problem is copied or sent to another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Held, ()


class LastFew(Generic[Made]):
    """The last `most` things made of each problem, by what they were made from. Searches come back to them.

    They are held by the problem itself: what is made of a problem often holds it in turn, and a table of all problems,
    weak as its keys may be, would keep such a pair for ever.
    """

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = f"_last_{name}", most

    def of(self, problem: Problem, key: Hashable, make: Callable[[], Made]) -> Made:
        """What was made of the problem from this key, or what is made now; the one used longest ago is forgotten."""
        known: _Held = vars(problem).setdefault(self.name, _Held())
        if key not in known:
            known[key] = make()
            if len(known) > self.most:
                known.popitem(last=False)
        known.move_to_end(key)
        found: Made = known[key]
        return found
