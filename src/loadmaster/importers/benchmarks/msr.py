"""MSR's dnn-partitioning: one JSON file that holds a profiled graph and the devices it is to be split over.

The format of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020). Times
are taken to be milliseconds. What a node's output costs to move is a time there; here it is a tensor of as many bytes
as that has nanoseconds, on links of a byte a nanosecond. What a node needs of a device's memory is a weight of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.errors import InvalidGraph
from loadmaster.files.text import PathLike, Row, read_json
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints

NS_PER_MS = 10**6
MOST_DEVICES = 64  # more are taken for a damaged file
CPU_BYTES = 2**50  # host memory is not limited in this format
LINK = Link(1e9, 0)


def load_msr(path: PathLike) -> Graph:
    """The graph, with a time for each of the accelerators and, after them, each of the CPUs of the file."""
    head = _head(path)
    name = Path(path).name.partition(".")[0]
    graph = GraphBuilder(name)
    nodes = [Row(row, f"{name}: node {at}", InvalidGraph) for at, row in enumerate(head.rows("nodes"))]
    numbers = _numbers(nodes, name)
    costs, readers = _edges(head, numbers, name)
    made = {node: graph.tensor(cost, name=f"{node}:out") for node, cost in costs.items()}
    read: dict[int, list[int]] = {node: [] for node in numbers}
    for source, targets in readers.items():
        for target in targets:
            read[target].append(made[source])
    for node, row in numbers.items():
        size = row.amount("size")
        held = [graph.tensor(round(size), "weight", name=f"{node}:size")] if size else []
        outputs = [made[node]] if node in made else [graph.tensor(0, "output", name=f"{node}:out")]
        color = row.any("colorClass") if row.has("colorClass") else None
        graph.op(
            _label(row, node),
            "backward" if _flag(row, "isBackwardNode") else "forward",
            [*read[node], *held],
            outputs,
            colocate=None if color is None else f"color {color}",
            time_ns=_times(row, head),
        )
    return graph.build()


def msr_cluster(path: PathLike) -> Cluster:
    """The devices of the file: accelerators that compute or send but never both at once, and CPUs."""
    head, name = _head(path), Path(path).name.partition(".")[0]
    accelerators, cpus = _counts(head)
    memory = round(head.amount("maxSizePerFPGA"))
    fast = (Device(f"fpga:{at}", "fpga", memory, 1e12, 1e12, overlap=False) for at in range(accelerators))
    slow = (Device(f"cpu:{at}", "cpu", CPU_BYTES, 1e11, 1e11) for at in range(cpus))
    devices, count = (*fast, *slow), accelerators + cpus
    pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst]
    channel = np.full((count, count), -1, np.int64)
    for number, pair in enumerate(pairs):
        channel[pair] = number
    return Cluster(name, devices, dict.fromkeys(pairs, LINK), ints(channel))


def _head(path: PathLike) -> Row:
    data = read_json(path)
    head = Row(data, Path(path).name, InvalidGraph)
    for key in ("maxFPGAs", "maxCPUs", "nodes", "edges"):
        if not head.has(key):
            fix = (
                "give a file of MSR's dnn-partitioning; graphs of loadmaster have a schema and need no msr: before them"
            )
            raise InvalidGraph(f"'{key}' is missing", head.where, fix)
    return head


def _counts(head: Row) -> tuple[int, int]:
    accelerators, cpus = head.whole("maxFPGAs", MOST_DEVICES), head.whole("maxCPUs", MOST_DEVICES)
    if accelerators + cpus < 1:
        raise InvalidGraph("there is no device", head.where, "give maxFPGAs or maxCPUs of at least 1")
    return accelerators, cpus


def _numbers(nodes: list[Row], name: str) -> dict[int, Row]:
    found: dict[int, Row] = {}
    for row in nodes:
        node = row.whole("id", 2**53)
        if node in found:
            raise InvalidGraph(f"two nodes have the id {node}", name, "give every node its own")
        found[node] = row
    if not found:
        raise InvalidGraph("there are no nodes", name, "give at least one")
    return found


def _label(row: Row, node: int) -> str:
    return f"{row.text('name')} {node}" if row.has("name") else f"node {node}"


def _edges(head: Row, nodes: Mapping[int, Row], name: str) -> tuple[dict[int, int], dict[int, list[int]]]:
    """(ns of moving each node's output, nodes that read it)."""
    costs: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for at, data in enumerate(head.rows("edges")):
        row = Row(data, f"{name}: edge {at}", InvalidGraph)
        source, target = row.whole("sourceId", 2**53), row.whole("destId", 2**53)
        for node in (source, target):
            if node not in nodes:
                raise InvalidGraph(f"there is no node {node}", row.where, "name nodes by their id")
        cost = round(row.amount("cost") * NS_PER_MS)
        if costs.setdefault(source, cost) != cost:
            what = f"the output of node {source} costs {costs[source]} ns to move, and here {cost}"
            raise InvalidGraph(what, row.where, "give all edges of a node the same cost")
        readers.setdefault(source, []).append(target)
    return costs, readers


def _times(row: Row, head: Row) -> list[int | None]:
    accelerators, cpus = _counts(head)
    fast = round(row.amount("fpgaLatency") * NS_PER_MS) if _flag(row, "supportedOnFpga") else None
    return [fast] * accelerators + [round(row.amount("cpuLatency") * NS_PER_MS)] * cpus


def _flag(row: Row, key: str) -> bool:
    value = row.any(key)
    if value not in (0, 1):
        raise row.wrong(key, "true or false")
    return bool(value)
