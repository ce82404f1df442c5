"""Nodes of a TensorFlow graph, from the bytes or the text of a GraphDef.

Field numbers are those of tensorflow/core/framework: graph, node_def, attr_value, tensor, tensor_shape, function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import ImportFailed
from loadmaster.importers.tensorflow.textproto import Fields, number, parts, text_of
from loadmaster.importers.wire import Message

Dims = tuple[int, ...]  # -1: unknown

# DataType -> name and bytes
DTYPES = {
    1: ("float32", 4), 2: ("float64", 8), 3: ("int32", 4), 4: ("uint8", 1), 5: ("int16", 2), 6: ("int8", 1),
    7: ("string", 16), 8: ("complex64", 8), 9: ("int64", 8), 10: ("bool", 1), 11: ("int8", 1), 12: ("uint8", 1),
    13: ("int32", 4), 14: ("bfloat16", 2), 17: ("uint16", 2), 18: ("complex128", 16), 19: ("float16", 2),
    20: ("resource", 8), 21: ("variant", 8), 22: ("uint32", 4), 23: ("uint64", 8),
}  # fmt: skip
_NAMES = {
    "DT_FLOAT": 1, "DT_DOUBLE": 2, "DT_INT32": 3, "DT_UINT8": 4, "DT_INT16": 5, "DT_INT8": 6, "DT_STRING": 7,
    "DT_COMPLEX64": 8, "DT_INT64": 9, "DT_BOOL": 10, "DT_BFLOAT16": 14, "DT_UINT16": 17, "DT_HALF": 19,
    "DT_RESOURCE": 20, "DT_VARIANT": 21, "DT_UINT32": 22, "DT_UINT64": 23,
}  # fmt: skip


@dataclass(slots=True)
class Attribute:
    """The parts of an attribute that matter here.

    Attributes:
        kind: DataType.
        tensor: type, shape, values if they are whole numbers.
    """

    text: str = ""
    number: int = 0
    flag: bool = False
    kind: int = 0
    shapes: Sequence[Dims | None] = ()
    numbers: Sequence[int] = ()
    tensor: tuple[int, Dims, Sequence[int]] | None = None


@dataclass(slots=True)
class Node:
    """A node of a GraphDef.

    Attributes:
        inputs: "node", "node:1" for its second output, "^node" for one that only has to come before.
        attributes: by name; `of` gives an empty one for those that are left out.
    """

    name: str
    op: str
    inputs: Sequence[str]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def of(self, name: str) -> Attribute:
        return self.attributes.get(name, Attribute())


def from_bytes(raw: bytes, where: str) -> list[Node]:
    """Of a GraphDef. A SavedModel is refused: it holds a function for each signature, with weights elsewhere."""
    message = Message(raw, where)
    first = message.fields.get(1, [b""])[0]
    if isinstance(first, int):  # saved_model_schema_version
        fix = "export it to ONNX: python -m tf2onnx.convert --saved-model FOLDER --output model.onnx"
        raise ImportFailed("it is a SavedModel, which can hold several models", where, fix)
    return [_node(part) for part in message.messages(1)]


def _node(part: Message) -> Node:
    return Node(part.text(1), part.text(2), part.texts(3), {k: _attribute(v) for k, v in part.table(5).items()})


def _attribute(value: Message) -> Attribute:
    made = Attribute(number=value.number(3), flag=bool(value.number(5)), kind=value.number(6))
    text = value.raw(2)
    made.text = text.decode(errors="replace") if len(text) < 200 else ""
    if 7 in value.fields:
        made.shapes = [_shape(value.message(7))]
    if 8 in value.fields:
        made.tensor = _tensor(value.message(8))
    if 1 in value.fields:
        many = value.message(1)
        made.shapes = [_shape(shape) for shape in many.messages(7)] or made.shapes
        made.numbers = many.numbers(3)
    return made


def _shape(shape: Message) -> Dims | None:
    if shape.number(3):
        return None
    return tuple(max(dim.number(1), -1) for dim in shape.messages(2))


def _tensor(tensor: Message) -> tuple[int, Dims, Sequence[int]]:
    kind, dims, content = tensor.number(1), _shape(tensor.message(2)) or (), tensor.raw(4)
    values = tensor.numbers(7 if kind == 3 else 10) if kind in (3, 9) else []
    return kind, dims, _numbers_in(content, kind) or values


def _numbers_in(content: bytes, kind: int) -> list[int]:
    """The whole numbers of a small tensor that is written as its bytes."""
    if kind not in (3, 9) or len(content) > 1024:
        return []
    size = 4 if kind == 3 else 8
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    return [int.from_bytes(piece, "little", signed=True) for piece in pieces]


# Text


def from_text(fields: Fields) -> list[Node]:
    """Of a GraphDef in text form."""
    return [_text_node(part) for part in parts(fields, "node")]


def _text_node(part: Fields) -> Node:
    attributes = {}
    for entry in parts(part, "attr"):
        for value in parts(entry, "value"):
            attributes[text_of(entry, "key")] = _text_attribute(value)
    inputs = [value for value in part.get("input", ()) if isinstance(value, str)]
    return Node(text_of(part, "name"), text_of(part, "op"), inputs, attributes)


def _text_attribute(value: Fields) -> Attribute:
    made = Attribute(text_of(value, "s"), number(value, "i"), text_of(value, "b") == "true", _kind(value, "type"))
    made.shapes = [_text_shape(shape) for shape in parts(value, "shape")]
    for tensor in parts(value, "tensor"):
        shape = [_text_shape(part) or () for part in parts(tensor, "tensor_shape")] or [()]
        values = [number({"v": [item]}, "v") for name in ("int_val", "int64_val") for item in tensor.get(name, ())]
        kind, content = _kind(tensor, "dtype"), text_of(tensor, "tensor_content").encode("latin-1", "ignore")
        made.tensor = kind, shape[0], _numbers_in(content, kind) or values
    for many in parts(value, "list"):
        made.shapes = [_text_shape(shape) for shape in parts(many, "shape")] or made.shapes
        made.numbers = [number({"v": [item]}, "v") for item in many.get("i", ())]
    return made


def _kind(fields: Fields, name: str) -> int:
    value: Any = text_of(fields, name)
    return _NAMES.get(value, int(value) if value.isdecimal() and len(value) < 6 else 0)


def _text_shape(shape: Fields) -> Dims | None:
    if text_of(shape, "unknown_rank") == "true":
        return None
    return tuple(max(number(dim, "size"), -1) for dim in parts(shape, "dim"))
