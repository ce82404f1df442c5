"""Sizes of what TensorFlow's ops make, and their arithmetic, for graphs that do not say them.

A graph saved with shapes (`_output_shapes`) needs the arithmetic alone. An op that is not listed here is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.importers.tensorflow.nodes import DTYPES, Dims, Node


@dataclass(frozen=True, slots=True)
class KnownTensor:
    """A tensor: DataType, shape, and its values where it is a small constant of whole numbers."""

    kind: int
    dims: Dims
    values: tuple[int, ...] | None = None

    @property
    def dtype(self) -> str:
        return DTYPES.get(self.kind, ("float32", 4))[0]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPES.get(self.kind, ("float32", 4))[1]


Reads = Sequence[KnownTensor]
_Rule = Callable[[Node, Reads], list[KnownTensor]]
VIEWS = {"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape",
         "Bitcast", "PlaceholderWithDefault", "CheckNumerics"}  # fmt: skip
_MOVES = {"ConcatV2", "Concat", "Pack", "Unpack", "Transpose", "GatherV2", "Gather", "Pad", "PadV2", "IdentityN",
          "MirrorPad", "Slice", "StridedSlice", "Split", "SplitV", "Tile", "Fill", "ZerosLike", "OnesLike", "Shape",
          "Cast", "Range", "OneHot", "Reverse", "ReverseV2", "BroadcastTo", "Size", "Rank", "SpaceToDepth",
          "DepthToSpace", "ScatterNd", "GatherNd", "InvertPermutation", "BatchToSpaceND", "SpaceToBatchND"}  # fmt: skip
_REDUCES = {"Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"}
_BRANCHES = {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", "Enter", "Exit", "Merge",
             "Switch", "NextIteration", "LoopCond", "For", "RefSwitch", "RefMerge", "TensorListReserve"}  # fmt: skip
_COUNTED = {"L2Loss", "TopKV2"}  # their sizes come with the file
_POOLS = {"MaxPool", "AvgPool", "MaxPoolV2"}


def infer(node: Node, reads: Reads) -> list[KnownTensor] | None:
    """What it makes; None where that is not known."""
    rule = _RULES.get(node.op)
    if rule is not None and len(reads) >= _NEEDS.get(node.op, 1):
        try:
            return rule(node, reads)
        except (LookupError, ValueError, TypeError, ZeroDivisionError):
            return None
    return None


def is_known(op: str) -> bool:
    """Whether its sizes and its arithmetic follow from what it reads."""
    return op in VIEWS or op in _MOVES or op in _REDUCES or op in _RULES or op in _COUNTED


def reason_against(op: str) -> str:
    """Why it is not known, as the end of a sentence."""
    if op in _BRANCHES:
        return f"a loop or a branch ({op}): how often it runs is not known before it runs"
    if op.endswith("PartitionedCall"):
        return f"a call of a function ({op}): freeze the graph with its functions written out"
    if op.startswith(("Variable", "VarHandle", "ReadVariable", "AutoReloadVariable", "Assign", "IteratorGetNext")):
        return f"a variable or a source of data ({op}): the graph is not frozen"
    if op.endswith("Grad") or op.startswith(("Apply", "ResourceApply")) or "Backprop" in op:
        return f"of a training step ({op}); inference graphs are read"
    return f"an op that is not known: {op or 'without a kind'}"


def flops_of(node: Node, reads: Reads, made: Sequence[KnownTensor]) -> int:
    """Arithmetic of a node from shapes: two for each product of a matrix or a convolution, a few for each element of
    the rest."""
    if node.op in VIEWS or node.op in _MOVES or not made:
        return 0
    out = made[0].elements
    if node.op in ("MatMul", "_FusedMatMul") and reads:
        inner = reads[0].dims[0 if node.of("transpose_a").flag else -1] if reads[0].dims else 1
        return 2 * out * inner
    if node.op.startswith("BatchMatMul") and reads:
        return 2 * out * (reads[0].dims[-2 if node.of("adj_x").flag else -1] if len(reads[0].dims) > 1 else 1)
    if node.op in ("Conv2D", "_FusedConv2D", "Conv3D") and len(reads) > 1:
        return 2 * out * math.prod(reads[1].dims[:-1])
    if node.op == "DepthwiseConv2dNative" and len(reads) > 1:
        return 2 * out * math.prod(reads[1].dims[:2])
    if node.op == "Conv2DBackpropInput" and len(reads) > 2:  # a transposed convolution
        return 2 * reads[2].elements * math.prod(reads[1].dims[:-1])
    if node.op == "Einsum":
        return max(1, len(reads)) * math.prod(_letters(node, reads)[0].values())
    if node.op in _POOLS:
        return out * math.prod(max(n, 1) for n in node.of("ksize").numbers or (1,))
    most = max([out, *(known.elements for known in reads)])
    passes = {"Softmax": 5, "LogSoftmax": 5, "FusedBatchNorm": 8, "FusedBatchNormV2": 8, "FusedBatchNormV3": 8}
    return passes.get(node.op, 1) * most


def _same(node: Node, reads: Reads) -> list[KnownTensor]:
    return [KnownTensor(reads[0].kind, reads[0].dims)]


def _broadcast(node: Node, reads: Reads) -> list[KnownTensor]:
    dims = np.broadcast_shapes(*(known.dims for known in reads))
    values = _computed(node.op, reads) if len(reads) == 2 else None
    return [KnownTensor(reads[0].kind, tuple(int(n) for n in dims), values)]


def _computed(op: str, reads: Reads) -> tuple[int, ...] | None:
    """Of arithmetic on sizes."""
    count = {"Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply, "FloorDiv": np.floor_divide}
    if op not in count or reads[0].values is None or reads[1].values is None:
        return None
    with np.errstate(all="ignore"):
        found = count[op](*(np.reshape(known.values, known.dims) for known in reads))  # type: ignore[arg-type]
    return tuple(int(n) for n in np.ravel(found))


def _compared(node: Node, reads: Reads) -> list[KnownTensor]:
    return [KnownTensor(10, _broadcast(node, reads)[0].dims)]


def _matmul(node: Node, reads: Reads) -> list[KnownTensor]:
    rows = reads[0].dims[1 if node.of("transpose_a").flag else 0]
    columns = reads[1].dims[0 if node.of("transpose_b").flag else 1]
    return [KnownTensor(reads[0].kind, (rows, columns))]


def _batch_matmul(node: Node, reads: Reads) -> list[KnownTensor]:
    rows = reads[0].dims[-1 if node.of("adj_x").flag else -2]
    columns = reads[1].dims[-2 if node.of("adj_y").flag else -1]
    batch = max(reads[0].dims[:-2], reads[1].dims[:-2], key=len)
    return [KnownTensor(reads[0].kind, (*batch, rows, columns))]


def _windowed(node: Node, image: KnownTensor, window: Sequence[int], channels: int) -> list[KnownTensor]:
    first = _channels_first(node)
    strides = [max(n, 1) for n in node.of("strides").numbers] or [1] * len(image.dims)
    holes = [max(n, 1) for n in node.of("dilations").numbers] or [1] * len(image.dims)
    dims = list(image.dims)
    for axis, size in enumerate(window, 2 if first else 1):
        if node.of("padding").text not in ("VALID", "SAME"):
            raise ValueError
        reach = size if node.of("padding").text == "VALID" else 1
        dims[axis] = (dims[axis] - (reach - 1) * holes[axis] - 1) // strides[axis] + 1
        if dims[axis] < 1:
            raise ValueError
    dims[1 if first else -1] = channels
    return [KnownTensor(image.kind, tuple(dims))]


def _channels_first(node: Node) -> bool:
    return node.of("data_format").text.startswith("NC")


def _conv(node: Node, reads: Reads) -> list[KnownTensor]:
    *window, below, above = reads[1].dims
    return _windowed(node, reads[0], window, below * above if node.op == "DepthwiseConv2dNative" else above)


def _pool(node: Node, reads: Reads) -> list[KnownTensor]:
    first = _channels_first(node)
    sizes = node.of("ksize").numbers or (1, 1, 1, 1)
    window = (sizes[2], sizes[3]) if first else (sizes[1], sizes[2])
    return _windowed(node, reads[0], window, reads[0].dims[1 if first else 3])


def _reshape(node: Node, reads: Reads) -> list[KnownTensor]:
    wanted = reads[1].values
    if wanted is None:
        raise ValueError
    rest = math.prod(n for n in wanted if n >= 0)
    free = reads[0].elements // rest if rest else 0
    dims = tuple(free if n < 0 else n for n in wanted)
    if math.prod(dims) != reads[0].elements:
        raise ValueError
    return [KnownTensor(reads[0].kind, dims, reads[0].values)]


def _expand(node: Node, reads: Reads) -> list[KnownTensor]:
    if not reads[1].values:
        raise ValueError
    axis = reads[1].values[0] % (len(reads[0].dims) + 1)
    return [KnownTensor(reads[0].kind, (*reads[0].dims[:axis], 1, *reads[0].dims[axis:]))]


def _squeeze(node: Node, reads: Reads) -> list[KnownTensor]:
    dims = reads[0].dims
    axes = {axis % len(dims) for axis in node.of("squeeze_dims").numbers} if dims else set()
    kept = [n for axis, n in enumerate(dims) if (axis not in axes if axes else n != 1)]
    return [KnownTensor(reads[0].kind, tuple(kept))]


def _concat(node: Node, reads: Reads) -> list[KnownTensor]:
    parts, axis = (reads[:-1], reads[-1]) if node.op == "ConcatV2" else (reads[1:], reads[0])
    if not axis.values:
        raise ValueError
    at = axis.values[0] % len(parts[0].dims)
    dims = list(parts[0].dims)
    dims[at] = sum(part.dims[at] for part in parts)
    held = [part.values for part in parts if part.values is not None]
    whole = len(held) == len(parts) and len(dims) == 1
    return [KnownTensor(parts[0].kind, tuple(dims), sum(held, ()) if whole else None)]


def _pack(node: Node, reads: Reads) -> list[KnownTensor]:
    axis = node.of("axis").number % (len(reads[0].dims) + 1)
    dims = (*reads[0].dims[:axis], len(reads), *reads[0].dims[axis:])
    values = [v for known in reads for v in known.values or ()]
    whole = tuple(values) if len(values) == len(reads) else None
    return [KnownTensor(reads[0].kind, dims, whole)]


def _transpose(node: Node, reads: Reads) -> list[KnownTensor]:
    if reads[1].values is None:
        raise ValueError
    return [KnownTensor(reads[0].kind, tuple(reads[0].dims[axis] for axis in reads[1].values))]


def _pad(node: Node, reads: Reads) -> list[KnownTensor]:
    pads = reads[1].values
    if pads is None:
        raise ValueError
    dims = tuple(n + pads[2 * axis] + pads[2 * axis + 1] for axis, n in enumerate(reads[0].dims))
    return [KnownTensor(reads[0].kind, dims)]


def _gather(node: Node, reads: Reads) -> list[KnownTensor]:
    axis = (reads[2].values or (0,))[0] if len(reads) > 2 else 0
    dims = (*reads[0].dims[:axis], *reads[1].dims, *reads[0].dims[axis + 1 :])
    return [KnownTensor(reads[0].kind, dims)]


def _shape(node: Node, reads: Reads) -> list[KnownTensor]:
    return [KnownTensor(node.of("out_type").kind or 3, (len(reads[0].dims),), tuple(reads[0].dims))]


def _strided(node: Node, reads: Reads) -> list[KnownTensor]:
    """Its masks as numpy's index, so that numpy says what is left."""
    begin, end, step = (_values(known) for known in reads[1:4])
    masks = [node.of(f"{word}_mask").number for word in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")]
    index: list[Any] = []
    for place, (first, last, by) in enumerate(zip(begin, end, step, strict=True)):
        begins, ends, ellipsis, new, shrinks = (mask >> place & 1 for mask in masks)
        cut = slice(None if begins else first, None if ends else last, by)
        index.append(Ellipsis if ellipsis else None if new else first if shrinks else cut)
    seen = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), reads[0].dims, (0,) * len(reads[0].dims))
    found = None if reads[0].values is None else np.reshape(reads[0].values, reads[0].dims)[tuple(index)]
    values = None if found is None else tuple(int(value) for value in np.ravel(found))
    return [KnownTensor(reads[0].kind, seen[tuple(index)].shape, values)]


def _values(known: KnownTensor) -> tuple[int, ...]:
    if known.values is None:
        raise ValueError
    return known.values


def _sliced(node: Node, reads: Reads) -> list[KnownTensor]:
    ways = zip(reads[0].dims, _values(reads[1]), _values(reads[2]), strict=True)
    return [KnownTensor(reads[0].kind, tuple(whole - at if size < 0 else size for whole, at, size in ways))]


def _tiled(node: Node, reads: Reads) -> list[KnownTensor]:
    ways = zip(reads[0].dims, _values(reads[1]), strict=True)
    return [KnownTensor(reads[0].kind, tuple(size * many for size, many in ways))]


def _given(place: int) -> _Rule:
    """Of the shape that it reads there."""
    return lambda node, reads: [KnownTensor(reads[1 - place].kind, _values(reads[place]))]


def _unpacked(node: Node, reads: Reads) -> list[KnownTensor]:
    axis, dims = node.of("axis").number % len(reads[0].dims), reads[0].dims
    return [KnownTensor(reads[0].kind, (*dims[:axis], *dims[axis + 1 :]))] * min(dims[axis], 4096)


def _resized(node: Node, reads: Reads) -> list[KnownTensor]:
    height, width = _values(reads[1])
    kind = 1 if node.op == "ResizeBilinear" else reads[0].kind
    return [KnownTensor(kind, (reads[0].dims[0], height, width, reads[0].dims[3]))]


def _transposed_conv(node: Node, reads: Reads) -> list[KnownTensor]:
    return [KnownTensor(reads[1].kind, _values(reads[0]))]


def _batch_norm(node: Node, reads: Reads) -> list[KnownTensor]:
    return [KnownTensor(reads[0].kind, reads[0].dims), *(KnownTensor(reads[1].kind, reads[1].dims) for _ in range(4))]


def _split(node: Node, reads: Reads) -> list[KnownTensor]:
    count, axis = max(node.of("num_split").number, 1), (reads[0].values or (0,))[0]
    dims = list(reads[1].dims)
    dims[axis] //= count
    return [KnownTensor(reads[1].kind, tuple(dims)) for _ in range(min(count, 4096))]


def _letters(node: Node, reads: Reads) -> tuple[dict[str, int], str]:
    """The size of each letter of an Einsum, and the letters of what it makes."""
    terms, _, made = node.of("equation").text.partition("->")
    size: dict[str, int] = {}
    for term, known in zip(terms.split(","), reads, strict=True):
        for letter, length in zip(term, known.dims, strict=True):  # "..." has no sizes of its own: ValueError
            if size.setdefault(letter, length) != length:
                raise ValueError
    return size, made


def _einsum(node: Node, reads: Reads) -> list[KnownTensor]:
    size, made = _letters(node, reads)
    if "." in node.of("equation").text:
        raise ValueError
    return [KnownTensor(reads[0].kind, tuple(size[letter] for letter in made))]


def _range(node: Node, reads: Reads) -> list[KnownTensor]:
    numbers = range(*(_values(known)[0] for known in reads[:3]))
    return [KnownTensor(reads[0].kind, (len(numbers),), tuple(numbers) if len(numbers) <= 4096 else None)]


def _cast(node: Node, reads: Reads) -> list[KnownTensor]:
    return [KnownTensor(node.of("DstT").kind or reads[0].kind, reads[0].dims, reads[0].values)]


def _reduced(node: Node, reads: Reads) -> KnownTensor:
    kind = reads[0].kind if not node.op.startswith("Arg") else node.of("output_type").kind or 9
    axes = reads[1].values if len(reads) > 1 else None
    rank = len(reads[0].dims)
    if axes is None:
        raise ValueError
    if not rank:
        return KnownTensor(kind, ())
    gone = {axis % rank for axis in axes}
    kept = node.of("keep_dims").flag
    dims = tuple(1 if i in gone else n for i, n in enumerate(reads[0].dims) if kept or i not in gone)
    held = reads[0].values if node.op == "Prod" and rank == 1 and gone else None
    return KnownTensor(kind, dims, None if held is None else (math.prod(held),))


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(["Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Sigmoid", "Tanh", "Softplus", "Exp",
                     "Log", "Neg", "Sqrt", "Rsqrt", "Square", "Abs", "Erf", "Softmax", "LogSoftmax", "BiasAdd",
                     "Floor", "Ceil", "Round", "Sign", "ZerosLike", "OnesLike", "LogicalNot", "Sin",
                     "Cos", "Reciprocal", "LRN", "Reverse", "ReverseV2", "Snapshot", "CheckNumerics",
                     "PlaceholderWithDefault", "Cumsum", "ClipByValue", "InvertPermutation",
                     "Erfc", "Log1p", "Expm1", "Tan", "Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Acosh",
                     "Atanh", "Softsign", "Rint"], _same),
    **dict.fromkeys(["Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum", "Pow", "SquaredDifference",
                     "FloorDiv", "FloorMod", "AddN", "DivNoNan", "LogicalAnd", "LogicalOr", "Xdivy"], _broadcast),
    **dict.fromkeys(["Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual"], _compared),
    **dict.fromkeys(_REDUCES, lambda node, reads: [_reduced(node, reads)]),
    "MatMul": _matmul, "_FusedMatMul": _matmul, "BatchMatMul": _batch_matmul, "BatchMatMulV2": _batch_matmul,
    "Conv2D": _conv, "_FusedConv2D": _conv, "DepthwiseConv2dNative": _conv, "MaxPool": _pool, "AvgPool": _pool,
    "Reshape": _reshape, "ExpandDims": _expand, "Squeeze": _squeeze, "ConcatV2": _concat, "Concat": _concat,
    "Pack": _pack, "Transpose": _transpose, "Pad": _pad, "PadV2": _pad, "MirrorPad": _pad, "GatherV2": _gather,
    "Gather": _gather, "Shape": _shape, "FusedBatchNorm": _batch_norm, "FusedBatchNormV2": _batch_norm,
    "StridedSlice": _strided, "Slice": _sliced, "Tile": _tiled, "Fill": _given(0), "BroadcastTo": _given(1),
    "Unpack": _unpacked, "ResizeBilinear": _resized, "ResizeNearestNeighbor": _resized,
    "Conv2DBackpropInput": _transposed_conv, "Select": lambda node, reads: _broadcast(node, [*reads[1:], reads[0]]),
    "SelectV2": lambda node, reads: _broadcast(node, [*reads[1:], reads[0]]),
    "FusedBatchNormV3": _batch_norm, "Split": _split, "Cast": _cast,
    "Conv3D": _conv, "Einsum": _einsum, "BatchMatMulV3": _batch_matmul, "IdentityN": lambda node, reads: list(reads),
    **dict.fromkeys(["Identity", "StopGradient", "EnsureShape"], lambda node, reads: [reads[0]]),
    "Range": _range, "Size": lambda node, reads: [KnownTensor(3, (), (reads[0].elements,))],
}  # fmt: skip
_NEEDS = {"MatMul": 2, "BatchMatMul": 2, "BatchMatMulV2": 2, "Conv2D": 2, "DepthwiseConv2dNative": 2, "Reshape": 2,
          "ExpandDims": 2, "ConcatV2": 2, "Concat": 2, "Transpose": 2, "Pad": 2, "GatherV2": 2, "FusedBatchNorm": 2,
          "FusedBatchNormV3": 2, "Split": 2, "Conv3D": 2, "BatchMatMulV3": 2, "Range": 3}  # fmt: skip
