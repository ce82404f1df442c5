"""Single ops over the shapes people use, as signatures that `loadmaster.importers.torch.signature` can call.

Drawn by a seed, so that every machine is asked for the same ones.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 2048, 2560, 3072, 4096, 5120)
WIDE = (*WIDTHS, 6144, 8192, 11008, 14336, 16384)
ROWS = (1, 4, 8, 16, 32, 64, 128, 197, 256, 512, 784, 1000, 1024, 2048, 3136, 4096, 6272, 8192, 16384, 32768)
MOST_BYTES = 2**30  # of a tensor
Draw = random.Random


def sweep(count: int, seed: int = 0) -> list[str]:
    """So many signatures, the kinds in turn, each in an order of its own."""
    draw, found = random.Random(seed), {}
    makers = list(KINDS.values())
    turn = 0
    while len(found) < count:
        text = makers[turn % len(makers)](draw, "bfloat16" if draw.random() < 0.7 else "float32")
        turn += 1
        if text is not None:
            found[text] = None
    return list(found)


def t(shape: list[int], dtype: str, stride: list[int] | None = None) -> dict[str, Any]:
    return {"tensor": dtype, "shape": shape, "stride": dense(shape) if stride is None else stride}


def dense(shape: list[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def turned(rows: int, columns: int, dtype: str) -> dict[str, Any]:
    """A matrix read across: what `.t()` gives."""
    return t([rows, columns], dtype, [1, rows])


def op(name: str, *args: Any, **named: Any) -> str | None:
    sizes = [math.prod(part["shape"]) for part in _tensors(args)]
    if max(sizes, default=0) > MOST_BYTES // 4:
        return None
    return json.dumps([f"aten.{name}", list(args), named], separators=(",", ":"))


def _tensors(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "tensor" in value:
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def product(draw: Draw, dtype: str) -> str | None:
    m, k, n = draw.choice(ROWS), draw.choice(WIDE), draw.choice(WIDE)
    way = draw.randrange(4)
    if way == 0:  # a linear layer
        return op("addmm.default", t([n], dtype), t([m, k], dtype), turned(k, n, dtype))
    if way == 1:
        return op("mm.default", t([m, k], dtype), turned(k, n, dtype))
    if way == 2:  # gradient of its input
        return op("mm.default", t([m, k], dtype), t([k, n], dtype))
    return op("mm.default", turned(n, m, dtype), t([m, k], dtype))  # gradient of its weight


def batched(draw: Draw, dtype: str) -> str | None:
    b, k, n = (
        draw.choice((8, 16, 48, 96, 128, 192, 384)),
        draw.choice((64, 80, 128)),
        draw.choice((64, 128, 256, 512, 1024)),
    )
    first, second = draw.choice((([b, n, k], [b, k, n]), ([b, n, n], [b, n, k]), ([b, k, n], [b, n, n])))
    two = t(second, dtype, [second[1] * second[2], 1, second[1]] if draw.random() < 0.5 else None)
    return op("bmm.default", t(first, dtype), two)


def attention(draw: Draw, dtype: str) -> str | None:
    b, h, s = (
        draw.choice((1, 2, 4, 8, 16, 32)),
        draw.choice((8, 12, 16, 32)),
        draw.choice((128, 197, 256, 512, 1024, 2048)),
    )
    d, causal = draw.choice((64, 64, 80, 128)), draw.random() < 0.5
    given = [t([b, h, s, d], dtype, [h * s * d, d, h * d, 1])] * 3
    if b * h * s * s > 2**32:
        return None
    if dtype == "float32":
        return op("_scaled_dot_product_efficient_attention.default", *given, None, True, 0.0, causal)
    if draw.random() < 0.5:
        return op("_scaled_dot_product_flash_attention.default", *given, 0.0, causal)
    sums, seed = t([b, h, s], "float32"), t([2], "uint64")
    rest = (sums, None, None, s, s, 0.0, causal, seed, t([], "uint64"))
    return op("_scaled_dot_product_flash_attention_backward.default", given[0], *given, given[0], *rest)


def convolution(draw: Draw, dtype: str) -> str | None:
    batch, side = draw.choice((1, 4, 8, 16, 32, 64)), draw.choice((7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224))
    a, b = (draw.choice((3, 16, 32, 64, 96, 128, 256, 384, 512, 1024)) for _ in range(2))
    if side > 64 and a * b > 128 * 128:
        return None
    size, step, groups = draw.choice((1, 3, 3, 3, 5, 7)), draw.choice((1, 1, 2)), 1
    if draw.random() < 0.25:
        a = b = groups = max(16, a)
    stride = None if draw.random() < 0.6 else [a * side * side, 1, side * a, a]  # channels last
    image, weight = t([batch, a, side, side], dtype, stride), t([b, a // groups, size, size], dtype)
    if stride:
        weight = t([b, a // groups, size, size], dtype, [a // groups * size * size, 1, size * a // groups, a // groups])
    pad, plain = [size // 2] * 2, ([step] * 2, [size // 2] * 2, [1, 1], False, [0, 0], groups)
    if draw.random() < 0.5:
        return op("convolution.default", image, weight, None, *plain)
    out = (side + 2 * pad[0] - size) // step + 1
    grown = t([batch, b, out, out], dtype, [b * out * out, 1, out * b, b] if stride else None)
    mask = draw.choice(([True, False, False], [False, True, False], [True, True, False]))
    return op("convolution_backward.default", grown, image, weight, None, *plain, mask)


def sequence(draw: Draw, dtype: str) -> str | None:
    """Convolutions over sound."""
    batch, length, a, b = (
        draw.choice((1, 4, 8, 16)),
        draw.choice((400, 1500, 3000, 8000)),
        *draw.choices((80, 256, 512, 768), k=2),
    )
    size, step = draw.choice((2, 3, 7, 10)), draw.choice((1, 2))
    image, weight = t([batch, a, length], dtype), t([b, a, size], dtype)
    return op("convolution.default", image, weight, None, [step], [size // 2], [1], False, [0], 1)


def matrix(draw: Draw) -> tuple[int, int]:
    return draw.choice(ROWS[3:]), draw.choice(WIDE)


def norm(draw: Draw, dtype: str) -> str | None:
    rows, width = matrix(draw)
    x, line, sums = (
        t([rows, width], dtype),
        t([width], dtype),
        t([rows, 1], "float32" if dtype == "bfloat16" else dtype),
    )
    if draw.random() < 0.5:
        return op("native_layer_norm.default", x, [width], line, line, 1e-5)
    return op("native_layer_norm_backward.default", x, x, [width], sums, sums, line, line, [True, True, True])


def image_norm(draw: Draw, dtype: str) -> str | None:
    batch, side, wide = (
        draw.choice((2, 8, 16, 32, 64)),
        draw.choice((7, 14, 28, 32, 56, 64, 112)),
        draw.choice(WIDTHS[:12]),
    )
    x, line = t([batch, wide, side, side], dtype), t([wide], dtype)
    way = draw.randrange(4)
    if way == 0:
        return op("native_group_norm.default", x, line, line, batch, wide, side * side, 32, 1e-5)
    if way == 1:
        sums = t([batch, 32], "float32")
        return op(
            "native_group_norm_backward.default", x, x, sums, sums, line, batch, wide, side * side, 32, [True] * 3
        )
    if way == 2:
        return op("native_batch_norm.default", x, line, line, line, line, True, 0.1, 1e-5)
    sums = t([wide], "float32")
    return op("native_batch_norm_backward.default", x, x, line, line, line, sums, sums, True, 1e-5, [True] * 3)


def softmax(draw: Draw, dtype: str) -> str | None:
    rows, width = draw.choice(ROWS[3:]), draw.choice((64, 128, 197, 256, 512, 1024, 2048, 10_000, 32_000, 50_257))
    x, log = t([rows, width], dtype), draw.choice(("_softmax", "_log_softmax"))
    if draw.random() < 0.5:
        return op(f"{log}.default", x, -1, False)
    return op(f"{log}_backward_data.default", x, x, -1, {"torch": dtype})


def elementwise(draw: Draw, dtype: str) -> str | None:
    x = anything(draw, dtype)
    way = draw.randrange(6)
    if way == 0:
        return op(draw.choice(("gelu.default", "silu.default", "relu.default", "tanh.default", "exp.default")), x)
    if way == 1:
        return op(draw.choice(("add.Tensor", "mul.Tensor", "sub.Tensor", "div.Tensor")), x, x)
    if way == 2:
        return op("mul.Tensor", x, 0.5)
    if way == 3:  # a row added to each, or a column
        shape = [1] * (len(x["shape"]) - 1) + [x["shape"][-1]] if draw.random() < 0.5 else [*x["shape"][:-1], 1]
        return op(draw.choice(("add.Tensor", "mul.Tensor")), x, t(shape, dtype))
    if way == 4:
        return op("gelu_backward.default", x, x)
    return op("where.self", t(x["shape"], "bool"), x, x)


def anything(draw: Draw, dtype: str) -> dict[str, Any]:
    total = round(2 ** draw.uniform(8, 27))
    last = draw.choice((64, 128, 197, 256, 512, 768, 1024, 4096))
    rows = max(1, total // last)
    return t([rows, last] if rows % 8 or draw.random() < 0.5 else [8, rows // 8, last], dtype)


def copying(draw: Draw, dtype: str) -> str | None:
    way = draw.randrange(4)
    if way == 0:
        return op("clone.default", anything(draw, dtype), memory_format={"torch": "contiguous_format"})
    if way == 1:  # heads brought together
        b, h, s, d = draw.choice((1, 4, 8, 16)), draw.choice((8, 12, 16, 32)), draw.choice((128, 197, 512, 1024)), 64
        turnt = t([b, s, h, d], dtype, [h * s * d, d, s * d, 1])
        return op("clone.default", turnt, memory_format={"torch": "contiguous_format"})
    if way == 2:
        rows, columns = matrix(draw)
        return op("clone.default", turned(columns, rows, dtype), memory_format={"torch": "contiguous_format"})
    other = "float32" if dtype == "bfloat16" else "bfloat16"
    return op("_to_copy.default", anything(draw, dtype), dtype={"torch": other})


def joining(draw: Draw, dtype: str) -> str | None:
    rows, width = matrix(draw)
    return op("cat.default", [t([rows, width], dtype)] * draw.choice((2, 2, 3, 8)), draw.choice((0, 1)))


def embedding(draw: Draw, dtype: str) -> str | None:
    words, width = draw.choice((512, 10_000, 32_000, 50_257, 128_000)), draw.choice((64, 128, 512, 768, 1024, 2048))
    ids = t([draw.choice((1, 4, 16)), draw.choice((32, 128, 512, 1024))], "int64")
    if draw.random() < 0.5:
        return op("embedding.default", t([words, width], dtype), ids)
    return op("embedding_dense_backward.default", t([*ids["shape"], width], dtype), ids, words, -1, False)


def gathering(draw: Draw, dtype: str) -> str | None:
    rows, width, edges = draw.choice((1000, 10_000, 100_000)), draw.choice((16, 64, 128, 256)), draw.choice((4, 8, 16))
    x, ids = t([rows, width], dtype), t([min(rows * edges, 2**20)], "int64")
    way = draw.randrange(3)
    if way == 0:
        return op("index.Tensor", x, [ids])
    if way == 1:
        return op("index_select.default", x, 0, ids)
    return op("index_put.default", x, [ids], t([ids["shape"][0], width], dtype), True)


def reduction(draw: Draw, dtype: str) -> str | None:
    rows, width = matrix(draw)
    x, axis = t([rows, width], dtype), draw.choice((0, 1))
    way = draw.randrange(5)
    if way < 2:
        return op("sum.dim_IntList", x, [axis], draw.random() < 0.5)
    if way == 2:
        return op("mean.dim", x, [axis], True)
    if way == 3:
        return op("amax.default", x, [axis], True)
    return op("cumsum.default", x, axis)


def sorting(draw: Draw, dtype: str) -> str | None:
    rows, width = draw.choice((8, 64, 512, 4096)), draw.choice((8, 64, 256, 1024, 8192))
    x = t([rows, width], dtype)
    return op("topk.default", x, min(width, 8), -1) if draw.random() < 0.5 else op("sort.default", x, -1)


def pooling(draw: Draw, dtype: str) -> str | None:
    batch, wide, side = draw.choice((8, 32, 64)), draw.choice((64, 128, 256)), draw.choice((14, 28, 56, 112))
    x = t([batch, wide, side, side], dtype)
    way = draw.randrange(4)
    if way == 0:
        return op("max_pool2d_with_indices.default", x, [3, 3], [2, 2], [1, 1])
    if way == 1:
        return op("avg_pool2d.default", x, [2, 2], [2, 2])
    if way == 2:
        return op("mean.dim", x, [2, 3], True)
    return op("upsample_nearest2d.vec", x, None, [2.0, 2.0])


def update(draw: Draw, dtype: str) -> str | None:
    shape = [draw.choice(WIDE)] if draw.random() < 0.4 else [draw.choice(WIDTHS), draw.choice(WIDTHS)]
    return json.dumps(["optim.adam", [t(shape, dtype)] * 2, {}], separators=(",", ":"))


KINDS: dict[str, Callable[[Draw, str], str | None]] = {
    "product": product, "product too": product, "product again": product, "batched": batched, "attention": attention,
    "convolution": convolution, "convolution too": convolution, "convolution again": convolution, "sequence": sequence,
    "norm": norm, "image norm": image_norm, "softmax": softmax, "elementwise": elementwise, "more": elementwise,
    "copying": copying, "joining": joining, "embedding": embedding, "gathering": gathering, "reduction": reduction,
    "sorting": sorting, "pooling": pooling, "update": update,
}  # fmt: skip
