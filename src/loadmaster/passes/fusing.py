"""Fusing: the coarser problem in which each kernel of a plan is one op, priced by rule 12 of the simulator.

Whatever judges or searches plans with kernels does so in this problem: it has fewer ops, and no rule but the price
knows of fusion. A kernel takes launch + max(sum of compute, remaining traffic ÷ bandwidth) + sum of fixed, of which no
op takes off more than it adds to the rest; inner tensors, made in it and read only there, are in it no more. A pass
over all columns in numpy, linear in the graph; `simulator.contraction` works out the same score in compiled code where
thousands of fusions are tried.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import Bools, Ints, from_pairs, given_ints, ints, rows_of, taken
from loadmaster.plans import check_kernel_numbers, kernel_order
from loadmaster.problem import CANNOT, Problem, check_problem, time_of
from loadmaster.problem.kernel_time import beyond_ns, moving_ns


def fuse(problem: Problem, kernel: Ints) -> Problem:
    """The coarser problem in which each kernel (ops with equal entries) is one op.

    A kernel is launched once, reads what its ops read from outside and writes what is read outside, and computes for as
    long as its ops together (rule 12 of the simulator); tensors that stay inside take no memory. What binds its members
    binds it: it can run where all of them can, shares a device with all their groups, and holds the sum of their
    workspace.

    >>> from loadmaster import GraphBuilder, price
    >>> g = GraphBuilder("chain")
    >>> x, y, z = g.tensor(7_320_000, "input"), g.tensor(7_320_000), g.tensor(7_320_000, "output")
    >>> ops = g.op("exp", "aten.exp.default", [x], [y]), g.op("neg", "aten.neg.default", [y], [z])
    >>> problem = price(g.build(), "1xp100-pcie")
    >>> problem.op_ns.tolist()  # each moves 14.64 MB at 732 GB/s, and is launched in 5 us
    [[25000], [25000]]
    >>> fuse(problem, np.array([0, 0])).op_ns.tolist()  # y is neither written nor read
    [[25000]]

    Args:
        problem: its ops are those that kernels are made of.
        kernel: [ops] the lowest op of the kernel of each.

    Raises:
        InvalidPlan: a kernel's number is not that of its lowest op, or kernels would wait for each other in a circle;
            fuse only ops with no path that leaves the kernel and comes back.
        InvalidSetting: the arguments are no problem and no whole numbers.
    """
    check_problem(problem, "fuse")
    kernel = given_ints(kernel, "fuse: kernel")
    check_kernel_numbers(kernel, problem)
    heads = kernel_order(problem, kernel)
    index = np.empty(problem.num_ops, np.int64)
    index[heads] = np.arange(len(heads))
    return _contract(problem, heads, ints(index[kernel]))


def inner_tensors(problem: Problem, member_of: Ints) -> Bools:
    """[tensors] made in a kernel and read only there: they take no memory and no traffic.

    Never inner are tensors that live to the end, that nobody reads, that are written over in place, or that are written
    so: they have to be in memory (rule 12).
    """
    graph = problem.graph
    reader = rows_of(graph.read_start)
    made = graph.is_made[graph.reads]
    escapes = np.zeros(graph.num_tensors, bool)
    outside = made & (member_of[reader] != member_of[graph.producer[graph.reads]])
    escapes[graph.reads[outside]] = True
    read = np.zeros(graph.num_tensors, bool)
    read[graph.reads] = True
    own = graph.is_fresh & (graph.role == ACTIVATION)
    inner: Bools = own & read & ~escapes & ~graph.is_base
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
    produced = graph.is_made[kept]
    make_start, makes = from_pairs(made_by[produced], np.flatnonzero(produced), count)
    after_rows, after_values = member_of[rows_of(graph.after_start)], member_of[graph.after]
    apart = after_rows != after_values
    after_start, after = from_pairs(after_rows[apart], after_values[apart], count)
    traffic = _remaining_traffic(problem, inner)
    coarse_graph = replace(
        graph,
        op_name=taken(graph.op_name, heads),
        kind=taken(graph.kind, heads),
        dtype=taken(graph.dtype, heads),
        scope=taken(graph.scope, heads),
        source=taken(graph.source, heads),
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
        tensor_name=taken(graph.tensor_name, kept),
        producer=ints(np.where(produced, made_by, -1)),
        nbytes=ints(graph.nbytes[kept]),
        role=ints(graph.role[kept]),
        alias_of=ints(np.where(graph.is_alias[kept], tensor_index[graph.alias_of[kept]], -1)),
        shape=taken(graph.shape, kept),
        tensor_dtype=taken(graph.tensor_dtype, kept),
    )
    return _reprice(problem, coarse_graph, heads, member_of, traffic, read_bytes, kept)


def _reprice(
    problem: Problem, graph: Graph, heads: Ints, member_of: Ints, traffic: Ints, read_bytes: Ints, kept: Ints
) -> Problem:
    count = len(heads)
    moving = moving_ns(traffic[:, None], problem.bytes_per_s[None, :])
    own_fixed = ints(beyond_ns(problem.fixed_ns, problem.compute_ns, moving))
    compute, fixed = (_total(column, member_of, count) for column in (problem.compute_ns, own_fixed))
    moved = _total(traffic, member_of, count)
    launch = _highest(problem.launches, member_of, count)
    op_ns = time_of(compute, moved, fixed, problem.bytes_per_s, launch).copy()
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
        dispatch_ns=_highest(problem.dispatch_ns, member_of, count) if len(problem.dispatch_ns) else ints([]),
        spread_ns=_total_spread(problem.spread_ns, member_of, count),
    )


def _highest(column: Ints, member_of: Ints, count: int) -> Ints:
    """A fused kernel is asked for once, and launched once."""
    high = np.zeros((count, *column.shape[1:]), np.int64)
    np.maximum.at(high, member_of, column)
    return ints(high)


def _total_spread(spread_ns: Ints, member_of: Ints, count: int) -> Ints:
    return ints(np.stack([_total(part, member_of, count) for part in spread_ns])) if spread_ns.size else spread_ns


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
