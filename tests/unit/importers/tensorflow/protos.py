"""Writes the messages of TensorFlow byte by byte, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Sequence


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def shape(dims: Sequence[int]) -> bytes:
    return b"".join(field(2, field(1, n)) for n in dims)


def tensor(kind: int, dims: Sequence[int], values: Sequence[int] = ()) -> bytes:
    ints = b"".join(field(7, v) for v in values)
    return field(1, kind) + field(2, shape(dims)) + ints


def attributes(**values: bytes) -> bytes:
    return b"".join(field(5, field(1, name) + field(2, value)) for name, value in values.items())


TYPE = {"kind": lambda kind: field(6, kind)}


def of_type(kind: int) -> bytes:
    return field(6, kind)


def of_shape(dims: Sequence[int]) -> bytes:
    return field(7, shape(dims))


def of_tensor(kind: int, dims: Sequence[int], values: Sequence[int] = ()) -> bytes:
    return field(8, tensor(kind, dims, values))


def of_text(text: str) -> bytes:
    return field(2, text)


def of_numbers(values: Sequence[int]) -> bytes:
    return field(1, b"".join(field(3, v) for v in values))


def of_shapes(*shapes: Sequence[int]) -> bytes:
    return field(1, b"".join(field(7, shape(dims)) for dims in shapes))


def node(name: str, op: str, inputs: Sequence[str] = (), **values: bytes) -> bytes:
    return field(1, name) + field(2, op) + b"".join(field(3, i) for i in inputs) + attributes(**values)


def graph_def(nodes: Sequence[bytes]) -> bytes:
    return b"".join(field(1, n) for n in nodes)


def saved_model(graph: bytes) -> bytes:
    return field(1, 1) + field(2, field(2, graph))


FLOAT, INT = 1, 3


def convnet() -> list[bytes]:
    """A picture, a convolution, a pool and a product; no shapes but those of what is given."""
    return [
        node("x", "Placeholder", dtype=of_type(FLOAT), shape=of_shape([-1, 8, 8, 3])),
        node("k", "Const", dtype=of_type(FLOAT), value=of_tensor(FLOAT, [3, 3, 3, 4])),
        node("conv", "Conv2D", ["x", "k"], strides=of_numbers([1, 1, 1, 1]), padding=of_text("SAME"), T=of_type(FLOAT)),
        node("relu", "Relu", ["conv"], T=of_type(FLOAT)),
        node(
            "pool",
            "MaxPool",
            ["relu"],
            ksize=of_numbers([1, 2, 2, 1]),
            strides=of_numbers([1, 2, 2, 1]),
            padding=of_text("VALID"),
        ),
        node("to", "Const", value=of_tensor(INT, [2], [-1, 64])),
        node("flat", "Reshape", ["pool", "to"]),
        node("w", "Const", dtype=of_type(FLOAT), value=of_tensor(FLOAT, [64, 10])),
        node("out", "MatMul", ["flat", "w"], T=of_type(FLOAT)),
    ]
