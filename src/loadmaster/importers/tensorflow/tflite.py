"""TFLite models: read as a graph, and written again with their ops in the order of a plan.

An interpreter runs the ops of a model as they stand and keeps every tensor from the op that makes it to the last that
reads it, so their order decides how much memory it needs. Sizes and arithmetic are worked out in `tflite_sizes` and
`tflite_cost`.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Mapping
from pathlib import Path

from loadmaster.errors import ImportFailed, InvalidPlan, UnreadableFile
from loadmaster.files.text import PathLike
from loadmaster.files.writing import write_bytes
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.importers.open_sizes import close
from loadmaster.importers.reading import read_bytes, stem_of
from loadmaster.importers.tensorflow.tflite_cost import cost_of
from loadmaster.importers.tensorflow.tflite_model import OPERATORS, Dims, Operator, Tensor, TfliteModel
from loadmaster.importers.tensorflow.tflite_rules import Sized
from loadmaster.importers.tensorflow.tflite_schema import KEEP_ORDER, OPS
from loadmaster.importers.tensorflow.tflite_sizes import sizes_of
from loadmaster.plans import Plan


def load_tflite(path: PathLike, *, name: str = "", sizes: Mapping[str, int] | None = None) -> Graph:
    """The graph of the first subgraph of a .tflite file; constants are weights.

    `sizes` are those of axes that the file leaves open (see `open_sizes`).
    """
    return graph_of(TfliteModel(read_bytes(path), str(path)), name or stem_of(path), sizes or {})


def write_order(model: PathLike, plan: Plan, out: PathLike, sizes: Mapping[str, int] | None = None) -> list[str]:
    """Writes the model with its ops in the order in which one device runs them under the plan; their names in that
    order. Nothing else of the file is changed."""
    read = TfliteModel(read_bytes(model), str(model))
    graph = graph_of(read, stem_of(model), sizes or {})
    order = _order(graph, plan)
    if Path(out).suffix != ".tflite":
        raise InvalidPlan(f"'{out}' is no name for a TFLite model", str(out), "end it in .tflite")
    try:
        write_bytes(out, _reordered(read, order))
    except OSError as error:
        raise UnreadableFile(f"'{out}' cannot be written: {error.strerror}", "", "check its folder") from None
    return [graph.op_name[op] for op in order]


def reorder(model: PathLike, plan: Plan, out: PathLike, sizes: Mapping[str, int] | None = None) -> int:
    """`write_order`; how many ops are in another place than before."""
    names = write_order(model, plan, out, sizes)
    return sum(not name.startswith(f"{place}:") for place, name in enumerate(names))


def graph_of(model: TfliteModel, name: str, sizes: Mapping[str, int]) -> Graph:
    """With what is assumed of it in `Graph.assumed`."""
    sized = sizes_of(model, _given(model, sizes))
    builder = GraphBuilder(name)
    index = _add_tensors(builder, sized)
    last = ""
    for op in sized.part.operators:
        keeps = (
            op.kind in KEEP_ORDER
            or op.kind not in OPS
            or any(sized.part.tensors[tensor].is_variable for tensor in op.reads)
        )
        _add_op(builder, op, sized, index, [last] if keeps and last else [])
        last = f"{op.number}:{op.kind}" if keeps else last
    return builder.build()


def _given(model: TfliteModel, sizes: Mapping[str, int]) -> dict[int, Dims]:
    """The sizes of the inputs (by tensor), the open ones as asked for."""
    part = model.subgraphs[0]
    tensors = [part.tensors[number] for number in part.inputs]
    said = [(each.name, tuple(-1 if axis in each.open else n for axis, n in enumerate(each.dims))) for each in tensors]
    return dict(zip(part.inputs, close(said, sizes, model.where, ".tflite"), strict=True))


def _add_tensors(builder: GraphBuilder, sized: Sized) -> list[int]:
    made = {tensor for op in sized.part.operators for tensor in op.makes}
    index = []
    for number, tensor in enumerate(sized.part.tensors):
        if number in made:
            role = "output" if number in sized.part.outputs else "activation"
        else:
            role = "state" if tensor.is_variable else "weight" if tensor.is_constant else "input"
        dims, name = sized.dims[number], tensor.name or str(number)
        index.append(builder.tensor(tensor.nbytes(dims), role, name=name, shape=dims, dtype=tensor.dtype))
    return index


def _add_op(builder: GraphBuilder, op: Operator, sized: Sized, index: list[int], after: list[str]) -> None:
    cost = cost_of(op, sized)
    known = all(sized.known[tensor] for tensor in (*op.reads, *op.makes))
    reads, makes = [index[tensor] for tensor in op.reads], [index[tensor] for tensor in op.makes]
    for tensor in _weights_in(sized.bodies.get(op.number, [])).values():
        reads.append(builder.tensor(tensor.constant_bytes, "weight", name=f"{op.number}:{tensor.name}"))
    builder.op(
        f"{op.number}:{op.kind}",
        op.kind,
        reads,
        makes,
        flops=cost.flops,
        dtype=next((sized.part.tensors[tensor].dtype for tensor in (*op.makes, *op.reads)), "float32"),
        bytes_moved=cost.bytes_moved or None,
        workspace_bytes=cost.held,
        after=after,
        assumed="" if known and cost.known else "sizes" if not known else "arithmetic",
    )


def _weights_in(bodies: list[Sized]) -> dict[int, Tensor]:
    """What the bodies of an op hold, by buffer: two that share one have it once."""
    found: dict[int, Tensor] = {}
    for body in bodies:
        found |= {tensor.buffer: tensor for tensor in body.part.tensors if tensor.is_constant}
        for inner in body.bodies.values():
            found |= _weights_in(inner)
    return found


def _order(graph: Graph, plan: Plan) -> list[int]:
    if plan.graph_digest != graph.digest:
        raise InvalidPlan("the plan was made for another model", graph.name, "plan this model, and give that plan")
    if len(set(map(int, plan.device))) > 1:
        raise InvalidPlan(
            "the plan uses several devices", graph.name, "an interpreter has one: plan for a cluster of one"
        )
    start, before = graph.dependencies
    waits = [int(start[op + 1] - start[op]) for op in range(graph.num_ops)]
    readers: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for op in range(graph.num_ops):
        for source in before[start[op] : start[op + 1]]:
            readers[int(source)].append(op)
    ready = [(int(plan.rank[op]), op) for op in range(graph.num_ops) if not waits[op]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, done = heapq.heappop(ready)
        order.append(done)
        for op in readers[done]:
            waits[op] -= 1
            if not waits[op]:
                heapq.heappush(ready, (int(plan.rank[op]), op))
    return order


def _reordered(model: TfliteModel, order: list[int]) -> bytes:
    """The same bytes, with the offsets in the list of operators in another order."""
    table = model.subgraphs[0].table
    start, count = table.vector(OPERATORS, 4)
    targets = [table.buffer.follow(start + 4 * number) for number in range(count)]
    raw = bytearray(model.raw)
    for position, number in enumerate(order):
        place = start + 4 * position
        if targets[number] <= place:
            raise ImportFailed("an op lies before the list of ops", model.where, "write the model again with flatc")
        struct.pack_into("<I", raw, place, targets[number] - place)
    return bytes(raw)
