"""TFLite models: read as a graph, and written again with their ops in the order of a plan.

An interpreter runs the ops of a model as they stand and keeps every tensor from the op that makes it to the last that
reads it, so their order decides how much memory it needs. Fields are those of the schema of TensorFlow Lite, version 3.
"""

from __future__ import annotations

import heapq
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from loadmaster.errors import ImportFailed, InvalidPlan, UnreadableFile
from loadmaster.files.text import PathLike
from loadmaster.files.writing import write_bytes
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.importers.reading import read_bytes, stem_of
from loadmaster.importers.tensorflow.flatbuffer import Buffer, FlatTable
from loadmaster.plans import Plan

_TYPES = (
    ("float32", 4), ("float16", 2), ("int32", 4), ("uint8", 1), ("int64", 8), ("string", 16), ("bool", 1),
    ("int16", 2), ("complex64", 8), ("int8", 1), ("float64", 8), ("complex128", 16), ("uint64", 8), ("resource", 8),
    ("variant", 8), ("uint32", 4), ("uint16", 2), ("int8", 1), ("bfloat16", 2),
)  # fmt: skip
_OPS = (
    "ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE",
    "EMBEDDING_LOOKUP", "FLOOR", "FULLY_CONNECTED", "HASHTABLE_LOOKUP", "L2_NORMALIZATION", "L2_POOL_2D",
    "LOCAL_RESPONSE_NORMALIZATION", "LOGISTIC", "LSH_PROJECTION", "LSTM", "MAX_POOL_2D", "MUL", "RELU",
    "RELU_N1_TO_1", "RELU6", "RESHAPE", "RESIZE_BILINEAR", "RNN", "SOFTMAX", "SPACE_TO_DEPTH", "SVDF", "TANH",
    "CONCAT_EMBEDDINGS", "SKIP_GRAM", "CALL", "CUSTOM", "EMBEDDING_LOOKUP_SPARSE", "PAD",
    "UNIDIRECTIONAL_SEQUENCE_RNN", "GATHER", "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "TRANSPOSE", "MEAN", "SUB",
    "DIV", "SQUEEZE", "UNIDIRECTIONAL_SEQUENCE_LSTM", "STRIDED_SLICE", "BIDIRECTIONAL_SEQUENCE_RNN", "EXP",
    "TOPK_V2", "SPLIT", "LOG_SOFTMAX", "DELEGATE", "BIDIRECTIONAL_SEQUENCE_LSTM", "CAST", "PRELU", "MAXIMUM",
    "ARG_MAX", "MINIMUM", "LESS", "NEG", "PADV2", "GREATER", "GREATER_EQUAL", "LESS_EQUAL", "SELECT", "SLICE",
    "SIN", "TRANSPOSE_CONV", "SPARSE_TO_DENSE", "TILE", "EXPAND_DIMS", "EQUAL", "NOT_EQUAL", "LOG", "SUM", "SQRT",
    "RSQRT", "SHAPE", "POW", "ARG_MIN", "FAKE_QUANT", "REDUCE_PROD", "REDUCE_MAX", "PACK", "LOGICAL_OR", "ONE_HOT",
    "LOGICAL_AND", "LOGICAL_NOT", "UNPACK", "REDUCE_MIN", "FLOOR_DIV", "REDUCE_ANY", "SQUARE", "ZEROS_LIKE", "FILL",
    "FLOOR_MOD", "RANGE", "RESIZE_NEAREST_NEIGHBOR", "LEAKY_RELU", "SQUARED_DIFFERENCE", "MIRROR_PAD", "ABS",
    "SPLIT_V",
)  # fmt: skip
_MORE_OPS = {117: "HARD_SWISH", 118: "IF", 119: "WHILE", 126: "BATCH_MATMUL", 129: "CALL_ONCE", 142: "VAR_HANDLE",
             143: "READ_VARIABLE", 144: "ASSIGN_VARIABLE", 150: "GELU"}  # fmt: skip
_KEEP_ORDER = {"CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CUSTOM", "IF", "WHILE"}
_MOVES = {"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "CONCATENATION", "TRANSPOSE", "PAD", "PADV2", "GATHER", "SLICE", "SPLIT",
          "STRIDED_SLICE", "PACK", "UNPACK", "TILE", "FILL", "SHAPE", "CAST", "SPLIT_V", "SPACE_TO_DEPTH", "MIRROR_PAD",
          "DEPTH_TO_SPACE", "ZEROS_LIKE", "EMBEDDING_LOOKUP", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"}  # fmt: skip
_OPERATORS = 3  # field of a subgraph


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    dims: tuple[int, ...]
    dtype: str
    nbytes: int
    is_constant: bool
    is_variable: bool


def load_tflite(path: PathLike, *, name: str = "") -> Graph:
    """The graph of the first subgraph of a .tflite file; constants are weights."""
    return _TfliteReader(read_bytes(path), str(path), name or stem_of(path)).graph()


def write_order(model: PathLike, plan: Plan, out: PathLike) -> list[str]:
    """Writes the model with its ops in the order in which one device runs them under the plan; their names in that
    order. Nothing else of the file is changed."""
    reader = _TfliteReader(read_bytes(model), str(model), stem_of(model))
    order = _order(reader.graph(), plan)
    if Path(out).suffix != ".tflite":
        raise InvalidPlan(f"'{out}' is no name for a TFLite model", str(out), "end it in .tflite")
    try:
        write_bytes(out, reader.reordered(order))
    except OSError as error:
        raise UnreadableFile(f"'{out}' cannot be written: {error.strerror}", "", "check its folder") from None
    return [reader.graph().op_name[op] for op in order]


def reorder(model: PathLike, plan: Plan, out: PathLike) -> int:
    """`write_order`; how many ops are in another place than before."""
    names = write_order(model, plan, out)
    return sum(not name.startswith(f"{place}:") for place, name in enumerate(names))


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


class _TfliteReader:
    def __init__(self, raw: bytes, where: str, name: str) -> None:
        self.raw, self.where, self.name = raw, where, name
        if raw[4:8] != b"TFL3":
            raise UnreadableFile(f"'{where}' is no TFLite model", where, "it must have TFL3 in bytes 4 to 8")
        self.model = Buffer(raw, where).root()
        subgraphs = self.model.tables(2)
        if not subgraphs:
            raise UnreadableFile("it has no subgraph", where, "is it cut short?")
        self.subgraph = subgraphs[0]
        self.codes = [self._code(code) for code in self.model.tables(1)]
        self.sizes = [buffer.vector(0, 1)[1] or buffer.number(2, "Q") for buffer in self.model.tables(4)]

    def _code(self, code: FlatTable) -> str:
        number = max(code.number(0, "b"), code.number(3))
        if number == 32:
            return code.text(1) or "CUSTOM"
        return _OPS[number] if number < len(_OPS) else _MORE_OPS.get(number, f"BUILTIN_{number}")

    def _tensor(self, table: FlatTable) -> _Tensor:
        dims = table.numbers(0)
        kind = table.number(1, "b")
        if not 0 <= kind < len(_TYPES) or any(n < 0 for n in dims):
            what = f"tensor '{table.text(3)}' has type {kind} and shape {dims}"
            raise ImportFailed(what, self.where, "give a model with fixed shapes of known types")
        dtype, size = _TYPES[kind]
        buffer = table.number(2, "I")
        constant = 0 < buffer < len(self.sizes) and self.sizes[buffer] > 0
        nbytes = self.sizes[buffer] if constant else math.prod(dims) * size
        return _Tensor(table.text(3), tuple(dims), dtype, nbytes, constant, bool(table.number(5, "B")))

    def graph(self) -> Graph:
        builder = GraphBuilder(self.name)
        tensors = [self._tensor(table) for table in self.subgraph.tables(0)]
        operators = self.subgraph.tables(_OPERATORS)
        outputs, inputs = set(self.subgraph.numbers(2)), set(self.subgraph.numbers(1))
        made = {tensor for operator in operators for tensor in operator.numbers(2) if tensor >= 0}
        index: list[int] = []
        for number, tensor in enumerate(tensors):
            if number in made:
                role = "output" if number in outputs else "activation"
            else:
                role = "state" if tensor.is_variable else "weight" if tensor.is_constant else "input"
            settings = {"name": tensor.name or str(number), "shape": tensor.dims, "dtype": tensor.dtype}
            index.append(builder.tensor(tensor.nbytes, role, **settings))  # type: ignore[arg-type]
        if not inputs <= set(range(len(tensors))):
            raise ImportFailed("an input of the model is no tensor of it", self.where, "is it damaged?")
        self._add(builder, operators, tensors, index)
        return builder.build()

    def _add(self, builder: GraphBuilder, operators: list[FlatTable], tensors: list[_Tensor], index: list[int]) -> None:
        last = ""
        for number, operator in enumerate(operators):
            code = operator.number(0, "I")
            reads, makes = [t for t in operator.numbers(1) if t >= 0], [t for t in operator.numbers(2) if t >= 0]
            if code >= len(self.codes) or any(t >= len(tensors) for t in (*reads, *makes)):
                raise ImportFailed(f"op {number} names what is not there", self.where, "is the model damaged?")
            kind = self.codes[code]
            name = f"{number}:{kind}"
            keeps = kind in _KEEP_ORDER or any(tensors[t].is_variable for t in reads)
            builder.op(
                name,
                kind,
                [index[t] for t in reads],
                [index[t] for t in makes],
                flops=_flops(kind, [tensors[t] for t in reads], [tensors[t] for t in makes]),
                dtype=next((tensors[t].dtype for t in (*makes, *reads)), "float32"),
                after=[last] if keeps and last else [],
            )
            last = name if keeps else last

    def reordered(self, order: list[int]) -> bytes:
        """The same bytes, with the offsets in the list of operators in another order."""
        start, count = self.subgraph.vector(_OPERATORS, 4)
        targets = [self.subgraph.buffer.follow(start + 4 * number) for number in range(count)]
        raw = bytearray(self.raw)
        for position, number in enumerate(order):
            place = start + 4 * position
            if targets[number] <= place:
                raise ImportFailed("an op lies before the list of ops", self.where, "write the model again with flatc")
            struct.pack_into("<I", raw, place, targets[number] - place)
        return bytes(raw)


def _flops(kind: str, reads: list[_Tensor], made: list[_Tensor]) -> int:
    out = math.prod(made[0].dims) if made else 0
    if kind == "CONV_2D" and len(reads) > 1:
        return 2 * out * math.prod(reads[1].dims[1:])  # [out, height, width, in]
    if kind == "DEPTHWISE_CONV_2D" and len(reads) > 1:
        return 2 * out * math.prod(reads[1].dims[1:3])
    if kind == "TRANSPOSE_CONV" and len(reads) > 2:
        return 2 * math.prod(reads[2].dims) * math.prod(reads[1].dims[:3])
    if kind == "FULLY_CONNECTED" and len(reads) > 1:
        return 2 * out * (reads[1].dims[-1] if reads[1].dims else 1)
    if kind == "BATCH_MATMUL" and reads:
        return 2 * out * (reads[0].dims[-1] if reads[0].dims else 1)
    if kind in _MOVES:
        return 0
    return max([out, *(math.prod(tensor.dims) for tensor in reads)])
