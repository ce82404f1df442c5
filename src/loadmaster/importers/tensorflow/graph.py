"""A frozen GraphDef as a Graph: constants are weights, placeholders inputs, calls of functions are opened.

Shapes come with the graph where it was saved with them, else from `shapes`. Read without TensorFlow, from the bytes.
Only graphs of which every op is known are read: loops, branches, training steps and ops of others are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from loadmaster.errors import ImportFailed
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.importers.tensorflow.nodes import Definition, Function, Node
from loadmaster.importers.tensorflow.shapes import VIEWS, KnownTensor, flops_of, infer, is_known, reason_against

_INPUTS = {"Placeholder", "PlaceholderV2", "IteratorGetNext", "_Arg"}
_WEIGHTS = {"Const", "Variable", "VariableV2", "VarHandleOp", "AutoReloadVariable", "VarIsInitializedOp"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_NOTHING = {"NoOp", "Assert", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename"}
_FIX = (
    "export the model to ONNX: python -m tf2onnx.convert --graphdef FILE.pb --output model.onnx --inputs … --outputs …"
)
# Guards against files that unfold without end, far above any model.
_MOST_OPS, _MOST_DEPTH, _MOST_OUTPUTS = 1_000_000, 50, 4096


def graph_of(definition: Definition, name: str, batch: int | None = None) -> Graph:
    """`batch` is the size of axes that the graph leaves open (default: 1)."""
    return _TensorflowWriter(definition, name, batch).write()


class _TensorflowWriter:
    def __init__(self, definition: Definition, name: str, batch: int | None) -> None:
        self.definition, self.name, self.batch = definition, name, batch
        self.builder = GraphBuilder(name)
        self.known: dict[int, KnownTensor] = {}  # by tensor
        self.open_axes = False
        self.taken: set[str] = set()
        self.read: set[str] = set()

    def write(self) -> Graph:
        nodes = self.definition.nodes
        if not nodes:
            raise ImportFailed("there is no node in it", self.name, "give a GraphDef")
        self.read = {_plain(text)[0] for node in nodes for text in node.inputs}
        self._run(nodes, {}, "", 0)
        if not self.taken:
            raise ImportFailed(
                "every node is a constant, a variable or an input", self.name, "give a graph that computes"
            )
        self._warn()
        return self.builder.build()

    def _warn(self) -> None:
        if self.open_axes and self.batch is None:
            warnings.warn(f"{self.name}: open axes are taken to be 1; say another with #batch=N", stacklevel=4)

    def _run(
        self, nodes: Sequence[Node], given: Mapping[str, list[int]], prefix: str, depth: int
    ) -> dict[str, list[int]]:
        """Writes the nodes in an order in which data flow; what each makes, by its name."""
        values: dict[str, list[int]] = dict(given)
        for node in _ordered(nodes, set(given), self.name):
            values[node.name] = self._node(node, values, prefix, depth)
        return values

    def _node(self, node: Node, values: Mapping[str, list[int]], prefix: str, depth: int) -> list[int]:
        if node.op in _INPUTS or node.op in _WEIGHTS:
            return self._source(node, prefix)
        reads, after = [], []
        for text in node.inputs:
            source, port = _plain(text)
            if text.startswith("^"):
                after.append(f"{prefix}{source}")
                continue
            made = values.get(source, [])
            if port >= len(made):
                if made or source in values:
                    continue  # an output that carries no data, such as that of an op on resources
                what = f"node '{node.name}' reads '{text}', which no node makes"
                raise ImportFailed(what, self.name, "give the whole graph")
            reads.append(made[port])
        if node.op in _CALLS and node.of("f").function in self.definition.functions:
            return self._call(self.definition.functions[node.of("f").function], node, reads, prefix, depth)
        return self._op(node, reads, after, prefix)

    def _call(self, function: Function, node: Node, reads: Sequence[int], prefix: str, depth: int) -> list[int]:
        if depth > _MOST_DEPTH:
            raise ImportFailed(f"function '{function.name}' calls itself", self.name, "give a graph without recursion")
        given = {name: [tensor] for name, tensor in zip(function.inputs, reads, strict=False)}
        values = self._run(function.nodes, given, f"{prefix}{node.name}/", depth + 1)
        made = []
        for output in function.outputs:
            source, port = _plain(function.returns.get(output, output))
            tensors = values.get(source, [])
            if port < len(tensors):
                made.append(tensors[port])
        return made

    def _source(self, node: Node, prefix: str) -> list[int]:
        given = node.of("value").tensor if node.op == "Const" else None
        if given is not None:
            known = KnownTensor(given[0], self._closed(given[1]), self._values(given[2], given[1]))
        else:
            shape = next(iter([*node.of("shape").shapes, *node.of("_output_shapes").shapes]), None)
            known = KnownTensor(node.of("dtype").kind or 1, self._closed(shape or ()))
        role = "input" if node.op in _INPUTS else "weight"
        tensor = self.builder.tensor(
            known.nbytes, role, name=f"{prefix}{node.name}", shape=known.dims, dtype=known.dtype
        )
        self.known[tensor] = known
        return [tensor]

    def _values(self, values: Sequence[int], dims: Sequence[int]) -> tuple[int, ...] | None:
        count = 1
        for n in dims:
            count *= n
        if values and len(values) < count <= 4096:  # the last is repeated
            values = [*values, *[values[-1]] * (count - len(values))]
        return tuple(values) if values and len(values) == count else None

    def _closed(self, dims: Sequence[int]) -> tuple[int, ...]:
        if any(n < 0 for n in dims):
            self.open_axes = True
        return tuple(self.batch or 1 if n < 0 else n for n in dims)

    def _op(self, node: Node, reads: Sequence[int], after: Sequence[str], prefix: str) -> list[int]:
        self._check(node)
        made = self._made(node, [self.known[tensor] for tensor in reads])
        label = f"{prefix}{node.name}"
        if node.op in _NOTHING and not made:
            return []
        if len(self.taken) > _MOST_OPS:
            raise ImportFailed(f"the graph has more than {_MOST_OPS:,} ops once opened", self.name, "give a part of it")
        view = node.op in VIEWS and len(made) == 1 and bool(reads) and made[0].nbytes == self.known[reads[0]].nbytes
        role = "activation" if prefix or node.name in self.read else "output"
        tensors = []
        for port, known in enumerate(made):
            alias = reads[0] if view else None
            settings = {"name": f"{label}:{port}", "shape": known.dims, "dtype": known.dtype, "alias_of": alias}
            tensors.append(self.builder.tensor(known.nbytes, role, **settings))  # type: ignore[arg-type]
            self.known[tensors[-1]] = known
        self.builder.op(
            label,
            node.op or "unknown",
            reads,
            tensors,
            flops=0 if view else flops_of(node, [self.known[tensor] for tensor in reads], made),
            scope=".".join(label.split("/")[:-1]),
            dtype=next((known.dtype for known in made if "float" in known.dtype), "float32"),
            after=[name for name in after if name in self.taken],
        )
        self.taken.add(label)
        return tensors

    def _check(self, node: Node) -> None:
        """Refuses what is not known for certain."""
        if is_known(node.op) or node.op in _NOTHING:
            return
        what = f"node '{node.name}' is {reason_against(node.op)}"
        raise ImportFailed(what, self.name, _FIX)

    def _made(self, node: Node, reads: Sequence[KnownTensor]) -> list[KnownTensor]:
        shapes = node.of("_output_shapes").shapes
        kind = node.of("T").kind or node.of("dtype").kind or (reads[0].kind if reads else 1)
        inferred = infer(node, reads)
        if shapes and all(shape is not None for shape in shapes):
            kinds = [known.kind for known in inferred or ()] or [kind]
            values = [known.values for known in inferred or ()] or [None]
            return [
                KnownTensor(kinds[min(i, len(kinds) - 1)], self._closed(shape or ()), values[min(i, len(values) - 1)])
                for i, shape in enumerate(shapes[:_MOST_OUTPUTS])
            ]
        if inferred is not None:
            return inferred
        if node.op in _NOTHING:
            return []
        what = f"what node '{node.name}' ({node.op}) makes depends on values of the run"
        raise ImportFailed(what, self.name, _FIX)


def _plain(text: str) -> tuple[str, int]:
    """ "node", "node:1", "^node", and inside functions "node:output:1"."""
    name, *rest = text.removeprefix("^").split(":")
    port = rest[-1] if rest else "0"
    return name, int(port) if port.isdecimal() and len(port) < 6 else 0


def _ordered(nodes: Sequence[Node], given: set[str], where: str) -> list[Node]:
    """Each after what it reads; those that stand so already keep their order. A loop of data is refused."""
    by_name = {node.name: node for node in nodes}
    waits = {node.name: {s for s, _ in map(_plain, node.inputs) if s in by_name and s not in given} for node in nodes}
    if len(by_name) < len(nodes):
        raise ImportFailed("two nodes have the same name", where, "give each node a name of its own")
    readers: dict[str, list[str]] = {}
    for name, sources in waits.items():
        for source in sources:
            readers.setdefault(source, []).append(name)
    done: list[Node] = []
    ready = [node.name for node in nodes if not waits[node.name]][::-1]
    while ready:
        name = ready.pop()
        done.append(by_name[name])
        for reader in reversed(readers.get(name, [])):
            waits[reader].discard(name)
            if not waits[reader]:
                ready.append(reader)
    if len(done) < len(nodes):
        stuck = next(name for name, sources in waits.items() if sources)
        raise ImportFailed(f"node '{stuck}' waits for itself: a loop", where, _FIX)
    return done
