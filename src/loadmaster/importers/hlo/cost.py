"""What an instruction of XLA costs, counted as XLA's own analysis does: one operation per element that is computed, the
multiply and the add of each pair in products and convolutions, no discount for transcendental functions.

A fusion costs what its instructions compute, and moves what it looks at of each operand and writes of its result; a
loop costs its body as often as it runs, where that is said or can be counted, else once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loadmaster.errors import ImportFailed
from loadmaster.importers.hlo.module import AxisWindow, Computation, HloModule, Instruction, Shape

# Wiring: they name memory, and neither read nor write it.
WIRING = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "domain",
                    "optimization-barrier", "opt-barrier", "add-dependency", "partition-id", "replica-id"})  # fmt: skip
_MOVES = frozenset({
    "broadcast", "broadcast_in_dim", "bitcast", "bitcast-convert", "copy", "copy-start", "copy-done", "concatenate",
    "dynamic-slice", "dynamic-update-slice", "gather", "iota", "pad", "reshape", "reverse", "slice", "transpose",
    "all-gather", "all-to-all", "collective-permute", "rng-get-and-update-state", "infeed", "outfeed", "send", "recv",
    "dynamic-reshape", "get-dimension-size", "set-dimension-size", "constant", "parameter", "tuple", "custom-call",
    "get-tuple-element", "after-all", "optimization-barrier", "opt-barrier", "domain", "partition-id", "replica-id",
    "rng-bit-generator", "send-done", "recv-done", "add-dependency",
})  # fmt: skip
_SLICES = ("slice", "dynamic-slice", "gather")
_MOST_POSITIONS = 10**6  # of a window along one axis that are counted one by one
_MOST_DEPTH = 100  # computations within each other, as in `graph`: a guard against damaged files


@dataclass(frozen=True, slots=True)
class InstructionCost:
    """What one instruction costs: arithmetic, traffic and memory.

    Attributes:
        held_bytes: of all that is made on the way.
    """

    flops: int = 0
    bytes_moved: int = 0
    held_bytes: int = 0

    def times(self, rounds: int) -> InstructionCost:
        return InstructionCost(self.flops * rounds, self.bytes_moved * rounds, self.held_bytes)


@dataclass
class Costs:
    """Of the instructions of a module; a computation is looked at once however often it is called.

    Attributes:
        trips: of loops that do not say how often they run.
    """

    module: HloModule
    trips: int | None = None
    unknown_loops: list[str] = field(default_factory=list)
    _known: dict[str, InstructionCost] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)

    def of(self, instruction: Instruction, around: Mapping[str, Instruction]) -> InstructionCost:
        operands = [around[name].shape for name in instruction.operands if name in around]
        opcode = instruction.opcode
        if opcode in WIRING:
            return InstructionCost()
        if opcode == "while":
            return self._loop(instruction, around)
        if opcode == "conditional":
            branches = [self._computation(name, instruction.name) for name in instruction.called]
            return max(branches, key=lambda cost: (cost.flops, cost.bytes_moved), default=InstructionCost())
        if opcode == "fusion":
            return self._fusion(instruction, operands)
        if opcode in ("call", "async-start", "async-update", "async-done"):
            inside = [self._computation(name, instruction.name) for name in instruction.called]
            return InstructionCost(sum(c.flops for c in inside), sum(c.bytes_moved for c in inside))
        return InstructionCost(self._flops(instruction, operands), _traffic(instruction, operands))

    def _computation(self, name: str, by: str) -> InstructionCost:
        if name not in self._known:
            if name in self._open or len(self._open) > _MOST_DEPTH:
                raise ImportFailed(
                    f"computation '{name}' calls itself, or is nested too deeply", f"'{by}'", "is it an XLA program?"
                )
            computation = self.module.called(name, by)
            self._open.append(name)
            around = computation.by_name()
            costs = [self.of(instruction, around) for instruction in computation.instructions]
            self._open.pop()
            held = sum(i.shape.nbytes for i in computation.instructions if i.opcode not in WIRING)
            self._known[name] = InstructionCost(sum(c.flops for c in costs), sum(c.bytes_moved for c in costs), held)
        return self._known[name]

    def _loop(self, instruction: Instruction, around: Mapping[str, Instruction]) -> InstructionCost:
        if len(instruction.called) != 2:
            what = f"a loop calls {len(instruction.called)} computations, not a condition and a body"
            raise ImportFailed(what, f"'{instruction.name}'", "is it an XLA program?")
        inside = [self._computation(name, instruction.name) for name in instruction.called]
        once = InstructionCost(
            sum(c.flops for c in inside), sum(c.bytes_moved for c in inside), max(c.held_bytes for c in inside)
        )
        trips = instruction.trips if instruction.trips is not None else self._counted(instruction, around)
        if trips is None:
            self.unknown_loops.append(instruction.name)
            trips = self.trips if self.trips is not None else 1
        return once.times(trips)

    def _counted(self, loop: Instruction, around: Mapping[str, Instruction]) -> int | None:
        """Rounds of a loop that counts a number up from a constant to another, one by one."""
        condition = self.module.called(loop.called[0], loop.name)
        inside = condition.by_name()
        test = condition.result
        while test.opcode in ("fusion", "call") and len(test.called) == 1:
            inner = self.module.called(test.called[0], test.name)
            outer = [inside.get(name) for name in test.operands]
            limits = [i.value for i in outer if i is not None and i.value is not None]
            if inner.result.compares and len(limits) == 1:
                return _rounds(inner.result.compares, limits[0])
            inside, test = inner.by_name(), inner.result
        if test.opcode != "compare" or len(test.operands) != 2:
            return None
        limit = inside.get(test.operands[1])
        return None if limit is None or limit.value is None else _rounds(test.compares, limit.value)

    def _fusion(self, instruction: Instruction, operands: Sequence[Shape]) -> InstructionCost:
        flops = sum(self._computation(name, instruction.name).flops for name in instruction.called)
        moved = sum(shape.nbytes for shape in operands) + instruction.shape.nbytes
        if len(instruction.called) == 1:
            moved = _fused_traffic(self.module.called(instruction.called[0], instruction.name), instruction, operands)
        return InstructionCost(flops, moved)

    def _flops(self, instruction: Instruction, operands: Sequence[Shape]) -> int:
        opcode, made = instruction.opcode, instruction.shape.elements
        if opcode == "dot":
            return 2 * made * _contracted(instruction, operands)
        if opcode == "convolution":
            return _convolution(instruction, operands)
        if opcode in _MOVES:
            return 0
        inside = sum(self._computation(name, instruction.name).flops for name in instruction.called)
        if opcode in ("reduce", "all-reduce", "all-reduce-start", "reduce-scatter"):
            read = max((shape.elements for shape in operands), default=0)
            return max(read - (made if opcode == "reduce" else 0), 0) * max(inside, 1)
        if opcode == "reduce-window":
            return made * max(math.prod(w.size for w in instruction.windows) - 1, 1) * max(inside, 1)
        if opcode == "select-and-scatter":
            return (operands[0].elements if operands else made) * max(inside, 1)
        if opcode == "scatter":
            return (operands[-1].elements if operands else 0) * max(inside, 1)
        if opcode in ("sort", "topk"):
            return made * max(1, math.ceil(math.log2(max(2, max(instruction.shape.dims, default=2)))))
        if opcode == "map":
            return made * max(inside, 1)
        if opcode == "fft":
            return 5 * made * max(1, math.ceil(math.log2(max(2, made))))
        if opcode in ("cholesky", "triangular-solve"):
            return made * (instruction.shape.dims[-1] if instruction.shape.dims else 1)
        return made


def _rounds(direction: str, limit: int) -> int | None:
    return {"LT": limit, "LE": limit + 1}.get(direction) if 0 <= limit < 2**40 else None


def _contracted(instruction: Instruction, operands: Sequence[Shape]) -> int:
    left = operands[0].dims if operands else ()
    return math.prod(left[axis] for axis in instruction.contracted if axis < len(left))


def _convolution(instruction: Instruction, operands: Sequence[Shape]) -> int:
    """Two for each pair of an input and a weight that meet; padding and holes of dilation meet nothing."""
    ins, _, rest = instruction.labels.partition("_")
    kernel, _, outs = rest.partition("->")
    if len(operands) < 2 or len(ins) != len(operands[0].dims) or len(kernel) != len(operands[1].dims):
        return 2 * instruction.shape.elements
    image, weights = dict(zip(ins, operands[0].dims, strict=True)), dict(zip(kernel, operands[1].dims, strict=True))
    made = dict(zip(outs, instruction.shape.dims, strict=False))
    pairs = 1
    for axis, window in enumerate(instruction.windows):
        label = str(axis)
        size = window.size or weights.get(label, 1)  # StableHLO leaves it to the kernel
        pairs *= _meetings(replace(window, size=size), image.get(label, 1), made.get(label, 1))
    return 2 * pairs * made.get("b", 1) * made.get("f", 1) * weights.get("i", 1) // max(instruction.groups, 1)


def _meetings(window: AxisWindow, read: int, made: int) -> int:
    if window.size * made > _MOST_POSITIONS:
        return window.size * made
    place = np.arange(made)[:, None] * window.stride + np.arange(window.size) * window.window_dilation - window.pad_low
    dilation = max(window.input_dilation, 1)
    inside = (place >= 0) & (place < (read - 1) * dilation + 1) & (place % dilation == 0)
    return int(inside.sum())


def _traffic(instruction: Instruction, operands: Sequence[Shape]) -> int:
    made, opcode = instruction.shape.nbytes, instruction.opcode
    if opcode in _SLICES:
        return 2 * made + sum(shape.nbytes for shape in operands[1:])
    if opcode == "dynamic-update-slice" and len(operands) > 1:
        return 2 * operands[1].nbytes + sum(shape.nbytes for shape in operands[2:])
    if opcode == "scatter" and len(operands) > 2:
        return 2 * operands[-1].nbytes + operands[-2].nbytes + made
    return sum(shape.nbytes for shape in operands) + made


def _fused_traffic(inside: Computation, fusion: Instruction, operands: Sequence[Shape]) -> int:
    """Of each operand what is looked at, of the result what is written: slices of a fusion touch no more than that."""
    users: dict[str, list[Instruction]] = {}
    for instruction in inside.instructions:
        for name in dict.fromkeys(instruction.operands):
            users.setdefault(name, []).append(instruction)
    around = inside.by_name()
    read = sum(_looked_at(parameter, users, around) for parameter in inside.parameters())
    result = inside.result
    results = [around[n] for n in result.operands if n in around] if result.opcode == "tuple" else [result]
    written = 0
    for each in results:
        while each.opcode == "bitcast" and each.operands and each.operands[0] in around:
            each = around[each.operands[0]]
        patch = (
            around.get(each.operands[1]) if each.opcode == "dynamic-update-slice" and len(each.operands) > 1 else None
        )
        written += each.shape.nbytes if patch is None else patch.shape.nbytes
    return min(read, sum(shape.nbytes for shape in operands)) + min(written, fusion.shape.nbytes)


def _looked_at(
    parameter: Instruction, users: Mapping[str, Sequence[Instruction]], around: Mapping[str, Instruction]
) -> int:
    size, seen = parameter.shape.nbytes, 0
    for user in users.get(parameter.name, ()):
        if user.opcode in _SLICES and user.operands[0] == parameter.name:
            seen += user.shape.nbytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == parameter.name and len(user.operands) > 1:
            patch = around.get(user.operands[1])
            seen += patch.shape.nbytes if patch is not None else size
        else:
            return size
    return min(seen, size)
