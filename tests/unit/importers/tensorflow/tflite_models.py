"""Three small TFLite models, written byte by byte: a chain, branches that each hold much for a while, a convnet."""

from __future__ import annotations

import struct
from typing import Any

Fields = dict[int, tuple[str, Any]]  # field -> kind and value


class Writer:
    """Writes tables with what they point to behind them, as offsets want it."""

    def __init__(self) -> None:
        self.raw = bytearray(b"\0\0\0\0TFL3")

    def align(self, size: int, ahead: int = 0) -> None:
        while (len(self.raw) + ahead) % size:
            self.raw.append(0)

    def point(self, place: int) -> None:
        struct.pack_into("<I", self.raw, place, len(self.raw) - place)

    def table(self, fields: Fields, at: int) -> None:
        """Writes a table, and at `at` the offset to it."""
        self.align(4)
        layout = len(self.raw)
        count = max(fields, default=-1) + 1
        self.raw += struct.pack("<HH", 4 + 2 * count, 4 + 4 * len(fields)) + b"\0\0" * count
        self.align(4)
        self.point(at)
        table = len(self.raw)
        self.raw += struct.pack("<i", table - layout) + b"\0\0\0\0" * len(fields)
        for position, (field, (kind, value)) in enumerate(sorted(fields.items())):
            place = table + 4 + 4 * position
            struct.pack_into("<H", self.raw, layout + 4 + 2 * field, place - table)
            if len(kind) == 1:
                struct.pack_into(f"<{kind}", self.raw, place, value)
            else:
                self.child(kind, value, place)

    def child(self, kind: str, value: Any, place: int) -> None:
        if kind == "table":
            self.table(value, place)
            return
        data = value.encode() if kind == "text" else value
        self.align(16 if kind == "bytes" else 4, 4 if kind == "bytes" else 0)
        self.point(place)
        self.raw += struct.pack("<I", len(data))
        if kind == "ints":
            self.raw += struct.pack(f"<{len(data)}i", *data)
        elif kind == "tables":
            start = len(self.raw)
            self.raw += b"\0\0\0\0" * len(data)
            for number, fields in enumerate(data):
                self.table(fields, start + 4 * number)
        else:
            self.raw += data + (b"\0" if kind == "text" else b"")


class Model:
    def __init__(self) -> None:
        self.tensors: list[Fields] = []
        self.buffers: list[Fields] = [{}]
        self.codes: list[int] = []
        self.operators: list[Fields] = []
        self.inputs: list[int] = []

    def tensor(self, dims: list[int], data: bytes | None = None, kind: int = 0) -> int:
        buffer = 0
        if data is not None:
            self.buffers.append({0: ("bytes", data)})
            buffer = len(self.buffers) - 1
        name = f"t{len(self.tensors)}"
        self.tensors.append({0: ("ints", dims), 1: ("b", kind), 2: ("I", buffer), 3: ("text", name)})
        return len(self.tensors) - 1

    def given(self, dims: list[int]) -> int:
        """An input; its sizes of -1 are open, and stand as 1 in the file."""
        self.inputs.append(self.tensor([max(size, 1) for size in dims]))
        if -1 in dims:
            self.tensors[-1][7] = ("ints", dims)
        return self.inputs[-1]

    def numbers(self, values: list[int]) -> int:
        return self.tensor([len(values)], struct.pack(f"<{len(values)}i", *values), kind=2)

    def weight(self, dims: list[int], scale: float = 0.1) -> int:
        count = 1
        for n in dims:
            count *= n
        values = [scale * ((7 * i) % 11 - 5) for i in range(count)]
        return self.tensor(dims, struct.pack(f"<{count}f", *values))

    def op(self, code: int, inputs: list[int], dims: list[int], options: tuple[int, Fields] | None = None) -> int:
        if code not in self.codes:
            self.codes.append(code)
        made = self.tensor(dims)
        fields: Fields = {0: ("I", self.codes.index(code)), 1: ("ints", inputs), 2: ("ints", [made])}
        if options:
            fields |= {3: ("B", options[0]), 4: ("table", options[1])}
        self.operators.append(fields)
        return made

    def part(self, outputs: list[int]) -> Fields:
        return {
            0: ("tables", self.tensors),
            1: ("ints", self.inputs),
            2: ("ints", outputs),
            3: ("tables", self.operators),
            4: ("text", "main"),
        }

    def body(self) -> Model:
        """Of a branch or a loop: it shares buffers and codes."""
        inner = Model()
        inner.buffers, inner.codes = self.buffers, self.codes
        return inner

    def written(self, outputs: list[int], bodies: tuple[Fields, ...] = ()) -> bytes:
        codes = [{0: ("b", min(code, 127)), 2: ("i", 1), 3: ("i", code)} for code in self.codes]
        writer = Writer()
        model = {
            0: ("I", 3),
            1: ("tables", codes),
            2: ("tables", [self.part(outputs), *bodies]),
            3: ("text", "made for a test"),
            4: ("tables", self.buffers),
        }
        writer.table(model, 0)
        return bytes(writer.raw)


ADD, CONCATENATION, CONV_2D, FULLY_CONNECTED, RELU, TANH, SUM = 0, 2, 3, 9, 19, 28, 74


def chain() -> bytes:
    m = Model()
    x = m.given([1, 16])
    for width in (32, 32, 8):
        before = 16 if x == 0 else 32
        x = m.op(FULLY_CONNECTED, [x, m.weight([width, before]), m.weight([width])], [1, width], (8, {0: ("b", 0)}))
        x = m.op(RELU, [x], [1, width])
    return m.written([x])


def branchy(branches: int = 6, copies: int = 32) -> bytes:
    """Each branch widens its input, works on it and adds it up; written breadth first, so that all are wide at once."""
    m = Model()
    x = m.given([1, 64])
    axis = m.tensor([1], struct.pack("<i", 0), kind=2)
    wide = []
    for _ in range(branches):
        narrow = m.op(TANH, [x], [1, 64])
        wide.append(m.op(CONCATENATION, [narrow] * copies, [copies, 64], (10, {0: ("i", 0)})))
    wide = [m.op(TANH, [part], [copies, 64]) for part in wide]
    sums = [m.op(SUM, [part, axis], [64], (27, {0: ("B", 0)})) for part in wide]
    total = sums[0]
    for part in sums[1:]:
        total = m.op(ADD, [total, part], [64], (11, {}))
    return m.written([total])


def convnet() -> bytes:
    m = Model()
    x = m.given([1, 8, 8, 3])
    options = (1, {0: ("b", 0), 1: ("i", 1), 2: ("i", 1), 4: ("i", 1), 5: ("i", 1)})
    first = m.op(CONV_2D, [x, m.weight([8, 3, 3, 3]), m.weight([8])], [1, 8, 8, 8], options)
    left = m.op(CONV_2D, [first, m.weight([8, 3, 3, 8]), m.weight([8])], [1, 8, 8, 8], options)
    right = m.op(RELU, [first], [1, 8, 8, 8])
    left = m.op(RELU, [left], [1, 8, 8, 8])
    return m.written([m.op(ADD, [left, right], [1, 8, 8, 8], (11, {}))])


MODELS = {"chain": chain, "branchy": branchy, "convnet": convnet}
