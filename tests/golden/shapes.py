"""Graphs whose ops know their shapes, drawn at random: steps of small networks, for passes that look at shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster import Graph, GraphBuilder, price
from loadmaster.problem import Problem

Shape = tuple[int, ...]


class Drawing:
    """A step in the making: tensors by their shapes, and weights with what was read for their gradients."""

    def __init__(self, seed: int) -> None:
        self.build, self.rng, self.count = GraphBuilder(f"drawn {seed}"), np.random.default_rng(seed), 0
        self.trained: list[tuple[int, int, Shape, int]] = []
        self.shape: dict[int, Shape] = {}

    def size(self, *given: int) -> int:
        return int(self.rng.choice(given or (2, 3, 4, 6, 8, 12)))

    def tensor(self, shape: Shape, role: str = "activation", **more: Any) -> int:
        wide = 4 * int(np.prod(shape, dtype=np.int64))
        made = self.build.tensor(wide * (4096 if role == "weight" else 1), role, shape=shape, dtype="float32", **more)
        self.shape[made] = shape
        return made

    def op(self, kind: str, reads: list[int], *makes: Shape, role: str = "activation", **more: Any) -> list[int]:
        made = [self.tensor(shape, role) for shape in makes]
        self.count += 1
        times = {"workspace_bytes": self.count % 5 * 101, "bytes_moved": self.count * 977}
        self.build.op(f"{kind} {self.count}", f"aten.{kind}", reads, made, flops=1000 + self.count, **times, **more)
        return made

    def product(self, x: int, wide: int, *, bias: bool) -> int:
        rows, inner = self.shape[x]
        weight = self.tensor((inner, wide), "weight")
        reads = [self.tensor((wide,), "weight"), x, weight] if bias else [x, weight]
        (made,) = self.op("addmm.default" if bias else "mm.default", reads, (rows, wide))
        self.trained.append((weight, x, (inner, wide), made))
        return made

    def attention(self, x: int) -> int:
        """Queries, keys and values in one product, cut apart, in heads, and put together again."""
        rows, wide = self.shape[x]
        heads = self.size(1, 2, 4)
        if wide % heads:
            return x
        whole = self.product(x, 3 * wide, bias=bool(self.rng.random() < 0.5))
        parts = self.op("split.Tensor", [whole], *[(rows, wide)] * 3)
        split = [self.op("view.default", [part], (rows, heads, wide // heads))[0] for part in parts]
        turned = [self.op("transpose.int", [part], (heads, rows, wide // heads))[0] for part in split]
        keys = self.op("transpose.int", [turned[1]], (heads, wide // heads, rows))[0]
        (chance,) = self.op("bmm.default", [turned[0], keys], (heads, rows, rows))
        (chance,) = self.op("_softmax.default", [chance], (heads, rows, rows))
        if self.rng.random() < 0.5:
            (chance, _) = self.op("native_dropout.default", [chance], (heads, rows, rows), (heads, rows, rows))
        (mixed,) = self.op("bmm.default", [chance, turned[2]], (heads, rows, wide // heads))
        (mixed,) = self.op("transpose.int", [mixed], (rows, heads, wide // heads))
        (mixed,) = self.op("reshape.default", [mixed], (rows, wide))
        return self.product(mixed, wide, bias=bool(self.rng.random() < 0.5))

    def hidden(self, x: int) -> int:
        """Two products with something between them."""
        wide = self.shape[x][1]
        inner = self.size(4, 6, 8, 12, 24)
        made = self.product(x, inner, bias=bool(self.rng.random() < 0.5))
        for _ in range(self.size(0, 1, 2)):
            made = self.between(made)
        return self.product(made, wide, bias=bool(self.rng.random() < 0.5))

    def between(self, x: int) -> int:
        rows, wide = shape = self.shape[x]
        kind = self.rng.choice(["relu", "view", "cut", "slice", "norm", "softmax"])
        if kind == "view" and wide % 2 == 0:
            (x,) = self.op("view.default", [x], (rows, 2, wide // 2))
            return self.op("view.default", [x], shape)[0]
        if kind == "cut" and wide % 2 == 0:
            parts = self.op("split.Tensor", [x], *[(rows, wide // 2)] * 2)
            return self.op("cat.default", parts[:: self.size(-1, 1)], shape)[0]
        if kind == "slice" and wide > 2:
            (x,) = self.op("slice.Tensor", [x], (rows, wide - 1))
            return self.op("slice_backward.default", [x], shape)[0]
        if kind == "norm":
            return self.op("native_layer_norm.default", [x], shape, (rows, 1), (rows, 1))[0]
        if kind == "softmax":
            return self.op("_softmax.default", [x], shape)[0]
        return self.op("relu.default", [x], shape)[0]

    def train(self, last: int) -> None:
        """Gradients of the weights, and their updates."""
        back = last
        for weight, read, shape, made in reversed(self.trained):
            (turned,) = self.op("t.default", [read], self.shape[read][::-1])
            (grad,) = self.op("mul.Tensor", [made, back] if self.shape[back] == () else [made], self.shape[made])
            (gradient,) = self.op("mm.default", [turned, grad], shape)
            state, new = self.tensor(shape, "state"), self.tensor(shape, "weight", alias_of=weight)
            later = self.tensor(shape, "state", alias_of=state)
            self.count += 1
            self.build.op(f"update {self.count}", "optim.sgd", [weight, gradient, state], [new, later], flops=10)


def drawn_step(seed: int) -> Graph:
    """A few blocks of a network, with its loss and updates."""
    draw = Drawing(seed)
    rows, wide = draw.size(4, 6, 8, 12), draw.size(4, 6, 8, 12)
    if seed % 3:
        words, table = draw.tensor((rows,), "input"), draw.tensor((24, wide), "weight")
        (x,) = draw.op("embedding.default", [table, words], (rows, wide))
    else:
        x = draw.tensor((rows, wide), "input")
    for _ in range(draw.size(1, 2, 3)):
        (y,) = draw.op("relu.default", [x], (rows, wide))
        y = draw.attention(y) if draw.rng.random() < 0.5 else draw.hidden(y)
        (x,) = draw.op("add.Tensor", [x, y], (rows, wide))
    classes = draw.tensor((rows,), "input")
    (x,) = draw.op("_log_softmax.default", [draw.product(x, draw.size(4, 6), bias=False)], (rows, 6))
    loss, _ = draw.op("nll_loss_forward.default", [x, classes], (), (), role="output")
    draw.train(loss)
    return draw.build.build()


def drawn_problem(seed: int) -> Problem:
    """On two devices, or on three unlike ones."""
    return price(drawn_step(seed), "2xp100-pcie" if seed % 2 else "2xa100-nvlink+1xp100-pcie")
