"""Partitioners: ops cut into one part per device with little between them, then put in order.

The libraries see an undirected graph or hypergraph: time does not run in it, so a balanced cut need not be a fast step.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.baselines.memory_order import memory_order
from loadmaster.baselines.ordering import Order, ordered
from loadmaster.baselines.partition.parts import Balance, Parts, op_bytes, parts_of, seat
from loadmaster.baselines.simple import legal
from loadmaster.errors import MissingExtra
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.plans import Plan
from loadmaster.search import WORST, Score, Search

MOST_REPAIRS = 12  # cuts with less and less for devices that are over their memory: each is a simulation
FEW_UNITS = 3  # for each part: below that there is nothing to cut
METIS_CUTS = 4  # it keeps the best of so many
MANY_UNITS = 20  # for each part: METIS may also bisect again and again, which prints complaints when parts run empty
MOST_SEATS = 16  # Mt-KaHyPar looks at every set of a few blocks


@dataclass(frozen=True)
class _Partitioner:
    """One library's cut, as a plan: what those that balance within a given share have in common."""

    order: Order = "best"
    imbalance: float = 0.03
    balance: Balance = "auto"

    def optimize(self, search: Search) -> Plan:
        return plan_parts(search, parts_of(search.problem, self.balance), self._cut, self.order)

    def _cut(self, parts: Parts, seed: int) -> Ints:
        """[units] the device of each."""
        raise NotImplementedError


class Metis(_Partitioner):
    """Multilevel partitioning of METIS (Karypis and Kumar, 1998), balanced by time, or by bytes for peak memory.

    Parts of equal share change devices among themselves so that busy pairs have the fast links.
    """

    def _cut(self, parts: Parts, seed: int) -> Ints:
        return metis_parts(parts, self.imbalance, seed)


@dataclass(frozen=True)
class Scotch:
    """Static mapping onto the cluster's topology by dual recursive bisection (Pellegrini and Roman, 1996).

    The baseline of Mirhoseini 2017 and Placeto 2019, which mapped onto equal devices.

    Attributes:
        order: in which order a device takes its ops, as `ordering` has it.
        balance: what parts have equally much of: time, memory (bytes), or auto: what the objective counts.
    """

    order: Order = "best"
    balance: Balance = "auto"

    def optimize(self, search: Search) -> Plan:
        return plan_parts(search, parts_of(search.problem, self.balance), _scotch_parts, self.order)


class Kahip(_Partitioner):
    """Partitioning of KaHIP (Sanders and Schulz, 2013). It knows equal parts only: unlike devices get several small
    ones."""

    def _cut(self, parts: Parts, seed: int) -> Ints:
        return _kahip_parts(parts, self.imbalance, seed)


class MtKahypar(_Partitioner):
    """Hypergraph mapping of Mt-KaHyPar (Gottesbüren, Heuer, Maas, Sanders and Schlag, 2024): a tensor is one net,
    however many ops read it, and costs the tree of links that joins its devices."""

    def _cut(self, parts: Parts, seed: int) -> Ints:
        return _mtkahypar_parts(parts, self.imbalance, seed)


@dataclass(frozen=True)
class GpDfs:
    """Graph partitioning, then a depth-first order on each device: the "GP + DFS" row of REGAL 2020 (arXiv 1905.02494).

    Differs from the paper: its partitioner and its exact depth-first rule are not public; here METIS and a walk that
    takes the largest branch first, in the manner of XLA's memory scheduler.

    Attributes:
        imbalance: share by which a part may be larger than its due.
        balance: what parts have equally much of: time, memory (bytes), or auto: what the objective counts.
    """

    imbalance: float = 0.03
    balance: Balance = "auto"

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        parts = parts_of(problem, self.balance)
        device = _place(search, parts, lambda these, seed: metis_parts(these, self.imbalance, seed))
        return Plan.of(problem, device, positions(memory_order(problem, "dfs")))


Cutter = Callable[[Parts, int], Ints]


def plan_parts(search: Search, parts: Parts, cut: Cutter, order: Order) -> Plan:
    """Cuts, orders, and moves units off devices that are over their memory."""
    device = _place(search, parts, cut)
    plan = ordered(search, device, order)
    if _may_be_full(search):
        return _relieve(search, parts, plan, order)
    return plan


def _place(search: Search, parts: Parts, cut: Cutter) -> Ints:
    """[ops] the device of each op."""
    if not len(parts.cost):
        device = _spread(parts)
    elif (
        parts.num_devices == 1 or parts.num_units < FEW_UNITS * parts.num_devices
    ):  # libraries complain of parts without units
        device = _in_shares(parts)
    else:
        device = cut(parts, search.seed)
    return legal(search.problem, device[parts.unit])


def _spread(parts: Parts) -> Ints:
    """[units] where nothing is ever sent: the heaviest first, each to the device that has least for its share."""
    load, device = np.zeros(parts.num_devices), np.zeros(parts.num_units, np.int64)
    for unit in np.argsort(-parts.weight, kind="stable").tolist():
        device[unit] = ((load + parts.weight[unit]) / parts.share).argmin()
        load[device[unit]] += parts.weight[unit]
    return ints(device)


def _in_shares(parts: Parts) -> Ints:
    """[units] contiguous shares of the program order."""
    middle = (np.cumsum(parts.weight) - parts.weight / 2) / parts.weight.sum()
    return ints(np.minimum(np.searchsorted(np.cumsum(parts.share), middle), parts.num_devices - 1))


def _may_be_full(search: Search) -> bool:
    problem = search.problem
    return bool(op_bytes(problem).sum() + problem.graph.workspace_bytes.max() > problem.memory_bytes.min())


def _relieve(search: Search, parts: Parts, plan: Plan, order: Order) -> Plan:
    """Moves units from the device that is most over its memory to the one with most to spare, a few times."""
    problem = search.problem
    nbytes = np.bincount(parts.unit, weights=op_bytes(problem), minlength=parts.num_units)
    best, best_score = plan, WORST
    for _ in range(MOST_REPAIRS):
        if search.simulations_left == 0:
            break
        line = search.timeline(plan)
        score = Score.of(problem, line)
        search.offer(plan, score)
        if score < best_score:
            best, best_score = plan, score
        spare = problem.memory_bytes - line.peak_bytes
        if spare.min() >= 0:
            break
        device = _move_off(parts, plan.device, int(spare.argmin()), int(spare.argmax()), -int(spare.min()), nbytes)
        plan = ordered(search, legal(problem, device), order)
    return best


def _move_off(parts: Parts, device: Ints, full: int, to: int, excess: int, nbytes: np.ndarray) -> Ints:
    """[ops] units with most to send to the new device and least to the old one go first, until the excess is gone."""
    where = np.empty(parts.num_units, np.int64)
    where[parts.unit] = device
    start, others, weight = parts.edges
    rows = np.repeat(np.arange(parts.num_units), np.diff(start))
    pull = np.bincount(
        rows, weights=weight * ((where[others] == to) * 1.0 - (where[others] == full)), minlength=parts.num_units
    )
    movable = np.flatnonzero((where == full) & (nbytes > 0))
    order = movable[np.lexsort((movable, -pull[movable] / nbytes[movable]))]
    moved = np.searchsorted(np.cumsum(nbytes[order]), 1.1 * excess) + 1
    where[order[:moved]] = to
    return ints(where[parts.unit])


def metis_parts(parts: Parts, imbalance: float, seed: int) -> Ints:
    """[units] device by METIS."""
    metis = _library("pymetis")
    start, others, weight = parts.edges
    target = None if parts.alike else [float(share) for share in parts.share]
    cuts = []
    for recursive in (True, False) if parts.num_units >= MANY_UNITS * parts.num_devices else (False,):
        settings = metis.Options(seed=seed % 2**31, ufactor=max(1, round(imbalance * 1000)), ncuts=METIS_CUTS)
        graph = metis.CSRAdjacency(start, others)
        weights = {"vweights": parts.weight, "eweights": weight, "tpwgts": target}
        cuts.append(metis.part_graph(parts.num_devices, graph, **weights, recursive=recursive, options=settings))
    cut = min(cuts, key=lambda cut: int(cut.edge_cuts))
    block = ints(cut.vertex_part)
    seats = np.arange(parts.num_devices)
    equal = np.abs(parts.share[:, None] - parts.share[None, :]) < 1e-6
    return ints(seat(parts.traffic(block, parts.num_devices), ints(seats), parts.distance, equal)[block])


def _scotch_parts(parts: Parts, seed: int) -> Ints:
    with contextlib.redirect_stderr(io.StringIO()):  # it says on first use which files it loaded
        scotch = _library("pyscotch")
        kinds = scotch.Architecture, scotch.Graph
    os.environ.setdefault("SCOTCH_PTHREAD_NUMBER", "1")  # with several threads the answer is another every time
    scotch.random_seed(seed % 2**31)
    scotch.random_reset()
    start, others, weight = parts.edges
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "cluster.tgt"
        described.write_text(_target_text(parts))
        machine, graph = kinds[0](), kinds[1]()
        machine.load(str(described))
        graph.build(start, others, parts.weight, weight)
        block = graph.map(machine)
    return ints(block)


def _target_text(parts: Parts) -> str:
    """The cluster in Scotch's "deco 0" format: devices with their speeds, and distances below the diagonal."""
    terminal = _terminals(parts.distance, np.argsort(parts.distance.sum(axis=0), kind="stable"))
    speed = np.maximum(1, np.rint(100 * parts.share / parts.share.min())).astype(int)
    lines = ["deco", "0", f"{parts.num_devices}\t{max(terminal.values())}"]
    lines += [f"{device}\t{speed[device]}\t{terminal[device]}" for device in range(parts.num_devices)]
    lines += [
        "\t".join(str(parts.distance[row, column]) for column in range(row)) for row in range(1, parts.num_devices)
    ]
    return "\n".join(lines) + "\n"


def _terminals(distance: Ints, devices: np.ndarray, number: int = 1) -> dict[int, int]:
    """Numbers of a binary tree over the devices: halves that are near each other under one branch."""
    if len(devices) == 1:
        return {int(devices[0]): number}
    near = devices[np.argsort(distance[devices[0], devices], kind="stable")]
    half = (len(near) + 1) // 2
    return {**_terminals(distance, near[:half], 2 * number), **_terminals(distance, near[half:], 2 * number + 1)}


def _kahip_parts(parts: Parts, imbalance: float, seed: int) -> Ints:
    kahip = _library("kahip")
    start, others, weight = parts.edges
    seats = _seats(parts)
    graph = (parts.weight.tolist(), start.tolist(), weight.tolist(), others.tolist())
    _, cut = kahip.kaffpa(*graph, len(seats), imbalance, True, seed % 2**31, kahip.ECO)
    block = ints(cut)
    # Small parts start in the order of the program, which puts neighbours on one device.
    middle = np.bincount(block, weights=np.arange(len(block)), minlength=len(seats)) / np.maximum(
        1, np.bincount(block, minlength=len(seats))
    )
    block = positions(np.argsort(middle, kind="stable"))[block]
    anyone = np.ones((len(seats), len(seats)), bool)
    return ints(seat(parts.traffic(block, len(seats)), seats, parts.distance, anyone)[block])


def _seats(parts: Parts, most: int = 48) -> Ints:
    """[small parts] the device of each: one per device, or as many as its share asks for."""
    if parts.alike:
        return ints(np.arange(parts.num_devices))
    count = np.maximum(1, np.rint(parts.share * min(most, 6 * parts.num_devices, parts.num_units))).astype(int)
    return ints(np.repeat(np.arange(parts.num_devices), count))


def _mtkahypar_parts(parts: Parts, imbalance: float, seed: int) -> Ints:
    library, session = _library("mtkahypar"), _mtkahypar_session()
    # Shares as seats of equal size: given as weights per block, version 1.7 ends the process when it maps.
    seats = _seats(parts, MOST_SEATS)
    if parts.num_units < FEW_UNITS * len(
        seats
    ):  # and with hardly more units than blocks it trips over its own coarsening
        return _in_shares(parts)
    library.set_seed(seed % 2**31)
    context = session.context_from_preset(library.PresetType.DETERMINISTIC_QUALITY)
    context.logging = False
    context.set_mapping_parameters(len(seats), imbalance)
    nets = [net.tolist() for net in np.split(parts.pins, parts.net_start[1:-1])]
    graph = session.create_hypergraph(
        context, parts.num_units, len(nets), nets, parts.weight.tolist(), parts.cost.tolist()
    )
    pairs = [(one, other) for one in range(len(seats)) for other in range(one)]
    lengths = [max(1, int(parts.distance[seats[one], seats[other]])) for one, other in pairs]
    machine = session.create_target_graph(context, len(seats), len(pairs), pairs, lengths)
    return ints(seats[graph.map_onto_graph(machine, context).get_partition()])


@lru_cache(maxsize=1)
def _mtkahypar_session() -> Any:
    """Its threads are started once per process. One thread and a deterministic preset give the same answer
    everywhere."""
    return _library("mtkahypar").initialize(1, False)


def _library(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtra.of(package, "partition", "partitioning") from error
