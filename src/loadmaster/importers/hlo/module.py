"""An XLA program as its texts and protos say it: computations of instructions, each with a shape.

What the three readers (`text`, `proto`, `stablehlo`) have in common, and all that `graph` and `cost` look at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadmaster.errors import ImportFailed

# XLA's short names, and the bits of one element.
_DTYPES = {
    "pred": ("bool", 8), "s1": ("int8", 8), "s2": ("int8", 8), "s4": ("int8", 4), "s8": ("int8", 8),
    "s16": ("int16", 16), "s32": ("int32", 32), "s64": ("int64", 64), "u1": ("uint8", 8), "u2": ("uint8", 8),
    "u4": ("uint8", 4), "u8": ("uint8", 8), "u16": ("uint16", 16), "u32": ("uint32", 32), "u64": ("uint64", 64),
    "f16": ("float16", 16), "bf16": ("bfloat16", 16), "f32": ("float32", 32), "f64": ("float64", 64),
    "f4e2m1fn": ("float8_e4m3fn", 4), "f8e5m2": ("float8_e5m2", 8), "f8e4m3": ("float8_e4m3fn", 8),
    "f8e4m3fn": ("float8_e4m3fn", 8), "f8e4m3b11fnuz": ("float8_e4m3fn", 8), "f8e4m3fnuz": ("float8_e4m3fn", 8),
    "f8e5m2fnuz": ("float8_e5m2", 8), "f8e3m4": ("float8_e4m3fn", 8), "f8e8m0fnu": ("float8_e4m3fn", 8),
    "c64": ("complex64", 64), "c128": ("complex128", 128), "token": ("token", 0), "opaque": ("opaque", 0),
}  # fmt: skip


def is_dtype(name: str) -> bool:
    """Whether XLA calls an element type so, such as "bf16"."""
    return name in _DTYPES


@dataclass(frozen=True, slots=True)
class Shape:
    """Of an array, or of a tuple of shapes.

    Attributes:
        kind: "f32", or "tuple".
    """

    kind: str
    dims: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()

    @property
    def is_tuple(self) -> bool:
        return self.kind == "tuple"

    @property
    def dtype(self) -> str:
        return _DTYPES[self.kind][0]

    @property
    def elements(self) -> int:
        return sum(part.elements for part in self.parts) if self.is_tuple else math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        if self.is_tuple:
            return sum(part.nbytes for part in self.parts)
        return -(-math.prod(self.dims) * _DTYPES[self.kind][1] // 8)

    def leaves(self) -> Iterator[Shape]:
        if self.is_tuple:
            for part in self.parts:
                yield from part.leaves()
        else:
            yield self


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """How a convolution or a pooling looks at one axis of its input.

    Attributes:
        size: of the window.
        stride: of its steps.
        pad_low, pad_high: elements before and after the axis; negative ones cut it.
        input_dilation, window_dilation: from one element to the next, of the input and within the window.
    """

    size: int = 1
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    input_dilation: int = 1
    window_dilation: int = 1


@dataclass(slots=True)
class Instruction:
    """One line of a computation, as text or protocol buffer has it.

    Attributes:
        called: computations: of a while its condition and its body.
        number: of a parameter; index of a get-tuple-element.
        contracted: axes of the left operand that a dot sums over.
        labels: of a convolution's axes, such as b01f_01io->b01f.
        groups: of the batch of a convolution.
        trips: of a while, where it says so.
        value: of a constant that is one whole number.
        compares: LT and so on.
    """

    name: str
    opcode: str
    shape: Shape
    operands: Sequence[str]
    called: Sequence[str] = ()
    number: int = 0
    contracted: Sequence[int] = ()
    windows: Sequence[AxisWindow] = ()
    labels: str = ""
    groups: int = 1
    trips: int | None = None
    after: Sequence[str] = ()
    scope: str = ""
    source: str = ""
    value: int | None = None
    compares: str = ""


@dataclass(slots=True)
class Computation:
    """A named list of instructions; one of them is the result."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    root: str = ""

    def by_name(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @property
    def result(self) -> Instruction:
        return next(i for i in self.instructions if i.name == self.root)

    def parameters(self) -> list[Instruction]:
        return sorted((i for i in self.instructions if i.opcode == "parameter"), key=lambda i: i.number)


@dataclass(slots=True)
class HloModule:
    """Computations by name; the program is the entry.

    Attributes:
        aliases: place in the result -> parameter it overwrites.
    """

    name: str
    computations: Mapping[str, Computation]
    entry: str
    aliases: Mapping[tuple[int, ...], int] = field(default_factory=dict)

    def called(self, name: str, by: str) -> Computation:
        found = self.computations.get(name)
        if found is None:
            raise ImportFailed(
                f"'{by}' calls the computation '{name}', which is not there", self.name, "give the whole module"
            )
        return found
