"""ONNX models: sizes and FLOPs against hand counts, figures from papers, and the weights in the file."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

from loadmaster.cost import price  # noqa: E402
from loadmaster.errors import ImportFailed, InvalidSetting, LoadmasterError, UnreadableFile  # noqa: E402
from loadmaster.graph import INPUT, OUTPUT, WEIGHT, Graph  # noqa: E402
from loadmaster.importers import load  # noqa: E402
from loadmaster.importers.onnx.model import load_onnx  # noqa: E402

DATA = Path(onnx.__file__).parent / "backend/test/data"
LIGHT = sorted((DATA / "light").glob("*.onnx"))
Shape = tuple[int | str | None, ...]


def value(name: str, shape: Shape | None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, shape: tuple[int, ...], kind: int = TensorProto.FLOAT) -> Any:
    """Without its data: sizes are all that matters."""
    return onnx.TensorProto(name=name, dims=shape, data_type=kind)


def numbers(name: str, *values: int) -> Any:
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def model(
    nodes: list[Any], inputs: dict[str, Shape], outputs: list[str], weights: list[Any] | None = None, opset: int = 17
) -> Any:
    graph = helper.make_graph(
        nodes,
        "hand",
        [value(name, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        weights or [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def one(
    kind: str, inputs: dict[str, Shape], weights: list[Any] | None = None, outputs: int = 1, **attributes: Any
) -> Graph:
    """The graph of a single op."""
    names = [*inputs, *(w.name for w in weights or [])]
    made = [f"out{i}" for i in range(outputs)]
    return load_onnx(model([helper.make_node(kind, names, made, **attributes)], inputs, made, weights))


def sizes(graph: Graph) -> dict[str, int]:
    return dict(zip(graph.tensor_name, graph.nbytes.tolist(), strict=True))


def roles(graph: Graph, role: int) -> set[str]:
    return {name for name, of in zip(graph.tensor_name, graph.role.tolist(), strict=True) if of == role}


def weight_bytes(graph: Graph) -> int:
    return int(graph.nbytes[(graph.role == WEIGHT) & (graph.producer < 0)].sum())


# The models in the onnx wheel

# Multiply-adds in millions at 224 x 224, from the papers and the model zoos that publish these very files.
MULTIPLY_ADDS = {
    "resnet50": (4_100, 0.03),  # He et al. 2015, table 1: 3.8e9, where the stride is in the 1x1; in the 3x3 4.1e9
    "vgg19": (19_600, 0.01),  # Simonyan and Zisserman 2014, configuration E; He et al. 2015 figure 3: 19.6e9
    "densenet121": (2_870, 0.02),  # Huang et al. 2016, figure 3
    "inception_v1": (1_500, 0.06),  # Szegedy et al. 2014, section 5: 1.5 billion
    "inception_v2": (2_000, 0.05),  # Ioffe and Szegedy 2015: BN-Inception
    "squeezenet": (352, 0.02),  # SqueezeNet 1.1: 2.4 times less than the 848 of Iandola et al. 2016
}
# Weights that the papers count, in millions
PARAMETERS = {"resnet50": 25.6, "vgg19": 143.7, "bvlc_alexnet": 61.0, "inception_v1": 7.0, "squeezenet": 1.24}


def made_before(graph: Any) -> dict[str, int]:
    """Bytes of every tensor that no input of the model changes, from the numbers in the file."""
    values = {init.name: onnx.numpy_helper.to_array(init) for init in graph.initializer}
    sizes = {name: array.nbytes for name, array in values.items()}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            sizes[node.output[0]] = 4 * math.prod(map(int, values[node.input[0]]))
        elif node.op_type in ("Reshape", "Unsqueeze") and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
    return sizes


def test_the_wheel_has_nine_models() -> None:
    assert len(LIGHT) == 9


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_model(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = load_onnx(path)
    proto = onnx.load(path).graph
    # These files make their weights by ConstantOfShape and reshape some: done before the step. All else is an op.
    before = made_before(proto).keys()
    kept = Counter(node.op_type for node in proto.node if not set(node.output) & before)
    assert Counter(graph.kind) == kept and sum(kept.values()) > 20
    assert (graph.nbytes > 0).all() and all(shape is not None for shape in graph.shape)
    assert sizes(graph)[next(iter(roles(graph, INPUT)))] == 4 * 3 * 224 * 224
    assert [graph.shape[t] for t in np.flatnonzero(graph.role == OUTPUT)] in ([(1, 1000)], [(1, 1000, 1, 1)])
    views = {kind for kind, view in zip(graph.kind, graph.is_view, strict=True) if view}
    assert views <= {"Reshape", "Dropout"}
    assert price(graph, "2xp100-pcie").num_ops == graph.num_ops - graph.is_view.sum()


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_weights(path: Path) -> None:
    """Against the shapes that the file's own constants ask for."""
    proto = onnx.load(path).graph
    sizes = made_before(proto)
    read = {name for node in proto.node if not set(node.output) & sizes.keys() for name in node.input}
    expected = sum(sizes[name] for name in read if name in sizes)
    graph = load_onnx(path)
    assert weight_bytes(graph) == expected
    if (name := path.stem.removeprefix("light_")) in PARAMETERS:
        assert weight_bytes(graph) / 4e6 == pytest.approx(PARAMETERS[name], rel=0.01)


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_light_flops(name: str) -> None:
    graph = load_onnx(DATA / f"light/light_{name}.onnx")
    products = sum(int(f) for f, kind in zip(graph.flops, graph.kind, strict=True) if kind in ("Conv", "Gemm"))
    expected, tolerance = MULTIPLY_ADDS[name]
    assert products / 2e6 == pytest.approx(expected, rel=tolerance)
    assert products > 0.9 * graph.flops.sum()


def test_vgg19_layer_by_layer() -> None:
    """Simonyan and Zisserman 2014, table 1, column E: 3x3 convolutions by blocks of two or four, then three dense."""
    blocks = [(3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56), *[(256, 256, 56)] * 3]
    blocks += [(256, 512, 28), *[(512, 512, 28)] * 3, *[(512, 512, 14)] * 4]
    expected = [2 * 9 * before * after * size**2 for before, after, size in blocks]
    expected += [2 * 512 * 7 * 7 * 4096, 2 * 4096 * 4096, 2 * 4096 * 1000]
    graph = load_onnx(DATA / "light/light_vgg19.onnx")
    assert [int(f) for f, kind in zip(graph.flops, graph.kind, strict=True) if kind in ("Conv", "Gemm")] == expected


def test_every_other_model_of_the_wheel_loads_or_says_why() -> None:
    """Sequences have no size; all else loads."""
    failed = []
    for path in [*DATA.glob("simple/*/model.onnx"), *DATA.glob("pytorch-*/*/model.onnx")]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load_onnx(path)
        except LoadmasterError as error:
            failed.append(path.parent.name)
            assert "sequence" in error.what.lower()
    assert failed and all("sequence" in name for name in failed)


# FLOPs by hand


def test_conv() -> None:
    graph = one(
        "Conv",
        {"x": (2, 8, 10, 10)},
        [weight("w", (16, 4, 3, 3)), weight("b", (16,))],
        group=2,
        pads=[1] * 4,
        strides=[2, 2],
    )
    # 2 images x 16 channels x 5 x 5 outputs, each 4 channels x 3 x 3 products
    assert graph.flops.tolist() == [2 * (2 * 16 * 5 * 5) * (4 * 3 * 3)]
    assert sizes(graph) == {"x": 4 * 2 * 8 * 100, "w": 4 * 16 * 36, "b": 64, "out0": 4 * 2 * 16 * 25}
    assert roles(graph, INPUT) == {"x"} and roles(graph, WEIGHT) == {"w", "b"} and roles(graph, OUTPUT) == {"out0"}
    assert graph.bytes_moved.tolist() == [sum(sizes(graph).values())]


def test_conv_transpose() -> None:
    graph = one("ConvTranspose", {"x": (1, 8, 5, 5)}, [weight("w", (8, 3, 2, 2))], strides=[2, 2])
    # every one of 8 x 5 x 5 inputs is spread over 3 channels x 2 x 2
    assert graph.flops.tolist() == [2 * (8 * 5 * 5) * (3 * 2 * 2)]
    assert graph.shape[2] == (1, 3, 10, 10)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(trans_a: int, trans_b: int) -> None:
    a, b = ((7, 3) if trans_a else (3, 7)), ((5, 7) if trans_b else (7, 5))
    graph = one("Gemm", {"a": a}, [weight("b", b), weight("c", (5,))], transA=trans_a, transB=trans_b)
    assert graph.flops.tolist() == [2 * 3 * 7 * 5]


@pytest.mark.parametrize(
    ("a", "b", "flops"),
    [
        ((3, 7), (7, 5), 2 * 3 * 7 * 5),
        ((2, 4, 3, 7), (4, 7, 5), 2 * (2 * 4) * 3 * 7 * 5),
        ((7,), (7, 5), 2 * 7 * 5),
        ((3, 7), (7,), 2 * 3 * 7),
        ((7,), (7,), 2 * 7),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], flops: int) -> None:
    assert one("MatMul", {"a": a, "b": b}).flops.tolist() == [flops]


@pytest.mark.parametrize(
    ("equation", "a", "b", "flops"),
    [
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5), 2 * 2 * 3 * 4 * 5),
        ("...ij,...jk->...ik", (6, 3, 4), (6, 4, 5), 2 * 6 * 3 * 4 * 5),
    ],
)
def test_einsum(equation: str, a: tuple[int, ...], b: tuple[int, ...], flops: int) -> None:
    assert one("Einsum", {"a": a, "b": b}, equation=equation).flops.tolist() == [flops]


@pytest.mark.parametrize("equation", ["...ii->...i", "ij->", "i,j->ij", "i...j->ij", ",->"])
def test_einsum_of_other_ranks_is_refused(equation: str) -> None:
    with pytest.raises(ImportFailed, match="'out0'"):
        one("Einsum", {"x": ()}, equation=equation)


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent(kind: str, gates: int, directions: int) -> None:
    steps, batch, width, hidden = 11, 2, 6, 5
    weights = [weight("w", (directions, gates * hidden, width)), weight("r", (directions, gates * hidden, hidden))]
    direction = "bidirectional" if directions == 2 else "forward"
    graph = one(kind, {"x": (steps, batch, width)}, weights, hidden_size=hidden, direction=direction)
    by_hand = sum(
        2 * gates * hidden * (width + hidden) for _ in range(steps) for _ in range(batch) for _ in range(directions)
    )
    assert graph.flops.tolist() == [by_hand]


def test_attention() -> None:
    batch, heads, queries, keys, width, deep = 2, 3, 5, 7, 8, 4
    inputs = {"q": (batch, heads, queries, width), "k": (batch, heads, keys, width), "v": (batch, heads, keys, deep)}
    node = helper.make_node("Attention", list(inputs), ["y"])
    graph = load_onnx(model([node], inputs, ["y"], opset=23))
    assert graph.flops.tolist() == [
        2 * batch * heads * queries * keys * width + 2 * batch * heads * queries * keys * deep
    ]


def test_attention_looks_at_the_past_too() -> None:
    batch, heads, queries, keys, past, width, deep = 2, 3, 5, 7, 11, 8, 4
    inputs = {"q": (batch, heads, queries, width), "k": (batch, heads, keys, width), "v": (batch, heads, keys, deep)}
    inputs |= {"pk": (batch, heads, past, width), "pv": (batch, heads, past, deep)}
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "present_k", "present_v"])
    graph = load_onnx(model([node], inputs, ["y"], opset=23))
    seen = keys + past
    by_hand = sum(2 * width + 2 * deep for _ in range(batch * heads * queries) for _ in range(seen))
    assert graph.flops.tolist() == [by_hand]


@pytest.mark.parametrize(
    ("kind", "attributes", "flops"),
    [
        ("MaxPool", {"kernel_shape": [2, 3], "strides": [2, 3]}, (3 * 4 * 4) * 6),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, (3 * 4 * 6) * 4),
        ("GlobalAveragePool", {}, 3 * 8 * 12),
        ("Relu", {}, 3 * 8 * 12),
        ("Sigmoid", {}, 4 * 3 * 8 * 12),
        ("ReduceMean", {"axes": [2, 3]}, 3 * 8 * 12),
        ("Softmax", {}, 5 * 3 * 8 * 12),
        ("Transpose", {"perm": [0, 2, 3, 1]}, 0),
        ("Flatten", {}, 0),
        ("LRN", {"size": 5}, 3 * 8 * 12 * (1 + 4 + 2 + 4 + 1)),  # square, 4 sums, scale and shift, power, divide
    ],
)
def test_elements(kind: str, attributes: dict[str, Any], flops: int) -> None:
    assert one(kind, {"x": (1, 3, 8, 12)}, **attributes).flops.tolist() == [flops]


def test_broadcast_counts_what_it_makes() -> None:
    assert one("Add", {"a": (4, 1), "b": (5,)}).flops.tolist() == [20]
    assert one("Sum", {"a": (4, 5), "b": (5,), "c": (5,)}).flops.tolist() == [40]


def test_norms() -> None:
    four = [weight(name, (3,)) for name in "sbmv"]
    assert one("BatchNormalization", {"x": (1, 3, 8, 8)}, four).flops.tolist() == [4 * 192]
    assert one("LayerNormalization", {"x": (2, 6)}, [weight("s", (6,))]).flops.tolist() == [8 * 12]


# Views, constants, names


def test_views_share_memory() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["a"]),
        helper.make_node("Unsqueeze", ["a", "axes"], ["b"]),
        helper.make_node("Identity", ["b"], ["c"]),
        helper.make_node("Dropout", ["c"], ["d"]),
        helper.make_node("Cast", ["d"], ["e"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["e"], ["f"], to=TensorProto.FLOAT16),
        helper.make_node("Neg", ["f"], ["y"]),
    ]
    graph = load_onnx(model(nodes, {"x": (2, 3)}, ["y"], [numbers("shape", 3, 2), numbers("axes", 0)]))
    view = dict(zip(graph.op_name, graph.is_view.tolist(), strict=True))
    assert view == {"r": False, "a": True, "b": True, "c": True, "d": True, "e": True, "f": False, "y": False}
    owner = {graph.tensor_name[t]: graph.tensor_name[graph.owner[t]] for t in range(graph.num_tensors)}
    assert {owner[name] for name in "abcde"} == {"r"} and owner["f"] == "f"
    assert sizes(graph)["f"] == 12 and dict(zip(graph.op_name, graph.dtype, strict=True))["y"] == "float16"


def test_dropout_in_training_is_no_view() -> None:
    true = helper.make_tensor("on", TensorProto.BOOL, [], [True])
    node = helper.make_node("Dropout", ["x", "", "on"], ["y", "mask"])
    graph = load_onnx(model([node], {"x": (2, 3)}, ["y", "mask"], [true]))
    assert not graph.is_view.any() and sizes(graph)["mask"] == 6


def test_what_comes_from_constants_alone_is_a_weight() -> None:
    nodes = [
        helper.make_node("Constant", [], ["two"], value=helper.make_tensor("", TensorProto.FLOAT, [2], [1.0, 2.0])),
        helper.make_node("Exp", ["two"], ["exp"]),
        helper.make_node("ConstantOfShape", ["shape"], ["filled"]),
        helper.make_node("Add", ["x", "exp"], ["z"]),
        helper.make_node("MatMul", ["z", "filled"], ["y"]),
    ]
    graph = load_onnx(model(nodes, {"x": (5, 2)}, ["y"], [numbers("shape", 2, 7)]))
    assert graph.op_name == ("z", "y")
    assert roles(graph, WEIGHT) == {"exp", "filled"} and weight_bytes(graph) == 8 + 4 * 14


def test_random_numbers_are_no_constants() -> None:
    nodes = [helper.make_node("RandomNormal", [], ["n"], shape=[4, 5]), helper.make_node("Add", ["x", "n"], ["y"])]
    assert load_onnx(model(nodes, {"x": (5,)}, ["y"])).kind == ("RandomNormal", "Add")


def test_a_model_of_constants_alone_is_refused() -> None:
    nodes = [helper.make_node("Exp", ["w"], ["a"]), helper.make_node("Shape", ["x"], ["b"])]
    with pytest.raises(ImportFailed, match="constant"):
        load_onnx(model(nodes, {"x": (2,)}, [], [weight("w", (2,))]))


def test_scopes_and_names() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="/layer1/conv1/Relu"),
        helper.make_node("Relu", ["a"], ["b"], name="/Relu"),
        helper.make_node("Relu", ["b"], ["c"], name="/Relu"),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"], name="node_5"),
    ]
    nodes[4].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layer2', 'layer2.0', 'relu']")
    nodes[4].metadata_props.add(
        key="pkg.torch.onnx.stack_trace", value='File "a.py", line 3, in f\n  x()\nFile "b.py", line 9, in g\n  y()'
    )
    graph = load_onnx(model(nodes, {"x": (2,)}, ["y"]))
    assert graph.scope == ("layer1.conv1", "", "", "", "layer2.0")
    assert len(set(graph.op_name)) == 5 and graph.op_name[0] == "/layer1/conv1/Relu" and graph.op_name[3] == "d"
    assert graph.source == ("", "", "", "", "b.py:9")


def test_inputs_that_have_a_value_are_weights() -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": (2,), "w": (2,)}, ["y"], [weight("w", (2,))])
    graph = load_onnx(proto)
    assert roles(graph, INPUT) == {"x"} and roles(graph, WEIGHT) == {"w"}


def test_small_types() -> None:
    for kind, nbytes in (
        (TensorProto.INT4, 8),
        (TensorProto.UINT8, 15),
        (TensorProto.BFLOAT16, 30),
        (TensorProto.FLOAT8E4M3FN, 15),
    ):
        graph = load_onnx(
            helper.make_model(
                helper.make_graph(
                    [helper.make_node("Transpose", ["x"], ["y"])],
                    "t",
                    [value("x", (3, 5), kind)],
                    [value("y", (5, 3), kind)],
                ),
                opset_imports=[helper.make_opsetid("", 23)],
            )
        )
        assert graph.nbytes.tolist() == [nbytes, nbytes]


def test_external_data_may_be_missing(tmp_path: Path) -> None:
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (1, 300)}, ["y"], [weight("w", (300, 500))])
    big = proto.graph.initializer[0]
    big.data_location = TensorProto.EXTERNAL
    big.external_data.add(key="location", value="not_there.bin")
    onnx.save(proto, tmp_path / "big.onnx")
    assert weight_bytes(load_onnx(tmp_path / "big.onnx")) == 4 * 300 * 500


def test_the_model_given_is_not_written_to() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("batch", 3)}, ["y"])
    before = proto.SerializeToString()
    with pytest.warns(UserWarning):
        load_onnx(proto)
    assert proto.SerializeToString() == before


def test_local_functions_are_inlined() -> None:
    twice = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="mine")], "g", [value("x", (4,))], [value("y", (4,))]
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)], functions=[twice]
    )
    assert load_onnx(proto).kind == ("Add",)


def test_ops_of_strangers_are_said_to_be_guessed() -> None:
    graph = helper.make_graph(
        [helper.make_node("Magic", ["x"], ["y"], domain="acme")], "g", [value("x", (4,))], [value("y", (8,))]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)])
    assert load_onnx(proto).flops.tolist() == [8] and len(load_onnx(proto).assumed) == 1
    graph.node[0].domain = ""  # nor does ONNX itself have such an op
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert load_onnx(proto).flops.tolist() == [8] and len(load_onnx(proto).assumed) == 1
    with pytest.raises(ImportFailed, match="Magic"):
        load(proto)


# Unknown sizes


def test_batch_is_one_unless_said() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 3)}, ["y"])
    with pytest.warns(UserWarning, match="N = 1"):
        assert load_onnx(proto).nbytes.tolist() == [12, 12]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_onnx(proto, dims={"N": 8}).nbytes.tolist() == [96, 96]


def test_a_size_for_what_is_not_open_is_refused() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 3)}, ["y"])
    with pytest.raises(InvalidSetting, match="no open dimension 'foo'") as caught:
        load_onnx(proto, dims={"N": 8, "foo": 64})
    assert "N" in caught.value.fix
    fixed = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"])
    with pytest.raises(InvalidSetting, match="no open dimension 'N'"):
        load_onnx(fixed, dims={"N": 8})


def test_other_dimensions_must_be_said() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("batch", "length", None)}, ["y"])
    with pytest.raises(ImportFailed, match=r"length, x\.2") as caught:
        load_onnx(proto)
    assert "FILE.onnx#length=SIZE,x.2=SIZE" in caught.value.fix
    with pytest.raises(ImportFailed, match=r"leave open: x\.2"):
        load_onnx(proto, dims={"batch": 2, "length": 5})
    assert load_onnx(proto, dims={"batch": 2, "length": 5, "x.2": 7}).nbytes.tolist() == [280, 280]


def test_axes_without_a_true_name_have_a_size_each() -> None:
    """Paddle calls every open axis '?'."""
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, "?", "?")}, ["y"])
    assert load_onnx(proto, dims={"x.1": 3, "x.2": 5}).nbytes.tolist() == [60, 60]


def test_sizes_that_do_not_fit_are_refused_at_the_op_that_they_break() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="product"), helper.make_node("Relu", ["m"], ["y"])]
    proto = model(nodes, {"x": (2, "n")}, ["y"], [weight("w", (4, 4))])
    with pytest.raises(ImportFailed, match=r"'product' \(MatMul\) reads \[2, 3\] and \[4, 4\].*Incompatible"):
        load_onnx(proto, dims={"n": 3})


def test_defaults_that_inference_forgets() -> None:
    """STFT makes 1 + window / 2 frequencies unless told otherwise; GreaterOrEqual spreads a number over a matrix."""
    window = [weight("w", (16,)), helper.make_tensor("hop", TensorProto.INT64, [], [8])]
    node = helper.make_node("STFT", ["x", "hop", "w"], ["y"])
    assert load_onnx(model([node], {"x": (1, 64)}, ["y"], window)).shape[-1] == (1, 7, 9, 2)
    node = helper.make_node("GreaterOrEqual", ["x", "k"], ["y"])
    assert load_onnx(model([node], {"x": (2, 3)}, ["y"], [weight("k", ())], opset=13)).shape[-1] == (2, 3)


@pytest.mark.parametrize("size", [0, -1, 1.5, "3", True, 2**40])
def test_dims_must_be_sensible(size: Any) -> None:
    with pytest.raises(InvalidSetting, match="'N'"):
        load_onnx(model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 3)}, ["y"]), dims={"N": size})


def test_shapes_that_are_computed_are_followed() -> None:
    """Reshape to [batch, length * width] by Shape, Gather, Mul and Concat, as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Gather", ["s", "one"], ["l"]),
        helper.make_node("Gather", ["s", "two"], ["w"]),
        helper.make_node("Mul", ["l", "w"], ["lw"]),
        helper.make_node("Concat", ["b", "lw"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Range", ["start", "end", "step"], ["positions"]),
        helper.make_node("Cast", ["positions"], ["p"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["flat", "p"], ["y"]),
        helper.make_node("ReduceProd", ["lw"], ["end"], keepdims=0),
    ]
    nodes.insert(7, nodes.pop())
    scalars = [
        helper.make_tensor(name, TensorProto.INT64, [], [number]) for name, number in (("start", 0), ("step", 1))
    ]
    weights = [numbers("zero", 0), numbers("one", 1), numbers("two", 2), *scalars]
    graph = load_onnx(model(nodes, {"x": ("b", "l", 4)}, ["y"], weights), dims={"b": 2, "l": 3})
    assert graph.op_name == ("flat", "y") and graph.is_view.tolist() == [True, False]
    assert dict(zip(graph.tensor_name, graph.shape, strict=True))["y"] == (2, 12)
    assert sizes(graph)["p"] == 48


def test_size_that_depends_on_data_is_refused_by_name() -> None:
    with pytest.raises(ImportFailed, match=r"'found'.*NonZero") as caught:
        load_onnx(model([helper.make_node("NonZero", ["x"], ["found"])], {"x": (3, 4)}, ["found"]))
    assert "value_info" in caught.value.fix
    declared = model(
        [helper.make_node("NonZero", ["x"], ["found"]), helper.make_node("Abs", ["found"], ["y"])], {"x": (3, 4)}, ["y"]
    )
    declared.graph.value_info.append(value("found", (2, 6), TensorProto.INT64))
    assert sizes(load_onnx(declared))["y"] == 8 * 12


# Control flow


def body(nodes: list[Any], inputs: list[Any], outputs: list[str], weights: list[Any] | None = None) -> Any:
    return helper.make_graph(
        nodes, "body", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs], weights or []
    )


def test_if_costs_its_dearer_branch() -> None:
    dear = body([helper.make_node("MatMul", ["x", "w"], ["t"])], [], ["t"])
    cheap = body([helper.make_node("Mul", ["x", "k"], ["e"])], [], ["e"], [weight("k", (4, 4))])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=dear, else_branch=cheap)]
    proto = model(nodes, {"x": (4, 4)}, ["y"], [weight("w", (4, 4))])
    proto.graph.input.append(value("c", (), TensorProto.BOOL))
    graph = load_onnx(proto)
    assert graph.kind == ("If",) and graph.flops.tolist() == [2 * 4 * 4 * 4]
    assert {graph.tensor_name[t] for t in graph.reads_of(0)} == {"x", "w", "c", "y/k"}
    assert weight_bytes(graph) == 128 and sizes(graph)["y"] == 64
    assert graph.bytes_moved.tolist() == [3 * 64]
    assert graph.assumed == {"y": "arithmetic"}  # nobody said which branch is taken


def test_a_value_decides_which_branch_is_taken() -> None:
    """The other one is no obstacle: at these sizes it could not even run."""
    dear = body([helper.make_node("MatMul", ["x", "w"], ["t"])], [], ["t"])
    broken = body([helper.make_node("Squeeze", ["x", "first"], ["e"])], [], ["e"])
    rate = [helper.make_tensor("rate", TensorProto.INT64, [], [16000]), weight("w", (4, 4)), numbers("first", 0)]
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["c"]),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=dear, else_branch=broken),
    ]
    proto = model(nodes, {"x": (4, 4)}, ["y"], rate)
    proto.graph.input.append(value("sr", (), TensorProto.INT64))
    known = load_onnx(proto, dims={"sr": 16000})
    assert known.assumed == {} and known.flops.tolist() == [128]
    with pytest.raises(ImportFailed, match="Squeeze"):
        load_onnx(proto, dims={"sr": 8000})
    assert load_onnx(proto).assumed == {"if": "arithmetic"}


def loop(limit: list[Any], inputs: dict[str, Shape]) -> Any:
    """Each round multiplies the state by w and gives out its sum."""
    inside = body(
        [
            helper.make_node("Identity", ["on"], ["on_out"]),
            helper.make_node("MatMul", ["h", "w"], ["h_out"]),
            helper.make_node("ReduceSum", ["h_out", "axis"], ["total"], keepdims=0),
        ],
        [value("i", (), TensorProto.INT64), value("on", (), TensorProto.BOOL), value("h", (2, 4))],
        ["on_out", "h_out", "total"],
        [numbers("axis", 1)],
    )
    node = helper.make_node("Loop", ["limit", "", "x"], ["final", "totals"], name="loop", body=inside)
    return model([node], {"x": (2, 4), **inputs}, ["final", "totals"], [weight("w", (4, 4)), *limit])


def test_loop_costs_every_round() -> None:
    graph = load_onnx(loop([helper.make_tensor("limit", TensorProto.INT64, [], [10])], {}))
    assert graph.flops.tolist() == [10 * (2 * 2 * 4 * 4 + 8)]
    assert sizes(graph)["final"] == 32 and sizes(graph)["totals"] == 4 * 10 * 2
    # MatMul: h, w and its result; ReduceSum: its operand, the axis and its result
    assert graph.bytes_moved.tolist() == [10 * ((32 + 64 + 32) + (32 + 8 + 8))]


def test_loop_without_a_number_of_rounds_is_refused() -> None:
    proto = loop([], {})
    proto.graph.input.append(value("limit", (), TensorProto.INT64))
    with pytest.raises(ImportFailed, match=r"'loop'.*rounds") as caught:
        load_onnx(proto)
    assert "dims={'loop'" in caught.value.fix
    for name in ("loop", "limit"):
        assert load_onnx(proto, dims={name: 3}).flops.tolist() == [3 * (2 * 2 * 4 * 4 + 8)]


def test_scan_costs_every_step() -> None:
    inside = body(
        [
            helper.make_node("MatMul", ["s", "w"], ["m"]),
            helper.make_node("Add", ["m", "e"], ["s2"]),
            helper.make_node("Exp", ["s2"], ["o"]),
        ],
        [value("s", (1, 4)), value("e", (1, 4))],
        ["s2", "o"],
    )
    node = helper.make_node("Scan", ["s0", "xs"], ["last", "ys"], num_scan_inputs=1, body=inside, scan_input_axes=[1])
    graph = load_onnx(model([node], {"s0": (1, 4), "xs": (1, 6, 4)}, ["last", "ys"], [weight("w", (4, 4))]))
    assert graph.flops.tolist() == [6 * (2 * 4 * 4 + 4 + 4 * 4)]
    assert sizes(graph)["ys"] == 4 * 6 * 4 and sizes(graph)["last"] == 16


# Files that are not what they should be


@pytest.mark.parametrize("raw", [b"", b"\0" * 50, b"not a model", bytes(range(256)), LIGHT[0].read_bytes()[:500]])
def test_damaged_files(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(raw)
    with pytest.raises((UnreadableFile, ImportFailed)) as caught:
        load_onnx(path)
    assert "model" in str(caught.value) and caught.value.fix


def loads(source: Any) -> bool:
    """Whether it loads; an error of ours says no, and any other fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return load_onnx(source).num_ops > 0
        except LoadmasterError as error:
            assert error.what and error.fix
            return False


def test_a_byte_damaged_anywhere(tmp_path: Path) -> None:
    raw = (DATA / "light/light_bvlc_alexnet.onnx").read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "model.onnx"
    loaded = 0
    for place in rng.integers(0, len(raw), 300).tolist():
        path.write_bytes(raw[:place] + bytes([rng.integers(256)]) + raw[place + 1 :])
        loaded += loads(path)
    assert 0 < loaded < 300


def damage(proto: Any, rng: np.random.Generator) -> None:
    """Takes away or spoils one part of the model."""
    node = proto.graph.node[rng.integers(len(proto.graph.node))]
    kinds = (
        "Conv",
        "Reshape",
        "Einsum",
        "LSTM",
        "Shape",
        "Dropout",
        "Gemm",
        "Concat",
        "Loop",
        "NoSuchOp",
        "Range",
        "Squeeze",
    )
    number = int(rng.choice([-5, 0, 3, 2**40, 2**62]))
    match int(rng.integers(7)):
        case 0:
            node.op_type = str(rng.choice(kinds))
        case 1 if node.input:
            del node.input[rng.integers(len(node.input))]
        case 2 if node.output:
            del node.output[rng.integers(len(node.output))]
        case 3 if node.attribute:
            del node.attribute[rng.integers(len(node.attribute))]
        case 4 if node.attribute and node.attribute[0].ints:
            node.attribute[0].ints[0] = number
        case 5 if proto.graph.input:
            kind = proto.graph.input[rng.integers(len(proto.graph.input))].type.tensor_type
            kind.elem_type = int(rng.choice([0, 1, 7, 99]))
            if kind.shape.dim:
                kind.shape.dim[0].dim_value = number
        case 6 if proto.graph.initializer:
            weights = proto.graph.initializer[rng.integers(len(proto.graph.initializer))]
            weights.data_type = int(rng.choice([0, 1, 7, 99]))


def test_a_part_damaged_anywhere() -> None:
    rng = np.random.default_rng(0)
    paths = [*sorted(DATA.glob("simple/*/model.onnx")), *sorted(DATA.glob("pytorch-operator/*/model.onnx")), LIGHT[0]]
    loaded = 0
    for path in paths * 8:
        proto = onnx.load(path)
        for _ in range(rng.integers(1, 4)):
            damage(proto, rng)
        loaded += loads(proto)
    assert 0 < loaded < 8 * len(paths)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing.onnx"):
        with pytest.raises(UnreadableFile):
            load_onnx(path)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([helper.make_node("Relu", ["ghost"], ["y"])], "'ghost'"),
        ([helper.make_node("Relu", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])], "'b'"),
        ([helper.make_node("Conv", ["x"], ["y"])], "'y'"),
        ([helper.make_node("NoSuchOp", ["x"], ["y"])], "NoSuchOp"),
    ],
)
def test_broken_models_name_the_culprit(nodes: list[Any], words: str) -> None:
    with pytest.raises(ImportFailed, match=words):
        load_onnx(model(nodes, {"x": (1, 2, 3, 3)}, []))


def test_torch_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from loadmaster import load, price\n"
        f"print(price(load({str(LIGHT[0])!r}), '2xp100-pcie').num_ops)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 10


def test_without_onnx_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from loadmaster import load, MissingExtra\n"
        "try:\n    load('x.onnx')\nexcept MissingExtra as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "loadmaster[onnx]" in ran.stdout, ran.stderr
