"""Turns a traced step into a Graph, and adds the optimizer's updates.

Each weight that has a gradient is updated by one op, `optim.adam` or `optim.sgd`, which reads the weight, its gradient
and its state and writes the new ones in place. That is how optimizers run in practice (torch's fused Adam is one kernel
over many weights), while the chain of a dozen elementwise ops in a textbook would promise memory traffic that no
framework pays, and temporaries that no framework keeps.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from loadmaster.graph import Graph, GraphBuilder
from loadmaster.importers.torch.flops import OPTIMIZER_FLOPS_PER_ELEMENT, flops_of
from loadmaster.importers.torch.mutation import GIVEN, landings, maker_of, storage_of, tensors_in, written_by
from loadmaster.importers.torch.opaque import is_opaque
from loadmaster.importers.torch.origin import origin_of
from loadmaster.importers.torch.signature import signature_of, update_signature
from loadmaster.importers.torch.step import Cut, Trace
from loadmaster.importers.torch.traffic import bytes_of, unneeded, visible_bytes

# Running means of the gradient and of its square. "none": gradients are outputs, and nothing is updated.
OPTIMIZER_STATE: Mapping[str, tuple[str, ...]] = {"adam": ("m", "v"), "adamw": ("m", "v"), "sgd": (), "none": ()}


@dataclass(frozen=True, eq=False)
class Call:
    """An op of the graph that torch runs: the traced node, and which tensor of the graph each operand is by then.

    Attributes:
        node: of the trace.
        reads: operands whose values it needs.
        makes: tensor, None or a list of them, nested as the node's result is.
        lands: result -> the tensor of the graph into whose memory it is to be copied.
    """

    node: fx.Node
    reads: Mapping[fx.Node, int]
    makes: Any
    lands: Mapping[int | None, int]


@dataclass(frozen=True, eq=False)
class Update:
    """An op of the graph that is the optimizer's: one weight, its gradient and its state.

    Attributes:
        weight: its name in the module.
        reads: tensors: the weight, its gradient, its state.
    """

    weight: str
    reads: tuple[int, int, *tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """A Graph, and beside it all that is needed to run it: the traced node of every op and what each tensor is.

    Attributes:
        graph: what is planned.
        trace: the step as torch traced it.
        optimizer: that updates the weights, by name.
        training: with backward pass and updates.
        calls: [ops] what each is in the trace, or which weight it updates.
        given: tensor -> the placeholder or constant that it is.
        outputs: tensors, as trace.outputs.
        gradients: weight -> tensor.
    """

    graph: Graph
    trace: Trace
    optimizer: str
    training: bool
    calls: tuple[Call | Update, ...]  # [ops]
    given: Mapping[int, fx.Node]
    outputs: tuple[int, ...]
    gradients: Mapping[str, int]

    @property
    def copies(self) -> dict[str, str]:
        """Weights that the plan has besides the module's own -> whose copies they are."""
        return {given.name: given.copy_of for given in self.trace.given if given.copy_of}

    @property
    def learned(self) -> tuple[str, ...]:
        """The module's own weights that have a gradient, or a part of which has one."""
        copies = self.copies
        return tuple(dict.fromkeys(copies.get(name, name) for name in self.gradients))

    @property
    def cuts(self) -> dict[str, Cut]:
        """Of weights that are there in parts."""
        return {given.name: given.cut for given in self.trace.given if given.cut is not None}

    @property
    def forms(self) -> dict[int, Tensor]:
        """Outputs and gradients as traced, by tensor."""
        nodes = [*zip(self.outputs, self.trace.outputs, strict=True)]
        nodes += zip(self.gradients.values(), self.trace.gradients.values(), strict=True)
        return {tensor: node.meta["val"] for tensor, node in nodes}


def graph_of(trace: Trace, optimizer: str, name: str) -> Graph:
    """The graph of a traced step, whose trace is not needed any more."""
    return captured_of(trace, optimizer, name, training=bool(trace.gradients)).graph


def captured_of(trace: Trace, optimizer: str, name: str, training: bool) -> CapturedStep:
    """A traced step with its graph: which node of the trace is which op, and what updates each weight."""
    writer = _TorchWriter(trace, name, gradients_stay=optimizer == "none")
    for node in trace.module.graph.nodes:
        writer.add(node)
    outputs = tuple(writer.index(node) for node in trace.outputs)
    gradients = {weight: writer.index(node) for weight, node in trace.gradients.items()}
    if optimizer != "none":
        for weight, gradient in trace.gradients.items():
            writer.update(weight, gradient, optimizer)
    graph = replace(writer.builder.build(), captured=_circumstances(trace, optimizer, training))
    calls = tuple(writer.calls[op] for op in graph.op_name)
    return CapturedStep(graph, trace, optimizer, training, calls, writer.first, outputs, gradients)


def _circumstances(trace: Trace, optimizer: str, training: bool) -> dict[str, Any]:
    """What a plan file keeps of a capture."""
    inputs = [given for given in trace.given if given.role == "input"]
    return {
        "mode": "train" if training else "infer",
        **({"optimizer": optimizer} if training else {}),
        "inputs": [{"name": g.name, "shape": list(g.fake.shape), "dtype": dtype_name(g.fake)} for g in inputs],
        "torch": str(torch.__version__),
    }


@dataclass
class _Made:
    """What one op makes, collected while its results are told apart."""

    reads: Sequence[int]
    outputs: list[int] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    overwrites: list[str] = field(default_factory=list)  # names of weights, states or inputs
    owns: bool = False  # at least one output has memory of its own


class _TorchWriter:
    """Adds traced ops in program order, and keeps which tensor of the graph each of their results is."""

    def __init__(self, trace: Trace, name: str, gradients_stay: bool = False) -> None:
        graph = trace.module.graph
        self.builder = GraphBuilder(name)
        self.given = dict(zip(graph.find_nodes(op="placeholder"), trace.given, strict=True))
        self.named = {given.name: node for node, given in self.given.items()}
        self.skipped = landings(graph)
        self.lands_in = {(landing.maker, landing.which): landing.given for landing in self.skipped.values()}
        self.lands_of: dict[fx.Node, list[tuple[int | None, fx.Node]]] = {}
        for (maker, which), given in self.lands_in.items():
            self.lands_of.setdefault(maker, []).append((which, given))
        lasting = [*trace.outputs, *(trace.gradients.values() if gradients_stay else ())]
        self.outputs = {maker_of(node) for node in lasting}
        self.written = {given for node in graph.nodes for given in written_by(node)}
        self.tensor: dict[fx.Node, Any] = {}  # index of the tensor, or a list of them
        self.same: dict[fx.Node, fx.Node] = {}  # result of a write in place -> the given tensor it wrote to
        self.of_storage: dict[int, int] = {}  # storage -> the first tensor on it
        self.root: list[int] = []  # [tensors] the one that owns its memory
        self.readers: dict[int, list[str]] = {}  # root -> ops that have read it so far
        self.last_random: str | None = None
        self.calls: dict[str, Call | Update] = {}  # by the name of the op
        self.first: dict[int, fx.Node] = {}  # tensor -> given node

    def add(self, node: fx.Node) -> None:
        if node.op in GIVEN:
            self._add_given(node)
        elif node.target is operator.getitem:
            self.tensor[node] = self.tensor[node.args[0]][node.args[1]]  # type: ignore[index]
        elif node in self.skipped:
            self.same[node] = self.skipped[node].given
        elif isinstance(node.target, OpOverload) and (tensors_in(node.meta.get("val")) or written_by(node)):
            self._add_op(node, node.target)  # what neither makes nor writes anything is an assertion

    def update(self, weight: str, gradient: fx.Node, optimizer: str) -> None:
        node = self.named[weight]
        value = node.meta["val"]
        parts = [f"{weight}.{part}" for part in OPTIMIZER_STATE[optimizer]]
        state = [self._tensor(value, part, "state") for part in parts]
        made = _Made([self.index(node), self.index(gradient), *state])
        self.calls[f"{optimizer}:{weight}"] = Update(weight, (made.reads[0], made.reads[1], *state))
        self._overwrite(node, made)
        made.outputs += [
            self._tensor(value, f"{part}.new", "state", alias_of=tensor)
            for part, tensor in zip(parts, state, strict=True)
        ]
        moved = visible_bytes(gradient.meta["val"]) + 2 * visible_bytes(value) * (1 + len(state))
        self.builder.op(
            f"{optimizer}:{weight}",
            f"optim.{optimizer}",
            made.reads,
            made.outputs,
            flops=OPTIMIZER_FLOPS_PER_ELEMENT[optimizer] * value.numel(),
            scope=weight.rpartition(".")[0],
            dtype=dtype_name(value),
            bytes_moved=moved,
            colocate=weight,
            after=made.after,
            signature=update_signature(optimizer, value, gradient.meta["val"]),
        )
        self._remember(f"{optimizer}:{weight}", made.reads)

    def index(self, node: fx.Node) -> int:
        index: int = self.tensor[self.same.get(node, node)]
        return index

    def _tensor(self, value: Tensor, name: str | None, role: str, alias_of: int | None = None) -> int:
        size = value.untyped_storage().nbytes() if alias_of is None else visible_bytes(value)
        shape, dtype = tuple(value.shape), dtype_name(value)
        index = self.builder.tensor(size, role, name=name, shape=shape, dtype=dtype, alias_of=alias_of)
        self.root.append(index if alias_of is None else self.root[alias_of])
        self.of_storage.setdefault(storage_of(value), index)
        return index

    def _add_given(self, node: fx.Node) -> None:
        name, role = self._name_and_role(node)
        self.tensor[node] = self._tensor(node.meta["val"], name, role)
        self.first[self.tensor[node]] = node

    def _name_and_role(self, node: fx.Node) -> tuple[str, str]:
        """A buffer that the step writes to is state, one that it only reads is a weight like any other."""
        given = self.given.get(node)
        name, kind = (str(node.target), "buffer") if given is None else (given.name, given.role)
        if kind == "weight" or (kind == "input" and node not in self.written):
            return name, kind
        return name, "state" if node in self.written else "weight"

    def _add_op(self, node: fx.Node, op: OpOverload) -> None:
        reads = {operand: self.index(operand) for operand in _operands(node, op)}
        lands = {which: self.index(given) for which, given in self.lands_of.get(node, ())}
        made = _Made(list(dict.fromkeys(reads.values())))
        for given in written_by(node):
            self._overwrite(given, made)
        self.tensor[node] = self._results(node, node.meta.get("val"), None, made)
        self.calls[node.name] = Call(node, reads, self.tensor[node], lands)
        self._chain_random(node, made)
        view = not made.owns and not made.overwrites
        origin = origin_of(node)
        self.builder.op(
            node.name,
            str(op),
            made.reads,
            made.outputs,
            flops=0 if view else _flops(node, op, bool(made.overwrites)),
            scope=origin.scope,
            source=origin.source,
            dtype=_rate_dtype(node, op),
            bytes_moved=0 if view else _bytes_moved(node, op),
            colocate=made.overwrites[0] if made.overwrites else None,
            after=[name for name in made.after if name != node.name],
            signature="" if view else _signature(node, op),
            assumed="arithmetic" if not view and is_opaque(op) else "",
        )
        self._remember(node.name, made.reads)

    def _remember(self, op: str, reads: Sequence[int]) -> None:
        for root in {self.root[tensor] for tensor in reads}:
            self.readers.setdefault(root, []).append(op)

    def _overwrite(self, given: fx.Node, made: _Made, value: Tensor | None = None) -> int:
        """A new version of a given tensor, in its memory: all who have read the old one come before."""
        old = self.index(given)
        name, role = self._name_and_role(given)
        version = self._tensor(given.meta["val"] if value is None else value, f"{name}.new", role, alias_of=old)
        made.outputs.append(version)
        made.after += self.readers.get(self.root[old], ())
        made.overwrites.append(name)
        self.tensor[given] = version
        return version

    def _results(self, node: fx.Node, value: Any, which: int | None, made: _Made) -> Any:
        """The tensors of an op's result, in the same nesting."""
        if isinstance(value, (list, tuple)):
            return [self._results(node, part, index, made) for index, part in enumerate(value)]
        if not isinstance(value, Tensor):
            return None
        for given in written_by(node):
            if storage_of(value) == storage_of(given.meta["val"]):
                self.same[node] = given
                return self.index(given)
        landing = self.lands_in.get((node, which))
        if landing is not None:
            return self._overwrite(landing, made, value)
        return self._result(node, value, which, made)

    def _result(self, node: fx.Node, value: Tensor, which: int | None, made: _Made) -> int:
        shown = self.of_storage.get(storage_of(value))
        made.owns |= shown is None
        name = node.name if which is None else f"{node.name}.{which}"
        role = "output" if (node, which) in self.outputs else "activation"
        tensor = self._tensor(value, name, role, alias_of=shown)
        made.outputs.append(tensor)
        return tensor

    def _chain_random(self, node: fx.Node, made: _Made) -> None:
        """Random ops draw from one stream of numbers: in another order they would draw others."""
        if not draws_random(node):
            return
        if self.last_random is not None:
            made.after.append(self.last_random)
        self.last_random = node.name


def dtype_name(value: Tensor) -> str:
    """Such as "bfloat16"."""
    return str(value.dtype).removeprefix("torch.")


def _operands(node: fx.Node, op: OpOverload) -> list[fx.Node]:
    """What it reads, each once."""
    dropped = unneeded(op, node.args)
    if not dropped:
        return node.all_input_nodes
    kept = [argument for position, argument in enumerate(node.args) if position not in dropped]
    return list(dict.fromkeys(argument for argument in kept if isinstance(argument, fx.Node)))


def _values(node: fx.Node, op: OpOverload) -> list[Tensor]:
    return [value for source in _operands(node, op) for value in tensors_in(source.meta["val"])]


def _rate_dtype(node: fx.Node, op: OpOverload) -> str:
    """What decides the speed of its arithmetic: its first floating-point operand, else its result."""
    values, made = _values(node, op), tensors_in(node.meta.get("val"))
    return dtype_name(next((value for value in values if value.is_floating_point()), (made or values)[0]))


def _flops(node: fx.Node, op: OpOverload, overwrites: bool) -> int:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    flops = flops_of(op, args, kwargs, tensors_in(node.meta.get("val")))
    return max(flops, 1) if overwrites else flops  # an op that only makes aliases for nothing would be a view


def _signature(node: fx.Node, op: OpOverload) -> str:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    return signature_of(op, args, kwargs)


def _bytes_moved(node: fx.Node, op: OpOverload) -> int:
    written = {storage_of(given.meta["val"]): given.meta["val"] for given in written_by(node)}
    made = [value for value in tensors_in(node.meta.get("val")) if storage_of(value) not in written]
    return bytes_of(op, _values(node, op), [*written.values(), *made])


def draws_random(node: fx.Node) -> bool:
    """Whether the op draws random numbers."""
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return not _draws_nothing(node, op)


def _draws_nothing(node: fx.Node, op: OpOverload) -> bool:
    """Attention is marked as random whether or not it drops anything."""
    for position, argument in enumerate(op._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return not given
    return False
