"""Problem: a priced graph on a cluster, all that an optimizer may know; and fuse, which makes a coarser one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.columns import Bools, Ints, from_pairs, ints, rows_of
from loadmaster.errors import InvalidPlan
from loadmaster.graph import ACTIVATION, Graph

Objective = Literal["step-time", "peak-memory"]
OBJECTIVES: tuple[Objective, ...] = ("step-time", "peak-memory")
CANNOT = -1  # in op_ns: the op cannot run on that device


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to decide, in whole nanoseconds and bytes.

    An op takes launch + max(compute, traffic ÷ bandwidth) + fixed; given times are all fixed, so that a fused
    kernel is priced by the same line (rule 12 of the simulator).
    """

    graph: Graph  # views folded away
    source: Graph  # as imported
    source_ops: Ints  # [ops] index in the imported graph; of a fused kernel, of its lowest member
    heads: Ints  # [ops] of a fused problem: the lowest member of each kernel, in the problem it was made from
    tie: Ints  # [ops] who goes first among equal ranks: the op index; of a fused kernel, the lowest of its members'
    cluster: Cluster
    op_ns: Ints  # [ops, devices] launch included; CANNOT where it cannot run
    compute_ns: Ints  # [ops, devices] arithmetic alone, 0 for given times
    fixed_ns: Ints  # [ops, devices] given time less one launch
    traffic_bytes: Ints  # [ops] read and written, 0 for given times
    read_bytes: Ints  # [reads] what each read moves
    bytes_per_s: Ints  # [devices]
    launch_ns: Ints  # [devices]
    send_class: Ints  # [devices, devices] column of send_ns
    send_ns: Ints  # [tensors, classes] time of sending the tensor over a link of that class
    memory_bytes: Ints  # [devices]
    objective: Objective = "step-time"

    @property
    def num_ops(self) -> int:
        return self.graph.num_ops

    @property
    def num_devices(self) -> int:
        return self.cluster.num_devices

    @cached_property
    def resident(self) -> Bools:
        """[tensors] there before the step: weights, states and inputs."""
        there: Bools = self.graph.producer < 0
        return there

    @cached_property
    def updater(self) -> Ints:
        """[tensors] for a resident tensor that is overwritten in place, the first op that does; else -1."""
        graph = self.graph
        updater = np.full(graph.num_tensors, -1, np.int64)
        inplace = np.flatnonzero((graph.alias_of >= 0) & (graph.producer >= 0))[::-1]
        inplace = inplace[np.argsort(-graph.producer[inplace], kind="stable")]
        root = graph.owner[inplace]
        known = graph.producer[root] < 0
        updater[root[known]] = graph.producer[inplace[known]]
        return ints(updater)

    @cached_property
    def stays(self) -> Bools:
        """[tensors] made by the step and alive to its end."""
        lives: Bools = (self.graph.producer >= 0) & (self.graph.role != ACTIVATION)
        return lives

    @cached_property
    def best_ns(self) -> Ints:
        """[ops] time on the fastest device that can run it."""
        return ints(np.where(self.op_ns == CANNOT, np.iinfo(np.int64).max, self.op_ns).min(axis=1))

    def with_objective(self, objective: Objective) -> Problem:
        return replace(self, objective=objective)

    def __repr__(self) -> str:
        return f"Problem({self.graph.name!r}, {self.num_ops} ops, {self.cluster.name!r}, {self.objective})"


def time_of(compute_ns: Ints, traffic_bytes: Ints, fixed_ns: Ints, bytes_per_s: Ints, launch_ns: Ints) -> Ints:
    """[ops, devices] time of ops or kernels by the roofline rule, launch included."""
    rate = bytes_per_s[None, :]
    traffic_ns = np.ceil(traffic_bytes[:, None] * 1e9 / rate).astype(np.int64)
    # Above 2^53 the product is not exact and may be a nanosecond off. What is left over is small and exact even though
    # the two products wrap around.
    left = traffic_bytes[:, None] * 10**9 - traffic_ns * rate
    traffic_ns += (left > 0).astype(np.int64) - (left <= -rate)
    return ints(np.maximum(launch_ns[None, :] + np.maximum(compute_ns, traffic_ns) + fixed_ns, 0))


def fuse(problem: Problem, kernel: Ints) -> Problem:
    """The coarser problem in which each kernel (ops with equal entries) is one op.

    `kernel[op]` is the lowest op of its kernel. Refuses a contraction that makes a cycle.
    """
    from loadmaster.graph.order import topological_order

    graph = problem.graph
    heads = np.flatnonzero(kernel == np.arange(problem.num_ops))
    member_of = np.searchsorted(heads, kernel)
    start, before = _dependencies(graph, member_of, len(heads))
    order = topological_order(start, before, np.arange(len(heads)))
    if len(order) < len(heads):
        stuck = int(heads[_on_a_cycle(start, before, np.setdiff1d(np.arange(len(heads)), order))])
        members = [graph.op_name[op] for op in np.flatnonzero(kernel == stuck)[:4]]
        what = f"the kernel of {', '.join(repr(name) for name in members)} would wait for itself"
        raise InvalidPlan(what, f"kernel {stuck}", "fuse only ops with no path that leaves the kernel and comes back")
    rank_of = np.empty(len(heads), np.int64)
    rank_of[order] = np.arange(len(heads))
    return _contract(problem, heads[order], rank_of[member_of])


def _on_a_cycle(start: Ints, before: Ints, stuck: Ints) -> int:
    """A kernel that waits for itself, of several fused ones on the way the lowest; not one that only waits for it."""
    left, seen, here = set(stuck.tolist()), [], int(stuck[0])
    while here not in seen:
        seen.append(here)
        here = next(int(b) for b in before[start[here] : start[here + 1]] if int(b) in left)
    return min(seen[seen.index(here) :])


def _dependencies(graph: Graph, member_of: Ints, count: int) -> tuple[Ints, Ints]:
    start, before = graph.dependencies
    rows, values = member_of[rows_of(start)], member_of[before]
    apart = rows != values
    return from_pairs(rows[apart], values[apart], count)


def inner_tensors(problem: Problem, member_of: Ints) -> Bools:
    """[tensors] made in a kernel and read only there: they take no memory and no traffic."""
    graph = problem.graph
    reader = rows_of(graph.read_start)
    made = graph.producer[graph.reads] >= 0
    escapes = np.zeros(graph.num_tensors, bool)
    outside = made & (member_of[reader] != member_of[graph.producer[graph.reads]])
    escapes[graph.reads[outside]] = True
    read = np.zeros(graph.num_tensors, bool)
    read[graph.reads] = True
    overwritten = np.zeros(graph.num_tensors, bool)
    overwritten[graph.alias_of[graph.alias_of >= 0]] = True
    own = (graph.producer >= 0) & (graph.alias_of < 0) & (graph.role == ACTIVATION)
    inner: Bools = own & read & ~escapes & ~overwritten
    return inner


def _contract(problem: Problem, heads: Ints, member_of: Ints) -> Problem:
    """`heads[k]` is the lowest member of coarse op k, `member_of[op]` its coarse op."""
    graph, count = problem.graph, len(heads)
    inner = inner_tensors(problem, member_of)
    kept = np.flatnonzero(~inner)
    tensor_index = np.cumsum(~inner) - 1
    reader, maker = member_of[rows_of(graph.read_start)], graph.producer[graph.reads]
    local = (maker >= 0) & (member_of[maker] == reader)
    read_start, reads, read_bytes = _sum_reads(
        reader[~local], tensor_index[graph.reads[~local]], problem.read_bytes[~local], count
    )
    made_by = member_of[graph.producer[kept]]
    produced = graph.producer[kept] >= 0
    make_start, makes = from_pairs(made_by[produced], np.flatnonzero(produced), count)
    after_rows, after_values = member_of[rows_of(graph.after_start)], member_of[graph.after]
    apart = after_rows != after_values
    after_start, after = from_pairs(after_rows[apart], after_values[apart], count)
    traffic = _remaining_traffic(problem, inner)
    coarse_graph = replace(
        graph,
        op_name=tuple(graph.op_name[op] for op in heads),
        kind=tuple(graph.kind[op] for op in heads),
        dtype=tuple(graph.dtype[op] for op in heads),
        scope=tuple(graph.scope[op] for op in heads),
        source=tuple(graph.source[op] for op in heads),
        flops=_total(graph.flops, member_of, count),
        bytes_moved=_total(traffic, member_of, count),
        workspace_bytes=_total(graph.workspace_bytes, member_of, count),
        colocate=_join_groups(graph.colocate, member_of, count),
        time_ns=ints(np.zeros((count, 0))),
        after_start=after_start,
        after=after,
        make_start=make_start,
        makes=makes,
        read_start=read_start,
        reads=reads,
        tensor_name=tuple(graph.tensor_name[t] for t in kept),
        producer=ints(np.where(produced, made_by, -1)),
        nbytes=ints(graph.nbytes[kept]),
        role=ints(graph.role[kept]),
        alias_of=ints(np.where(graph.alias_of[kept] >= 0, tensor_index[graph.alias_of[kept]], -1)),
        shape=tuple(graph.shape[t] for t in kept),
        tensor_dtype=tuple(graph.tensor_dtype[t] for t in kept),
    )
    return _reprice(problem, coarse_graph, heads, member_of, traffic, read_bytes, kept)


def _reprice(
    problem: Problem, graph: Graph, heads: Ints, member_of: Ints, traffic: Ints, read_bytes: Ints, kept: Ints
) -> Problem:
    count = len(heads)
    compute, fixed = (_total(column, member_of, count) for column in (problem.compute_ns, problem.fixed_ns))
    moved = _total(traffic, member_of, count)
    op_ns = time_of(compute, moved, fixed, problem.bytes_per_s, problem.launch_ns).copy()
    cannot = _total((problem.op_ns == CANNOT).astype(np.int64), member_of, count) > 0
    op_ns[cannot] = CANNOT
    return replace(
        problem,
        graph=graph,
        source_ops=ints(problem.source_ops[heads]),
        heads=ints(heads),
        tie=_lowest(problem.tie, member_of, count),
        op_ns=ints(op_ns),
        compute_ns=compute,
        fixed_ns=fixed,
        traffic_bytes=moved,
        read_bytes=read_bytes,
        send_ns=ints(problem.send_ns[kept]),
    )


def _remaining_traffic(problem: Problem, inner: Bools) -> Ints:
    """[ops] bytes moved once inner tensors stay in registers."""
    graph = problem.graph
    saved = np.zeros(problem.num_ops, np.int64)
    np.add.at(saved, rows_of(graph.read_start), np.where(inner[graph.reads], problem.read_bytes, 0))
    np.add.at(saved, rows_of(graph.make_start), np.where(inner[graph.makes], graph.nbytes[graph.makes], 0))
    return ints(np.maximum(problem.traffic_bytes - saved, 0))


def _sum_reads(rows: Ints, tensors: Ints, sizes: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """Each (kernel, tensor) once, with the bytes its members read of it added up."""
    width = int(tensors.max(initial=0)) + 1
    keys, where = np.unique(rows * width + tensors, return_inverse=True)
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(keys // width, minlength=count), out=start[1:])
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, where, sizes)
    return ints(start), ints(keys % width), ints(total)


def _total(column: Ints, member_of: Ints, count: int) -> Ints:
    total = np.zeros((count, *column.shape[1:]), np.int64)
    np.add.at(total, member_of, column)
    return ints(total)


def _lowest(column: Ints, member_of: Ints, count: int) -> Ints:
    low = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(low, member_of, column)
    return ints(low)


def _join_groups(colocate: Ints, member_of: Ints, count: int) -> Ints:
    """[kernels] colocation groups; groups that meet in a kernel become one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ops = np.flatnonzero(colocate >= 0)
    joined = np.full(count, -1, np.int64)
    if not len(ops):
        return ints(joined)
    size = count + int(colocate.max()) + 1
    ones = np.ones(len(ops), np.int8)
    meets = coo_array((ones, (member_of[ops], count + colocate[ops])), shape=(size, size))
    _, label = connected_components(meets, directed=False)
    joined[member_of[ops]] = label[member_of[ops]]
    return ints(joined)
