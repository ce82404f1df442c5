"""price: Graph and Cluster to Problem, by a cost model.

The one place where rates become whole nanoseconds. Views are folded away first (rule 13 of the simulator). Then every
op gets a time on every device, launch + max(compute, traffic ÷ bandwidth) + fixed, in which what a cost model knows
better than the roofline is `fixed`, so that a kernel of several ops is priced by the same line (rule 12); and every
tensor a time on every kind of link, latency + bytes ÷ bandwidth rounded up (rule 4). Links of one rate and latency
share a column, since a cluster of 64 devices has 4,032 links and mostly two kinds. Whatever would let a sum leave 64
bits is refused here by the name of the op, tensor or link: searches below add without looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from loadmaster.cluster import Cluster, Link
from loadmaster.cluster.cluster import parse_size
from loadmaster.cost.roofline import CostModel, Roofline
from loadmaster.errors import InvalidCluster, InvalidGraph, InvalidSetting
from loadmaster.graph import MOST_NS, MOST_TOTAL, NOWHERE, UNGIVEN, Graph
from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.graph.folding import fold
from loadmaster.graph.kinds import HEAVY, work_of
from loadmaster.problem import CANNOT, Problem, launch_of, time_of
from loadmaster.problem.objective import Objective, objective_named

LEAST_MOVED = 2**20  # bytes; of less, an op's time is mostly that of asking for it
MOST_VALUE = 2.0**60  # of an objective; searches add to it, and must not pass what 64 bits hold


def price(
    graph: Graph,
    cluster: Cluster | str,
    *,
    objective: Objective | str = "step-time",
    memory_limit: int | str | None = None,
    cost: CostModel | None = None,
) -> Problem:
    """Graph and cluster to a Problem: folds views away and gives every op a time on every device and every tensor a
    time on every link, in whole ns.

    >>> from loadmaster import GraphBuilder
    >>> g = GraphBuilder("tiny")
    >>> x, w, y = g.tensor(4_000_000, "input"), g.tensor(4_000_000, "weight"), g.tensor(4_000_000, "output")
    >>> number = g.op("mm", "aten.mm.default", [x, w], [y], flops=2 * 1000**3)
    >>> problem = price(g.build(), "2xp100-pcie", memory_limit="4GiB")
    >>> problem.op_ns.tolist()  # 2 GFLOP at 9.3 TFLOP/s and a launch of 5 us
    [[220054, 220054]]
    >>> problem.basis, problem.memory_bytes.tolist()
    ('data sheet', [4294967296, 4294967296])

    Args:
        graph: what `load` or a GraphBuilder made. Times that it gives itself are taken as they are.
        cluster: a Cluster, the name of a preset, or a cluster file.
        objective: a name ("step-time", "peak-memory", "throughput", "energy") or an Objective.
        memory_limit: of each device, a host beside others apart; bytes, or a text such as "16GiB". A device that has
            less keeps what it has.
        cost: Roofline from data sheets by default, Learned, or Measured where times of real kernels are known.

    Raises:
        InvalidGraph: an op can run nowhere, ops that must share a device have none in common, lists of times are for
            another number of devices, a time or a sum of bytes is beyond reason, or all ops are views.
        InvalidCluster: a send would take days, or energy is the objective and a device has no watts.
        InvalidSetting: the graph is none (load it first), or the objective or the limit cannot be.
    """
    if not isinstance(graph, Graph):
        raise _not_a_graph(graph)
    cluster = Cluster.of(cluster)
    objective = objective_named(objective)
    if memory_limit is not None:
        if isinstance(memory_limit, str):
            memory_limit = parse_size(memory_limit, "memory_limit")
        if isinstance(memory_limit, bool) or not isinstance(memory_limit, int) or memory_limit < 1:
            raise InvalidSetting(f"a memory limit of {memory_limit!r} bytes", "", "give a whole number of at least 1")
        cluster = cluster.with_memory(memory_limit)
    model = Roofline() if cost is None else cost
    if not isinstance(model, CostModel):
        fix = "give one of loadmaster.cost: Roofline(), Learned(); or none, for the first"
        raise InvalidSetting.instead_of("cost model", cost, "price", fix)
    folded, source_ops, read_bytes = fold(graph)
    if not folded.num_ops:
        raise InvalidGraph("every op is a view: there is nothing to plan", graph.name, "give ops with flops or times")
    launch = ints([device.launch_ns for device in cluster.devices])
    bandwidth = ints([min(max(1, round(device.bytes_per_s)), MOST_TOTAL) for device in cluster.devices])
    given = _given(folded, cluster)
    free = given == _MODEL
    compute = ints(np.where(free, model.compute_ns(folded, cluster), 0))
    traffic = ints(np.where(free.any(axis=1), folded.bytes_moved, 0))
    known = model.known_ns(folded, cluster)
    bandwidth = _reached(folded, np.where(free, known[0], UNGIVEN), compute, traffic, bandwidth, launch)
    folded = replace(folded, workspace_bytes=model.workspace_bytes(folded, cluster))
    plain = time_of(compute, traffic, np.zeros_like(compute), bandwidth, launch)
    modelled = np.where(known[0] == UNGIVEN, plain, np.maximum(known[0], 0))
    op_ns = ints(np.where(free, modelled, given))
    beyond = op_ns - launch_of(op_ns, launch) - (plain - launch[None, :])
    fixed = ints(np.where(given == CANNOT, 0, beyond))
    send_class, send_ns = _sends(folded, cluster)
    _check_times(folded, op_ns)
    _check_sends(folded, cluster, op_ns, send_ns)
    _check_memory(folded, cluster)
    _check_groups(folded, op_ns)
    priced = Problem(
        graph=folded,
        source=graph,
        source_ops=source_ops,
        heads=ints(np.arange(folded.num_ops)),
        tie=ints(np.arange(folded.num_ops)),
        cluster=cluster,
        op_ns=op_ns,
        compute_ns=compute,
        fixed_ns=fixed,
        traffic_bytes=traffic,
        read_bytes=read_bytes,
        bytes_per_s=bandwidth,
        launch_ns=launch,
        send_class=send_class,
        send_ns=send_ns,
        memory_bytes=cluster.memory_bytes,
        objective=objective,
        dispatch_ns=_dispatch(folded, source_ops, cluster),
        spread_ns=_spread(known, free),
        basis=_basis(free, known, model, cluster),
    )
    _check_values(priced)
    return priced


def _reached(folded: Graph, known: Ints, compute: Ints, traffic: Ints, bandwidth: Ints, launch: Ints) -> Ints:
    """[devices] bytes a second that ops which do little but move bytes reach there in sum, where that is known and less
    than the device could: what a fused kernel need not move is then saved at the rate at which it would be moved."""
    if (known == UNGIVEN).all():
        return bandwidth
    moves = np.array([work_of(kind) != HEAVY and not kind.startswith("optim.") for kind in folded.kind])
    reached = bandwidth.copy()
    for device, rate in enumerate(bandwidth.tolist()):
        some = moves & (traffic >= LEAST_MOVED) & (known[:, device] != UNGIVEN)
        some &= traffic * 1e9 / rate > compute[:, device]
        taken = int((known[some, device] - launch[device]).sum())
        if some.any() and taken > 0:
            reached[device] = min(rate, max(1, int(traffic[some].sum()) * 10**9 // taken))
    return ints(reached)


def _not_a_graph(given: object) -> InvalidSetting:
    if isinstance(given, str):
        return InvalidSetting(f"'{given}' is a name, not a graph", "price", f"load it first: price(load({given!r}), …)")
    fix = "give a Graph: price(load(model, …), cluster), or plan(model, on=cluster) for all of it"
    return InvalidSetting.instead_of("graph", given, "price", fix)


MOST_SEND_TIMES = 2**27  # a gigabyte of them


def _dispatch(graph: Graph, source_ops: Ints, cluster: Cluster) -> Ints:
    """[ops] what the host needs to ask for each (rule 14). It makes the views before an op on the way."""
    if not cluster.host_ns:
        return ints([])
    from loadmaster.cost.hosting import asked_ns

    return asked_ns(graph, ints(np.diff(source_ops, prepend=-1) - 1), cluster.mode, cluster.host_ns)


def _spread(known: Ints, free: Bools) -> Ints:
    """[2, ops, devices] how far the quartiles of measured times lie from their medians."""
    measured = free & (known[0] != UNGIVEN)
    if not measured.any():
        return ints(np.zeros((2, 0, 0)))
    return ints(np.where(measured, known[1:] - known[:1], 0))


def _basis(free: Bools, known: Ints, model: CostModel, cluster: Cluster) -> str:
    """What the times rest on, in the words that reports use."""
    if not free.any():
        return "given"
    share = float((known[0][free] != UNGIVEN).mean())
    if not share:
        return cluster.basis
    return model.basis if share > 0.995 else f"{share:.0%} {model.basis}, else {cluster.basis}"


_MODEL = -2  # in a table of given times: the cost model decides


def _given(graph: Graph, cluster: Cluster) -> Ints:
    """[ops, devices] the time the cluster or the graph gives, CANNOT, or _MODEL. A cluster's op_ns is for every op."""
    table = np.full((graph.num_ops, cluster.num_devices), _MODEL, np.int64)
    if cluster.op_ns is not None:
        table[:] = cluster.op_ns
        return ints(table)
    width = graph.time_ns.shape[1]
    if width not in (0, 1, cluster.num_devices):
        what = f"ops have {width} times each, but '{cluster.name}' has {cluster.num_devices} devices"
        raise InvalidGraph(what, graph.name, "give time_ns one number, or one per device of the cluster")
    if width:
        table[:] = np.where(graph.time_ns == UNGIVEN, _MODEL, np.where(graph.time_ns == NOWHERE, CANNOT, graph.time_ns))
    stuck = (table == CANNOT).all(axis=1)
    if stuck.any():
        raise InvalidGraph(
            f"op '{graph.op_name[stuck.argmax()]}' cannot run on any device", graph.name, "give it a time on one"
        )
    return ints(table)


def _check_times(graph: Graph, op_ns: Ints) -> None:
    """Refuses times whose sums would leave the range of whole numbers."""
    longest = op_ns.max(axis=1)
    if longest.max() > MOST_NS or longest.sum(dtype=np.float64) > MOST_TOTAL:
        op = int(longest.argmax())
        what = f"op '{graph.op_name[op]}' would take {longest[op] / 86400e9:.0f} days"
        raise InvalidGraph(what, graph.name, "check its flops and bytes, and the rates of the cluster")


def _check_values(problem: Problem) -> None:
    """Refuses prices of time that would make values leave that range: ops and sends all one after the other."""
    goal, others = problem.goal, problem.num_devices - 1
    longest = (
        problem.op_ns.max(axis=1).sum(dtype=float) + problem.send_ns.max(axis=1, initial=0).sum(dtype=float) * others
    )
    if longest * (goal.step_price + int(goal.busy_price.max(initial=0))) > MOST_VALUE:
        what = f"a step of up to {longest / 1e9:.0f} s is too long for whole numbers of {problem.objective.unit}"
        raise InvalidSetting(what, problem.graph.name, "check the watts and rates of the cluster, or plan a part")


def _check_sends(graph: Graph, cluster: Cluster, op_ns: Ints, send_ns: Ints) -> None:
    """Refuses sends that would take more time together than whole numbers have room for."""
    if not send_ns.shape[1] or cluster.num_devices < 2:
        return
    copies = np.minimum(np.diff(graph.readers[0]), cluster.num_devices - 1)
    longest = send_ns.max(axis=1) * np.minimum(copies, 1)
    total = (longest.astype(np.float64) * copies).sum() + op_ns.max(axis=1).sum(dtype=np.float64)
    if total > MOST_TOTAL:
        tensor = int(longest.argmax())
        what = f"sends would take {total / 86400e9:.0f} days in all, of tensor '{graph.tensor_name[tensor]}' alone "
        what += f"{longest[tensor] / 86400e9:.0f}"
        raise InvalidCluster(what, cluster.name, "check the bytes_per_s and latency_ns of its links")


def _check_memory(graph: Graph, cluster: Cluster) -> None:
    """Refuses bytes whose sum over all devices would leave the range of whole numbers: every device may hold all."""
    total = graph.nbytes.sum(dtype=np.float64) + graph.workspace_bytes.sum(dtype=np.float64)
    if total * max(4, cluster.num_devices) > MOST_TOTAL / 2:
        what = f"tensors and workspace add up to {total / 2**50:,.0f} PiB, on {cluster.num_devices} devices"
        raise InvalidGraph(what, graph.name, "check the units of bytes and workspace_bytes")


def _check_groups(graph: Graph, op_ns: Ints) -> None:
    """Refuses ops that must share a device but have none in common."""
    groups = int(graph.colocate.max(initial=-1)) + 1
    able = np.ones((groups, op_ns.shape[1]), bool)
    grouped = np.flatnonzero(graph.is_colocated)
    np.logical_and.at(able, graph.colocate[grouped], op_ns[grouped] != CANNOT)
    stuck = ~able.any(axis=1)
    if stuck.any():
        members = grouped[graph.colocate[grouped] == stuck.argmax()]
        names = ", ".join(f"'{graph.op_name[op]}'" for op in members[:4]) + (" …" if len(members) > 4 else "")
        what = f"ops {names} must share a device, but none can run all of them"
        raise InvalidGraph(what, graph.name, "give them times on a common device, or take one out of the group")


def send_time_ns(link: Link, nbytes: int) -> int:
    """Latency + bytes ÷ bandwidth, rounded up (rule 4). Exact: the rate is taken as the fraction that its float is."""
    if link.bytes_per_s is None:
        return link.latency_ns
    exact = Fraction(nbytes * 10**9) / Fraction(link.bytes_per_s)
    return link.latency_ns + -(-exact.numerator // exact.denominator)


def _sends(graph: Graph, cluster: Cluster) -> tuple[Ints, Ints]:
    """The few kinds of link there are, and for each the time of sending each tensor."""
    kinds = sorted(set(cluster.links.values()), key=lambda link: (link.bytes_per_s or 0, link.latency_ns))
    column: Mapping[Link, int] = {link: i for i, link in enumerate(kinds)}
    send_class = np.zeros((cluster.num_devices, cluster.num_devices), np.int64)
    for pair, link in cluster.links.items():
        send_class[pair] = column[link]
    sizes, where = np.unique(graph.nbytes, return_inverse=True)
    if len(kinds) * max(len(sizes), graph.num_tensors) > MOST_SEND_TIMES:
        what = f"{len(kinds):,} kinds of links and {graph.num_tensors:,} tensors are too many times to keep"
        raise InvalidCluster(what, cluster.name, "give links of one kind the same bytes_per_s and latency_ns")
    table = [[send_time_ns(link, int(size)) for link in kinds] for size in sizes]
    if max((time for row in table for time in row), default=0) > MOST_NS:
        what = f"sending {sizes.max()} bytes would take more than {MOST_NS // 86400_000_000_000} days"
        raise InvalidCluster(what, cluster.name, "check the bytes_per_s and latency_ns of its links")
    return ints(send_class), ints(np.array(table, np.int64).reshape(len(sizes), len(kinds))[where])
