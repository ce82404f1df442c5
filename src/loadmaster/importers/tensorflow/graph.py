"""A frozen GraphDef as a Graph: constants are weights, placeholders inputs. Read without TensorFlow, from the bytes.

Sizes follow from those of the inputs (`shapes`). Only graphs of which every op is known are read: loops, branches,
functions, variables, training steps and ops of others are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadmaster.errors import ImportFailed
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.importers.open_sizes import close
from loadmaster.importers.tensorflow.nodes import Dims, Node
from loadmaster.importers.tensorflow.shapes import VIEWS, KnownTensor, flops_of, infer, is_known, reason_against

_NOTHING = {"NoOp", "Assert"}
_FIX = (
    "export the model to ONNX: python -m tf2onnx.convert --graphdef FILE.pb --output model.onnx --inputs … --outputs …"
)
# Guards against files that unfold without end, far above any model.
_MOST_OPS, _MOST_OUTPUTS, _MOST_VALUES = 1_000_000, 4096, 4096


def graph_of(nodes: Sequence[Node], name: str, sizes: Mapping[str, int]) -> Graph:
    """`sizes` are those of open axes (see `open_sizes`)."""
    return _TensorflowWriter(nodes, name, sizes).write()


class _TensorflowWriter:
    def __init__(self, nodes: Sequence[Node], name: str, sizes: Mapping[str, int]) -> None:
        self.nodes, self.name = nodes, name
        self.builder = GraphBuilder(name)
        self.known: dict[int, KnownTensor] = {}  # by tensor
        self.taken: set[str] = set()
        self.read = {_plain(text)[0] for node in nodes for text in node.inputs}
        self.given = self._inputs(sizes)

    def _inputs(self, sizes: Mapping[str, int]) -> dict[str, Dims]:
        """The sizes of each placeholder."""
        found = []
        for node in (node for node in self.nodes if node.op == "Placeholder"):
            shape = next(iter([*node.of("shape").shapes, *node.of("_output_shapes").shapes]), None)
            if shape is None:
                raise ImportFailed(f"input '{node.name}' has no shape", self.name, "freeze it with a shape for each")
            found.append((node.name, shape))
        closed = close(found, sizes, self.name, ".pb")
        return {name: dims for (name, _), dims in zip(found, closed, strict=True)}

    def write(self) -> Graph:
        if not self.nodes:
            raise ImportFailed("there is no node in it", self.name, "give a GraphDef")
        values: dict[str, list[int]] = {}
        for node in _ordered(self.nodes, self.name):
            values[node.name] = self._node(node, values)
        if not self.taken:
            raise ImportFailed("every node is a constant or an input", self.name, "give a graph that computes")
        return self.builder.build()

    def _node(self, node: Node, values: Mapping[str, list[int]]) -> list[int]:
        """The tensors it makes."""
        if node.op in ("Placeholder", "Const"):
            return self._source(node)
        reads, after = [], []
        for text in node.inputs:
            source, port = _plain(text)
            if text.startswith("^"):
                after.append(source)
            elif port < len(values.get(source, [])):
                reads.append(values[source][port])
            else:
                what = f"node '{node.name}' reads '{text}', which no node makes"
                raise ImportFailed(what, self.name, "give the whole graph")
        return self._op(node, reads, after)

    def _source(self, node: Node) -> list[int]:
        if node.op == "Const":
            kind, dims, values = node.of("value").tensor or (1, (), ())
            role, known = "weight", KnownTensor(kind, dims, _all_values(values, dims, kind))
        else:
            role, known = "input", KnownTensor(node.of("dtype").kind or 1, self.given[node.name])
        settings = {"name": node.name, "shape": known.dims, "dtype": known.dtype}
        tensor = self.builder.tensor(known.nbytes, role, **settings)  # type: ignore[arg-type]
        self.known[tensor] = known
        return [tensor]

    def _op(self, node: Node, reads: Sequence[int], after: Sequence[str]) -> list[int]:
        self._check(node)
        operands = [self.known[tensor] for tensor in reads]
        made = self._made(node, operands)
        if node.op in _NOTHING and not made:
            return []
        if len(self.taken) > _MOST_OPS:
            raise ImportFailed(f"the graph has more than {_MOST_OPS:,} ops", self.name, "give a part of it")
        view = node.op in VIEWS and len(made) == 1 and bool(reads) and made[0].nbytes == operands[0].nbytes
        tensors = []
        for port, known in enumerate(made):
            role, alias = "activation" if node.name in self.read else "output", reads[0] if view else None
            settings = {"name": f"{node.name}:{port}", "shape": known.dims, "dtype": known.dtype, "alias_of": alias}
            tensors.append(self.builder.tensor(known.nbytes, role, **settings))  # type: ignore[arg-type]
            self.known[tensors[-1]] = known
        self.builder.op(
            node.name,
            node.op,
            reads,
            tensors,
            flops=0 if view else flops_of(node, operands, made),
            scope=".".join(node.name.split("/")[:-1]),
            dtype=next((known.dtype for known in made if "float" in known.dtype), "float32"),
            after=[name for name in after if name in self.taken],
        )
        self.taken.add(node.name)
        return tensors

    def _check(self, node: Node) -> None:
        """Refuses what is not known for certain."""
        if not is_known(node.op) and node.op not in _NOTHING:
            raise ImportFailed(f"node '{node.name}' is {reason_against(node.op)}", self.name, _FIX)

    def _made(self, node: Node, reads: Sequence[KnownTensor]) -> list[KnownTensor]:
        inferred = infer(node, reads)
        if inferred is not None:
            return inferred
        if node.op in _NOTHING:
            return []
        shapes = node.of("_output_shapes").shapes
        kind = node.of("T").kind or node.of("dtype").kind or (reads[0].kind if reads else 1)
        whole = [shape for shape in shapes[:_MOST_OUTPUTS] if shape is not None and min(shape, default=0) >= 0]
        if whole and len(whole) == len(shapes):
            return [KnownTensor(kind, shape) for shape in whole]
        shown = " and ".join(str(list(known.dims)) for known in reads)
        what = f"node '{node.name}' ({node.op}) reads {shown or 'nothing'}; its result for these is not known"
        raise ImportFailed(what, self.name, _FIX)


def _all_values(values: Sequence[int], dims: Dims, kind: int) -> tuple[int, ...] | None:
    """Of a small constant of whole numbers: the last is repeated, and none at all are zeros."""
    count = 1
    for n in dims:
        count *= n
    if count > _MOST_VALUES or kind not in (3, 9):
        return None
    held = [*values] or [0]
    return tuple([*held, *[held[-1]] * (count - len(held))][:count])


def _plain(text: str) -> tuple[str, int]:
    """The node and the output that "node", "node:1" or "^node" names."""
    name, _, port = text.removeprefix("^").partition(":")
    return name, int(port) if port.isdecimal() and len(port) < 6 else 0


def _ordered(nodes: Sequence[Node], where: str) -> list[Node]:
    """Each after what it reads; those that stand so already keep their order. A loop of data is refused."""
    by_name = {node.name: node for node in nodes}
    waits = {node.name: {s for s, _ in map(_plain, node.inputs) if s in by_name} for node in nodes}
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
