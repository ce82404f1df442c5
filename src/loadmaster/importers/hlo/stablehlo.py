"""StableHLO text, as `lowered.as_text()` has it: functions of one op a line, loops and cases with regions.

Op names become those of HLO, so that one count of costs serves both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from loadmaster.errors import UnreadableFile
from loadmaster.importers.hlo.module import AxisWindow, Computation, HloModule, Instruction, Shape, is_dtype

_FUNCTION = re.compile(r"\s*func\.func\s+(public\s+|private\s+)?@\"?([\w.\-$]+)\"?\s*\((.*)$")
_OP = re.compile(
    r"\s*(?:(%[\w\-.$]+)(?::(\d{1,4}))?\s*=\s*)?\"?((?:stablehlo|mhlo|chlo|func|sdy|shape|tensor|arith)\.[\w.]+|call|return)\"?"
)
_TENSOR = re.compile(r"tensor<([^<>]*(?:<[^<>]*>)?[^<>]*)>")
_OPERAND = re.compile(r"%[\w\-.$]+(?:#\d{1,4})?")
_CALLEE = re.compile(r"@\"?([\w.\-$]+)\"?")
_ARGUMENT = re.compile(r"(%[\w\-.$]+)\s*:\s*(tensor<(?:[^<>]|<[^<>]*>)*>)")
_BOUND = re.compile(r"(%[\w\-.$]+)\s*=\s*(%[\w\-.$]+(?:#\d{1,4})?)")
_WHOLE = re.compile(r"dense<(-?\d{1,18})>")
_LIST = re.compile(r"\[([\d,\s]*)\]")
_KINDS = {"i1": "pred", "i4": "s4", "i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64",
          "ui4": "u4", "ui8": "u8", "ui16": "u16", "ui32": "u32", "ui64": "u64"}  # fmt: skip
_OPCODES = {"dot_general": "dot", "broadcast_in_dim": "broadcast", "while": "while", "case": "conditional",
            "if": "conditional", "optimization_barrier": "optimization-barrier"}  # fmt: skip


@dataclass
class _Block:
    """A region being read: of a function, or of a loop or case inside one."""

    computation: Computation
    owner: Instruction | None = None
    names: dict[str, str] = field(default_factory=dict)  # of the text -> of the instruction


def parse_stablehlo(text: str, where: str) -> HloModule:
    """A module from the text of StableHLO, in MLIR's pretty form."""
    return _StablehloReader(text, where).read()


class _StablehloReader:
    def __init__(self, text: str, where: str) -> None:
        self.lines, self.where = text.splitlines(), where
        self.computations: dict[str, Computation] = {}
        self.functions: list[str] = []
        self.blocks: list[_Block | None] = []  # None: a brace that holds no ops
        self.number = 0

    def read(self) -> HloModule:
        for line in self.lines:
            self.number += 1
            code = line.partition("//")[0].rstrip() if '"' not in line else line.rstrip()
            if code.strip():
                self._line(code)
        if not self.functions:
            raise UnreadableFile("there is no func.func in it", self.where, "give StableHLO text")
        entry = "main" if "main" in self.functions else self.functions[0]
        for name, computation in self.computations.items():
            if not computation.instructions:
                raise UnreadableFile(f"function '{name}' is empty", self.where, "is the file cut short?")
        return HloModule(entry, self.computations, entry)

    def _line(self, line: str) -> None:
        function = _FUNCTION.match(line)
        if function:
            self._function(function[2], function[3])
            return
        block = self._block()
        op = _OP.match(line)
        if line.lstrip().startswith("}") or (block is not None and not op):
            self._edge(line)
            return
        if op is None or block is None:
            opened = line.count("{") - line.count("}")
            self.blocks += [None] * max(opened, 0)
            return
        self._op(block, op, line[op.end() :])

    def _block(self) -> _Block | None:
        return next((block for block in reversed(self.blocks) if block is not None), None)

    def _function(self, name: str, rest: str) -> None:
        computation = self.computations[name] = Computation(name)
        self.functions.append(name)
        block = _Block(computation)
        for number, (argument, kind) in enumerate(_ARGUMENT.findall(rest.partition(") ->")[0])):
            self._add(block, argument, Instruction("", "parameter", self._shape(kind), (), number=number))
        self.blocks.append(block)

    def _add(self, block: _Block, name: str, instruction: Instruction) -> None:
        instruction.name = name.removeprefix("%") if name else f"op{len(block.computation.instructions)}"
        taken = {i.name for i in block.computation.instructions[-1:]}
        if instruction.name in taken:
            instruction.name += "_"
        block.names[name] = instruction.name
        block.computation.instructions.append(instruction)
        block.computation.root = instruction.name

    def _edge(self, line: str) -> None:
        """A line that ends a region, or goes from one to the next: "} do {", "}, {", "})"."""
        for letter in line.strip():
            if letter == "}" and self.blocks:
                self.blocks.pop()
            elif letter == "{":
                owner = self._owner
                self.blocks.append(self._region(owner) if owner is not None else None)
        if line.strip().endswith("}") or "})" in line:
            self._owner_done()

    _owner: Instruction | None = None

    def _owner_done(self) -> None:
        block = self._block()
        if block is not None and self._owner in block.computation.instructions:
            self._owner = None

    def _region(self, owner: Instruction) -> _Block:
        outer = self._block()
        name = f"{owner.name}.region{len(owner.called)}.{len(self.computations)}"
        owner.called = [*owner.called, name]
        block = _Block(self.computations.setdefault(name, Computation(name)), owner)
        arguments = self._arguments.get(id(owner), [])
        for number, (argument, shape) in enumerate(arguments):
            self._add(block, argument, Instruction("", "parameter", shape, (), number=number))
        if outer is not None and not arguments:
            block.names.update({})
        return block

    _arguments: dict[int, list[tuple[str, Shape]]]

    def _op(self, block: _Block, op: re.Match[str], rest: str) -> None:
        kind = op[3].rpartition(".")[2]
        opcode = _OPCODES.get(kind, kind.replace("_", "-"))
        head, types = _split_types(rest)
        made = Instruction("", opcode, self._result(types), ())
        if opcode == "return":
            self._return(block, head)
            return
        if opcode == "while":
            self._loop(block, op[1] or "", made, head, rest)
            return
        made.operands = [self._resolve(block, name) for name in _OPERAND.findall(head.partition("{")[0])]
        if opcode == "call":
            made.called = _CALLEE.findall(head)[:1]
        if opcode == "constant":
            value = _WHOLE.search(head)
            made.value, made.operands = (int(value[1]) if value else None), ()
        elif opcode == "dot":
            lists = _LIST.findall(head.partition("contracting_dims")[2])
            made.contracted = _ints(lists[0]) if lists else ()
        elif opcode == "compare":
            made.compares = head.split(",")[0].split()[0] if head.split() else ""
        elif opcode == "convolution":
            made.windows, made.labels = _convolution(head)
        self._add(block, op[1] or "", made)
        if rest.rstrip().endswith("{"):
            self._owner = made
            self._arguments = {id(made): [(a, self._shape(t)) for a, t in _ARGUMENT.findall(rest)]}
            self.blocks.append(self._region(made))

    def _loop(self, block: _Block, name: str, made: Instruction, head: str, rest: str) -> None:
        bound = _BOUND.findall(head)
        made.operands = [self._resolve(block, value) for _, value in bound]
        shapes = [self._shape(kind) for kind in _types(rest.rpartition(" : ")[2])]
        made.shape = shapes[0] if len(shapes) == 1 else Shape("tuple", (), tuple(shapes))
        self._add(block, name, made)
        self._owner = made
        self._arguments = {id(made): list(zip([inner for inner, _ in bound], shapes, strict=False))}

    def _return(self, block: _Block, head: str) -> None:
        operands = [self._resolve(block, name) for name in _OPERAND.findall(head)]
        around = block.computation.by_name()
        if len(operands) == 1 or not operands:
            block.computation.root = operands[0] if operands else block.computation.root
            return
        shapes = tuple(around[name].shape for name in operands if name in around)
        self._add(block, "%return", Instruction("", "tuple", Shape("tuple", (), shapes), operands))

    def _resolve(self, block: _Block, text: str) -> str:
        """The name of the instruction that a name in the text stands for; "%0#1" takes a part of it. What a region
        reads of the function around it comes in as a parameter of its own."""
        name, _, part = text.partition("#")
        if name not in block.names:
            self._borrow(block, name)
        found = block.names[name]
        if not part:
            return found
        around = block.computation.by_name()
        shape = around[found].shape
        index = int(part)
        if not shape.is_tuple:
            return found
        if index >= len(shape.parts):
            raise self._broken(f"'{text}' is not made by any op before")
        if text not in block.names:
            element = Instruction("", "get-tuple-element", shape.parts[index], [found], number=index)
            root = block.computation.root
            self._add(block, text.replace("#", "_part"), element)
            block.names[text], block.computation.root = element.name, root
        return block.names[text]

    def _borrow(self, block: _Block, name: str) -> None:
        around = [other for other in self.blocks if other is not None and other is not block]
        outer = next((other for other in reversed(around) if name in other.names), None)
        if outer is None or block.owner is None:
            raise self._broken(f"'{name}' is not made by any op before")
        source = outer.computation.by_name()[outer.names[name]]
        number = len(block.computation.parameters())
        copied = Instruction("", "parameter", source.shape, (), number=number, value=source.value)
        if source.opcode == "constant":
            copied.opcode = "constant"
        self._add(block, name, copied)

    def _result(self, types: list[str]) -> Shape:
        shapes = [self._shape(kind) for kind in types]
        return shapes[0] if len(shapes) == 1 else Shape("tuple", (), tuple(shapes))

    def _shape(self, kind: str) -> Shape:
        match = _TENSOR.match(kind)
        if match is None:
            return Shape("token")
        plain = match[1].partition(",")[0].strip()
        *dims, element = plain.split("x") if not plain.startswith("complex") else [plain]
        element = (
            _KINDS.get(element.lower(), element.lower()).replace("complex<f32>", "c64").replace("complex<f64>", "c128")
        )
        if not is_dtype(element) or not all(size.isdecimal() and len(size) < 19 for size in dims):
            raise self._broken(f"'{kind[:60]}' is no shape that is known")
        return Shape(element, tuple(map(int, dims)))

    def _broken(self, what: str) -> UnreadableFile:
        return UnreadableFile(what, f"{self.where}, line {self.number}", "is it StableHLO text, and whole?")


def _split_types(rest: str) -> tuple[str, list[str]]:
    """What stands before the types of an op, and the types of its results."""
    head, colon, types = rest.rpartition(" : ")
    if not colon:
        return rest, []
    if "->" in types:
        types = types.rpartition("->")[2]
        return head, _types(types)
    return head, _types(types)[:1] if "(" not in types else _types(types)


def _types(text: str) -> list[str]:
    return [match[0] for match in _TENSOR.finditer(text)] or (["token"] if "token" in text else [])


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip().isdecimal() and len(part.strip()) < 10)


def _convolution(head: str) -> tuple[list[AxisWindow], str]:
    """Of "dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[0, 1]], lhs_dilate = [1]}"."""
    labels = re.search(r"\[([\w,\s]*)\]x\[([\w,\s]*)\]->\[([\w,\s]*)\]", head)
    rows = ["".join(part.strip() for part in row.split(",")) for row in labels.groups()] if labels else ["", "", ""]
    rank = max(len(rows[0]) - 2, 0)

    def axes(key: str, default: int) -> list[int]:
        found = re.search(key + r"\s*=\s*\[([\d,\s]*)\]", head)
        values = list(_ints(found[1])) if found else []
        return values if len(values) == rank else [default] * rank

    pads = re.search(r"pad\s*=\s*\[((?:\[[\d,\s\-]*\],?\s*)*)\]", head)
    lows = [int(low) for low in re.findall(r"\[\s*(-?\d{1,9})", pads[1])] if pads else []
    lows = lows if len(lows) == rank else [0] * rank
    rows_ = zip(axes("stride", 1), lows, axes("lhs_dilate", 1), axes("rhs_dilate", 1), strict=True)
    return [AxisWindow(0, s, low, 0, a, b) for s, low, a, b in rows_], f"{rows[0]}_{rows[1]}->{rows[2]}"
