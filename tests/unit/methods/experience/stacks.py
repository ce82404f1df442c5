"""A stack of layers, each a product, a norm and a sum around it, as deep and wide as asked for."""

from __future__ import annotations

from loadmaster.graph import Graph, GraphBuilder


def stack(layers: int, width: int = 64) -> Graph:
    build = GraphBuilder(f"stack of {layers}")
    x = build.tensor(width * 4, "input")
    for layer in range(layers):
        weight = build.tensor(width * width * 4, "weight")
        product, norm, total = (build.tensor(width * 4, "activation") for _ in range(3))
        scope = f"layers.{layer}"
        build.op(f"mm{layer}", "mm", [x, weight], [product], flops=2 * width * width, scope=f"{scope}.linear")
        build.op(f"norm{layer}", "norm", [product], [norm], flops=width, scope=scope)
        build.op(f"add{layer}", "add", [norm, x], [total], flops=width, scope=scope)
        x = total
    build.op("loss", "sum", [x], [build.tensor(4, "output")], flops=width, scope="loss")
    return build.build()
