"""Small values through a TFLite graph: shapes, axes, counts, which decide the sizes of what comes after."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from loadmaster.importers.tensorflow.tflite_model import MOST_VALUES, Dims, Operator, Values
from loadmaster.importers.tensorflow.tflite_rules import MOST_AXES, OpCall, Sized, Unknown, index_of

_BINARY: dict[str, Callable[..., Values]] = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "MAXIMUM": np.maximum, "MINIMUM": np.minimum,
    "FLOOR_DIV": np.floor_divide, "FLOOR_MOD": np.mod, "LESS": np.less, "GREATER": np.greater, "EQUAL": np.equal,
    "GREATER_EQUAL": np.greater_equal, "LESS_EQUAL": np.less_equal, "NOT_EQUAL": np.not_equal, "POW": np.power,
    "LOGICAL_AND": np.logical_and, "LOGICAL_OR": np.logical_or,
}  # fmt: skip
_UNARY: dict[str, Callable[..., Values]] = {
    "NEG": np.negative, "ABS": np.abs, "FLOOR": np.floor, "CEIL": np.ceil, "ROUND": np.round, "SQUARE": np.square,
    "LOGICAL_NOT": np.logical_not, "ZEROS_LIKE": np.zeros_like, "SQRT": np.sqrt, "LOG": np.log, "EXP": np.exp,
}  # fmt: skip
_REDUCED: dict[str, Callable[..., Values]] = {
    "SUM": np.sum, "REDUCE_PROD": np.prod, "REDUCE_MAX": np.max, "REDUCE_MIN": np.min, "REDUCE_ANY": np.any,
    "REDUCE_ALL": np.all, "MEAN": np.mean,
}  # fmt: skip


def values_of(op: Operator, sized: Sized) -> list[Values | None]:
    """Of each tensor the op makes, where all it needs is known and small."""
    none: list[Values | None] = [None] * len(op.outputs)
    made = [sized.dims[tensor] for tensor in op.makes]
    if not op.outputs or any(math.prod(dims) > MOST_VALUES or len(dims) > MOST_AXES for dims in made):
        return none
    if op.kind == "SHAPE":
        return [np.array(sized.dims[op.inputs[0]], np.int64)] if sized.known[op.inputs[0]] else none
    if op.kind == "RANK":
        return [np.array(len(sized.dims[op.inputs[0]]))]
    given = [sized.values[tensor] for tensor in op.inputs if tensor >= 0]
    known = [value for value in given if value is not None]
    if len(known) < len(op.inputs) or not known:
        return none
    try:
        with np.errstate(all="ignore"):
            found = _computed(OpCall(op, sized), known, sized.dims[op.outputs[0]])
    except (IndexError, ValueError, OverflowError, TypeError, ZeroDivisionError, Unknown):
        return none
    fits = [value.shape == dims for value, dims in zip(found, made, strict=False)]
    return [*found] if all(fits) and len(found) == len(op.outputs) else none


def _computed(call: OpCall, given: list[Values], dims: Dims) -> list[Values]:
    kind, first = call.op.kind, given[0]
    if kind in _BINARY:
        return [np.asarray(_BINARY[kind](first, given[1]))]
    if kind in _UNARY:
        return [np.asarray(_UNARY[kind](first))]
    if kind in _REDUCED:
        return [np.asarray(_REDUCED[kind](first, tuple(int(axis) for axis in given[1].ravel()))).reshape(dims)]
    if kind in _OTHERS:
        return list(_OTHERS[kind](call, given, dims))
    raise Unknown


def _divided(_: OpCall, given: list[Values], __: Dims) -> list[Values]:
    with_rest = np.true_divide(given[0], given[1])
    return [np.asarray(np.trunc(with_rest).astype(given[0].dtype) if given[0].dtype.kind in "iu" else with_rest)]


def _cut(call: OpCall, given: list[Values], dims: Dims) -> list[Values]:
    return [given[0][tuple(slice(at, at + size) for at, size in zip(call.whole(1), dims, strict=True))]]


def _split(call: OpCall, given: list[Values], _: Dims) -> list[Values]:
    even = call.op.kind == "SPLIT"
    axis = call.whole(0 if even else 2)[0]
    ends = np.cumsum([call.made(place)[axis] for place in range(len(call.op.outputs))])[:-1]
    return list(np.split(given[1] if even else given[0], ends, axis))


def _gathered(call: OpCall, given: list[Values], _: Dims) -> list[Values]:
    if call.setting(1):
        raise Unknown
    return [np.take(given[0], given[1].astype(np.int64), call.setting(0))]


def _unpacked(call: OpCall, given: list[Values], _: Dims) -> list[Values]:
    return [np.take(given[0], place, call.setting(1)) for place in range(len(call.op.outputs))]


_Made = Callable[[OpCall, list[Values], Dims], list[Values]]
_RESHAPED: _Made = lambda call, given, dims: [given[0].reshape(dims)]  # noqa: E731
_SELECTED: _Made = lambda call, given, dims: [np.where(given[0].astype(bool), given[1], given[2])]  # noqa: E731
_OTHERS: dict[str, _Made] = {
    "DIV": _divided, "SLICE": _cut, "SPLIT": _split, "SPLIT_V": _split, "GATHER": _gathered, "UNPACK": _unpacked,
    "RESHAPE": _RESHAPED, "SQUEEZE": _RESHAPED, "EXPAND_DIMS": _RESHAPED, "SELECT": _SELECTED, "SELECT_V2": _SELECTED,
    "CAST": lambda call, given, dims: [given[0].astype(np.dtype(call.dtype))],
    "CONCATENATION": lambda call, given, dims: [np.concatenate(given, call.setting(0))],
    "PACK": lambda call, given, dims: [np.stack(given, call.setting(1))],
    "STRIDED_SLICE": lambda call, given, dims: [np.asarray(given[0][index_of(call)])],  # type: ignore[index]
    "FILL": lambda call, given, dims: [np.full(dims, given[1].ravel()[0])],
    "RANGE": lambda call, given, dims: [np.arange(*(each.ravel()[0] for each in given[:3]))],
    "TILE": lambda call, given, dims: [np.tile(given[0], call.whole(1))],
    "TRANSPOSE": lambda call, given, dims: [np.transpose(given[0], call.whole(1))],
    "BROADCAST_TO": lambda call, given, dims: [np.broadcast_to(given[0], dims)],
}  # fmt: skip
