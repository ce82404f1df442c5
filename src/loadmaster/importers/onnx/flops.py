"""Floating-point operations of an ONNX op, from the shapes of what it reads and makes.

Counted as the torch importer counts: a multiply and an add are two; products count their multiply-adds only, without
the bias; everything else a small multiple of the elements it works on; moving data counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx.defs
from onnx import NodeProto

from loadmaster.importers.onnx.shapes import TypedShape, attributes

Reads = Sequence[TypedShape | None]  # by position, None where an optional input is left out
Formula = Callable[[Mapping[str, Any], Reads, Sequence[TypedShape]], int]

VIEWS = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"))

_MOVES = frozenset((
    "Cast", "CastLike", "Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND", "Transpose", "Expand",
    "Tile", "Pad", "Scatter", "ScatterElements", "ScatterND", "Constant", "ConstantOfShape", "DepthToSpace",
    "SpaceToDepth", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "EyeLike", "OneHot",
    "Range", "Trilu", "ReverseSequence", "Compress", "Dropout", "CenterCropPad", "Col2Im", "BitCast", "TensorScatter",
))  # fmt: skip

# Passes over the data, as in the torch importer; transcendental functions count as four.
_PER_ELEMENT = {
    "Softmax": 5, "LogSoftmax": 5, "Hardmax": 2, "Gelu": 8, "Sigmoid": 4, "Tanh": 4, "Exp": 4, "Log": 4, "Sin": 4,
    "Cos": 4, "Tan": 4, "Asin": 4, "Acos": 4, "Atan": 4, "Sinh": 4, "Cosh": 4, "Asinh": 4, "Acosh": 4, "Atanh": 4,
    "Erf": 4, "Pow": 4, "Softplus": 6, "Softsign": 3, "Elu": 5, "Selu": 6, "Celu": 6, "Mish": 8, "Swish": 5,
    "HardSwish": 4, "HardSigmoid": 3, "LayerNormalization": 8, "GroupNormalization": 8, "InstanceNormalization": 8,
    "MeanVarianceNormalization": 8, "RMSNormalization": 5, "LpNormalization": 4, "ReduceSumSquare": 2, "ReduceL2": 2,
    "ReduceLogSum": 1, "ReduceLogSumExp": 5, "QuantizeLinear": 3, "DequantizeLinear": 2, "GridSample": 10,
    "RotaryEmbedding": 6,
}  # fmt: skip


def flops_of(node: NodeProto, reads: Reads, made: Sequence[TypedShape]) -> int:
    """Of one op without bodies. Raises IndexError and the like when its operands are not those of its kind."""
    if node.op_type in _FORMULAS:
        return _FORMULAS[node.op_type](attributes(node), reads, made)
    if node.op_type in _MOVES:
        return 0
    touched = [known.elements for known in (*reads, *made) if known]
    return _PER_ELEMENT.get(node.op_type, 1) * max(touched, default=0)


def is_counted(node: NodeProto) -> bool:
    """Whether its kind is one whose arithmetic is known, or one of ONNX's own."""
    standard = node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type)
    return standard or node.op_type in _FORMULAS or node.op_type in _PER_ELEMENT


def _at(reads: Reads, position: int) -> TypedShape:
    known = reads[position]
    if known is None:
        raise IndexError(f"input {position} is left out")
    return known


def _convolution(at_weight: int) -> Formula:
    def formula(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
        return 2 * made[0].elements * math.prod(_at(reads, at_weight).shape[1:])  # weight: [out, in / groups, ...]

    return formula


def _convolution_transposed(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    return 2 * _at(reads, 0).elements * math.prod(_at(reads, 1).shape[1:])  # weight: [in, out / groups, ...]


def _gemm(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    rows, columns = _at(reads, 0).shape
    return 2 * made[0].elements * (rows if settings.get("transA") else columns)


def _matmul(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    return 2 * made[0].elements * _at(reads, 0).shape[-2 if settings.get("transA") else -1]


def _einsum(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    """Each point of the space of all letters: a product of the operands, and a sum."""
    terms = settings["equation"].decode().replace(" ", "").partition("->")[0].split(",")
    size: dict[str, int] = {}
    for position, term in enumerate(terms):
        before, dots, after = term.partition("...")
        shape = _at(reads, position).shape
        hidden = len(shape) - len(before) - len(after)
        labels = [*before, *(f"...{axis}" for axis in range(-hidden, 0) if dots), *after]
        for label, length in zip(labels, shape, strict=True):
            size[label] = max(size.get(label, 1), length)
    return max(1, len(terms)) * math.prod(size.values())


def _recurrent(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    """Every weight of every gate and direction meets every step of every sequence."""
    steps = math.prod(_at(reads, 0).shape[:2])
    return 2 * steps * (_at(reads, 1).elements + _at(reads, 2).elements)


def _attention(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    """Scores from query and key, then their product with value; heads apart [b, h, s, d] or together [b, s, h * d]."""
    query, key, value = (_at(reads, position).shape for position in range(3))
    past = reads[4].shape[-2] if len(reads) > 4 and reads[4] else 0
    context = key[-2] + past
    if len(query) == 4:
        return 2 * math.prod(query[:3]) * context * (query[-1] + value[-1])
    heads, shared = int(settings["q_num_heads"]), int(settings["kv_num_heads"])
    return 2 * math.prod(query[:2]) * context * (query[-1] + value[-1] * heads // shared)


def _pool(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    return made[0].elements * int(math.prod(settings["kernel_shape"]))


def _whole_input(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    return _at(reads, 0).elements


def _batch_norm(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    return _at(reads, 0).elements * (8 if settings.get("training_mode") else 4)


def _local_response(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    """Square, sum over the window, scale and shift, power, divide."""
    return made[0].elements * int(1 + settings["size"] - 1 + 2 + 4 + 1)


def _variadic(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    return made[0].elements * max(1, len(reads) - 1)


def _mean(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    return made[0].elements * len(reads)


def _resize(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    """A weighted sum of 2 or 4 neighbours along each axis that changes; the nearest one is a move."""
    neighbours = {b"nearest": 0, b"linear": 2, b"bilinear": 2, b"cubic": 4}[settings.get("mode", b"nearest")]
    axes = sum(a != b for a, b in zip(_at(reads, 0).shape, made[0].shape, strict=True))
    return 2 * made[0].elements * neighbours**axes if neighbours else 0


def _top(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    return _at(reads, 0).elements * max(1, math.ceil(math.log2(max(2, made[0].shape[settings.get("axis", -1)]))))


def _fourier(settings: Mapping[str, Any], reads: Reads, made: Sequence[TypedShape]) -> int:
    """The usual 5 n log2 n of a radix-2 transform (Cooley and Tukey 1965)."""
    points = max(_at(reads, 0).elements, made[0].elements)
    length = made[0].shape[-2] if len(made[0].shape) > 1 else points
    return math.ceil(5 * points * math.log2(max(2, length)))


_FORMULAS: dict[str, Formula] = {
    "Conv": _convolution(1), "ConvInteger": _convolution(1), "FusedConv": _convolution(1),
    "DeformConv": _convolution(1), "QLinearConv": _convolution(3), "ConvTranspose": _convolution_transposed,
    "Gemm": _gemm, "FusedGemm": _gemm, "MatMul": _matmul, "MatMulInteger": _matmul, "QLinearMatMul": _matmul,
    "FusedMatMul": _matmul, "Einsum": _einsum, "Attention": _attention,
    "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent,
    "MaxPool": _pool, "AveragePool": _pool, "LpPool": _pool,
    "GlobalAveragePool": _whole_input, "GlobalMaxPool": _whole_input, "GlobalLpPool": _whole_input,
    "BatchNormalization": _batch_norm, "LRN": _local_response,
    "Sum": _variadic, "Max": _variadic, "Min": _variadic, "Mean": _mean,
    "Resize": _resize, "Upsample": _resize, "TopK": _top, "DFT": _fourier, "STFT": _fourier,
}  # fmt: skip
