"""Graphs made of graphs, so that a policy sees more than a corpus holds: other batches, widths, precisions, and pieces.

A piece is a run of neighbouring layers with their share of the backward pass: a shallower net.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.cost import price
from loadmaster.graph import ACTIVATION, INPUT, OUTPUT, WEIGHT, Graph, GraphBuilder
from loadmaster.graph.columns import Bools, ints
from loadmaster.passes.groups import mirrored_position

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
MOST = 64.0  # times as large: what is grown beyond could leave what sums can hold
PIECES = 0.3  # of the examples
FEWEST = 60  # ops of a piece
LEAST, WHOLE = 0.35, 0.9  # of the ops, in a piece


def vary(graph: Graph, rng: np.random.Generator) -> Graph:
    """Sizes and work times log-normal noise; now and then another batch, width or precision, or a piece of it."""
    if rng.random() < PIECES:
        graph = piece(graph, rng)
    noise = float(rng.choice([0.0, 0.1, 0.3]))
    batch = float(rng.choice([1, 1, 1, 4, 16]))
    width = float(rng.choice([1, 1, 1, 0.5, 2]))
    precision = float(rng.choice([1, 1, 0.5]))
    grows = np.ones(graph.num_tensors)
    grows[(graph.role == ACTIVATION) | (graph.role == INPUT)] = batch * width
    grows[(graph.role == WEIGHT) | (graph.role == OUTPUT)] = width**2  # the outputs of a training step: gradients
    sizes = np.exp(noise * rng.standard_normal(graph.num_tensors)) * grows * precision
    work = np.exp(noise * rng.standard_normal(graph.num_ops)) * batch * width**2
    sizes, work = np.minimum(sizes, MOST), np.minimum(work, MOST)
    return replace(
        graph,
        nbytes=ints(np.ceil(graph.nbytes * sizes)),
        flops=ints(np.ceil(graph.flops * work)),
        bytes_moved=ints(np.ceil(graph.bytes_moved * work)),
    )


def piece(graph: Graph, rng: np.random.Generator) -> Graph:
    """Neighbouring ops of the mirrored order; the whole graph where that would be too small, or memory is shared."""
    problem = price(graph, "regal", objective="peak-memory")
    folded, count = problem.graph, problem.num_ops
    size = int(count * rng.uniform(LEAST, WHOLE))
    first = int(rng.integers(0, count - size + 1))
    if size < FEWEST or folded.is_alias.any():
        return graph
    keep = np.zeros(count, bool)
    keep[np.argsort(mirrored_position(problem), kind="stable")[first : first + size]] = True
    return kept(folded, keep)


def kept(graph: Graph, keep: Bools) -> Graph:
    """Those ops alone. What others made of what they read is an input now."""
    builder = GraphBuilder(graph.name)
    number: dict[int, int] = {}

    def tensor(index: int) -> int:
        if index not in number:
            maker = int(graph.producer[index])
            foreign = maker >= 0 and not keep[maker]
            number[index] = builder.copy_tensor(graph, index, None, **({"role": "input"} if foreign else {}))
        return number[index]

    for op in np.flatnonzero(keep).tolist():
        reads = [tensor(index) for index in graph.reads_of(op).tolist()]
        makes = [tensor(index) for index in graph.makes_of(op).tolist()]
        after = [graph.op_name[before] for before in graph.after_of(op).tolist() if keep[before]]
        builder.copy_op(graph, op, reads, makes, after=after)
    return builder.build()
