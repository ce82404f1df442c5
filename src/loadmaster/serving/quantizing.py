"""Quantizing: the same graph with weights of fewer bits, priced as kernels that unpack them while they multiply.

Arithmetic stays in 16 bits; what shrinks is what is kept and read. Scales of blocks are counted. Nothing is quantized:
it is a question of what would fit and how fast it would be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.graph import WEIGHT, Graph
from loadmaster.graph.columns import ints

Precision = Literal["float32", "float16", "bfloat16", "int8", "int4"]
PRECISIONS = ("float32", "float16", "bfloat16", "int8", "int4")

# Bytes a weight takes beside 2 of bfloat16: int8 has one scale of 16 bits a row (LLM.int8, arXiv 2208.07339: next to
# nothing); int4 a scale of 16 bits and a zero of 4 for every 128 weights (GPTQ, arXiv 2210.17323, group size 128).
_SHARE = {"int8": 0.5 * (1 + 1 / 2048), "int4": 0.25 * (1 + 20 / (128 * 4))}


def bytes_of_number(precision: str) -> float:
    """Of a weight of a matrix product."""
    return 4.0 if precision == "float32" else 2.0 * _SHARE.get(precision, 1.0)


def quantized(graph: Graph, precision: str) -> Graph:
    """Weights of matrix products at that precision; embeddings, norms and biases stay as they are.

    Arithmetic stays in 16 bits, as the usual kernels have it: what shrinks is what is stored, read and sent.
    """
    if precision not in PRECISIONS:
        raise InvalidSetting(f"'{precision}' is no precision here", "--weights", f"use one of {', '.join(PRECISIONS)}")
    if precision not in _SHARE:
        return graph
    share = _SHARE[precision]
    small = _multiplied(graph)
    nbytes = np.where(small[graph.owner], np.ceil(graph.nbytes * share), graph.nbytes).astype(np.int64)
    saved = np.zeros(graph.num_ops, np.int64)
    rows = np.repeat(np.arange(graph.num_ops), np.diff(graph.read_start))
    for op, tensor in zip(rows.tolist(), graph.reads.tolist(), strict=True):
        if small[graph.owner[tensor]] and graph.flops[op] > 0:
            saved[op] += graph.nbytes[tensor] - nbytes[tensor]
    return replace(graph, nbytes=ints(nbytes), bytes_moved=ints(np.maximum(graph.bytes_moved - saved, 0)))


def _multiplied(graph: Graph) -> np.ndarray:
    """[tensors] weights of two dimensions or more that a matrix product reads, itself or through views."""
    products = ("mm", "addmm", "bmm", "matmul", "linear", "grouped_mm")
    heavy = [any(word in kind for word in products) for kind in graph.kind]
    small = np.zeros(graph.num_tensors, bool)
    for op in np.flatnonzero(heavy):
        for tensor in graph.reads_of(int(op)):
            owner = int(graph.owner[tensor])
            small[owner] |= graph.role[owner] == WEIGHT and len(graph.shape[owner] or ()) >= 2
    embedded = {
        int(graph.owner[t]) for op, kind in enumerate(graph.kind) if "embedding" in kind for t in graph.reads_of(op)
    }
    small[list(embedded)] = False
    return small
