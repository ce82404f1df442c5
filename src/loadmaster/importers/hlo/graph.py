"""An XLA program as a Graph: one op for every instruction of the entry that costs something.

A fusion is one op, or opened into what it holds. Calls are opened; a loop is one op that costs what its rounds cost, a
conditional what its dearest branch costs. Tuples vanish: each of their parts is a tensor. The order in which the
instructions stand, which is the schedule where the module has one, is the order of the ops.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadmaster.errors import ImportFailed, InvalidSetting
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.importers.hlo.cost import Costs
from loadmaster.importers.hlo.module import Computation, HloModule, Instruction, Shape

KEEP, OPEN = "keep", "open"
Value = Any  # index of a tensor, or a list of values for a tuple
_SAME = ("optimization-barrier", "opt-barrier", "domain", "copy-done", "add-dependency")
_VIEWS = ("bitcast", "reshape", "bitcast-convert")
_NAMES = ("parameter", "constant", "tuple", "get-tuple-element")
_MOST_OPS = 2_000_000  # calls that double would otherwise fill memory
_DEEPEST = 100  # computations within each other


def graph_of(module: HloModule, name: str = "", *, fusions: str = KEEP, trips: int | None = None) -> Graph:
    """`fusions`: "keep" or "open"; `trips`: rounds of loops that do not say how often they run (default: one)."""
    if fusions not in (KEEP, OPEN):
        raise InvalidSetting(f"fusions is '{fusions}'", name or module.name, "write fusions=keep or fusions=open")
    return _HloWriter(module, name or module.name, fusions == OPEN, trips).write()


def _is_free(instruction: Instruction) -> bool:
    """Whether it is no op of its own: it names values, or hands one on."""
    hands_on = instruction.opcode in _SAME or instruction.opcode.endswith("-done")
    return instruction.opcode in _NAMES or (hands_on and len(instruction.operands) > 0)


class _HloWriter:
    def __init__(self, module: HloModule, name: str, opens: bool, trips: int | None) -> None:
        self.module, self.name, self.opens = module, name, opens
        self.costs = Costs(module, trips)
        self.builder = GraphBuilder(name)
        self.readers: dict[int, list[str]] = {}
        self.lands: dict[tuple[str, tuple[int, ...]], int] = {}  # result of an instruction -> parameter it overwrites
        self.given: dict[int, int] = {}  # parameter that is overwritten -> its tensor
        self.outputs: set[tuple[str, tuple[int, ...]]] = set()
        self.names: set[str] = set()  # of the ops so far
        self.depth = self.ops = 0

    def write(self) -> Graph:
        entry = self.module.called(self.module.entry, "the module")
        if self._count(entry, {}, 0) > _MOST_OPS:
            raise ImportFailed(f"the program has more than {_MOST_OPS:,} ops once opened", self.name, "fusions=keep")
        self._find_outputs(entry)
        self._computation(entry, [self._given(parameter) for parameter in entry.parameters()], "")
        if not self.ops:
            raise ImportFailed("the program computes nothing", self.name, "give a program with instructions")
        if self.costs.unknown_loops and self.costs.trips is None:
            loops = ", ".join(dict.fromkeys(self.costs.unknown_loops))
            warnings.warn(f"{self.name}: {loops} does not say how often it runs; counted once", stacklevel=4)
        return self.builder.build()

    def _count(self, computation: Computation, known: dict[str, int], depth: int) -> int:
        """How many ops it has once opened, each computation looked at once; what is wrong with it is said later."""
        if computation.name not in known and depth <= _DEEPEST:
            known[computation.name] = total = 0  # one that calls itself is refused later
            for instruction in computation.instructions:
                inside = self.module.computations.get(instruction.called[0]) if instruction.called else None
                if not self._is_opened(instruction):
                    total += not _is_free(instruction)
                elif inside is not None:
                    total += self._count(inside, known, depth + 1)
            known[computation.name] = total
        return known.get(computation.name, 0)

    def _is_opened(self, instruction: Instruction) -> bool:
        return instruction.opcode == "call" or (instruction.opcode == "fusion" and self.opens)

    def _find_outputs(self, entry: Computation) -> None:
        """Which results of which instructions the program returns, and which of them overwrite a parameter."""
        around = entry.by_name()
        for place, _ in _leaves(entry.result.shape):
            source = _source_of(entry.result, place, around)
            self.outputs.add(source)
            number = self.module.aliases.get(place)
            if number is not None and around[source[0]].opcode != "parameter":
                self.lands[source] = number

    def _given(self, parameter: Instruction) -> Value:
        overwritten = parameter.number in self.lands.values() and not parameter.shape.is_tuple
        role = "state" if overwritten else "input"

        def make(shape: Shape, place: tuple[int, ...]) -> int:
            return self._tensor(shape, _part(parameter.name, place), role)

        value = _built(parameter.shape, make)
        if overwritten:
            self.given[parameter.number] = value
        return value

    def _tensor(self, shape: Shape, name: str, role: str, alias: int | None = None) -> int:
        return self.builder.tensor(shape.nbytes, role, name=name, shape=shape.dims, dtype=shape.dtype, alias_of=alias)

    def _computation(self, computation: Computation, given: Sequence[Value], prefix: str) -> Value:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ImportFailed("computations are nested too deeply", computation.name, "is it an XLA program?")
        around, values = computation.by_name(), dict[str, Value]()
        for instruction in computation.instructions:
            for operand in instruction.operands:
                if operand not in values:
                    what = f"'{instruction.name}' reads '{operand}', which no instruction before it makes"
                    raise ImportFailed(what, computation.name, "instructions must stand in the order of their data")
            values[instruction.name] = self._value(instruction, around, values, given, prefix)
        self.depth -= 1
        if computation.root not in values:
            raise ImportFailed(f"'{computation.name}' has no result", self.name, "is the file cut short?")
        return values[computation.root]

    def _value(
        self,
        instruction: Instruction,
        around: Mapping[str, Instruction],
        values: Mapping[str, Value],
        given: Sequence[Value],
        prefix: str,
    ) -> Value:
        opcode, operands = instruction.opcode, [values[name] for name in instruction.operands]
        if opcode == "parameter":
            if instruction.number >= len(given):
                raise ImportFailed(f"there is no parameter {instruction.number}", instruction.name, "is it whole?")
            return given[instruction.number]
        if opcode == "constant":
            return _built(instruction.shape, lambda shape, place: self._tensor(shape, instruction.name, "weight"))
        if opcode == "tuple":
            return operands
        if opcode == "get-tuple-element":
            return self._element(operands, instruction)
        if _is_free(instruction):
            return _fitting(operands[0], instruction.shape, opcode)
        if self._is_opened(instruction):
            inside = self.module.called(instruction.called[0] if instruction.called else "", instruction.name)
            self._hand_down(f"{prefix}{instruction.name}", inside)
            return self._computation(inside, operands, f"{prefix}{instruction.name}/")
        return self._op(instruction, around, operands, prefix)

    def _hand_down(self, caller: str, inside: Computation) -> None:
        """What the program returns of a call is what the computation inside returns."""
        around = inside.by_name()
        for place, _ in _leaves(inside.result.shape):
            if (caller, place) in self.outputs:
                name, part = _source_of(inside.result, place, around)
                self.outputs.add((f"{caller}/{name}", part))
                if (caller, place) in self.lands and around[name].opcode != "parameter":
                    self.lands[f"{caller}/{name}", part] = self.lands[caller, place]

    def _element(self, operands: Sequence[Value], instruction: Instruction) -> Value:
        parts = operands[0] if operands else None
        if not isinstance(parts, list) or instruction.number >= len(parts):
            what = f"'{instruction.name}' takes part {instruction.number} of what has no such part"
            raise ImportFailed(what, self.name, "is it an XLA program?")
        return parts[instruction.number]

    def _op(
        self, instruction: Instruction, around: Mapping[str, Instruction], operands: Sequence[Value], prefix: str
    ) -> Value:
        self.ops += 1
        name = f"{prefix}{instruction.name}"
        reads = [tensor for value in operands for tensor in _flat(value)]
        view = instruction.opcode in _VIEWS and len(reads) == 1 and not instruction.shape.is_tuple
        after: list[str] = [f"{prefix}{other}" for other in instruction.after]

        def make(shape: Shape, place: tuple[int, ...]) -> int:
            if view:
                return self._tensor(shape, _part(name, place), self._role(instruction, place, prefix), reads[0])
            return self._made(instruction, shape, place, prefix, after)

        value = _built(instruction.shape, make)
        cost = self.costs.of(instruction, around) if not view else None
        self.builder.op(
            name,
            instruction.opcode,
            reads,
            list(_flat(value)),
            flops=cost.flops if cost else 0,
            scope=_scope(instruction.scope),
            source=instruction.source,
            dtype=_rate(instruction, around),
            bytes_moved=cost.bytes_moved if cost else 0,
            workspace_bytes=cost.held_bytes if cost else 0,
            after=[other for other in dict.fromkeys(after) if other != name and other in self.names],
        )
        for tensor in reads:
            self.readers.setdefault(tensor, []).append(name)
        self.names.add(name)
        return value

    def _role(self, instruction: Instruction, place: tuple[int, ...], prefix: str) -> str:
        return "output" if (f"{prefix}{instruction.name}", place) in self.outputs else "activation"

    def _made(
        self, instruction: Instruction, shape: Shape, place: tuple[int, ...], prefix: str, after: list[str]
    ) -> int:
        """A new tensor; a result that the program writes over a parameter lies in its memory, once all have read it."""
        name = _part(f"{prefix}{instruction.name}", place)
        number = self.lands.get((f"{prefix}{instruction.name}", place))
        over = None if number is None else self.given.get(number)
        if over is None:
            return self._tensor(shape, name, self._role(instruction, place, prefix))
        after += self.readers.get(over, ())
        return self._tensor(shape, name, "state", over)


def _leaves(shape: Shape, place: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Shape]]:
    if not shape.is_tuple:
        return [(place, shape)]
    return [leaf for index, part in enumerate(shape.parts) for leaf in _leaves(part, (*place, index))]


def _built(shape: Shape, make: Callable[[Shape, tuple[int, ...]], int], place: tuple[int, ...] = ()) -> Value:
    if not shape.is_tuple:
        return make(shape, place)
    return [_built(part, make, (*place, index)) for index, part in enumerate(shape.parts)]


def _flat(value: Value) -> list[int]:
    return [tensor for part in value for tensor in _flat(part)] if isinstance(value, list) else [value]


def _part(name: str, place: tuple[int, ...]) -> str:
    return ".".join([name, *map(str, place)])


def _source_of(
    instruction: Instruction, place: tuple[int, ...], around: Mapping[str, Instruction]
) -> tuple[str, tuple[int, ...]]:
    """The instruction that makes a part of a result, and which part of its own that is."""
    for _ in range(len(around)):
        if instruction.opcode == "tuple" and place and place[0] < len(instruction.operands):
            following, place = instruction.operands[place[0]], place[1:]
        elif instruction.opcode == "get-tuple-element" and instruction.operands:
            following, place = instruction.operands[0], (instruction.number, *place)
        else:
            break
        if following not in around:
            break
        instruction = around[following]
    return instruction.name, place


def _fitting(value: Value, shape: Shape, opcode: str) -> Value:
    """What a "-done" hands on of the tuple that its "-start" made: the result, which stands after the operands."""
    if not isinstance(value, list) or opcode in _SAME[:3] or shape.is_tuple:
        return value
    return value[1] if len(value) > 1 else value[0] if value else value


def _scope(text: str) -> str:
    """jax's name of an op without the name of the primitive: "jit(step)/layer/dot_general" is of layer."""
    parts = [part for part in text.split("/")[:-1] if part and not part.startswith("jit(")]
    return ".".join(part.replace(".", "_") for part in parts)


def _rate(instruction: Instruction, around: Mapping[str, Instruction]) -> str:
    shapes = [around[name].shape for name in instruction.operands if name in around]
    kinds = [leaf.dtype for shape in (*shapes, instruction.shape) for leaf in shape.leaves()]
    return next((kind for kind in kinds if "float" in kind), next(iter(kinds), "float32"))
