"""ONNX models as graphs: one op for every node that costs something in a step.

Initializers and whatever is computed from constants alone are weights; Reshape and its like are views. ONNX has no
training step: the graph is what the file holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadmaster.errors import ImportFailed, InvalidSetting, MissingExtra, UnreadableFile
from loadmaster.files.text import PathLike, checked_path
from loadmaster.graph import Graph, GraphBuilder

try:
    import onnx
except ModuleNotFoundError as error:
    raise MissingExtra.of("onnx", "onnx", "reading an ONNX model") from error

from loadmaster.importers.onnx.shapes import (
    Scope,
    TypedShape,
    bind_dims,
    bind_values,
    bodies_of,
    has_broken_text,
    inlined,
    is_open,
    is_scalar,
    known_of,
    lean,
    name_of_axis,
)
from loadmaster.importers.onnx.walk import OnnxOp, kind_of, label_of, scope_of, source_of, walk


def load_onnx(model: PathLike | onnx.ModelProto, *, dims: Mapping[str, int] | None = None, name: str = "") -> Graph:
    """The graph of an .onnx file or of a model in memory.

    `dims` gives by name: sizes of open axes ("batch", or "x.2" for axis 2 of input x where the file has no name),
    values of inputs that are a single whole number, and rounds of loops that do not say them. Weights are never read,
    so external data may be missing.
    """
    if isinstance(model, onnx.ModelProto):
        return _import(model, dims or {}, name or model.graph.name or "onnx")
    path = checked_path(model)
    return _import(_read(path), dims or {}, name or path.name.removesuffix(".onnx"))


def _read(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load_model(str(path), format="protobuf", load_external_data=False)
    except OSError as error:
        raise UnreadableFile(f"'{path}' cannot be read: {error.strerror}", "", "check its permissions") from None
    except Exception:  # protobuf's own DecodeError, which differs between its implementations
        raise UnreadableFile(f"'{path}' is not an ONNX file", "", "is it cut short, or of another format?") from None


def _import(model: onnx.ModelProto, dims: Mapping[str, int], name: str) -> Graph:
    for label, size in dims.items():
        if type(size) is not int or not 0 < size < 2**31:
            raise InvalidSetting(f"dimension '{label}' is {size!r}", name, "give a whole number above 0")
    if not model.graph.node:
        raise ImportFailed("the model has no ops", name, "is it an ONNX model, and was it exported whole?")
    if has_broken_text(model.graph):
        raise UnreadableFile("some of its names are not valid UTF-8", name, "is the file damaged? export it again")
    small = inlined(lean(model), name)
    _check_names(small.graph, dims, name)
    bind_values(small, dims)
    bind_dims(small, dims, name)
    scope = Scope(small.graph, small.opset_import)
    for value in small.graph.input:
        known = known_of(value.type)
        if known and value.name not in scope.known:
            scope.known[value.name] = known
    calls = walk(small.graph, scope, dims, name)
    return _OnnxWriter(name, scope, small.graph).write(calls)


def _check_names(graph: onnx.GraphProto, dims: Mapping[str, int], name: str) -> None:
    """Refuses a size for something that the model does not leave open."""
    known: set[str] = set()
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if is_open(dim):
                known.add(name_of_axis(dim, value.name, axis))
    known.update(value.name for value in graph.input if is_scalar(value))
    known.update(_loops(graph))
    for label in dims:
        if label not in known:
            choices = f"it leaves open: {', '.join(sorted(known))}" if known else "it leaves none open: leave it out"
            raise InvalidSetting(f"the model has no open dimension '{label}'", name, choices)


def _loops(graph: onnx.GraphProto) -> Iterator[str]:
    """Labels of all loops, also of those in bodies."""
    for node in graph.node:
        if node.op_type == "Loop":
            yield label_of(node)
        for body in bodies_of(node):
            yield from _loops(body)


class _OnnxWriter:
    """Puts calls into a GraphBuilder; tensors come in with the first op that touches them."""

    def __init__(self, name: str, scope: Scope, graph: onnx.GraphProto) -> None:
        self.name, self.scope, self.builder = name, scope, GraphBuilder(name)
        self.outputs = {value.name for value in graph.output}
        self.index: dict[str, int] = {}
        self.taken: set[str] = set()
        self.number: dict[str, int] = {}  # of the next op of that label

    def write(self, calls: list[OnnxOp]) -> Graph:
        for call in calls:
            if not call.is_constant or self.outputs & call.made.keys():
                self._add(call)
        if not self.taken:
            raise ImportFailed(
                "nothing depends on an input: every op is a constant", self.name, "give a model with inputs"
            )
        return self.builder.build()

    def _add(self, call: OnnxOp) -> None:
        label = self._unique(label_of(call.node))
        reads = [self._read(name) for name in call.reads]
        for weight, known in (call.weights or {}).items():
            reads.append(self._tensor(f"{label}/{weight}", known, "weight"))
        alias = None if call.view_of is None else self.index[call.view_of]
        made = [self._tensor(name, known, self._role(name), alias) for name, known in call.made.items()]
        self.builder.op(
            label,
            kind_of(call.node),
            reads,
            made,
            flops=call.flops,
            scope=scope_of(call.node),
            source=source_of(call.node),
            dtype=self._dtype(call),
            bytes_moved=call.bytes_moved,
            workspace_bytes=call.workspace_bytes,
            assumed=call.assumed,
        )

    def _unique(self, label: str) -> str:
        name, number = label, self.number.get(label, 2)
        while name in self.taken:
            name, number = f"{label}_{number}", number + 1
        self.taken.add(name)
        self.number[label] = number
        return name

    def _role(self, name: str) -> str:
        return "output" if name in self.outputs else "activation"

    def _read(self, name: str) -> int:
        if name in self.index:
            return self.index[name]
        return self._tensor(name, self.scope.known[name], "weight" if name in self.scope.constant else "input")

    def _tensor(self, name: str, known: TypedShape, role: str, alias: int | None = None) -> int:
        settings: dict[str, Any] = {"name": name, "shape": known.shape, "dtype": known.dtype, "alias_of": alias}
        self.index[name] = self.builder.tensor(known.nbytes, role, **settings)
        return self.index[name]

    def _dtype(self, call: OnnxOp) -> str:
        """Of its first floating-point result; of what it reads when it makes numbers of another kind."""
        kinds = [known.dtype for known in call.made.values()] + [self.scope.known[name].dtype for name in call.reads]
        return next((kind for kind in kinds if "float" in kind), next(iter(kinds), "float32"))
