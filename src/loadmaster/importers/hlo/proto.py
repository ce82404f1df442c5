"""Serialized HLO protos: HloModuleProto, or HloProto, which holds one. Field numbers are those of xla/service/hlo.proto
and xla/xla_data.proto."""

from __future__ import annotations

import json
from contextlib import suppress

from loadmaster.errors import UnreadableFile
from loadmaster.importers.hlo.module import AxisWindow, Computation, HloModule, Instruction, Shape
from loadmaster.importers.wire import Message, broken

# PrimitiveType
_KINDS = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 15: "c64", 14: "opaque", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4",
    22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3",
    29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
_TUPLE = 13
_MOST_DEPTH = 50  # of shapes within shapes: a guard against damaged files, far above any model


def looks_like_hlo(raw: bytes, where: str) -> bool:
    """Whether a protobuf is an HloModuleProto, or an HloProto around one, and not one of TensorFlow's."""
    return _module(raw, where) is not None


def _module(raw: bytes, where: str) -> Message | None:
    found = Message(raw, where)
    inner = found.fields.get(1, [b""])[0]
    candidates = [found]
    if isinstance(inner, bytes):
        with suppress(UnreadableFile):
            candidates.append(Message(inner, where))
    return next((candidate for candidate in candidates if _has_computations(candidate)), None)


def _has_computations(message: Message) -> bool:
    """Field 3 of a module holds computations: a name, instructions, and the number of the one that is the result."""
    first = message.fields.get(3, [b""])[0]
    if not isinstance(first, bytes) or not first:
        return False
    try:
        computation = Message(first, message.where)
        instruction = computation.messages(2)[0]
    except (UnreadableFile, IndexError):
        return False
    return 6 in computation.fields and 3 in instruction.fields


def parse_hlo_proto(raw: bytes, where: str) -> HloModule:
    """A module from the protocol buffer of XLA (HloModuleProto, or an HloProto around it)."""
    module = _module(raw, where)
    if module is None:
        raise broken(where, "there is no HLO module in it")
    parts = module.messages(3)
    names = {part.number(5): part.text(1) for part in parts}
    orders = {entry.number(1): entry.message(2).numbers(1) for entry in module.message(7).messages(1)}
    computations = {}
    for part in parts:
        computation = _computation(part, names, orders.get(part.number(5)), where)
        computations[computation.name] = computation
    aliases = {}
    for entry in module.message(8).messages(1):
        aliases[tuple(entry.numbers(1))] = entry.number(2)
    entry_name = names.get(module.number(6), module.text(2))
    return HloModule(module.text(1) or "hlo", computations, entry_name, aliases)


def _computation(part: Message, names: dict[int, str], order: list[int] | None, where: str) -> Computation:
    messages = part.messages(2)
    ids = {message.number(35): message.text(1) for message in messages}
    made = {message.number(35): _instruction(message, ids, names, where) for message in messages}
    if order is not None and set(order) == set(made):
        ordered = [made[number] for number in order]
    else:
        ordered = list(made.values())
    if not ordered:
        raise broken(where, f"computation '{part.text(1)}' is empty")
    return Computation(part.text(1), ordered, ids.get(part.number(6), ordered[-1].name))


def _instruction(message: Message, ids: dict[int, str], names: dict[int, str], where: str) -> Instruction:
    opcode, metadata = message.text(2), message.message(7)
    made = Instruction(message.text(1), opcode, _shape(message.message(3), where), ())
    made.operands = [ids.get(number, f"#{number}") for number in message.numbers(36)]
    made.called = [names.get(number, f"#{number}") for number in message.numbers(38)]
    made.after = [ids[number] for number in message.numbers(37) if number in ids]
    made.number = message.number(9) if opcode == "parameter" else message.number(13)
    made.scope = metadata.text(2)
    if metadata.text(3):
        made.source = f"{metadata.text(3).rpartition('/')[2]}:{metadata.number(4)}"
    if opcode == "dot":
        made.contracted = message.message(30).numbers(1)
    elif opcode == "while":
        made.called = made.called[::-1]  # body, then condition
        made.trips = _trips(message.raw(43))
    elif opcode == "compare":
        made.compares = message.text(63)
    elif opcode == "constant":
        made.value = _whole(message.message(8))
    elif 15 in message.fields:
        made.windows = [_window(axis) for axis in message.message(15).messages(1)]
        made.labels = _labels(message.message(16), len(made.windows))
        made.groups = message.number(61) or 1
    return made


def _shape(message: Message, where: str, depth: int = 0) -> Shape:
    kind = message.number(2)
    if kind == _TUPLE:
        if depth > _MOST_DEPTH:
            raise broken(where, "a tuple is nested too deeply")
        return Shape("tuple", (), tuple(_shape(part, where, depth + 1) for part in message.messages(4)))
    if kind not in _KINDS:
        raise broken(where, f"a shape has the unknown type {kind}")
    dims = message.numbers(3)
    if any(size < 0 for size in dims):
        raise broken(where, f"a shape has the size {min(dims)}")
    return Shape(_KINDS[kind], tuple(dims))


def _window(axis: Message) -> AxisWindow:
    return AxisWindow(
        axis.number(1, 1), axis.number(2, 1), axis.number(3), axis.number(4), axis.number(6, 1), axis.number(5, 1)
    )


def _labels(axes: Message, rank: int) -> str:
    """ConvolutionDimensionNumbers as the text has them."""

    def row(letters: str, first: int, second: int, spatial: int) -> str:
        row = {axes.number(first): letters[0], axes.number(second): letters[1]}
        row |= {place: str(axis) for axis, place in enumerate(axes.numbers(spatial))}
        return "".join(row.get(place, "?") for place in range(rank + 2))

    return f"{row('bf', 7, 8, 11)}_{row('io', 3, 4, 6)}->{row('bf', 9, 10, 12)}"


def _trips(raw: bytes) -> int | None:
    """Of the backend_config of a loop, which is JSON."""
    try:
        count = json.loads(raw)["known_trip_count"]["n"]
        return int(count) if str(count).isdecimal() and len(str(count)) < 16 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _whole(literal: Message) -> int | None:
    """A constant that is one number: LiteralProto.s32s or s64s."""
    for field in (4, 5):
        values = literal.numbers(field) if field in literal.fields else []
        if len(values) == 1:
            return values[0]
    return None
