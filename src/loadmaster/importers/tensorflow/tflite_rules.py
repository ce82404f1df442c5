"""What each kind of TFLite op makes of the sizes it reads: one short rule each, as its interpreter has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from loadmaster.importers.tensorflow.tflite_model import Dims, Operator, Subgraph, Values
from loadmaster.importers.tensorflow.tflite_schema import BROADCAST, KEEP_SHAPE, POOL, REDUCE

MOST_AXES = 8  # as in LiteRT


@dataclass(slots=True)
class Sized:
    """The sizes of one run of a subgraph: of each tensor its sizes, whether they are known, and its small values."""

    part: Subgraph
    dims: list[Dims]
    known: list[bool]
    values: list[Values | None]
    bodies: dict[int, list[Sized]] = field(default_factory=dict)  # by op: the subgraphs it runs, sized


class OpCall:
    """One op as its rule sees it: sizes and values of what it reads, its settings."""

    def __init__(self, op: Operator, sized: Sized) -> None:
        self.op, self._sized = op, sized

    @property
    def count(self) -> int:
        return len(self.op.inputs)

    def has(self, place: int) -> bool:
        return place < len(self.op.inputs) and self.op.inputs[place] >= 0

    def dims(self, place: int) -> Dims:
        return self._sized.dims[self.op.inputs[place]]

    def made(self, place: int) -> Dims:
        return self._sized.dims[self.op.outputs[place]]

    @property
    def dtype(self) -> str:
        """Of what it makes."""
        return self._sized.part.tensors[self.op.outputs[0]].dtype

    def value(self, place: int) -> Values:
        """Of an input; one that nobody knows ends the rule."""
        found = self._sized.values[self.op.inputs[place]] if self.has(place) else None
        if found is None:
            raise Unknown
        return found

    def whole(self, place: int) -> list[int]:
        return [int(each) for each in self.value(place).ravel()]

    def setting(self, number: int, kind: str = "i", default: int = 0) -> int:
        return self.op.setting(number, kind, default)

    def listed(self, number: int) -> list[int]:
        return [] if self.op.settings is None else self.op.settings.numbers(number)

    def axis(self, value: int, rank: int) -> int:
        axis = value + rank if value < 0 else value
        if not 0 <= axis < max(rank, 1):
            raise Unknown
        return axis


class Unknown(Exception):
    """A rule needs what nobody knows before the model runs."""


def made_of(call: OpCall) -> list[Dims] | None:
    """Sizes of all that the op makes, None where it has no rule; `Unknown` where they depend on values of the run."""
    kind = call.op.kind
    if kind in KEEP_SHAPE:
        return [call.dims(0)]
    if kind in BROADCAST:
        return [_broadcast([call.dims(place) for place in range(call.count)])]
    rule = _reduced if kind in REDUCE else _pooled if kind in POOL else _RULES.get(kind)
    return rule(call) if rule else None


def _broadcast(shapes: list[Dims]) -> Dims:
    return tuple(int(size) for size in np.broadcast_shapes(*shapes))


def _reduced(call: OpCall) -> list[Dims]:
    dims = call.dims(0)
    axes = {call.axis(axis, len(dims)) for axis in call.whole(1)} if dims else set()
    if call.setting(0, "B"):
        return [tuple(1 if axis in axes else size for axis, size in enumerate(dims))]
    return [tuple(size for axis, size in enumerate(dims) if axis not in axes)]


def _window(size: int, kernel: int, stride: int, dilation: int, same: bool) -> int:
    return -(-size // stride) if same else (size - (kernel - 1) * dilation - 1 + stride) // stride


def _pooled(call: OpCall) -> list[Dims]:
    batch, height, width, channels = call.dims(0)
    same = call.setting(0, "b") == 0
    return [(batch, _window(height, call.setting(4), call.setting(2), 1, same),
             _window(width, call.setting(3), call.setting(1), 1, same), channels)]  # fmt: skip


def _convolved(call: OpCall) -> list[Dims]:
    (batch, height, width, _), kernel = call.dims(0), call.dims(1)
    same, depthwise = call.setting(0, "b") == 0, call.op.kind == "DEPTHWISE_CONV_2D"
    dilation = (5, 6) if depthwise else (4, 5)
    across, down = (call.setting(number, default=1) or 1 for number in dilation)
    channels = kernel[3] if depthwise else kernel[0]
    return [(batch, _window(height, kernel[1], call.setting(2), down, same),
             _window(width, kernel[2], call.setting(1), across, same), channels)]  # fmt: skip


def _convolved_in_3d(call: OpCall) -> list[Dims]:
    (batch, *space, _), kernel = call.dims(0), call.dims(1)
    same = call.setting(0, "b") == 0
    strides = [call.setting(number) for number in (1, 3, 2)]
    dilations = [call.setting(number, default=1) or 1 for number in (5, 7, 6)]
    ways = zip(space, kernel[:3], strides, dilations, strict=True)
    return [(batch, *(_window(*way, same) for way in ways), kernel[4])]


def _given_shape(place: int) -> Callable[[OpCall], list[Dims]]:
    return lambda call: [tuple(call.whole(place))]


def _connected(call: OpCall) -> list[Dims]:
    dims, (units, depth) = call.dims(0), call.dims(1)
    if call.setting(2, "B"):
        return [(*dims[:-1], units)]
    return [(math.prod(dims) // depth, units)]


def _multiplied(call: OpCall) -> list[Dims]:
    left, right = call.dims(0), call.dims(1)
    rows = left[-1] if call.setting(0, "B") else left[-2]
    columns = right[-2] if call.setting(1, "B") else right[-1]
    return [(*_broadcast([left[:-2], right[:-2]]), rows, columns)]


def _reshaped(call: OpCall) -> list[Dims]:
    asked = call.whole(1) if call.has(1) else call.listed(0)
    if not call.has(1) and asked == [0]:
        asked = []
    total = math.prod(call.dims(0))
    if asked.count(-1) == 1:
        rest = math.prod(size for size in asked if size != -1)
        asked = [total // rest if size == -1 else size for size in asked]
    if math.prod(asked) != total:
        raise Unknown
    return [tuple(asked)]


def _squeezed(call: OpCall) -> list[Dims]:
    dims = call.dims(0)
    axes = {call.axis(axis, len(dims)) for axis in call.listed(0)}
    axes = axes or {axis for axis, size in enumerate(dims) if size == 1}
    return [tuple(size for axis, size in enumerate(dims) if axis not in axes)]


def _expanded(call: OpCall) -> list[Dims]:
    dims = call.dims(0)
    axis = call.axis(call.whole(1)[0], len(dims) + 1)
    return [(*dims[:axis], 1, *dims[axis:])]


def _concatenated(call: OpCall) -> list[Dims]:
    parts = [call.dims(place) for place in range(call.count)]
    axis = call.axis(call.setting(0), len(parts[0]))
    return [(*parts[0][:axis], sum(part[axis] for part in parts), *parts[0][axis + 1 :])]


def _transposed(call: OpCall) -> list[Dims]:
    return [tuple(call.dims(0)[axis] for axis in call.whole(1))]


def _padded(call: OpCall) -> list[Dims]:
    padding = call.value(1).reshape(-1, 2)
    return [tuple(size + int(sum(pair)) for size, pair in zip(call.dims(0), padding, strict=True))]


def _gathered(call: OpCall) -> list[Dims]:
    dims, places = call.dims(0), call.dims(1)
    axis, shared = call.axis(call.setting(0), len(dims)), call.setting(1)
    return [(*dims[:axis], *places[shared:], *dims[axis + 1 :])]


def _gathered_rows(call: OpCall) -> list[Dims]:
    dims, places = call.dims(0), call.dims(1)
    return [(*places[:-1], *dims[places[-1] :])]


def _sliced(call: OpCall) -> list[Dims]:
    dims, begin, size = call.dims(0), call.whole(1), call.whole(2)
    return [tuple(whole - at if many == -1 else many for whole, at, many in zip(dims, begin, size, strict=True))]


def _strided(call: OpCall) -> list[Dims]:
    """Its masks as numpy's index, so that numpy says what is left."""
    dims = call.dims(0)
    if len(dims) > MOST_AXES:
        raise Unknown
    # One byte seen with steps of 0: any size, no memory.
    seen = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), dims, (0,) * len(dims), writeable=False)
    return [seen[index_of(call)].shape]  # type: ignore[index]


def index_of(call: OpCall) -> tuple[object, ...]:
    """What STRIDED_SLICE takes, as numpy writes it."""
    begin, end, step = call.whole(1), call.whole(2), call.whole(3)
    masks = [call.setting(number) for number in range(5)]
    index: list[object] = []
    for place, (first, last, by) in enumerate(zip(begin, end, step, strict=True)):
        begins, ends, ellipsis, new, shrinks = (mask >> place & 1 for mask in masks)
        if ellipsis:
            index.append(Ellipsis)
        elif new:
            index.append(None)
        elif shrinks:
            index.append(first)
        else:
            index.append(slice(None if begins else first, None if ends else last, by))
    return tuple(index)


def _packed(call: OpCall) -> list[Dims]:
    dims = call.dims(0)
    axis = call.axis(call.setting(1), len(dims) + 1)
    return [(*dims[:axis], call.count, *dims[axis:])]


def _unpacked(call: OpCall) -> list[Dims]:
    dims = call.dims(0)
    axis = call.axis(call.setting(1), len(dims))
    return [(*dims[:axis], *dims[axis + 1 :])] * len(call.op.outputs)


def _split(call: OpCall) -> list[Dims]:
    dims, parts = call.dims(1), len(call.op.outputs)
    axis = call.axis(call.whole(0)[0], len(dims))
    return [(*dims[:axis], dims[axis] // parts, *dims[axis + 1 :])] * parts


def _split_unevenly(call: OpCall) -> list[Dims]:
    dims, sizes = call.dims(0), call.whole(1)
    axis = call.axis(call.whole(2)[0], len(dims))
    rest = dims[axis] - sum(size for size in sizes if size >= 0)
    return [(*dims[:axis], rest if size < 0 else size, *dims[axis + 1 :]) for size in sizes]


def _tiled(call: OpCall) -> list[Dims]:
    return [tuple(size * many for size, many in zip(call.dims(0), call.whole(1), strict=True))]


def _argmax(call: OpCall) -> list[Dims]:
    dims = call.dims(0)
    axis = call.axis(call.whole(1)[0], len(dims))
    return [(*dims[:axis], *dims[axis + 1 :])]


def _top(call: OpCall) -> list[Dims]:
    return [(*call.dims(0)[:-1], call.whole(1)[0])] * 2


def _one_hot(call: OpCall) -> list[Dims]:
    dims, depth = call.dims(0), call.whole(1)[0]
    axis = len(dims) if call.setting(0) == -1 else call.setting(0)
    return [(*dims[:axis], depth, *dims[axis:])]


def _range(call: OpCall) -> list[Dims]:
    first, last, step = (call.value(place).ravel()[0] for place in range(3))
    return [(max(0, math.ceil((last - first) / step)),)]


def _resized(call: OpCall) -> list[Dims]:
    batch, _, _, channels = call.dims(0)
    height, width = call.whole(1)
    return [(batch, height, width, channels)]


def _spread(call: OpCall) -> list[Dims]:
    (batch, height, width, channels), block = call.dims(0), call.setting(0)
    if call.op.kind == "DEPTH_TO_SPACE":
        return [(batch, height * block, width * block, channels // block**2)]
    return [(batch, height // block, width // block, channels * block**2)]


def _to_batch(call: OpCall) -> list[Dims]:
    (batch, *rest), block = call.dims(0), call.whole(1)
    pads = [int(sum(pair)) for pair in call.value(2).reshape(-1, 2)]
    space = [(size + pad) // by for size, pad, by in zip(rest, pads, block, strict=False)]
    return [(batch * math.prod(block), *space, *rest[len(block) :])]


def _from_batch(call: OpCall) -> list[Dims]:
    (batch, *rest), block = call.dims(0), call.whole(1)
    crops = [int(sum(pair)) for pair in call.value(2).reshape(-1, 2)]
    space = [size * by - crop for size, crop, by in zip(rest, crops, block, strict=False)]
    return [(batch // math.prod(block), *space, *rest[len(block) :])]


def _transformed(call: OpCall) -> list[Dims]:
    *rest, _, _ = call.dims(0)
    height, width = call.whole(1)
    return [(*rest, height, width // 2 + 1)]


def _sequence(call: OpCall) -> list[Dims]:
    """[…, units of the hidden state]: input 4 are its output gate's weights, where there are any."""
    units = call.dims(16)[-1] if call.has(16) else call.dims(4)[0]
    return [(*call.dims(0)[:-1], units)]


def _looked_up(call: OpCall) -> list[Dims]:
    return [(*call.dims(0), *call.dims(1)[1:])]


def _filtered(call: OpCall) -> list[Dims]:
    return [(call.dims(0)[0], call.dims(1)[0] // (call.setting(0) or 1))]


_RULES: dict[str, Callable[[OpCall], list[Dims]]] = {
    "CONV_2D": _convolved, "DEPTHWISE_CONV_2D": _convolved, "CONV_3D": _convolved_in_3d,
    "TRANSPOSE_CONV": _given_shape(0), "CONV_3D_TRANSPOSE": _given_shape(0), "FULLY_CONNECTED": _connected,
    "BATCH_MATMUL": _multiplied, "RESHAPE": _reshaped, "SQUEEZE": _squeezed, "EXPAND_DIMS": _expanded,
    "CONCATENATION": _concatenated, "TRANSPOSE": _transposed, "PAD": _padded, "PADV2": _padded, "MIRROR_PAD": _padded,
    "GATHER": _gathered, "GATHER_ND": _gathered_rows, "SLICE": _sliced, "STRIDED_SLICE": _strided, "PACK": _packed,
    "UNPACK": _unpacked, "SPLIT": _split, "SPLIT_V": _split_unevenly, "TILE": _tiled, "FILL": _given_shape(0),
    "BROADCAST_TO": _given_shape(1), "SCATTER_ND": _given_shape(2), "ARG_MAX": _argmax, "ARG_MIN": _argmax,
    "TOPK_V2": _top, "ONE_HOT": _one_hot, "RANGE": _range, "RESIZE_BILINEAR": _resized,
    "RESIZE_NEAREST_NEIGHBOR": _resized, "DEPTH_TO_SPACE": _spread, "SPACE_TO_DEPTH": _spread,
    "SPACE_TO_BATCH_ND": _to_batch, "BATCH_TO_SPACE_ND": _from_batch, "RFFT2D": _transformed,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence, "EMBEDDING_LOOKUP": _looked_up, "SVDF": _filtered,
    "RANDOM_STANDARD_NORMAL": _given_shape(0), "RANDOM_UNIFORM": _given_shape(0),
    "SHAPE": lambda call: [(len(call.dims(0)),)], "RANK": lambda call: [()],
    "BROADCAST_ARGS": lambda call: [(max(call.dims(0)[0], call.dims(1)[0]),)],
}  # fmt: skip
