"""GraphDef, SavedModel and CostGraphDef, written here byte by byte or as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster.errors import ImportFailed, InvalidSetting, LoadmasterError, UnreadableFile
from loadmaster.graph import INPUT, OUTPUT, WEIGHT, Graph
from loadmaster.importers import load
from tests.unit.importers.tensorflow import protos as p

pytestmark = pytest.mark.filterwarnings("ignore:.*assumed")

TEXT = """
node { name: "x" op: "Placeholder"
  attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "shape" value { shape { dim { size: -1 } dim { size: 16 } } } } }
node { name: "w" op: "Const"
  attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape { dim { size: 16 } dim { size: 4 } } } } } }
node { name: "y" op: "MatMul" input: "x" input: "w" attr { key: "T" value { type: DT_FLOAT } } }
node { name: "layer/z" op: "Relu" input: "y" }  # the end
"""
COSTS = """
node { name: "a" id: 1 output_info { size: 100 } compute_cost: 10 }
node { name: "b" id: 2 input_info { preceding_node: 1 } output_info { size: 50 } compute_cost: 20 }
node { name: "c" id: 3 input_info { preceding_node: 1 preceding_port: 0 } output_info { size: 40 } compute_cost: 30
       temporary_memory_size: 7 }
node { name: "d" id: 4 input_info { preceding_node: 2 } input_info { preceding_node: 3 } control_input: 1
       output_info { size: 8 } compute_cost: 10 is_final: true }
"""


def written(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def sizes(graph: Graph, role: int) -> list[int]:
    return [int(graph.nbytes[t]) for t in range(graph.num_tensors) if graph.role[t] == role]


@pytest.mark.parametrize("batch", [1, 5])
def test_convnet_by_hand(tmp_path: Path, batch: int) -> None:
    g = load(f"{written(tmp_path, 'net.pb', p.graph_def(p.convnet()))}#batch={batch}")
    assert g.op_name == ("conv", "relu", "pool", "flat", "out")
    assert list(map(int, g.flops)) == [2 * batch * 256 * 27, batch * 256, batch * 64 * 4, 0, 2 * batch * 64 * 10]
    assert sizes(g, INPUT) == [4 * batch * 8 * 8 * 3] and sizes(g, OUTPUT) == [4 * batch * 10]
    assert sorted(sizes(g, WEIGHT)) == sorted([4 * 3 * 3 * 3 * 4, 8, 4 * 64 * 10])
    assert g.is_view[g.op_name.index("flat")]


def test_open_axes_are_announced(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="#batch=64"):
        load(written(tmp_path, "net.pb", p.graph_def(p.convnet())))


def test_open_axes_other_than_a_batch_must_be_said(tmp_path: Path) -> None:
    nodes = [p.node("x", "Placeholder", shape=p.of_shape([-1, -1, 3])), p.node("y", "Exp", ["x"])]
    path = written(tmp_path, "net.pb", p.graph_def(nodes))
    with pytest.raises(ImportFailed, match=r"x\.0, x\.1"):
        load(path)
    g = load(f"{path}#batch=2,input0.1=5")
    assert g.shape[g.makes_of(0)[0]] == (2, 5, 3)
    unranked = [p.node("x", "Placeholder"), p.node("y", "Exp", ["x"])]
    with pytest.raises(ImportFailed, match="'x' has no shape"):
        load(written(tmp_path, "none.pb", p.graph_def(unranked)))


def test_shapes_in_the_file_help_where_nothing_else_does(tmp_path: Path) -> None:
    """Only whole ones: an open axis inside a graph need not be the batch."""
    nodes = [p.node("x", "Placeholder", dtype=p.of_type(1), shape=p.of_shape([4])),
             p.node("y", "TopKV2", ["x"], _output_shapes=p.of_shapes([3, 3], [2]), T=p.of_type(1)),
             p.node("z", "Relu", ["y:1"])]  # fmt: skip
    g = load(written(tmp_path, "net.pb", p.graph_def(nodes)))
    assert [g.shape[t] for t in g.makes_of(0)] == [(3, 3), (2,)] and g.shape[g.makes_of(1)[0]] == (2,)
    nodes[1] = p.node("y", "TopKV2", ["x"], _output_shapes=p.of_shapes([-1, 3], [2]), T=p.of_type(1))
    with pytest.raises(ImportFailed, match=r"'y' \(TopKV2\) reads \[4\]"):
        load(written(tmp_path, "net.pb", p.graph_def(nodes)))


def test_numbers_left_out_are_zeros(tmp_path: Path) -> None:
    """Cropping from (1, 1) to the end, whose bounds (0, 0) a file may leave out."""
    nodes = [p.node("x", "Placeholder", shape=p.of_shape([5, 7])),
             p.node("from", "Const", value=p.of_tensor(p.INT, [2], [1])),
             p.node("to", "Const", value=p.of_tensor(p.INT, [2])),
             p.node("y", "StridedSlice", ["x", "from", "to", "from"], end_mask=p.field(3, 3))]  # fmt: skip
    g = load(written(tmp_path, "net.pb", p.graph_def(nodes)))
    assert g.shape[g.makes_of(0)[0]] == (4, 6)


@pytest.mark.parametrize(
    ("op", "words"),
    [("MyOwnOp", "not known: MyOwnOp"), ("While", "loop"), ("StatelessIf", "branch"), ("VariableV2", "not frozen"),
     ("StatefulPartitionedCall", "function"), ("ReluGrad", "training step"),
     ("ResourceApplyAdam", "training step"), ("Conv2DBackpropFilter", "training step")],
)  # fmt: skip
def test_what_is_not_known_for_certain_is_refused_with_the_way_out(tmp_path: Path, op: str, words: str) -> None:
    nodes = [p.node("x", "Placeholder", shape=p.of_shape([4])), p.node("y", op, ["x"])]
    with pytest.raises(ImportFailed, match=words) as refused:
        load(written(tmp_path, "net.pb", p.graph_def(nodes)))
    assert "tf2onnx" in refused.value.fix


def test_a_saved_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = written(tmp_path, "mine/saved_model.pb", p.saved_model(p.graph_def(p.convnet())))
    with pytest.raises(ImportFailed, match="SavedModel") as refused:
        load(path)
    assert "--saved-model" in refused.value.fix


def test_numbers_written_as_bytes_are_read_from_text_too(tmp_path: Path) -> None:
    """TensorFlow writes the constants of a text as escaped bytes; here the shape (2, 8) of a Reshape."""
    text = TEXT.replace("size: -1", "size: 1").replace(
        "# the end",
        """
node { name: "to" op: "Const" attr { key: "value" value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } }
  tensor_content: "\\002\\000\\000\\000\\002\\000\\x00\\000" } } } }
node { name: "flat" op: "Reshape" input: "layer/z" input: "to" attr { key: "T" value { type: DT_FLOAT } } }""",
    )
    g = load(written(tmp_path, "a.pbtxt", text))
    assert g.shape[g.makes_of(2)[0]] == (2, 2)


def test_text_is_the_same_as_bytes(tmp_path: Path) -> None:
    nodes = [
        p.node("x", "Placeholder", dtype=p.of_type(1), shape=p.of_shape([-1, 16])),
        p.node("w", "Const", value=p.of_tensor(1, [16, 4])),
        p.node("y", "MatMul", ["x", "w"], T=p.of_type(1)),
        p.node("layer/z", "Relu", ["y"]),
    ]
    text = load(written(tmp_path, "a.pbtxt", TEXT))
    assert text.digest == load(written(tmp_path, "b.pb", p.graph_def(nodes))).digest
    assert text.scope == ("", "layer") and load(written(tmp_path, "c.txt", TEXT)).digest == text.digest


def test_cost_graph_by_hand(tmp_path: Path) -> None:
    g = load(written(tmp_path, "costs.pbtxt", COSTS))
    assert g.op_name == ("a", "b", "c", "d")
    assert [int(t) for t in g.time_ns[:, 0]] == [10_000, 20_000, 30_000, 10_000]
    assert sizes(g, 0) == [100, 50, 40] and sizes(g, OUTPUT) == [8]
    assert list(g.workspace_bytes) == [0, 0, 7, 0] and list(g.after_of(3)) == [0]


@pytest.mark.parametrize(
    ("name", "content", "kind", "word"),
    [
        ("a.pb", b"", UnreadableFile, "empty"),
        ("a.pb", b"\xff" * 20, UnreadableFile, "byte"),
        ("a.pb", p.graph_def([p.node("y", "Relu", ["gone"])]), ImportFailed, "gone"),
        ("a.pb", p.graph_def([p.node("y", "Relu", ["z"]), p.node("z", "Relu", ["y"])]), ImportFailed, "itself"),
        ("a.pb", p.graph_def([p.node("y", "NoOp"), p.node("y", "NoOp")]), ImportFailed, "same name"),
        ("a.pb", p.saved_model(b""), ImportFailed, "SavedModel"),
        ("a.pb", p.graph_def(p.convnet())[:-9], UnreadableFile, "bytes"),
        ("a.pbtxt", "node { name: ", UnreadableFile, "brace"),
        ("a.pbtxt", "hello", UnreadableFile, "no node"),
        ("a.pbtxt", "node { node { " * 500, UnreadableFile, "line 1"),
        ("a.pbtxt", COSTS.replace("preceding_node: 2", "preceding_node: 9"), ImportFailed, "node 9"),
        ("a.pbtxt", COSTS.replace("id: 2", "id: 1"), ImportFailed, "id 1"),
        ("a.txt", "hello", UnreadableFile, "no text that is known"),
    ],
)  # fmt: skip
def test_wrong_files_say_what(
    tmp_path: Path, name: str, content: bytes | str, kind: type[LoadmasterError], word: str
) -> None:
    with pytest.raises(kind, match=word):
        load(written(tmp_path, name, content))


def test_wrong_settings(tmp_path: Path) -> None:
    path = written(tmp_path, "net.pb", p.graph_def(p.convnet()))
    with pytest.raises(InvalidSetting):
        load(f"{path}#batch=many")
