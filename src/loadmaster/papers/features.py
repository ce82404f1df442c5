"""What a policy sees of a problem: numbers per op, per device, per pair of them and for the whole graph.

All about -3 to 3: logarithms of bytes, times and counts against the problem's own mean or total, places in several
orders, kinds of work, relations to devices. No column names a device or an op, so that one set of weights serves graphs
and clusters of any size. Worked out once per problem, in numpy; groups get sums and means of their ops' columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from loadmaster.baselines.cuts import device_order, fair_share
from loadmaster.baselines.lists.schedulers import downward_rank, upward_rank
from loadmaster.baselines.memory_order import PLAIN, memory_order
from loadmaster.graph.columns import Ints, ints, positions, rows_of
from loadmaster.graph.kinds import ELEMENTWISE, HEAVY, OPAQUE, REDUCTION, work_of
from loadmaster.passes.groups import mirrored_position, turning_point
from loadmaster.problem import CANNOT, Problem

Floats = NDArray[np.float32]

SHARES = 6  # cumulative shares along the mirrored order: count, made, resident, load, held, time
SCOPE_COLUMNS = 5  # the last columns of Features.ops: zero where scopes are unknown or dropped
SIZES = 8  # the first columns of Features.ops come in twos: a size's logarithm, and that of its ratio to the mean
OPS_WIDTH = 2 * SIZES + 10 + 2 * SHARES + 4 + 4 + SCOPE_COLUMNS
DEVICES_WIDTH = 9
PAIRS_WIDTH = 3 + 2 * SHARES
GRAPH_WIDTH = 12


@dataclass(frozen=True, eq=False)
class Features:
    """One problem in numbers, about -3 to 3 each.

    Attributes:
        ops: [ops, OPS_WIDTH] sizes, shares along the program and scopes of each, among others.
        devices: [devices, DEVICES_WIDTH] of each device.
        pairs: [ops * devices, PAIRS_WIDTH] op-major.
        graph: [GRAPH_WIDTH] of the whole problem.
        before: [edges] op that comes first.
        after: [edges] op that waits for it.
    """

    ops: Floats  # [ops, OPS_WIDTH]
    devices: Floats  # [devices, DEVICES_WIDTH]
    pairs: Floats  # [ops * devices, PAIRS_WIDTH]
    graph: Floats  # [GRAPH_WIDTH]
    before: Ints  # [edges]
    after: Ints  # [edges]

    def without_scopes(self) -> Features:
        ops = self.ops.copy()
        ops[:, -SCOPE_COLUMNS:] = 0
        return replace(self, ops=ops)


@dataclass(frozen=True, eq=False)
class _Sizes:
    """Bytes and times per op, before they are scaled."""

    made: NDArray[Any]
    read: NDArray[Any]
    workspace: NDArray[Any]
    resident: NDArray[Any]  # weights and inputs, counted where first read in the mirrored order
    shared: NDArray[Any]  # weights and inputs it reads, wherever they are counted
    saved: NDArray[Any]  # made before the turning point and read after it
    stays: NDArray[Any]  # made and alive to the end
    held: NDArray[Any]  # made bytes times how long they live in program order
    time: NDArray[Any]


def features_of(problem: Problem) -> Features:
    """Everything the networks read, computed once per problem."""
    mirror_order = np.argsort(mirrored_position(problem), kind="stable")
    mirror = positions(mirror_order)
    sizes = _sizes(problem, mirror)
    shares = _shares(sizes, mirror_order)
    start, before = problem.graph.dependencies
    return Features(
        ops=_op_columns(problem, sizes, shares, mirror),
        devices=_device_columns(problem),
        pairs=_pair_columns(problem, shares),
        graph=_graph_columns(problem, sizes),
        before=ints(before),
        after=ints(rows_of(start)),
    )


def group_features(features: Features, label: Ints) -> Features:
    """The same columns for groups of ops: sizes and times added up, all else the mean by time."""
    count, devices = int(label.max()) + 1, len(features.devices)
    size = np.exp2(features.ops[:, : 2 * SIZES : 2].astype(np.float64) * 16) - 1
    time = size[:, SIZES - 1] + 1e-3 * (1 + size[:, SIZES - 1].mean())
    share = csr_array((time, (label, np.arange(len(label)))), shape=(count, len(label)))
    total = np.bincount(label, time, count)[:, None]
    member = csr_array((np.ones(len(label)), (label, np.arange(len(label)))), shape=(count, len(label)))
    ops, pairs = (
        np.asarray(share @ columns.reshape(len(label), -1).astype(np.float64) / total)
        for columns in (features.ops, features.pairs)
    )
    ops[:, : 2 * SIZES] = np.stack([part for column in (member @ size).T for part in _scaled(column)], axis=1)
    pairs = pairs.reshape(count, devices, -1)
    times = member @ features.pairs.reshape(len(label), devices, -1)[:, :, 1]
    pairs[:, :, 1] = times / max(1e-9, times.mean()) / 4
    edges = np.unique(np.stack([label[features.before], label[features.after]], axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    return replace(
        features,
        ops=_narrow(ops),
        pairs=_narrow(pairs.reshape(count * devices, -1)),
        before=ints(edges[:, 0]),
        after=ints(edges[:, 1]),
    )


def _narrow(column: NDArray[np.floating]) -> Floats:
    return np.ascontiguousarray(np.clip(column, -8, 8), np.float32)


def _sizes(problem: Problem, mirror: Ints) -> _Sizes:
    graph, count = problem.graph, problem.num_ops
    reader, nbytes = rows_of(graph.read_start), graph.own_bytes.astype(np.float64)
    made_of, is_made = graph.producer, graph.is_made
    last = np.maximum(made_of, 0)
    np.maximum.at(last, graph.reads, reader)
    turn = turning_point(problem)
    own = nbytes[is_made]
    maker = made_of[is_made]
    there = problem.resident[graph.reads]
    tensors, readers = graph.reads[there], reader[there]
    by_place = np.lexsort((mirror[readers], tensors))
    first = by_place[np.unique(tensors[by_place], return_index=True)[1]]
    crosses = (maker <= turn) & (last[is_made] > turn)
    return _Sizes(
        made=np.bincount(maker, own, count),
        read=np.bincount(reader, problem.read_bytes, count),
        workspace=graph.workspace_bytes.astype(np.float64),
        resident=np.bincount(readers[first], nbytes[tensors[first]], count),
        shared=np.bincount(readers, nbytes[tensors], count),
        saved=np.bincount(maker, own * crosses, count),
        stays=np.bincount(maker, own * problem.stays[is_made], count),
        held=np.bincount(maker, own * (last[is_made] - maker + 1) / count, count),
        time=problem.best_ns.astype(np.float64),
    )


def _shares(sizes: _Sizes, mirror_order: Ints) -> NDArray[np.float64]:
    """[ops, SHARES] how much of the whole lies before the middle of each op, along the mirrored order."""
    load = sizes.resident + sizes.saved + sizes.stays
    columns = np.stack([np.ones_like(load), sizes.made, sizes.resident, load, sizes.held, sizes.time], axis=1)
    in_order = columns[mirror_order] + 1e-9
    middle = np.cumsum(in_order, axis=0) - in_order / 2
    shares = np.empty_like(middle)
    shares[mirror_order] = middle / in_order.sum(axis=0)
    return shares


def _scaled(column: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The logarithm of the size, and of its ratio to the mean."""
    mean = max(1.0, float(column.mean()))
    return [np.log2(1 + column) / 16, np.log2(0.01 + column / mean) / 4]


def _op_columns(problem: Problem, sizes: _Sizes, shares: NDArray[np.float64], mirror: Ints) -> Floats:
    graph, count = problem.graph, problem.num_ops
    start, before = graph.dependencies
    up, down = upward_rank(problem).astype(np.float64), downward_rank(problem).astype(np.float64)
    turn = turning_point(problem)
    columns: list[NDArray[np.floating]] = []
    for name in ("made", "read", "workspace", "resident", "shared", "saved", "held", "time"):
        columns += _scaled(getattr(sizes, name))
    columns += [np.log2(1 + np.diff(start)) / 4, np.log2(1 + np.bincount(before, minlength=count)) / 4]
    columns += [up / max(1.0, up.max()), down / max(1.0, down.max()), (up + down) / max(1.0, (up + down).max())]
    columns += [(np.arange(count) > turn).astype(float), np.full(count, (turn + 1) / count)]
    columns += [(sizes.stays > 0).astype(float), (sizes.shared > 0).astype(float), mirror / count]
    program = np.cumsum(
        np.stack([np.ones(count), sizes.made, sizes.resident, sizes.stays, sizes.held, sizes.time], 1) + 1e-9, 0
    )
    columns += [*(2 * shares - 1).T, *(2 * program / program[-1] - 1).T]
    by_critical = np.lexsort((np.arange(count), -upward_rank(problem)))
    orders = (np.arange(count), memory_order(problem, among=PLAIN), by_critical, memory_order(problem, "dfs"))
    columns += [2 * _narrow((positions(order) + 0.5) / count) - 1 for order in orders]
    work = np.array([work_of(kind) for kind in graph.kind])
    columns += [(work == kind).astype(float) for kind in (HEAVY, ELEMENTWISE, REDUCTION, OPAQUE)]
    columns += _scope_columns(problem, mirror)
    return _narrow(np.stack([np.asarray(column, np.float64) for column in columns], axis=1))


def _scope_columns(problem: Problem, mirror: Ints) -> list[NDArray[np.float64]]:
    """Whether the op has a scope; of its scope and of the one above it, the share of ops and the middle."""
    count = problem.num_ops
    known = np.array([bool(scope) for scope in problem.graph.scope])
    if not known.any():
        return [np.zeros(count)] * SCOPE_COLUMNS
    columns: list[NDArray[np.float64]] = [known.astype(float)]
    for names in (problem.graph.scope, tuple(scope.rpartition(".")[0] for scope in problem.graph.scope)):
        _, label = np.unique(np.array(names), return_inverse=True)
        size = np.bincount(label)
        middle = np.bincount(label, mirror / count) / size
        columns += [size[label] / count * known, (2 * middle[label] - 1) * known]
    return columns


def _device_columns(problem: Problem) -> Floats:
    count = problem.num_devices
    able_ns = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 10, problem.op_ns).sum(axis=0) + 1.0
    speed = able_ns.min() / able_ns
    memory = problem.memory_bytes / max(1, problem.memory_bytes.max())
    apart = ~np.eye(count, dtype=bool)
    classes = int(problem.send_class.max()) + 1
    typical_ns = np.maximum(problem.send_ns, 0).mean(axis=0) if problem.send_ns.size else np.zeros(classes)
    link = np.where(apart, typical_ns[problem.send_class], 0.0).sum(axis=1) / max(1, count - 1)
    place = positions(device_order(problem))
    needed = max(1.0, float(problem.graph.nbytes.sum()))
    columns = [
        np.log2(speed) / 4,
        speed / speed.sum() * count - 1,
        np.log2(np.maximum(memory, 2.0**-16)) / 4,
        np.minimum(4.0, problem.memory_bytes / needed) / 2,
        np.log2(problem.bytes_per_s / problem.bytes_per_s.max()) / 4,
        np.log2(1e-3 + link / max(1.0, able_ns.min() / problem.num_ops)) / 10,
        (2 * place + 1) / count - 1,
        np.full(count, 1 / count),
        (place == 0).astype(float),
    ]
    return _narrow(np.stack(columns, axis=1))


def _pair_columns(problem: Problem, shares: NDArray[np.float64]) -> Floats:
    """How long the op takes there, and how far inside or outside the device's fair share it lies."""
    low, high = fair_share(problem)
    time = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 100, problem.op_ns) + 1.0
    relative = np.log2(time / (problem.best_ns[:, None] + 1.0)) / 4
    columns = [relative, time / time.mean() / 4, np.broadcast_to((high - low)[None], time.shape)]
    for share in shares.T:
        above, below = share[:, None] - low[None], high[None] - share[:, None]
        inside = np.minimum(above, below) * problem.num_devices
        columns += [np.clip(4 * inside, -2, 2), share[:, None] - (low + high)[None] / 2]
    return _narrow(np.stack(columns, axis=2).reshape(problem.num_ops * problem.num_devices, -1))


def _graph_columns(problem: Problem, sizes: _Sizes) -> Floats:
    graph = problem.graph
    able_ns = problem.best_ns.astype(np.float64)
    path = max(1.0, float(upward_rank(problem).max()))
    resident, made = float(graph.nbytes[problem.resident].sum()), float(sizes.made.sum())
    sends = float(np.maximum(problem.send_ns, 0).mean()) if problem.send_ns.size else 0.0
    needed = max(1.0, resident + float(sizes.saved.sum()))
    columns = [
        np.log2(problem.num_ops) / 10,
        np.log2(problem.num_devices) / 3,
        float(not problem.objective.of_memory),
        np.log2(1e-3 + resident / max(1.0, made)) / 8,
        np.log2(1e-3 + sizes.saved.sum() / max(1.0, made)) / 8,
        np.log2(1e-3 + sizes.stays.sum() / max(1.0, made)) / 8,
        np.log2(max(1.0, able_ns.sum() / path)) / 4,
        np.log2(1e-3 + sends / max(1.0, able_ns.mean())) / 10,
        np.log2(1e-3 + problem.memory_bytes.sum() / needed) / 8,
        turning_point(problem) / problem.num_ops,
        len(graph.dependencies[1]) / problem.num_ops / 4,
        float(any(graph.scope)),
    ]
    return _narrow(np.array(columns, np.float64))
