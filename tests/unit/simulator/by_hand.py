"""Small steps run by hand: a graph, a placement, and what to read off the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, check
from loadmaster.simulator import Timeline, simulate
from tests.graphs import pair

FREE = Link(None, 0)


def trio(channel: Sequence[Sequence[int]], link: Link = Link(1e9, 0)) -> Cluster:
    """d0, d1, d2; every link moves a byte per ns unless told."""
    devices = tuple(Device(f"d{index}", "toy", 2**30, 1e9, 1e9) for index in range(3))
    links = {(src, dst): link for src in range(3) for dst in range(3) if src != dst}
    return Cluster("trio", devices, links, ints(channel))


PER_PAIR = [[-1, 0, 1], [2, -1, 3], [4, 5, -1]]
OUT_BUS = [[-1, 0, 0], [1, -1, 1], [2, 2, -1]]


def run(graph: GraphBuilder, device: Sequence[int], cluster: Cluster | None = None, **plan: Any) -> Timeline:
    problem = price(graph.build(), cluster or pair())
    made = Plan.of(problem, device, **plan)
    check(made, problem)
    return simulate(problem, made)


def sends(line: Timeline) -> list[tuple[int, int, int, int]]:
    """(tensor, dst, start, end) in order of start."""
    columns = (line.send_start_ns, line.send_tensor, line.send_dst, line.send_end_ns)
    ordered = sorted(zip(*(column.tolist() for column in columns), strict=True))
    return [(tensor, dst, start, end) for start, tensor, dst, end in ordered]


def spans(line: Timeline) -> list[tuple[int, int]]:
    return list(zip(line.start_ns.tolist(), line.end_ns.tolist(), strict=True))


def curve(line: Timeline, device: int) -> list[tuple[int, int]]:
    ns, held = line.curve(device)
    return list(zip(ns.tolist(), held.tolist(), strict=True))


def three_tensors() -> GraphBuilder:
    """One op makes three tensors of 10 bytes; an op of each rank 0, 1, 2 elsewhere reads one."""
    g = GraphBuilder()
    made = [g.tensor(10) for _ in range(3)]
    g.op("make", "any", [], made, time_ns=0)
    for tensor in made:
        g.op(f"read{tensor}", "any", [tensor], time_ns=1)
    return g
