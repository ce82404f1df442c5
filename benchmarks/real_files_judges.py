"""What runtimes say of a model file: the products it computes, its weights, and the shapes of what it makes.

Each judge runs the file once on random inputs and knows nothing of loadmaster. Products are counted from the shapes
that the runtime itself had: onnxruntime by its profile, LiteRT by its tensors, TensorFlow by fetching every node.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Dims = tuple[int, ...]
SIZES = (320, 512, 16000, 640, 256, 224, 128, 64, 1)  # tried for axes that a file leaves open, beside a batch of 1
RATE = 16000  # the value of a whole-number input that is a single number: most often a sampling rate


@dataclass
class Facts:
    """Of one run: FLOPs of products, bytes of weights (as stored, and as a runtime keeps them that folds constants),
    shapes by op, the sizes and values that the run had, results."""

    products: int = 0
    weight_bytes: int = 0
    folded_bytes: int = 0
    shapes: dict[str, Dims] = field(default_factory=dict)
    settings: dict[str, int] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)


class NotRun(Exception):
    """The runtime could not run the file."""


def _random(shape: Sequence[int], dtype: Any, largest: int) -> Any:
    """Small numbers; whole ones are 1, a single one a sampling rate, a list of one the length of the longest axis."""
    kind = np.dtype(dtype).kind
    if kind == "f":
        return (np.random.default_rng(0).normal(size=shape) * 0.1).astype(dtype)
    whole = RATE if not shape else largest if tuple(shape) == (1,) else 1
    return np.full(shape, 1 if kind == "b" else min(whole, np.iinfo(dtype).max), dtype)


def _choices(axes: list[tuple[str, int, bool]]) -> Iterator[dict[str, int]]:
    """Sizes for open axes (name, input, whether it is a batch), likeliest first: all one size; of the first input
    alone; a line of text of 48 rows."""
    batch = {name: 1 for name, _, is_batch in axes if is_batch}
    others = [(name, place) for name, place, is_batch in axes if not is_batch]
    for size in SIZES if others else (1,):
        yield {**batch, **{name: size for name, _ in others}}
        yield {**batch, **{name: size if place == 0 else 1 for name, place in others}}
        yield {**batch, **{name: 48 if number == 0 else size for number, (name, _) in enumerate(others)}}


# onnxruntime

_MOVES = {"Unsqueeze", "Squeeze", "Slice", "Concat", "Transpose", "Shape", "Gather", "Cast", "Reshape", "Identity",
          "Constant", "Split", "Pad", "Expand", "If", "Loop", "Scan", "ConstantOfShape", "Flatten", "Tile",
          "Range"}  # fmt: skip
_ONNX_TYPES = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(double)": "f8", "tensor(int64)": "i8",
               "tensor(int32)": "i4", "tensor(uint8)": "u1", "tensor(int8)": "i1", "tensor(bool)": "?"}  # fmt: skip


def judge_onnx(path: Path) -> Facts:
    """By the profile of one run without optimizations, which tells shapes also inside bodies."""
    import onnx

    proto = onnx.load_model(str(path))
    if find_spec("onnxruntime") is None:
        return _judge_by_reference(proto)
    session, facts = _run_onnx(path)
    tops, filled = {node.name for node in proto.graph.node}, 0
    bodies = any(attribute.HasField("g") for node in proto.graph.node for attribute in node.attribute)
    for event in json.loads(Path(session.end_profiling()).read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            name, args = event["name"].removesuffix("_kernel_time"), event["args"]
            reads, made = (_shapes(args[f"{way}_type_shape"]) for way in ("input", "output"))
            counted = onnx_products(args["op_name"], reads, made)
            if name in tops:
                facts.shapes[name] = made[0] if made else ()
            elif bodies and not counted and args["op_name"] not in _MOVES:  # loadmaster has one sum of a body
                counted = max(map(math.prod, [*reads, *made]), default=0)
            filled += int(args["output_size"]) if args["op_name"] == "ConstantOfShape" else 0
            facts.products += counted
    facts.weight_bytes = _onnx_weights(proto.graph)
    facts.folded_bytes = max(_onnx_weights(_folded(path)), facts.weight_bytes + filled)
    return facts


def _judge_by_reference(proto: Any) -> Facts:
    """By onnx's own evaluator, slow and in numpy: for small models of fixed sizes."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    facts = Facts(weight_bytes=_onnx_weights(proto.graph))
    weights = {weight.name for weight in proto.graph.initializer}
    for place in (place for place in proto.graph.input if place.name not in weights):
        kind = place.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        facts.feeds[place.name] = _random(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type), 1)
    try:
        found = ReferenceEvaluator(proto).run(None, facts.feeds, intermediate=True)
    except Exception as error:  # in whatever way an op of its own fails
        raise NotRun(str(error).splitlines()[0]) from None
    for node in proto.graph.node:
        reads, made = ([np.shape(found[name]) for name in names if name] for names in (node.input, node.output))
        facts.shapes[node.name or node.output[0]] = made[0]
        facts.products += onnx_products(node.op_type, reads, made)
    return facts


def _folded(path: Path) -> Any:
    """The graph that onnxruntime keeps, in which what follows from constants alone is one."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/folded.onnx"
        onnxruntime.InferenceSession(str(path), options)
        return onnx.load_model(options.optimized_model_filepath).graph


def _shapes(typed: list[dict[str, list[int]]]) -> list[Dims]:
    return [tuple(shape) for entry in typed for shape in entry.values()]


def _run_onnx(path: Path) -> tuple[Any, Facts]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")  # packed weights are not in the profile
    tried: Exception | None = None
    for choice in _choices(_onnx_axes(onnxruntime.InferenceSession(str(path), options))):
        options.enable_profiling, options.profile_file_prefix = True, tempfile.mktemp(prefix="onnx-profile-")
        session = onnxruntime.InferenceSession(str(path), options)
        facts, largest = Facts(settings=dict(choice)), max(choice.values(), default=1)
        for place in session.get_inputs():
            if place.type not in _ONNX_TYPES:
                raise NotRun(f"input '{place.name}' is a {place.type}")
            shape = [choice[_axis(place, axis)] if _is_open(size) else size for axis, size in enumerate(place.shape)]
            facts.feeds[place.name] = _random(shape, _ONNX_TYPES[place.type], largest)
            if place.type in ("tensor(int64)", "tensor(int32)") and place.shape in ([], [1]):
                facts.settings[place.name] = int(facts.feeds[place.name].ravel()[0])
        try:
            facts.results = session.run(None, facts.feeds)
        except Exception as error:
            tried = error
            os.unlink(session.end_profiling())
        else:
            return session, facts
    raise NotRun(str(tried).splitlines()[0])


def _is_open(size: Any) -> bool:
    return not isinstance(size, int) or size < 0


def _axis(place: Any, axis: int) -> str:
    label = place.shape[axis]
    return label if isinstance(label, str) and label.strip("? ") else f"{place.name}.{axis}"


def _onnx_axes(session: Any) -> list[tuple[str, int, bool]]:
    found = {}
    for number, place in enumerate(session.get_inputs()):
        for axis, size in enumerate(place.shape):
            if _is_open(size):
                name = _axis(place, axis)
                found.setdefault(name, (name, number, axis == 0 or "batch" in name.lower()))
    return list(found.values())


def onnx_products(kind: str, reads: list[Dims], made: list[Dims]) -> int:
    """FLOPs of one op, 0 where it is no product."""
    if kind in ("Conv", "ConvInteger", "FusedConv"):
        return 2 * math.prod(made[0]) * math.prod(reads[1][1:])
    if kind == "QLinearConv":
        return 2 * math.prod(made[0]) * math.prod(reads[3][1:])
    if kind == "ConvTranspose":
        return 2 * math.prod(reads[0]) * math.prod(reads[1][1:])
    if kind == "Gemm":
        return 2 * math.prod(made[0]) * (math.prod(reads[0]) // made[0][0])
    if kind in ("MatMul", "MatMulInteger", "QLinearMatMul"):
        return 2 * math.prod(made[0]) * reads[0][-1]
    if kind in ("LSTM", "GRU", "RNN"):
        return 2 * math.prod(reads[0][:2]) * (math.prod(reads[1]) + math.prod(reads[2]))
    return 0


ONNX_PRODUCTS = {"Conv", "ConvInteger", "FusedConv", "QLinearConv", "ConvTranspose", "Gemm", "MatMul",
                 "MatMulInteger", "QLinearMatMul", "LSTM", "GRU", "RNN", "If", "Loop", "Scan"}  # fmt: skip


def _onnx_weights(graph: Any) -> int:
    from onnx import numpy_helper

    total = sum(numpy_helper.to_array(weight).nbytes for weight in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                total += numpy_helper.to_array(attribute.t).nbytes
            total += _onnx_weights(attribute.g) if attribute.HasField("g") else 0
    return total


# LiteRT


def judge_tflite(path: Path) -> Facts:
    """By the shapes of all tensors after one run; ops come from the file, by Google's own reader of the format."""
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    plain = {"experimental_op_resolver_type": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES}
    try:
        runner = Interpreter(str(path), experimental_preserve_all_tensors=True, **plain)
        facts = _run_tflite(runner)
    except (RuntimeError, ValueError) as error:
        raise NotRun(str(error).splitlines()[0]) from None
    model = schema.Model.GetRootAs(path.read_bytes(), 0)
    codes = [model.OperatorCodes(number) for number in range(model.OperatorCodesLength())]
    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
    kinds = [names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())] for code in codes]
    totals = [_tflite_products(runner, model.Subgraphs(n), n, kinds, facts) for n in range(model.SubgraphsLength())]
    facts.products = totals[0] + max(totals[1:], default=0)  # of branches one runs
    facts.weight_bytes = _tflite_weights(model)
    return facts


def _run_tflite(runner: Any) -> Facts:
    facts, inputs = Facts(), runner.get_input_details()
    for number, place in enumerate(inputs):
        if any(size < 0 for size in place["shape_signature"]):
            sizes = [RATE if axis else 1 for axis in range(len(place["shape"]))]
            sizes = [new if said < 0 else said for new, said in zip(sizes, place["shape_signature"], strict=True)]
            runner.resize_tensor_input(place["index"], sizes)
            opened = [axis for axis, said in enumerate(place["shape_signature"]) if said < 0]
            facts.settings.update({f"input{number}.{axis}": int(sizes[axis]) for axis in opened})
    runner.allocate_tensors()
    for place in runner.get_input_details():
        facts.feeds[place["name"]] = _random(place["shape"].tolist(), place["dtype"], 1)
        runner.set_tensor(place["index"], facts.feeds[place["name"]])
    runner.invoke()
    facts.results = [runner.get_tensor(place["index"]).copy() for place in runner.get_output_details()]
    return facts


def _tflite_products(runner: Any, part: Any, number: int, kinds: list[str], facts: Facts) -> int:
    details = {detail["index"]: tuple(detail["shape"].tolist()) for detail in runner.get_tensor_details(number)}
    total = 0
    for place in range(part.OperatorsLength()):
        op = part.Operators(place)
        reads = [details.get(int(tensor), ()) for tensor in op.InputsAsNumpy()] if op.InputsLength() else []
        made = [details.get(int(tensor), ()) for tensor in op.OutputsAsNumpy()] if op.OutputsLength() else []
        kind = kinds[op.OpcodeIndex()]
        total += tflite_products(kind, reads, made)
        if number == 0 and kind != "CUSTOM":
            facts.shapes[f"{place}:{kind}"] = made[0] if made else ()
    return total


def tflite_products(kind: str, reads: list[Dims], made: list[Dims]) -> int:
    """FLOPs of one op, 0 where it is no product."""
    if kind == "CONV_2D":
        return 2 * math.prod(made[0]) * math.prod(reads[1][1:])
    if kind == "DEPTHWISE_CONV_2D":
        return 2 * math.prod(made[0]) * math.prod(reads[1][1:3])
    if kind == "CONV_3D":
        return 2 * math.prod(made[0]) * math.prod(reads[1][:4])
    if kind == "TRANSPOSE_CONV":
        return 2 * math.prod(reads[2]) * reads[1][0] * reads[1][1] * reads[1][2]
    if kind == "FULLY_CONNECTED":
        return 2 * math.prod(made[0]) * reads[1][-1]
    if kind == "BATCH_MATMUL":
        return 2 * math.prod(made[0]) * (math.prod(reads[0]) // math.prod(made[0][:-1]))
    if kind == "SVDF":
        return 2 * reads[0][0] * (math.prod(reads[1]) + math.prod(reads[2]))
    if kind == "UNIDIRECTIONAL_SEQUENCE_LSTM":
        return 2 * math.prod(reads[0][:-1]) * sum(math.prod(weight) for weight in reads[1:9])
    return 0


TFLITE_PRODUCTS = {"CONV_2D", "DEPTHWISE_CONV_2D", "CONV_3D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL",
                   "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM", "IF", "WHILE"}  # fmt: skip


def _tflite_weights(model: Any) -> int:
    """Of every buffer that a tensor names, each once for each tensor of the first subgraph or of a body."""
    total = 0
    for number in range(model.SubgraphsLength()):
        part = model.Subgraphs(number)
        for place in range(part.TensorsLength()):
            buffer = model.Buffers(part.Tensors(place).Buffer())
            total += max(buffer.DataLength(), buffer.Size())
    return total


# TensorFlow


def judge_frozen(path: Path) -> Facts:
    """By fetching the shape of what every node makes, in a session of TensorFlow 1."""
    import tensorflow as tf
    from google.protobuf import message, text_format

    definition = tf.compat.v1.GraphDef()
    if path.suffix == ".pb":
        read: Callable[[], Any] = lambda: definition.ParseFromString(path.read_bytes())  # noqa: E731
    else:
        read = lambda: text_format.Parse(path.read_text(), definition)  # noqa: E731
    try:
        read()
    except (message.DecodeError, text_format.ParseError):
        raise NotRun("it is no GraphDef") from None
    if not definition.node:
        raise NotRun("it is no GraphDef")
    graph, facts = tf.Graph(), Facts()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    for op in graph.get_operations():
        if op.type == "Placeholder":
            shape = [size or (96 if axis else 1) for axis, size in enumerate(op.outputs[0].shape.as_list())]
            opened = [axis for axis, size in enumerate(op.outputs[0].shape.as_list()) if size is None]
            facts.settings.update({f"{op.name}.{axis}": shape[axis] for axis in opened})
            facts.feeds[op.outputs[0].name] = _random(shape, op.outputs[0].dtype.as_numpy_dtype, 1)
    made = [op for op in graph.get_operations() if op.outputs and op.type not in ("Const", "Placeholder", "NoOp")]
    with tf.compat.v1.Session(graph=graph) as session:
        reads = {tensor.name: tensor for op in made for tensor in (*op.inputs, *op.outputs)}
        with graph.as_default():
            shapes = {name: tf.shape(tensor) for name, tensor in reads.items() if tensor.dtype != tf.resource}
        found = {name: tuple(shape.tolist()) for name, shape in session.run(shapes, facts.feeds).items()}
    for op in made:
        facts.shapes[op.name] = found[op.outputs[0].name]
        facts.products += frozen_products(op, [found[t.name] for t in op.inputs], found[op.outputs[0].name])
    consts = [node.attr["value"].tensor for node in definition.node if node.op == "Const"]
    facts.weight_bytes = sum(tf.make_ndarray(tensor).nbytes for tensor in consts)
    return facts


def frozen_products(op: Any, reads: list[Dims], made: Dims) -> int:
    """FLOPs of one node, 0 where it is no product."""
    if op.type in ("Conv2D", "Conv3D"):
        return 2 * math.prod(made) * math.prod(reads[1][:-1])
    if op.type == "DepthwiseConv2dNative":
        return 2 * math.prod(made) * math.prod(reads[1][:2])
    if op.type == "Conv2DBackpropInput":
        return 2 * math.prod(reads[2]) * math.prod(reads[1][:-1])
    if op.type == "Einsum":
        terms = op.get_attr("equation").decode().partition("->")[0].split(",")
        return 2 * math.prod(dict(pair for term, dims in zip(terms, reads) for pair in zip(term, dims)).values())  # noqa: B905
    if op.type in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        return 2 * math.prod(made) * (math.prod(reads[0]) // math.prod(made[:-1]))
    return 0


FROZEN_PRODUCTS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "MatMul", "BatchMatMul",
                   "BatchMatMulV2", "BatchMatMulV3", "Einsum"}  # fmt: skip

JUDGES: dict[str, tuple[Callable[[Path], Facts], set[str]]] = {
    ".onnx": (judge_onnx, ONNX_PRODUCTS),
    ".tflite": (judge_tflite, TFLITE_PRODUCTS),
    ".pb": (judge_frozen, FROZEN_PRODUCTS),
    ".pbtxt": (judge_frozen, FROZEN_PRODUCTS),
}
