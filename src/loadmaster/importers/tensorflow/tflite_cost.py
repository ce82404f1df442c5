"""Arithmetic of TFLite ops: from the sizes of what they read and make, and for control flow from what they run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadmaster.importers.tensorflow.tflite_model import Dims, Operator
from loadmaster.importers.tensorflow.tflite_rules import Sized
from loadmaster.importers.tensorflow.tflite_schema import ELEMENTWISE, MOVE, POOL

_RECURRENT = {"UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_LSTM",
              "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "RNN"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpCost:
    """FLOPs of an op, bytes its bodies move, most bytes they hold, and whether the FLOPs are known."""

    flops: int
    known: bool
    bytes_moved: int = 0
    held: int = 0


def cost_of(op: Operator, sized: Sized) -> OpCost:
    """A loop counts one turn: how many it takes is not known before it runs, so its arithmetic is assumed."""
    if op.number in sized.bodies:
        return _of_bodies(op, sized.bodies[op.number])
    reads = [sized.dims[tensor] for tensor in op.reads]
    made = sized.dims[op.outputs[0]] if op.outputs and op.outputs[0] >= 0 else ()
    largest = max([math.prod(dims) for dims in (made, *reads)], default=0)
    if op.kind in MOVE:
        return OpCost(0, True)
    if op.kind in ELEMENTWISE:
        return OpCost(largest, True)
    try:
        found = _products(op, reads, made, sized)
    except IndexError:
        found = None  # a tensor with fewer axes than the op needs
    return OpCost(largest, False) if found is None else OpCost(found, True)


def _of_bodies(op: Operator, bodies: list[Sized]) -> OpCost:
    costs = [[(each, cost_of(each, body)) for each in body.part.operators] for body in bodies]
    flops = [sum(cost.flops for _, cost in body) for body in costs]
    known = all(cost.known for body in costs for _, cost in body)
    moved = [sum(_bytes(each, body) + cost.bytes_moved for each, cost in cost_list)
             for body, cost_list in zip(bodies, costs, strict=True)]  # fmt: skip
    held = max((_held(body) for body in bodies), default=0)
    if op.kind == "WHILE":
        return OpCost(sum(flops), False, sum(moved), held)
    return OpCost(max(flops, default=0), known and len(bodies) == 1, max(moved, default=0), held)


def _bytes(op: Operator, sized: Sized) -> int:
    tensors = dict.fromkeys((*op.reads, *op.makes))
    return sum(sized.part.tensors[tensor].nbytes(sized.dims[tensor]) for tensor in tensors)


def _held(sized: Sized) -> int:
    """Most bytes alive at once inside a body, in the order in which it stands."""
    last = {tensor: place for place, op in enumerate(sized.part.operators) for tensor in op.reads}
    made = {tensor for op in sized.part.operators for tensor in op.makes}
    alive, most = 0, 0
    for place, op in enumerate(sized.part.operators):
        alive += sum(sized.part.tensors[tensor].nbytes(sized.dims[tensor]) for tensor in op.makes)
        most = max(most, alive)
        ended = {tensor for tensor in (*op.reads, *op.makes) if last.get(tensor, place) == place}
        alive -= sum(sized.part.tensors[tensor].nbytes(sized.dims[tensor]) for tensor in ended & made)
    return most


def _products(op: Operator, reads: list[Dims], made: Dims, sized: Sized) -> int | None:
    kind, out = op.kind, math.prod(made)
    if kind == "CONV_2D":
        return 2 * out * math.prod(reads[1][1:])  # [out, height, width, in]
    if kind == "DEPTHWISE_CONV_2D":
        return 2 * out * math.prod(reads[1][1:3])
    if kind == "CONV_3D":
        return 2 * out * math.prod(reads[1][:4])
    if kind == "TRANSPOSE_CONV":
        return 2 * math.prod(reads[2]) * math.prod(reads[1][:3])
    if kind == "CONV_3D_TRANSPOSE":
        return 2 * math.prod(reads[2]) * math.prod(reads[1][:4])
    if kind == "FULLY_CONNECTED":
        return 2 * out * reads[1][-1]
    if kind == "BATCH_MATMUL":
        return 2 * out * reads[0][-2 if op.setting(0, "B") else -1]
    if kind in POOL:
        return out * op.setting(3) * op.setting(4)
    if kind == "RFFT2D":
        points = math.prod(reads[0])
        return math.ceil(2.5 * points * math.log2(max(2, math.prod(reads[0][-2:]))))
    if kind == "SVDF":
        return 2 * reads[0][0] * (math.prod(reads[1]) + math.prod(reads[2]))
    if kind in _RECURRENT:
        weights = sum(math.prod(dims) for dims in reads[1:] if len(dims) == 2 and _is_weight(dims, sized, op))
        return 2 * weights * math.prod(reads[0][:-1])
    return None


def _is_weight(dims: Dims, sized: Sized, op: Operator) -> bool:
    return any(sized.part.tensors[tensor].is_constant and sized.dims[tensor] == dims for tensor in op.reads)
