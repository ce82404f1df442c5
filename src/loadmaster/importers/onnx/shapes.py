"""Sizes of every tensor of an ONNX model: unknown dimensions bound, shapes inferred, small constants computed.

ONNX's own inference first; what it leaves open often hangs on shapes that the model computes (Shape, Gather, Concat),
so small whole-number tensors are worked out as values. Open dimensions of inputs are what `dims` says, a batch 1 unless
it says otherwise.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference

from loadmaster.errors import ImportFailed

Array = NDArray[Any]

# Guards against damaged files, far above any model.
MOST_NODES = 5_000_000  # of a model whose functions are written out
DEEPEST = 200  # functions within functions
SMALL = 4096  # elements of a constant that may be a shape, a list of axes or a number of trips

_BITS = {"STRING": 64, "BOOL": 8, "FLOAT": 32, "DOUBLE": 64, "COMPLEX64": 64, "COMPLEX128": 128}
_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64"}
_SUBGRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


@dataclass(frozen=True)
class TypedShape:
    """Element type and shape of a tensor."""

    elem_type: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return -(-self.elements * _bits(self.elem_type) // 8)

    @property
    def dtype(self) -> str:
        name: str = TensorProto.DataType.Name(self.elem_type)
        return _DTYPES.get(name, name.lower())


def _bits(elem_type: int) -> int:
    """Of one element. The digits of a name are its size, those of a small float its parts: FLOAT8E4M3FN has 8 bits."""
    name = TensorProto.DataType.Name(elem_type)
    if name in _BITS:
        return _BITS[name]
    digits = name.removeprefix("B").lstrip("UINTFLOA").partition("E")[0]
    return int(digits or 0)


def _is_type(elem_type: int) -> bool:
    return elem_type in TensorProto.DataType.values() and elem_type != TensorProto.UNDEFINED


def known_of(kind: TypeProto) -> TypedShape | None:
    """None when a dimension, the rank or the element type is unknown."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    elem_type, dims = kind.tensor_type.elem_type, kind.tensor_type.shape.dim
    if not _is_type(elem_type) or not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    return TypedShape(elem_type, tuple(dim.dim_value for dim in dims))


def bodies_of(node: NodeProto) -> list[onnx.GraphProto]:
    """Graphs inside a node: branches of an If, bodies of a Loop or Scan."""
    graphs = [
        [a.g] if a.type == onnx.AttributeProto.GRAPH else list(a.graphs) for a in node.attribute if a.type in _SUBGRAPHS
    ]
    return [graph for several in graphs for graph in several]


def attributes(node: NodeProto) -> dict[str, Any]:
    """Its plain attributes by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute if a.type not in _SUBGRAPHS}


def reads_of(node: NodeProto) -> list[str]:
    """What it needs of the graph it stands in, each once."""
    names = [name for name in node.input if name]
    for body in bodies_of(node):
        own = {value.name for value in body.input} | {weight.name for weight in body.initializer}
        for inner in body.node:
            names += [name for name in reads_of(inner) if name not in own]
            own.update(inner.output)
        names += [value.name for value in body.output if value.name not in own]
    return list(dict.fromkeys(names))


def has_broken_text(graph: onnx.GraphProto) -> bool:
    """Protobuf gives bytes where a text is not valid UTF-8."""
    texts = [graph.name]
    for node in graph.node:
        texts += [node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute)]
        texts += [text for entry in node.metadata_props for text in (entry.key, entry.value)]
    for value in (*graph.input, *graph.output, *graph.value_info):
        texts += [value.name, *(dim.dim_param for dim in value.type.tensor_type.shape.dim)]
    texts += [weight.name for weight in graph.initializer]
    inner = (body for node in graph.node for body in bodies_of(node))
    return not all(isinstance(text, str) for text in texts) or any(map(has_broken_text, inner))


def lean(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the data of large weights: sizes are all that is wanted, and protobuf stops at 2 GiB."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = model.graph
    copy.graph.name = graph.name or "onnx"
    for field in ("node", "input", "output", "value_info"):
        getattr(copy.graph, field).extend(getattr(graph, field))
    for weight in graph.initializer:
        if math.prod(weight.dims) <= SMALL:
            copy.graph.initializer.append(weight)
        else:
            copy.graph.initializer.add(name=weight.name, dims=weight.dims, data_type=weight.data_type)
    for sparse in graph.sparse_initializer:
        copy.graph.initializer.add(name=sparse.values.name, dims=sparse.dims, data_type=sparse.values.data_type)
    return copy


def is_open(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether an axis has no size in the file."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def name_of_axis(dim: onnx.TensorShapeProto.Dimension, tensor: str, axis: int) -> str:
    """What an open axis is called: as the file does, unless that is no name ('', '?'), else input.axis."""
    return dim.dim_param if re.search(r"\w", dim.dim_param) else f"{tensor}.{axis}"


def bind_values(model: onnx.ModelProto, dims: Mapping[str, int]) -> None:
    """Makes constants of whole-number inputs whose value is given, such as the sampling rate that a branch asks for."""
    for value in [value for value in model.graph.input if value.name in dims and is_scalar(value)]:
        known = known_of(value.type)
        assert known is not None
        array = np.full(known.shape, dims[value.name]).astype(helper.tensor_dtype_to_np_dtype(known.elem_type))
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)


def is_scalar(value: onnx.ValueInfoProto) -> bool:
    """Whether an input is a single whole number or truth value."""
    known = known_of(value.type)
    return known is not None and known.elements == 1 and ("int" in known.dtype or known.dtype == "bool")


def bind_dims(model: onnx.ModelProto, dims: Mapping[str, int], name: str) -> None:
    """Gives every unknown dimension of the inputs its number; a batch is 1 unless `dims` says otherwise."""
    given, weights = dict(dims), {weight.name for weight in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    opened = [
        (name_of_axis(dim, value.name, axis), axis, dim)
        for value in inputs
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if is_open(dim)
    ]
    _refuse_open([label for label, axis, _ in opened if label not in given and not _is_batch(label, axis)], name)
    assumed = {label: 1 for label, _, _ in opened if label not in given}
    for label, _, dim in opened:
        dim.dim_value = given.get(label, 1)
    if assumed:
        said = ", ".join(f"{label} = {size}" for label, size in assumed.items())
        one = next(iter(assumed))
        fix = f"another size: FILE.onnx#{one}=64, or dims={{'{one}': 64}} in Python"
        warnings.warn(f"{name}: assumed {said}; {fix}", stacklevel=5)
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in given or dim.dim_param in assumed:
                dim.dim_value = given.get(dim.dim_param, assumed.get(dim.dim_param, 1))
            elif not dim.HasField("dim_value"):
                dim.ClearField("dim_param")


def _is_batch(label: str, axis: int) -> bool:
    return axis == 0 or "batch" in label.lower()


def _refuse_open(labels: Sequence[str], name: str) -> None:
    if labels:
        labels = list(dict.fromkeys(labels))
        sizes = ",".join(f"{label}=SIZE" for label in labels)
        pairs = ", ".join(f"'{label}': …" for label in labels)
        what = f"its inputs leave open: {', '.join(labels)}"
        raise ImportFailed(what, name, f"say them: FILE.onnx#{sizes}, or dims={{{pairs}}} in Python")


def fault_of(node: NodeProto, opsets: Sequence[onnx.OperatorSetIdProto]) -> str:
    """Why it is no proper op of its kind; empty when it is. onnx's inference may take the process down with one."""
    if bodies_of(node):
        return next(filter(None, (fault_of(inner, opsets) for body in bodies_of(node) for inner in body.node)), "")
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    try:  # the versions too are the file's, of any size and in any text
        context.opset_imports = {opset.domain if opset.domain != "ai.onnx" else "": opset.version for opset in opsets}
        onnx.checker.check_node(node, context)
    except Exception as error:
        return next(iter(str(error).splitlines()), "malformed")
    return ""


def inlined(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with its own functions written out where they are called."""
    if not model.functions:
        return model
    _check_expansion(model, name)
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:
        what = f"its functions cannot be written out: {error}"
        raise ImportFailed(what, name, "check the model with onnx.checker.check_model") from None


def _check_expansion(model: onnx.ModelProto, name: str) -> None:
    """Refuses functions that call each other so often that writing them out would fill the memory, or never end."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    size: dict[tuple[str, str, str], int] = {}

    def total(nodes: Iterable[NodeProto], depth: int) -> int:
        count = 0
        for node in nodes:
            count += 1 + sum(total(body.node, depth + 1) for body in bodies_of(node))
            key = (node.domain, node.op_type, node.overload)
            if key in functions:
                if key not in size:
                    size[key] = MOST_NODES + 1  # of one that calls itself
                    size[key] = total(functions[key].node, depth + 1) if depth < DEEPEST else MOST_NODES + 1
                count += size[key]
            if count > MOST_NODES:
                return count
        return count

    if total(model.graph.node, 0) > MOST_NODES:
        what = f"its functions call each other more than {MOST_NODES:,} times, or for ever"
        raise ImportFailed(what, name, "export the model without functions")


class Scope:
    """What is known of the tensors of a graph, or of a body inside one, while its ops are walked in order."""

    def __init__(
        self, graph: onnx.GraphProto, opsets: Sequence[onnx.OperatorSetIdProto], outer: Scope | None = None
    ) -> None:
        self.opsets, self.outer = opsets, outer
        self.known: dict[str, TypedShape] = dict(outer.known) if outer else {}
        self.value: dict[str, Array] = dict(outer.value) if outer else {}
        self.constant: set[str] = set(outer.constant) if outer else set()
        self.unsure: set[str] = set(outer.unsure) if outer else set()  # whose size is assumed
        self.reason = ""  # why the last op has no known size
        self.version = {opset.domain or "ai.onnx": opset.version for opset in opsets}
        values = (*graph.value_info, *graph.output)
        self.declared = {value.name: known for value in values if (known := known_of(value.type))}
        self.wanted = {name for node in graph.node for name in reads_of(node)} | {value.name for value in graph.output}
        for weight in graph.initializer:
            if not _is_type(weight.data_type) or min(weight.dims, default=0) < 0:
                what = f"weight '{weight.name}' has the type {weight.data_type} and the shape {list(weight.dims)}"
                raise ImportFailed(what, graph.name, "is the file damaged? export it again")
            self.known[weight.name] = TypedShape(weight.data_type, tuple(weight.dims))
            self.constant.add(weight.name)
            self._keep_value(weight)

    def _keep_value(self, weight: TensorProto) -> None:
        if math.prod(weight.dims) <= SMALL and weight.data_location != TensorProto.EXTERNAL:
            with suppress(Exception):  # damaged data matters only where a shape depends on it
                self.value[weight.name] = numpy_helper.to_array(weight)

    def add(self, node: NodeProto, made: Mapping[str, TypedShape]) -> None:
        self.known.update(made)
        if self.is_constant(node):
            self.constant.update(made)

    def forget(self, names: Iterable[str]) -> None:
        """The inputs of a body hide what has the same name around it."""
        for name in names:
            self.known.pop(name, None)
            self.value.pop(name, None)
            self.constant.discard(name)

    def is_constant(self, node: NodeProto) -> bool:
        """Whether its results are the same in every step: every runtime computes them beforehand."""
        if node.op_type in ("Constant", "Shape", "Size"):
            return True
        if node.op_type in _FRESH or bodies_of(node):
            return False
        inputs = [name for name in node.input if name]
        return bool(inputs) and all(name in self.constant for name in inputs)

    def infer(self, node: NodeProto) -> dict[str, TypedShape]:
        """Outputs by name, as far as they are known: declared, computed, or inferred from the inputs."""
        self.reason = ""
        names = [name for name in node.output if name]
        found = {name: self.declared[name] for name in names if name in self.declared}
        for name, value in self._evaluate(node).items():
            self.value[name] = value
            found[name] = TypedShape(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        if len(found) < len(names):
            found = {**self._ask_schema(node), **found}
        return found

    def _ask_schema(self, node: NodeProto) -> dict[str, TypedShape]:
        if node.op_type == "Constant" and _has_external(node):
            return _external(node)
        if fault_of(node, self.opsets) or (node.op_type == "Einsum" and not self._fits_equation(node)):
            return {}
        domain = node.domain if node.domain != "ai.onnx" else ""
        kinds = {
            name: helper.make_tensor_type_proto(self.known[name].elem_type, self.known[name].shape)
            for name in node.input
            if name in self.known
        }
        data = {name: numpy_helper.from_array(self.value[name], name) for name in node.input if name in self.value}
        try:
            schema = onnx.defs.get_schema(node.op_type, self.version.get(domain or "ai.onnx", 1), domain)
            proper = _with_defaults(node)
            outputs = shape_inference.infer_node_outputs(schema, proper, kinds, data, opset_imports=list(self.opsets))
        except onnx.defs.SchemaError:
            self.reason = f"{domain or 'ONNX'} has no op {node.op_type} that onnx knows"
            return {}
        except Exception as error:  # malformed, in one of the many ways onnx has to say so
            self.reason = str(error).splitlines()[0].removeprefix("[ShapeInferenceError] ")
            return {}
        found = {name: known for name, kind in outputs.items() if (known := known_of(kind))}
        return found or self._compared(node, outputs)

    def _compared(self, node: NodeProto, outputs: Mapping[str, TypeProto]) -> dict[str, TypedShape]:
        """Of a comparison that opsets before 16 define by others, for which onnx tells the type alone."""
        if node.op_type not in ("GreaterOrEqual", "LessOrEqual"):
            return {}
        shape = np.broadcast_shapes(*(self.known[name].shape for name in node.input))
        return {name: TypedShape(kind.tensor_type.elem_type, shape) for name, kind in outputs.items()}

    def _fits_equation(self, node: NodeProto) -> bool:
        """Whether the terms of an Einsum have the ranks of its operands; onnx loops forever on some that have not."""
        equation = attributes(node)["equation"].replace(b" ", b"")
        if not _EQUATION.fullmatch(equation):
            return False
        terms = equation.partition(b"->")[0].split(b",")
        ranks = [len(self.known[name].shape) for name in node.input]
        letters = [len(term.replace(b"...", b"")) for term in terms]
        dots = [b"..." in term for term in terms]
        if len(ranks) != len(terms):
            return False
        rows = zip(ranks, letters, dots, strict=True)
        return all(rank >= count if open_ended else rank == count for rank, count, open_ended in rows)

    def _evaluate(self, node: NodeProto) -> dict[str, Array]:
        """Results of an op whose operands are small constants, or a shape; empty when they are not."""
        if not self.is_constant(node) or _has_external(node) or fault_of(node, self.opsets):
            return {}
        inputs = [name for name in node.input if name]
        if node.op_type in ("Shape", "Size"):
            return _shape_value(node, self.known[inputs[0]])
        if node.op_type not in _EVALUATED:
            return {}
        known = all(name in self.value for name in inputs) and node.domain in ("", "ai.onnx")
        if not known or not all(map(_is_small, self._ask_schema(node).values() or [None])):
            return {}
        return _run(node, {name: self.value[name] for name in inputs}, self.opsets)


def _with_defaults(node: NodeProto) -> NodeProto:
    """With what it leaves out where onnx's inference forgets the default."""
    if node.op_type != "STFT" or any(attribute.name == "onesided" for attribute in node.attribute):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.attribute.append(helper.make_attribute("onesided", 1))
    return copy


def _has_external(node: NodeProto) -> bool:
    """Whether an attribute says that its data lie in another file, which is nobody's business to name."""
    return any(attribute.t.data_location == TensorProto.EXTERNAL for attribute in node.attribute)


def _external(node: NodeProto) -> dict[str, TypedShape]:
    """The size of a Constant whose data are elsewhere: they are not looked at."""
    value = next(attribute.t for attribute in node.attribute if attribute.HasField("t"))
    sound = _is_type(value.data_type) and min(value.dims, default=0) >= 0
    return {node.output[0]: TypedShape(value.data_type, tuple(value.dims))} if sound and node.output else {}


# Letters, each term with one "..." at most; onnx loops for ever on some that are not.
_EQUATION = re.compile(rb"[A-Za-z]*(\.{3})?[A-Za-z]*(,[A-Za-z]*(\.{3})?[A-Za-z]*)*(->[A-Za-z]*(\.{3})?[A-Za-z]*)?")

# What models compute sizes and axes with. Others, such as regular expressions or sums over many letters, can take for
# ever on constants as small as these.
_EVALUATED = frozenset((
    "Constant", "ConstantOfShape", "Cast", "CastLike", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
    "Transpose", "Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND",
    "Expand", "Tile", "Pad", "Range", "Where", "NonZero", "Compress", "OneHot", "Trilu", "EyeLike", "CumSum", "TopK",
    "ArgMax", "ArgMin", "Add", "Sub", "Mul", "Div", "Mod", "Pow", "Neg", "Abs", "Sign", "Sqrt", "Reciprocal", "Exp",
    "Log", "Floor", "Ceil", "Round", "Clip", "Sum", "Mean", "Min", "Max", "ReduceSum", "ReduceProd", "ReduceMin",
    "ReduceMax", "ReduceMean", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor",
    "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "MatMul", "Relu", "IsNaN", "IsInf",
))  # fmt: skip


def _is_small(known: TypedShape | None) -> bool:
    """Whether it may be a shape, a list of axes or a number of rounds; computing every small weight would be slow."""
    whole = known is not None and ("int" in known.dtype or known.dtype == "bool")
    return known is not None and known.elements <= (SMALL if whole else 16)


# Random or stateful, or kept by runtimes as they are: weights stay packed until they are used.
_FRESH = {
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout",
    "DequantizeLinear",
}  # fmt: skip


def _shape_value(node: NodeProto, known: TypedShape) -> dict[str, Array]:
    if node.op_type == "Size":
        fits = known.elements < 2**63
        return {node.output[0]: np.array(known.elements, np.int64)} if fits else {}
    bounds = attributes(node)
    return {node.output[0]: np.array(known.shape[bounds.get("start", 0) : bounds.get("end")], np.int64)}


def _run(node: NodeProto, values: Mapping[str, Array], opsets: Iterable[onnx.OperatorSetIdProto]) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    def typed(name: str) -> onnx.ValueInfoProto:
        return helper.make_value_info(name, TypeProto())

    names = [name for name in node.output if name]
    graph = helper.make_graph([node], "constant", [typed(name) for name in values], [typed(name) for name in names])
    try:
        results = ReferenceEvaluator(helper.make_model(graph, opset_imports=list(opsets))).run(None, dict(values))
    except Exception:  # anything may go wrong in an op of someone else's model; then its value is just not known
        return {}
    return {name: result for name, result in zip(names, results, strict=True) if isinstance(result, np.ndarray)}
