"""Experts: of a mixture-of-experts layer, each expert or a few of them apart, with the use that a step is expected to
make of them.

A router sends each of T tokens to k of n experts. If all are chosen equally often, an expert gets T k / n tokens, and
is needed at all with probability 1 - (1 - k / n)^T: next to always while a prompt is read, seldom when one sequence
is answered. Weights that a step does not need are neither read nor sent, but take their room where they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from loadmaster.graph import WEIGHT, Graph, GraphBuilder
from loadmaster.graph.columns import ints

MOST = 8  # parts that the experts of a layer are placed in, as many as a machine has GPUs; those of one go together


@dataclass(frozen=True)
class Apart:
    """How experts are placed: in how many parts a layer, 0 for never apart from their layer; and whether a runtime that
    streams them sends the whole of a part, as those do that know modules only, or what a step needs."""

    parts: int = MOST
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Mixture:
    """A phase with its experts apart.

    Attributes:
        graph: with each part of a layer's experts an op.
        paths: of the parts.
        unused_bytes: by path: weights that a step is not expected to need, kept all the same.
    """

    graph: Graph
    paths: tuple[str, ...]
    unused_bytes: dict[str, int]


@dataclass(frozen=True, eq=False)
class _Layer:
    """The products of a layer's experts, from the first to the last, with what is between them."""

    path: str
    inner: frozenset[int]  # ops
    last: int
    weights: tuple[int, ...]  # tensors, experts first
    rows_in: tuple[int, ...]  # tensors with a row for each token of each expert
    rows_out: tuple[int, ...]
    whole_in: tuple[int, ...]  # read by every expert
    experts: int
    rows: int


def used_share(tokens: int, chosen: int, experts: int) -> float:
    """Share of the experts that a step of so many tokens is expected to need.

    >>> [round(used_share(tokens, 2, 8), 3) for tokens in (1, 4, 4096)]
    [0.25, 0.684, 1.0]
    """
    return -float(np.expm1(tokens * np.log1p(-chosen / experts))) if chosen < experts else 1.0


def apart(graph: Graph, tokens: int, how: Apart) -> Mixture:
    """The graph in which each part of a layer's experts is an op with weights of its own."""
    layers = list(_layers(graph))
    if not how.parts:
        return Mixture(_repriced(graph, layers, tokens), (), {})
    return _split(graph, [layer for layer in layers if _can_be_split(graph, layer)], tokens, how)


def _layers(graph: Graph) -> Iterator[_Layer]:
    products: dict[str, list[int]] = {}
    for op, kind in enumerate(graph.kind):
        if "grouped_mm" in kind:
            products.setdefault(graph.scope[op], []).append(op)
    for path, ops in products.items():
        inner = _between(graph, path, ops)
        read = dict.fromkeys(int(t) for op in sorted(inner) for t in graph.reads_of(op))
        outside = [t for t in read if not graph.is_made[t] or int(graph.producer[t]) not in inner]
        owners = list(dict.fromkeys(int(graph.owner[t]) for t in outside))
        weights = tuple(t for t in owners if graph.role[t] == WEIGHT and len(graph.shape[t] or ()) == 3)
        if not weights:
            continue
        experts, rows = _size(graph, weights[0]), _size(graph, int(graph.makes_of(ops[-1])[0]))
        rest = [t for t in owners if t not in weights]
        rows_in = tuple(t for t in rest if _size(graph, t) == rows and graph.is_made[t] and graph.nbytes[t])
        made = [int(t) for op in inner for t in graph.makes_of(op)]
        out = tuple(t for t in made if any(int(r) not in inner for r in graph.readers_of(t)))
        whole = tuple(t for t in rest if t not in rows_in)
        yield _Layer(path, inner, ops[-1], weights, rows_in, out, whole, experts, rows)


def _between(graph: Graph, path: str, ops: Sequence[int]) -> frozenset[int]:
    """Ops of the module from its first product to its last: what the one leads to and what leads to the other, and what
    turns the weights round for them."""
    down, up = {ops[0]}, {ops[-1]}
    own = [op for op in range(graph.num_ops) if graph.scope[op] == path or graph.scope[op].startswith(f"{path}.")]
    for op in own:
        if any(int(graph.producer[t]) in down for t in graph.reads_of(op)):
            down.add(op)
    for op in reversed(own):
        if any(int(reader) in up for t in graph.makes_of(op) for reader in graph.readers_of(int(t))):
            up.add(op)
    turned = {op for op in up if all(graph.role[graph.owner[t]] == WEIGHT for t in graph.reads_of(op))}
    turned = {op for op in turned if len(graph.reads_of(op))}
    return frozenset((down & up) | turned | set(ops))


def _size(graph: Graph, tensor: int) -> int:
    shape = graph.shape[tensor]
    return int(shape[0]) if shape else 0


def _can_be_split(graph: Graph, layer: _Layer) -> bool:
    """Rows go from one op to the experts and from them to others, and nobody looks at them in another way."""
    alone = all(int(r) in layer.inner for t in layer.rows_in for r in graph.readers_of(t))
    plain = not np.isin(graph.alias_of, [*layer.rows_in, *layer.rows_out])[_outside(graph, layer)].any()
    return alone and plain and all(_size(graph, t) == layer.rows for t in layer.rows_out) and bool(layer.rows_out)


def _outside(graph: Graph, layer: _Layer) -> np.ndarray:
    made = np.isin(graph.producer, sorted(layer.inner))
    return ~made


def _used(layer: _Layer, tokens: int) -> float:
    return used_share(tokens, max(1, round(layer.rows / max(1, tokens))), layer.experts)


def _repriced(graph: Graph, layers: Sequence[_Layer], tokens: int) -> Graph:
    """The same ops, which read the weights they are expected to need."""
    moved = np.array(graph.bytes_moved)
    for layer in layers:
        for op in layer.inner:
            held = sum(int(graph.nbytes[t]) for t in layer.weights if t in graph.owner[graph.reads_of(op)])
            if "grouped_mm" in graph.kind[op]:
                moved[op] -= round(held * (1 - _used(layer, tokens)))
    return replace(graph, bytes_moved=ints(np.maximum(moved, 0)))


def _split(graph: Graph, layers: Sequence[_Layer], tokens: int, how: Apart) -> Mixture:
    if not layers:
        return Mixture(graph, (), {})
    return _Rewriting(graph, layers, tokens, how).done()


class _Rewriting:
    """Writes the graph anew, layer by layer of experts."""

    def __init__(self, graph: Graph, layers: Sequence[_Layer], tokens: int, how: Apart) -> None:
        self.graph, self.layers, self.tokens, self.how = graph, layers, tokens, how
        self.builder = GraphBuilder(graph.name)
        self.builder.captured = graph.captured
        self.new: dict[int, list[int]] = {}  # tensor to what stands for it
        self.paths: list[str] = []
        self.unused: dict[str, int] = {}

    def done(self) -> Mixture:
        graph = self.graph
        gone = {op for layer in self.layers for op in layer.inner}
        self._tensors(gone)
        at = {layer.last: layer for layer in self.layers}
        for op in range(graph.num_ops):
            if op in at:
                self._experts(at[op])
            if op not in gone:
                self._copy(op, gone)
        return Mixture(self.builder.build(), tuple(dict.fromkeys(self.paths)), self.unused)

    def parts(self, layer: _Layer) -> list[tuple[int, int]]:
        """(first, end) of each part's experts."""
        count = min(self.how.parts, layer.experts)
        edges = [layer.experts * i // count for i in range(count + 1)]
        return list(pairwise(edges))

    def path(self, layer: _Layer, first: int, end: int) -> str:
        if self.how.parts == 1:
            return layer.path
        return f"{layer.path}.{first}" if end == first + 1 else f"{layer.path}.{first}-{end - 1}"

    def _tensors(self, gone: set[int]) -> None:
        """All that stays; rows are cut into one tensor for each part."""
        graph = self.graph
        cut = {t: layer for layer in self.layers for t in (*layer.rows_in, *layer.rows_out)}
        dropped = {t for layer in self.layers for t in layer.weights}
        dropped |= {int(t) for op in gone for t in graph.makes_of(op) if int(t) not in cut}
        for t in range(graph.num_tensors):
            if t in cut:
                self.new[t] = [
                    self._tensor(t, f"{graph.tensor_name[t]}[{a}]", (end - a) / cut[t].experts)
                    for a, end in self.parts(cut[t])
                ]
            elif t not in dropped:
                self.new[t] = [self._tensor(t, graph.tensor_name[t], 1.0)]

    def _tensor(self, t: int, name: str, share: float) -> int:
        graph, alias = self.graph, int(self.graph.alias_of[t])
        own = None if alias < 0 else self.new[alias][0]
        if share == 1.0:
            return self.builder.copy_tensor(graph, t, own)
        return self.builder.copy_tensor(
            graph, t, own, name=name, nbytes=int(np.ceil(graph.nbytes[t] * share)), shape=None
        )

    def _copy(self, op: int, gone: set[int]) -> None:
        graph = self.graph
        reads = [new for t in graph.reads_of(op) for new in self.new[int(t)]]
        makes = [new for t in graph.makes_of(op) for new in self.new[int(t)]]
        after = [graph.op_name[before] for before in graph.after_of(op) if int(before) not in gone]
        self.builder.copy_op(graph, op, reads, makes, after=after)

    def _experts(self, layer: _Layer) -> None:
        graph, share = self.graph, _used(layer, self.tokens)
        inner = sorted(layer.inner)
        held = sum(int(graph.nbytes[t]) for t in layer.weights)
        flops = sum(int(graph.flops[op]) for op in inner)
        traffic = max(0, sum(int(graph.bytes_moved[op]) for op in inner) - held)
        between = [int(t) for op in inner for t in graph.makes_of(op) if not graph.is_alias[t]]
        room = sum(int(graph.nbytes[t]) for t in between if t not in layer.rows_out)
        for i, (first, end) in enumerate(self.parts(layer)):
            part, path = (end - first) / layer.experts, self.path(layer, first, end)
            sent = 1.0 if self.how.whole else share
            weights = [
                self.builder.tensor(
                    int(np.ceil(graph.nbytes[t] * part * sent)),
                    "weight",
                    name=f"{graph.tensor_name[t]}[{first}:{end}]",
                    dtype=graph.tensor_dtype[t],
                )
                for t in layer.weights
            ]
            self.builder.op(
                f"experts:{path}",
                "experts.grouped_mm",
                [*(self.new[t][i] for t in layer.rows_in), *weights, *(self.new[t][0] for t in layer.whole_in)],
                [self.new[t][i] for t in layer.rows_out],
                flops=round(flops * part),
                scope=path,
                source=graph.source[layer.last],
                dtype=graph.dtype[layer.last],
                bytes_moved=round(part * (held * share + traffic)),
                workspace_bytes=round(room * part),
            )
            self.paths.append(path)
            self.unused[path] = sum(int(graph.nbytes[t] * part * (1 - sent)) for t in layer.weights)
