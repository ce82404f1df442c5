"""CostGraphDef text: a graph with the measured or estimated cost of every node, in which REGAL's synthetic set is
published. Times are microseconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.errors import ImportFailed
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.importers.tensorflow.textproto import Fields, number, parts, text_of


def is_cost_graph(fields: Fields) -> bool:
    """Whether a graph is a CostGraphDef: its first nodes tell costs, and what they read and make."""
    marks = ("compute_cost", "output_info", "input_info")
    return any(mark in node for node in parts(fields, "node")[:50] for mark in marks)


def cost_graph(fields: Fields, name: str) -> Graph:
    """Nodes become ops that take their `compute_cost`; each output a tensor of its size."""
    builder, nodes = GraphBuilder(name), parts(fields, "node")
    if not nodes:
        raise ImportFailed("there is no node in it", name, "give a CostGraphDef")
    labels = _labels(nodes)
    tensors: dict[tuple[int, int], int] = {}
    read = {(number(e, "preceding_node"), number(e, "preceding_port")) for n in nodes for e in parts(n, "input_info")}
    for position, node in enumerate(nodes):
        key = number(node, "id", position)
        for port, info in enumerate(parts(node, "output_info")):
            role = "activation" if (key, port) in read and not _is_final(node) else "output"
            size = max(number(info, "size"), 0)
            tensors[key, port] = builder.tensor(size, role, name=f"{labels[key]}:{port}")
    for position, node in enumerate(nodes):
        _add(builder, node, number(node, "id", position), labels, tensors)
    return builder.build()


def _is_final(node: Fields) -> bool:
    return text_of(node, "is_final") == "true"


def _labels(nodes: list[Fields]) -> dict[int, str]:
    labels: dict[int, str] = {}
    taken: set[str] = set()
    for position, node in enumerate(nodes):
        key = number(node, "id", position)
        label = text_of(node, "name") or f"node{key}"
        while label in taken:
            label += "_"
        if key in labels:
            raise ImportFailed(f"two nodes have the id {key}", label, "give each node an id of its own")
        taken.add(label)
        labels[key] = label
    return labels


def _add(
    builder: GraphBuilder, node: Fields, key: int, labels: Mapping[int, str], tensors: Mapping[tuple[int, int], int]
) -> None:
    reads = []
    for edge in parts(node, "input_info"):
        source = number(edge, "preceding_node"), number(edge, "preceding_port")
        if source not in tensors:
            what = f"node '{labels[key]}' reads output {source[1]} of node {source[0]}, which is not there"
            raise ImportFailed(what, builder.name, "give the whole graph")
        reads.append(tensors[source])
    after = []
    for value in node.get("control_input", ()):
        before = number({"id": [value]}, "id", -1)
        if before not in labels:
            raise ImportFailed(f"node '{labels[key]}' waits for node {value}", builder.name, "give the whole graph")
        after.append(labels[before])
    makes = [tensors[key, port] for port in range(len(parts(node, "output_info")))]
    builder.op(
        labels[key],
        text_of(node, "op") or "node",
        reads,
        makes,
        time_ns=1000 * max(number(node, "compute_cost"), 0),
        workspace_bytes=max(number(node, "temporary_memory_size"), 0),
        after=after,
    )
