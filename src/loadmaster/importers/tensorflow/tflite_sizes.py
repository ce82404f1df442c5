"""Sizes through a TFLite graph: what each op makes of the sizes it reads, as an interpreter works them out.

A converter writes 1 for every size it does not know, so the stored shapes of such a model are wrong everywhere behind
an open axis. Here each op's rule gives the sizes it makes. Small whole numbers that decide a size (shapes, axes,
paddings) are computed along. Where no rule holds, the stored sizes are taken: they are known if nothing open led there,
else assumed.
"""

from __future__ import annotations

import math

from loadmaster.errors import ImportFailed
from loadmaster.importers.tensorflow.tflite_model import Dims, Operator, TfliteModel, Values
from loadmaster.importers.tensorflow.tflite_rules import OpCall, Sized, Unknown, made_of
from loadmaster.importers.tensorflow.tflite_schema import BROADCAST, KEEP_SHAPE, REDUCE
from loadmaster.importers.tensorflow.tflite_values import values_of

_MOST_DEPTH = 20  # subgraphs inside one another
_MOST_SIZE = 2**40
# Kinds that may make a single number, so that "no axes" is a size and no gap.
_SCALARS = {"RANK", "SUM", "MEAN", "RESHAPE", "SQUEEZE", "STRIDED_SLICE", "GATHER", *REDUCE, *BROADCAST, *KEEP_SHAPE}


def sizes_of(model: TfliteModel, given: dict[int, Dims]) -> Sized:
    """The sizes of the first subgraph, its inputs (by tensor) as given or stored."""
    walk = _Walk(model)
    return walk.run(
        0, [given.get(tensor, model.subgraphs[0].tensors[tensor].dims) for tensor in model.subgraphs[0].inputs]
    )


class _Walk:
    def __init__(self, model: TfliteModel) -> None:
        self.model = model
        self.variables: dict[str, Dims] = {}
        self.depth = 0

    def run(self, number: int, inputs: list[Dims], values: list[Values | None] | None = None) -> Sized:
        if not 0 <= number < len(self.model.subgraphs) or self.depth >= _MOST_DEPTH:
            raise ImportFailed(f"an op runs subgraph {number}", self.model.where, "is the model damaged?")
        part = self.model.subgraphs[number]
        sized = Sized(part, [], [], [])
        for tensor in part.tensors:
            sized.dims.append(tensor.dims)
            sized.known.append(True)
            sized.values.append(self.model.values(tensor))
        for place, tensor_number in enumerate(part.inputs[: len(inputs)]):
            sized.dims[tensor_number] = inputs[place]
            if values and values[place] is not None:
                sized.values[tensor_number] = values[place]
        self.depth += 1
        for op in part.operators:
            self._step(op, sized)
        self.depth -= 1
        return sized

    def _step(self, op: Operator, sized: Sized) -> None:
        try:
            made = self._made(op, sized)
        except Unknown:
            made = None
        except (IndexError, ValueError, OverflowError, TypeError, ZeroDivisionError):
            made = None  # a setting that fits no rule: the stored sizes say more
        certain = all(sized.known[tensor] for tensor in op.reads)
        if made is None or len(made) < len(op.outputs):
            moved = any(sized.dims[tensor] != sized.part.tensors[tensor].dims for tensor in op.reads)
            opened = any(sized.part.tensors[tensor].open for tensor in (*op.reads, *op.makes))
            certain = certain and not moved and not opened and self._is_stored(op, sized)
            made = [sized.part.tensors[tensor].dims if tensor >= 0 else () for tensor in op.outputs]
        elif op.number in sized.bodies:
            certain = certain and all(body.known[t] for body in sized.bodies[op.number] for t in body.part.outputs)
        self._check(op, sized, made)
        for tensor, dims in zip(op.outputs, made, strict=False):
            if tensor >= 0:
                sized.dims[tensor], sized.known[tensor] = dims, certain
        for tensor, value in zip(op.outputs, values_of(op, sized), strict=False):
            if tensor >= 0:
                sized.values[tensor] = value

    def _is_stored(self, op: Operator, sized: Sized) -> bool:
        """Whether a converter wrote sizes: no size at all, of more than a number, is none."""
        return all(sized.part.tensors[tensor].dims for tensor in op.makes) or op.kind in _SCALARS

    def _check(self, op: Operator, sized: Sized, made: list[Dims]) -> None:
        for tensor, dims in zip(op.outputs, made, strict=False):
            if tensor >= 0 and (any(size < 0 for size in dims) or math.prod(dims) > _MOST_SIZE):
                what = f"op {op.number}:{op.kind} makes a tensor of {list(dims)} from these sizes"
                raise ImportFailed(what, self.model.where, _say_sizes(self.model))

    def _made(self, op: Operator, sized: Sized) -> list[Dims] | None:
        if op.kind in ("IF", "WHILE", "CALL_ONCE"):
            return self._run_bodies(op, sized)
        if op.kind == "VAR_HANDLE":
            return [()]
        if op.kind in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
            return self._variable(op, sized)
        return made_of(OpCall(op, sized))

    def _run_bodies(self, op: Operator, sized: Sized) -> list[Dims]:
        """Runs what the op may run; its own sizes are those of the last of them."""
        if op.kind == "CALL_ONCE":
            sized.bodies[op.number] = [self.run(op.setting(0), [])]
            return []
        skip = 1 if op.kind == "IF" else 0
        given = [sized.dims[tensor] for tensor in op.inputs[skip:]]
        values = [sized.values[tensor] if op.kind == "IF" else None for tensor in op.inputs[skip:]]
        ways = [op.setting(0), op.setting(1)]
        taken = sized.values[op.inputs[0]] if op.kind == "IF" else None
        if taken is not None:
            ways = [ways[0] if bool(taken.any()) else ways[1]]
        bodies = sized.bodies[op.number] = [self.run(way, given, values) for way in ways]
        ends = [[body.dims[tensor] for tensor in body.part.outputs] for body in bodies]
        if op.kind == "WHILE":
            if ends[-1] != given:
                raise Unknown  # its tensors grow from turn to turn
            return ends[-1]
        if any(end != ends[0] for end in ends):
            raise Unknown
        return ends[0]

    def _variable(self, op: Operator, sized: Sized) -> list[Dims]:
        maker = next((each for each in sized.part.operators if op.inputs[0] in each.outputs), None)
        handle = maker.settings.text(1) if maker and maker.settings else str(op.inputs[0])
        if op.kind == "ASSIGN_VARIABLE":
            self.variables[handle] = sized.dims[op.inputs[1]]
            return []
        if handle not in self.variables:
            raise Unknown
        return [self.variables[handle]]


def _say_sizes(model: TfliteModel) -> str:
    part, named = model.subgraphs[0], []
    for tensor in (part.tensors[number] for number in part.inputs):
        named += [f"{tensor.name}.{axis}=SIZE" for axis in tensor.open]
    return f"do the sizes fit the model? FILE.tflite#{','.join(named)}" if named else "is the model damaged?"
