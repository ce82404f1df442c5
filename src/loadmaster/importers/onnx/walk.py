"""Walks the ops of an ONNX graph in order and finds what each costs; If, Loop and Scan count as one op each.

An op with bodies costs what its bodies cost as often as they run, an If the branch that is taken, or the dearer one
where that depends on data; what bodies read of the graph around them counts as read by the op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto

from loadmaster.errors import ImportFailed
from loadmaster.importers.onnx.flops import VIEWS, flops_of, is_counted
from loadmaster.importers.onnx.shapes import Scope, TypedShape, attributes, bodies_of, fault_of, reads_of

Weights = dict[str, TypedShape]
_NEAR = 0.95  # of the arithmetic of the dearer branch: then it hardly matters which is taken


@dataclass(frozen=True)
class OnnxOp:
    """One op of a graph, with all that is known of it.

    Attributes:
        reads: tensors by name, also what its bodies read of the graph around them.
        is_constant: what it makes is the same in every step.
        view_of: its result is this tensor in another shape.
        bytes_moved: that its bodies move, where it has any.
        weights: constants inside its bodies.
        assumed: "sizes" or "arithmetic" where that is not known.
    """

    node: NodeProto
    reads: tuple[str, ...]
    made: Mapping[str, TypedShape]
    flops: int
    is_constant: bool = False
    view_of: str | None = None
    bytes_moved: int | None = None
    workspace_bytes: int = 0
    weights: Mapping[str, TypedShape] | None = None
    assumed: str = ""


def label_of(node: NodeProto) -> str:
    """What a node is called: by its name, else by its first output, else by its op."""
    return node.name or next(iter(filter(None, node.output)), node.op_type)


def kind_of(node: NodeProto) -> str:
    """The op's type, with its domain where that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def walk(graph: GraphProto, scope: Scope, trips: Mapping[str, int], where: str) -> list[OnnxOp]:
    """`trips` has the number of rounds of loops that do not say it themselves, by the loop's name."""
    inputs = {value.name for value in graph.input}
    calls = []
    for node in graph.node:
        for name in reads_of(node):
            if name not in scope.known:
                raise _unknown_read(node, name, name in inputs, where)
        call = _Control(node, scope, trips, where).call() if bodies_of(node) else _plain_call(node, scope, where)
        if not call.is_constant and not scope.unsure.isdisjoint(call.reads):
            call = replace(call, assumed="sizes")
        if call.assumed == "sizes":
            scope.unsure.update(call.made)
        scope.add(node, call.made)
        calls.append(call)
    return calls


def _unknown_read(node: NodeProto, name: str, is_input: bool, where: str) -> ImportFailed:
    if is_input:
        return ImportFailed(
            f"input '{name}' has no shape, or is no tensor", where, "export it with a shape for every input"
        )
    what = f"op '{label_of(node)}' reads '{name}', which no op before it makes"
    return ImportFailed(what, where, "ONNX wants ops in the order of their data: export the model again")


def _plain_call(node: NodeProto, scope: Scope, where: str) -> OnnxOp:
    found = scope.infer(node)
    made = {name: found[name] for name in node.output if name in found}
    for position, name in enumerate(node.output):
        if name and name not in made and (name in scope.wanted or position == 0):
            raise _unknown_size(node, name, scope, where)
    reads = [scope.known[name] if name else None for name in node.input]
    constant, view = scope.is_constant(node), _view_of(node, scope)
    if view is not None:
        made = {node.output[0]: made[node.output[0]]}
    try:
        flops = flops_of(node, reads, list(made.values())) if view is None and not constant else 0
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
        what = f"op '{label_of(node)}' does not have the operands of a {kind_of(node)}: {error}"
        raise ImportFailed(what, where, "check the model with onnx.checker.check_model") from None
    assumed = "" if constant or view or is_counted(node) else "arithmetic"
    return OnnxOp(node, tuple(dict.fromkeys(filter(None, node.input))), made, flops, constant, view, assumed=assumed)


def _unknown_size(node: NodeProto, name: str, scope: Scope, where: str) -> ImportFailed:
    if fault := fault_of(node, scope.opsets):
        what = f"op '{label_of(node)}' is no proper {kind_of(node)}: {fault}"
        return ImportFailed(what, where, "check the model with onnx.checker.check_model, and export it again")
    if "Sequence" in node.op_type or "Optional" in node.op_type:
        what = f"op '{label_of(node)}' ({kind_of(node)}) makes a sequence or an optional, which has no fixed size"
        return ImportFailed(what, where, "export the model with tensors only")
    shapes = " and ".join(str(list(scope.known[read].shape)) for read in node.input if read)
    what = f"op '{label_of(node)}' ({kind_of(node)}) reads {shapes or 'nothing'} and makes '{name}' of unknown size"
    if scope.reason and node.domain in ("", "ai.onnx"):
        return ImportFailed(f"{what}: {scope.reason}", where, "do the sizes that you gave fit the model? try others")
    because = scope.reason or "it depends on the data"
    fix = f"give '{name}' a shape in the model's value_info; onnxruntime.tools.symbolic_shape_infer knows many ops"
    return ImportFailed(f"{what}: {because}", where, fix)


def _view_of(node: NodeProto, scope: Scope) -> str | None:
    """The tensor that its result is a view of, where it only is one."""
    if not node.output or not node.input or not node.input[0] or any(name in scope.wanted for name in node.output[1:]):
        return None
    plain, data = node.domain in ("", "ai.onnx"), str(node.input[0])
    if plain and node.op_type in VIEWS:
        return data
    if plain and node.op_type == "Cast" and attributes(node).get("to") == scope.known[data].elem_type:
        return data
    if plain and node.op_type == "Dropout":
        training = node.input[2] if len(node.input) > 2 else ""
        return None if training and np.any(scope.value.get(training, True)) else data
    return None


@dataclass(frozen=True)
class _Body:
    calls: Sequence[OnnxOp]
    outputs: Sequence[TypedShape]
    weights: Weights
    known: Mapping[str, TypedShape]
    reads: Sequence[str]  # of the graph around it, by ops that run in every step
    goes_on: bool = True  # of a loop: its condition never ends it

    @property
    def flops(self) -> int:
        return sum(call.flops for call in self.calls)


@dataclass(frozen=True)
class _Control:
    """An op with bodies: it costs what its bodies cost, as often as they run."""

    node: NodeProto
    scope: Scope
    trips: Mapping[str, int]
    where: str

    def call(self) -> OnnxOp:
        kinds = {"If": self._if, "Loop": self._loop, "Scan": self._scan}
        if self.node.op_type not in kinds:
            raise self._failed(
                f"is a {kind_of(self.node)}, whose body is run we know not how often", "use If, Loop or Scan"
            )
        try:
            return kinds[self.node.op_type]()
        except (ArithmeticError, LookupError, ValueError, TypeError) as error:
            what = f"does not have the operands of a {self.node.op_type}: {error}"
            raise self._failed(what, "check the model with onnx.checker.check_model") from None

    def _failed(self, what: str, fix: str) -> ImportFailed:
        return ImportFailed(f"op '{label_of(self.node)}' {what}", self.where, fix)

    def _body(self, name: str, inputs: Sequence[TypedShape]) -> _Body:
        graph = {attribute.name: attribute.g for attribute in self.node.attribute}[name]
        scope = Scope(graph, self.scope.opsets, self.scope)
        scope.forget(value.name for value in graph.input)
        scope.known.update({value.name: known for value, known in zip(graph.input, inputs, strict=True)})
        calls = walk(graph, scope, self.trips, f"{self.where}, {name} of '{label_of(self.node)}'")
        weights: Weights = {}
        for call in calls:
            weights.update(call.weights or {})
            if not call.is_constant:
                own = [read for read in call.reads if read in scope.constant and read not in self.scope.known]
                weights.update({read: scope.known[read] for read in own})
        outputs = [scope.known[value.name] for value in graph.output]
        names = [name for call in calls if not call.is_constant for name in call.reads]
        made = {name for call in calls for name in call.made} | {value.name for value in graph.input}
        around = [name for name in (*names, *(value.name for value in graph.output)) if name not in made | set(weights)]
        return _Body(calls, outputs, weights, scope.known, around, _goes_on(graph, scope))

    def _made(self, outputs: Iterable[TypedShape]) -> dict[str, TypedShape]:
        return {name: known for name, known in zip(self.node.output, outputs, strict=False) if name}

    def _finish(
        self, bodies: Sequence[_Body], dear: _Body, rounds: int, outputs: Iterable[TypedShape], assumed: str = ""
    ) -> OnnxOp:
        weights: Weights = {}
        for number, body in enumerate(bodies):  # branches may call different weights the same
            weights |= {f"{name}.{number}" if name in weights else name: w for name, w in body.weights.items()}
        guessed = {call.assumed for call in dear.calls} - {""}
        moved, held = _traffic(dear)
        return OnnxOp(
            self.node,
            tuple(dict.fromkeys([*filter(None, self.node.input), *(name for body in bodies for name in body.reads)])),
            self._made(outputs),
            rounds * dear.flops,
            bytes_moved=rounds * moved,
            workspace_bytes=held,
            weights=weights,
            assumed=assumed or next(iter(sorted(guessed, reverse=True)), ""),
        )

    def _if(self) -> OnnxOp:
        """The branch that is taken; the dearer one, as an assumption, where data decide and the two differ."""
        condition = self.scope.value.get(self.node.input[0])
        if condition is not None:
            names = ("then_branch", "else_branch") if condition.all() else ("else_branch", "then_branch")
            taken, other = self._body(names[0], []), self._unused(names[1])
            return self._finish([taken, other], taken, 1, taken.outputs)
        branches, unused, failures = [], [], []
        for name in ("then_branch", "else_branch"):
            try:
                branches.append(self._body(name, []))
            except ImportFailed as failure:  # often one that is for other sizes
                unused.append(self._unused(name))
                failures.append(failure)
        if not branches:
            raise failures[0]
        dear = max(branches, key=lambda body: (body.flops, sum(known.nbytes for known in body.outputs)))
        alike = not failures and all(_is_near(body.flops, dear.flops) for body in branches)
        assumed = "sizes" if any(body.outputs != dear.outputs for body in branches) else "" if alike else "arithmetic"
        return self._finish([*branches, *unused], dear, 1, dear.outputs, assumed)

    def _unused(self, name: str) -> _Body:
        """A branch that is not taken: its weights lie in memory all the same."""
        graph = {attribute.name: attribute.g for attribute in self.node.attribute}[name]
        around = [read for node in graph.node for read in reads_of(node) if read in self.scope.constant]
        return _Body([], [], dict(_weights_in(graph)), {}, around)

    def _loop(self) -> OnnxOp:
        rounds, said = self._rounds(), label_of(self.node) in self.trips
        carried = [self.scope.known[name] for name in self.node.input[2:]]
        body = self._body("body", [TypedShape(TensorProto.INT64, ()), TypedShape(TensorProto.BOOL, ()), *carried])
        kept, stacked = body.outputs[1 : 1 + len(carried)], body.outputs[1 + len(carried) :]
        outputs = [*kept, *(TypedShape(known.elem_type, (rounds, *known.shape)) for known in stacked)]
        stops = "" if body.goes_on or said else "sizes" if stacked else "arithmetic"
        return self._finish([body], body, rounds, outputs, stops)

    def _rounds(self) -> int:
        label, limit = label_of(self.node), self.node.input[0]
        if label in self.trips:
            return self.trips[label]
        if limit in self.scope.value and 0 <= int(self.scope.value[limit]) < 2**31:
            return int(self.scope.value[limit])
        raise self._failed(
            "is a Loop whose number of rounds depends on data",
            f"say it: FILE.onnx#{label}=ROUNDS, or dims={{'{label}': …}}",
        )

    def _scan(self) -> OnnxOp:
        if self.scope.version.get("ai.onnx", 1) < 9:
            raise self._failed("is a Scan of an opset before 9", "export the model with opset 9 or later")
        settings = attributes(self.node)
        count = settings["num_scan_inputs"]
        operands = [self.scope.known[name] for name in self.node.input]
        states, scanned = operands[: len(operands) - count], operands[len(operands) - count :]
        axes = settings.get("scan_input_axes", [0] * count)
        rounds = scanned[0].shape[axes[0]]
        slices = [
            TypedShape(known.elem_type, _without(known.shape, axis)) for known, axis in zip(scanned, axes, strict=True)
        ]
        body = self._body("body", [*states, *slices])
        stacked = body.outputs[len(states) :]
        out_axes = settings.get("scan_output_axes", [0] * len(stacked))
        rows = [_with(known, axis, rounds) for known, axis in zip(stacked, out_axes, strict=True)]
        return self._finish([body], body, rounds, [*body.outputs[: len(states)], *rows])


def _weights_in(graph: GraphProto) -> Iterator[tuple[str, TypedShape]]:
    """All that a body holds, and the bodies in it."""
    held = [(weight.name, weight) for weight in graph.initializer]
    held += [
        (node.output[0], attribute.t)
        for node in graph.node
        for attribute in node.attribute
        if node.op_type == "Constant" and attribute.HasField("t")
    ]
    for name, tensor in held:
        yield name, TypedShape(tensor.data_type, tuple(tensor.dims))
    for node in graph.node:
        for body in bodies_of(node):
            yield from _weights_in(body)


def _is_near(flops: int, most: int) -> bool:
    return flops >= _NEAR * most


def _goes_on(graph: GraphProto, scope: Scope) -> bool:
    """Whether the condition that a loop's body makes is always true: a constant, or the one that it was given."""
    if not graph.output:
        return True
    name, maker = graph.output[0].name, {made: node for node in graph.node for made in node.output}
    while name in maker and maker[name].op_type == "Identity":
        name = maker[name].input[0]
    given = len(graph.input) > 1 and name == graph.input[1].name
    return given or (name in scope.value and bool(np.all(scope.value[name])))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


def _with(known: TypedShape, axis: int, length: int) -> TypedShape:
    axis %= len(known.shape) + 1
    return TypedShape(known.elem_type, (*known.shape[:axis], length, *known.shape[axis:]))


def _traffic(body: _Body) -> tuple[int, int]:
    """Bytes that one run of the body moves, and the bytes of all it makes."""
    moved = held = 0
    for call in body.calls:
        if not call.is_constant and call.view_of is None:
            written = sum(known.nbytes for known in call.made.values())
            read = sum(body.known[name].nbytes for name in call.reads)
            moved += read + written if call.bytes_moved is None else call.bytes_moved
            held += written + call.workspace_bytes
    return moved, held


def source_of(node: NodeProto) -> str:
    """File and line that made the op, where the exporter wrote them down."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.stack_trace":
            lines = [line.strip() for line in entry.value.splitlines() if line.strip().startswith("File ")]
            if lines and lines[-1].count('"') >= 2:
                file, _, rest = lines[-1][len('File "') :].partition('"')
                return f"{file}:{rest.removeprefix(', line ').partition(',')[0]}"
    return ""


def scope_of(node: onnx.NodeProto) -> str:
    """The module an op belongs to: "/layer1/conv1/Conv" is of layer1.conv1."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = [part.strip().strip("'\"") for part in entry.value.strip("[]").split(",")]
            return next((name for name in reversed(scopes[:-1]) if name), "")
    parts = [part for part in node.name.split("/") if part]
    return ".".join(parts[:-1])
