"""Random graphs of the kinds that REGAL trained on, the same for the same seed on every machine.

Paliwal et al. 2020 (arXiv 1905.02494, appendix) drew graphs from five random models, oriented them acyclically and
gave tensors sizes, and ops costs, from N(50, 10). Here a size unit is 1 MiB and a cost unit 100 us, so that sending a
tensor over PCIe takes about as long as making it.

Differs from the paper: the numbers of ops and the parameters of the models are ours, and sizes and costs are whole
units: heads among 400 fair coins, less 150, which has mean 50 and deviation 10 exactly and needs no logarithm that
machines could round differently. Numbers come from the raw stream of PCG64, which NumPy keeps the same for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from loadmaster.errors import InvalidSetting, UnknownName
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import Ints, ints

SIZE_UNIT_BYTES = 2**20
COST_UNIT_NS = 100_000
OPS = (50, 200)  # fewest and most; every number between them is as likely

COINS, LESS = 400, 150  # mean 50 and deviation 10, as the paper's: see above

Edge = tuple[int, int]  # from the lower to the higher number


def generate(kind: str, count: int, seed: int = 0, ops: int | tuple[int, int] = OPS) -> Iterator[Graph]:
    """`count` graphs of one kind; graph i depends on kind, seed, ops and i alone, not on the count."""
    if kind not in KINDS:
        raise UnknownName.among("kind of random graph", kind, KINDS)
    least, most = (ops, ops) if isinstance(ops, int) else ops
    if not 8 <= least <= most:
        raise InvalidSetting(f"graphs of {least} to {most} ops", kind, "give at least 8, and the lower number first")
    if count < 1 or seed < 0:
        raise InvalidSetting(f"{count} graphs of seed {seed}", kind, "give a count from 1 and a seed from 0 up")
    return (_make(kind, seed, number, least, most) for number in range(count))


def parse_ops(text: str) -> tuple[int, int]:
    """The range of "120" or "50-200"."""
    low, _, high = text.partition("-")
    if not (low.isdecimal() and (high or low).isdecimal()):
        raise InvalidSetting(f"'{text}' is no number of ops", "--ops", "give one number, or a range such as 50-200")
    return int(low), int(high or low)


class IntegerStream:
    """Whole numbers from a raw stream of 64-bit ones."""

    def __init__(self, *entropy: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(entropy))

    def below(self, bound: int) -> int:
        return int(self._bits.random_raw()) % bound  # a bias of bound ÷ 2^64

    def chance(self, part: int, of: int) -> bool:
        return self.below(of) < part

    def among(self, count: int, bound: int) -> list[int]:
        """`count` different numbers below `bound`, in the order drawn."""
        chosen: dict[int, None] = {}
        while len(chosen) < min(count, bound):
            chosen[self.below(bound)] = None
        return list(chosen)

    def gaussian(self, count: int) -> Ints:
        """[count] whole numbers of mean 50 and deviation 10, at least 1."""
        raw = self._bits.random_raw((count, -(-COINS // 64)))
        coins = np.unpackbits(raw.astype("<u8").view(np.uint8), axis=1)[:, :COINS]
        return ints(np.maximum(coins.sum(axis=1, dtype=np.int64) - LESS, 1))


def layered(draw: IntegerStream, ops: int) -> set[Edge]:
    """Layers of 1 to 8 ops; each op reads one to three of the layer before, and at times one further back."""
    edges: set[Edge] = set()
    before, here = range(0), range(0, 1 + draw.below(8))
    while here.stop < ops:
        width = min(1 + draw.below(8), ops - here.stop)
        before, here = here, range(here.stop, here.stop + width)
        for op in here:
            edges |= {(before[i], op) for i in draw.among(1 + draw.below(3), len(before))}
            if draw.chance(1, 8):
                edges.add((draw.below(here.start), op))
    return edges


def erdos_renyi(draw: IntegerStream, ops: int) -> set[Edge]:
    """G(n, p): every pair with the same chance, four edges to an op in the mean."""
    return {(low, high) for high in range(ops) for low in range(high) if draw.chance(4, ops - 1)}


def barabasi_albert(draw: IntegerStream, ops: int) -> set[Edge]:
    """Each new op joins two old ones, chosen in proportion to how many edges they have."""
    edges, ends = {(0, 1), (0, 2)}, [0, 1, 0, 2]
    for op in range(3, ops):
        chosen: set[int] = set()
        while len(chosen) < 2:
            chosen.add(ends[draw.below(len(ends))])
        edges |= {(old, op) for old in chosen}
        ends += [end for old in sorted(chosen) for end in (old, op)]
    return edges


def watts_strogatz(draw: IntegerStream, ops: int) -> set[Edge]:
    """A ring where each op is joined to the two on either side; three edges in ten get another far end."""
    edges = {_oriented(op, (op + step) % ops) for op in range(ops) for step in (1, 2)}
    for edge in sorted(edges):
        if draw.chance(3, 10):
            near, far = edge[draw.below(2)], draw.below(ops)
            if far != near and _oriented(near, far) not in edges:
                edges.remove(edge)
                edges.add(_oriented(near, far))
    return edges


def stochastic_block_model(draw: IntegerStream, ops: int) -> set[Edge]:
    """Four communities of equal size: four edges to an op within its own in the mean, one to the others."""
    blocks = 4
    size = -(-ops // blocks)
    inside, outside = size - 1, ops - size
    return {
        (low, high)
        for high in range(ops)
        for low in range(high)
        if (draw.chance(4, inside) if low // size == high // size else draw.chance(1, outside))
    }


def _oriented(one: int, other: int) -> Edge:
    return (one, other) if one < other else (other, one)


KINDS: dict[str, Callable[[IntegerStream, int], set[Edge]]] = {
    "layered": layered,
    "erdos-renyi": erdos_renyi,
    "barabasi-albert": barabasi_albert,
    "watts-strogatz": watts_strogatz,
    "stochastic-block-model": stochastic_block_model,
}


def _make(kind: str, seed: int, number: int, least: int, most: int) -> Graph:
    draw = IntegerStream(int.from_bytes(kind.encode(), "big"), seed, number, least, most)
    ops = least + draw.below(most - least + 1)
    edges = KINDS[kind](draw, ops)
    sizes, costs = draw.gaussian(ops), draw.gaussian(ops)
    read = {low for low, _ in edges}
    builder = GraphBuilder(f"{kind}/{seed}/{number}")
    for op in range(ops):
        builder.tensor(int(sizes[op]) * SIZE_UNIT_BYTES, "activation" if op in read else "output")
    inputs: list[list[int]] = [[] for _ in range(ops)]
    for low, high in sorted(edges):
        inputs[high].append(low)
    for op in range(ops):
        builder.op(f"op{op}", kind, inputs[op], [op], time_ns=int(costs[op]) * COST_UNIT_NS)
    return builder.build()
