"""What is placed: a model's modules as units, and every phase of a request as a priced problem over them.

A unit's weights have a home, an op without a length that stands for where they are kept (rule 7 of the simulator): on
the unit's own device they are resident; on the host they are sent once a step, in the background, and take room on the
device only while they are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.cluster import Cluster
from loadmaster.cost import CostModel, price
from loadmaster.errors import InvalidSetting
from loadmaster.graph import STATE, WEIGHT, Graph, GraphBuilder
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.graph import ROLES
from loadmaster.graph.modules import ModuleUnits, units_of
from loadmaster.problem import CANNOT, Problem
from loadmaster.serving.experts import Apart, Mixture, apart
from loadmaster.serving.requests import GOALS, Goal, Requests
from loadmaster.serving.reserve import left_of

HOME = "home:"


@dataclass(frozen=True, eq=False)
class PricedPhase:
    """A phase on a cluster, with what turns units into ops.

    Attributes:
        name: of the phase.
        times: that a request runs it.
        problem: priced.
        unit_of: [ops] the unit of each.
        is_home: [ops] it stands for where the weights of its unit are kept, and takes no time.
    """

    name: str
    times: float
    problem: Problem
    unit_of: Ints  # [ops]
    is_home: NDArray[np.bool_]  # [ops]

    def placed(self, compute: Ints, home: Ints) -> Ints:
        """[candidates, ops] of [candidates, units]."""
        return np.where(self.is_home, home[:, self.unit_of], compute[:, self.unit_of])

    @cached_property
    def unit_ns(self) -> Ints:
        """[units, devices] work of each unit."""
        table = np.zeros((int(self.unit_of.max()) + 1, self.problem.num_devices), np.int64)
        np.add.at(table, self.unit_of[~self.is_home], np.maximum(self.problem.op_ns[~self.is_home], 0))
        return ints(table)


@dataclass(frozen=True, eq=False)
class Service:
    """What there is to place: units of a model, and the phases of requests to it on a cluster.

    Attributes:
        names: [units] module paths, in the order of the model.
        weight_bytes: [units] of the weights of each.
        phases: priced, over the same units.
        cluster: that it is placed on.
        requests: that it is judged by.
        goal: what is to be small.
        together: [units] lowest unit that shares a weight with it; itself where none does.
        within: [units] the unit of its layer, for a part of a layer's experts; itself for all others.
        reserve_bytes: [devices] what the runtime takes beside; the cluster's memory is without it.
    """

    names: tuple[str, ...]  # [units]
    weight_bytes: Ints  # [units]
    phases: tuple[PricedPhase, ...]
    cluster: Cluster
    requests: Requests
    goal: Goal
    together: Ints  # [units]
    within: Ints  # [units]
    reserve_bytes: Ints  # [devices]

    @property
    def has_experts(self) -> bool:
        """Whether parts of a layer's experts are units of their own."""
        return bool((self.within != np.arange(len(self.names))).any())

    @property
    def host(self) -> int | None:
        """The device whose memory weights can be streamed from."""
        return next((i for i, d in enumerate(self.cluster.devices) if d.kind.startswith("cpu")), None)


def service_of(
    graphs: Sequence[tuple[str, Graph, float]],
    cluster: Cluster,
    requests: Requests,
    *,
    goal: Goal = "latency",
    blocks: Sequence[str] = (),
    cost: CostModel | None = None,
    experts: Apart | None = None,
    runtime: str | None = None,
) -> Service:
    """Prices every phase; units are the blocks, the modules beside them, and experts as `experts` says. Of the memory
    of GPUs the runtime takes its reserve."""
    if goal not in GOALS:
        raise InvalidSetting(f"'{goal}' is no goal", "--goal", f"use one of {', '.join(GOALS)}")
    reserve = ints(cluster.memory_bytes - left_of(cluster, runtime).memory_bytes)
    cluster = left_of(cluster, runtime)
    mixtures = [
        apart(graph, requests.batch * (1 if i else requests.prompt), experts or Apart())
        for i, (_, graph, _) in enumerate(graphs)
    ]
    every = [units_of(mixture.graph, "block", blocks, mixture.paths) for mixture in mixtures]
    names = tuple(dict.fromkeys(name for units in every for name in units.names))
    index = {name: i for i, name in enumerate(names)}
    phases, sizes = [], np.zeros(len(names), np.int64)
    shared: dict[str, set[int]] = {}
    for (name, _, times), mixture, units in zip(graphs, mixtures, every, strict=True):
        to_all = np.array([index[unit] for unit in units.names])
        phases.append(_priced(name, mixture, times, units, to_all, cluster, cost))
        held = _weights(mixture.graph, units, to_all, shared)
        for path, more in mixture.unused_bytes.items():
            held[index[path]] += more
        sizes = np.maximum(sizes, held)
    together = np.arange(len(names))
    for members in shared.values():
        together[sorted(members)] = min(members)
    within = [_block_of(name, i, index, set(mixtures[0].paths)) for i, name in enumerate(names)]
    return Service(names, ints(sizes), tuple(phases), cluster, requests, goal, ints(together), ints(within), reserve)


def _block_of(name: str, unit: int, index: Mapping[str, int], experts: set[str]) -> int:
    """The unit whose layer a part of experts belongs to; any other unit itself."""
    path = name
    while name in experts and "." in path:
        path = path.rpartition(".")[0]
        if path in index and path not in experts:
            return index[path]
    return unit


def _weights(
    graph: Graph, units: ModuleUnits, to_all: NDArray[np.int64], shared: dict[str, set[int]]
) -> NDArray[np.int64]:
    """[all units] bytes of weights; notes who reads each."""
    sizes = np.zeros(int(to_all.max()) + 1 if len(to_all) else 0, np.int64)
    start, readers = graph.readers
    for tensor in np.flatnonzero(graph.role == WEIGHT):
        users = to_all[units.of_op[readers[start[tensor] : start[tensor + 1]]]]
        if len(users):
            sizes[users[0]] += graph.nbytes[tensor]
            shared.setdefault(graph.tensor_name[tensor], set()).update(users.tolist())
    return sizes


def _priced(
    name: str,
    mixture: Mixture,
    times: float,
    units: ModuleUnits,
    to_all: NDArray[np.int64],
    cluster: Cluster,
    cost: CostModel | None,
) -> PricedPhase:
    graph = mixture.graph
    problem = price(_with_homes(graph, units, mixture.unused_bytes), cluster, cost=cost)
    source = problem.source_ops
    is_home = source >= graph.num_ops
    number = {unit: i for i, unit in enumerate(units.names)}
    homes = [number[op.removeprefix(HOME)] for op in problem.source.op_name[graph.num_ops :]]
    unit_of = np.concatenate([units.of_op, np.array(homes, np.int64)])[source]
    return PricedPhase(name, times, problem, ints(to_all[unit_of]), is_home)


def _with_homes(graph: Graph, units: ModuleUnits, unused_bytes: Mapping[str, int]) -> Graph:
    """The same ops, and behind them one for each unit with weights, which says where those are kept, with those that a
    step does not need."""
    builder = GraphBuilder.of(graph)
    start, readers = graph.readers
    for unit, name in enumerate(units.names):
        kept = np.flatnonzero(units.of_tensor == unit).tolist()
        if kept:
            users = sorted({int(op) for t in kept for op in readers[start[t] : start[t + 1]]})
            again = [builder.tensor(int(graph.nbytes[t]), ROLES[STATE], alias_of=t) for t in kept]
            after = [graph.op_name[op] for op in users]
            idle = [builder.tensor(unused_bytes[name], "weight")] if unused_bytes.get(name) else []
            builder.op(f"{HOME}{name}", "home", [*kept, *idle], again, time_ns=0, after=after)
    return builder.build()


def cache_bytes(service: Service) -> Ints:
    """[units] inputs and outputs that stay for the whole of the last phase: the cache, for the most part."""
    phase = service.phases[-1]
    graph = phase.problem.graph
    sizes = np.zeros(len(service.names), np.int64)
    start, readers = graph.readers
    for tensor in np.flatnonzero(~graph.is_made & (graph.role != WEIGHT) & (np.diff(start) > 0)):
        sizes[phase.unit_of[readers[start[tensor]]]] += graph.nbytes[tensor]
    return ints(sizes)


def able(service: Service) -> NDArray[np.bool_]:
    """[units, devices] where every op of a unit can run."""
    table = np.ones((len(service.names), service.cluster.num_devices), bool)
    for phase in service.phases:
        np.logical_and.at(table, phase.unit_of, phase.problem.op_ns != CANNOT)
    return table
