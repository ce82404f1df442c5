"""Graphs in the manner of DOPPLER's (2026): products of large matrices cut into blocks, as a system that shards one
program over four devices sees them. Shapes and cuts are ours; the published graphs are not at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from loadmaster.graph import Graph, GraphBuilder

FLOAT_BYTES = 4  # DOPPLER's blocks are of float32
CUT = 2  # blocks along each side

Blocks = list[list[int]]  # tensors, by row and column


class _Sharded:
    """Adds whole matrices at a time, each as CUT x CUT blocks."""

    def __init__(self, name: str) -> None:
        self.graph = GraphBuilder(name)
        self._count = 0

    def matrix(self, rows: int, columns: int, role: str = "input") -> Blocks:
        size = rows * columns // CUT**2 * FLOAT_BYTES
        return [[self.graph.tensor(size, role) for _ in range(CUT)] for _ in range(CUT)]

    def product(self, left: Blocks, right: Blocks, rows: int, inner: int, columns: int) -> Blocks:
        """Every block is a sum of CUT products, added one by one."""
        size = rows * columns // CUT**2 * FLOAT_BYTES
        flops = 2 * rows * inner * columns // CUT**3
        out: Blocks = []
        for i in range(CUT):
            out.append([])
            for j in range(CUT):
                parts = [self._op("mm", [left[i][k], right[k][j]], size, flops) for k in range(CUT)]
                total = parts[0]
                for part in parts[1:]:
                    total = self._op("add", [total, part], size, size // FLOAT_BYTES)
                out[-1].append(total)
        return out

    def each(self, kind: str, *matrices: Blocks, rows: int, columns: int) -> Blocks:
        """One elementwise op a block."""
        size = rows * columns // CUT**2 * FLOAT_BYTES
        return [
            [self._op(kind, [m[i][j] for m in matrices], size, size // FLOAT_BYTES) for j in range(CUT)]
            for i in range(CUT)
        ]

    def _op(self, kind: str, reads: list[int], nbytes: int, flops: int) -> int:
        made = self.graph.tensor(nbytes)
        self.graph.op(f"{kind}{self._count}", kind, list(dict.fromkeys(reads)), [made], flops=flops)
        self._count += 1
        return made

    def turned(self, blocks: Blocks, rows: int, columns: int) -> Blocks:
        return self.each("transpose", [list(line) for line in zip(*blocks, strict=True)], rows=columns, columns=rows)


def chain() -> Graph:
    """(A B) + (C (D E)), all of 8,192 x 8,192."""
    n = 8_192
    g = _Sharded("doppler/chain")
    a, b, c, d, e = (g.matrix(n, n) for _ in range(5))
    left = g.product(a, b, n, n, n)
    right = g.product(c, g.product(d, e, n, n, n), n, n, n)
    g.each("add", left, right, rows=n, columns=n)
    return g.graph.build()


def ffnn() -> Graph:
    """Three layers on 4,096 rows, 4,096 and 16,384 wide."""
    rows, width, inner = 4_096, 4_096, 16_384
    g = _Sharded("doppler/ffnn")
    x, sizes = g.matrix(rows, width), (width, inner, inner, width)
    for before, after in pairwise(sizes):
        x = g.product(x, g.matrix(before, after, "weight"), rows, before, after)
        x = g.each("relu", x, rows=rows, columns=after)
    return g.graph.build()


def llama_block() -> Graph:
    """Attention of one layer: 2,048 words, 4,096 wide."""
    g = _Sharded("doppler/llama-block")
    _attention(g, g.matrix(2_048, 4_096))
    return g.graph.build()


def llama_layer() -> Graph:
    """Attention and the gated network behind it, 11,008 wide."""
    words, width, inner = 2_048, 4_096, 11_008
    g = _Sharded("doppler/llama-layer")
    x = _attention(g, g.matrix(words, width))
    normal = g.each("rms_norm", x, rows=words, columns=width)
    gate, up = (g.product(normal, g.matrix(width, inner, "weight"), words, width, inner) for _ in range(2))
    mixed = g.each("mul", g.each("silu", gate, rows=words, columns=inner), up, rows=words, columns=inner)
    down = g.product(mixed, g.matrix(inner, width, "weight"), words, inner, width)
    g.each("add", x, down, rows=words, columns=width)
    return g.graph.build()


def _attention(g: _Sharded, x: Blocks) -> Blocks:
    words, width = 2_048, 4_096
    normal = g.each("rms_norm", x, rows=words, columns=width)
    query, key, value = (g.product(normal, g.matrix(width, width, "weight"), words, width, width) for _ in range(3))
    scores = g.product(query, g.turned(key, words, width), words, width, words)
    mixed = g.product(g.each("softmax", scores, rows=words, columns=words), value, words, words, width)
    out = g.product(mixed, g.matrix(width, width, "weight"), words, width, width)
    return g.each("add", x, out, rows=words, columns=width)


GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "chain": chain,
    "ffnn": ffnn,
    "llama-block": llama_block,
    "llama-layer": llama_layer,
}
