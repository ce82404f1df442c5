"""A TFLite file as tables of tensors and ops; values of its small constants are read when a size depends on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import ImportFailed, UnreadableFile
from loadmaster.importers.tensorflow.flatbuffer import Buffer, FlatTable
from loadmaster.importers.tensorflow.tflite_schema import OPS, TYPES

Dims = tuple[int, ...]
Values = NDArray[np.generic]
MOST_VALUES = 4096  # elements of a constant that can be a size, axes, or paddings
_MOST_AXES = 16
_READABLE = {"float32", "int32", "int64", "bool", "int16", "int8", "uint8", "float64", "uint32"}
OPERATORS = 3  # field of a subgraph


@dataclass(frozen=True, slots=True)
class Tensor:
    """As stored: sizes that the file leaves open stand as 1 in `dims`, and their axes in `open`."""

    name: str
    dims: Dims
    open: Dims
    dtype: str
    bits: int
    buffer: int
    constant_bytes: int
    is_variable: bool

    @property
    def is_constant(self) -> bool:
        return self.constant_bytes > 0

    def nbytes(self, dims: Dims) -> int:
        return self.constant_bytes or (math.prod(dims) * self.bits + 7) // 8


@dataclass(frozen=True, slots=True)
class Operator:
    """One call: its kind, the tensors it names (-1 where an optional one is left out) and its settings."""

    number: int
    kind: str
    inputs: Dims
    outputs: Dims
    settings: FlatTable | None

    def setting(self, field: int, kind: str = "i", default: int = 0) -> int:
        return default if self.settings is None else self.settings.number(field, kind, default)

    @property
    def reads(self) -> list[int]:
        return [tensor for tensor in self.inputs if tensor >= 0]

    @property
    def makes(self) -> list[int]:
        return [tensor for tensor in self.outputs if tensor >= 0]


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A model, or the body of a branch or loop: its ops in the order in which they run."""

    table: FlatTable
    tensors: list[Tensor]
    operators: list[Operator]
    inputs: list[int]
    outputs: list[int]


class TfliteModel:
    """The tables of a file, each checked as it is read.

    Raises:
        UnreadableFile: it is no TFLite file, or is cut short.
        ImportFailed: an op names tensors that are not there, or a tensor has a type nobody knows.
    """

    def __init__(self, raw: bytes, where: str) -> None:
        self.raw, self.where = raw, where
        if raw[4:8] != b"TFL3":
            raise UnreadableFile(f"'{where}' is no TFLite model", where, "it must have TFL3 in bytes 4 to 8")
        self._root = Buffer(raw, where).root()
        if not self._root.tables(2):
            raise UnreadableFile("it has no subgraph", where, "is it cut short?")

    @cached_property
    def subgraphs(self) -> list[Subgraph]:
        return [self._subgraph(table) for table in self._root.tables(2)]

    @cached_property
    def _codes(self) -> list[str]:
        return [_kind(code) for code in self._root.tables(1)]

    @cached_property
    def _buffers(self) -> list[tuple[int, int]]:
        """Where the bytes of each lie, and how many there are. Those of large files lie behind the tables."""
        found = []
        for table in self._root.tables(4):
            start, count = table.vector(0, 1)
            found.append((start, count) if count else (table.number(1, "Q"), table.number(2, "Q")))
        return found

    def _subgraph(self, table: FlatTable) -> Subgraph:
        tensors = [self._tensor(tensor) for tensor in table.tables(0)]
        operators = [self._operator(number, op, len(tensors)) for number, op in enumerate(table.tables(OPERATORS))]
        inputs, outputs = table.numbers(1), table.numbers(2)
        if not all(0 <= tensor < len(tensors) for tensor in (*inputs, *outputs)):
            raise ImportFailed("an input or output of the model is no tensor of it", self.where, "is it damaged?")
        return Subgraph(table, tensors, operators, inputs, outputs)

    def _tensor(self, table: FlatTable) -> Tensor:
        dims, signature, kind = table.numbers(0), table.numbers(7), table.number(1, "b")
        if not 0 <= kind < len(TYPES):
            fix = "write the model again with a converter of this year"
            raise ImportFailed(f"tensor '{table.text(3)}' has the unknown type {kind}", self.where, fix)
        said = signature if len(signature) == len(dims) else dims
        opened = tuple(axis for axis, size in enumerate(said) if size < 0)
        stored = tuple(max(size, 1) if axis in opened else max(size, 0) for axis, size in enumerate(dims))
        buffer = table.number(2, "I")
        constant = self._buffers[buffer][1] if 0 < buffer < len(self._buffers) else 0
        dtype, bits = TYPES[kind]
        return Tensor(table.text(3), stored, opened, dtype, bits, buffer, constant, bool(table.number(5, "B")))

    def _operator(self, number: int, table: FlatTable, tensors: int) -> Operator:
        code, inputs, outputs = table.number(0, "I"), tuple(table.numbers(1)), tuple(table.numbers(2))
        if code >= len(self._codes) or any(tensor >= tensors for tensor in (*inputs, *outputs)):
            raise ImportFailed(f"op {number} names what is not there", self.where, "is the model damaged?")
        return Operator(number, self._codes[code], inputs, outputs, table.table(4))

    def values(self, tensor: Tensor) -> Values | None:
        """Of a constant, where it is small and of a plain type."""
        count = math.prod(tensor.dims)
        if tensor.dims == (0,):
            return np.empty(0, np.int64)  # "no axes", which has no bytes
        if (
            not tensor.is_constant
            or tensor.dtype not in _READABLE
            or count > MOST_VALUES
            or len(tensor.dims) > _MOST_AXES
        ):
            return None
        start, size = self._buffers[tensor.buffer]
        if size != count * tensor.bits // 8 or start + size > len(self.raw):
            return None
        return np.frombuffer(self.raw, np.dtype(tensor.dtype).newbyteorder("<"), count, start).reshape(tensor.dims)


def _kind(code: FlatTable) -> str:
    number = max(code.number(0, "b"), code.number(3))
    if number == OPS.index("CUSTOM"):
        return code.text(1) or "CUSTOM"
    return OPS[number] if 0 <= number < len(OPS) else f"BUILTIN_{number}"
