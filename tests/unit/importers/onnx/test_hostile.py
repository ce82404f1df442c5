"""Models made to hang, to fill the memory or to read what they should not: each is answered at once."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import loadmaster as lm
from loadmaster.errors import LoadmasterError

FLOAT = TensorProto.FLOAT


def model(nodes: list[onnx.NodeProto], *, inputs: list[int] | None = None, functions: list = [], opsets: list = []):  # type: ignore[no-untyped-def,type-arg]  # noqa: B006
    x = helper.make_tensor_value_info("x", FLOAT, inputs or [2, 2])
    y = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "hostile", [x], [y])
    return helper.make_model(graph, functions=functions, opset_imports=opsets or [helper.make_opsetid("", 20)])


def constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


@pytest.mark.parametrize("equation", ["....->", "..", "i...j...k->", "ij->->", "->.", "a,,.", "1"])
def test_odd_equations_end(equation: str) -> None:
    with pytest.raises(LoadmasterError):
        lm.load(model([helper.make_node("Einsum", ["x"], ["y"], equation=equation)]))


def test_a_clique_of_letters_is_not_computed() -> None:
    letters = "abcdefgh"
    terms = [a + b for i, a in enumerate(letters) for b in letters[i + 1 :]]
    nodes = [constant(f"c{i}", np.ones((60, 60), np.float32)) for i in range(len(terms))]
    nodes.append(
        helper.make_node("Einsum", [f"c{i}" for i in range(len(terms))], ["s"], equation=f"{','.join(terms)}->")
    )
    nodes.append(helper.make_node("Add", ["x", "s"], ["y"]))
    assert lm.load(model(nodes)).num_ops >= 1


def test_regular_expressions_are_not_run() -> None:
    nodes = [
        constant("text", np.array(["a" * 60 + "b"], object)),
        helper.make_node("RegexFullMatch", ["text"], ["match"], pattern="(a+)+$"),
        helper.make_node("Cast", ["match"], ["number"], to=FLOAT),
        helper.make_node("Add", ["x", "number"], ["y"]),
    ]
    assert lm.load(model(nodes)).num_ops >= 1


@pytest.mark.parametrize("circle", [False, True])
def test_functions_that_double_are_refused(circle: bool) -> None:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    functions = []
    for level in range(30):
        inner = f"f{level - 1}" if level else ("f29" if circle else None)
        kinds = [(inner, "mine")] * 2 if inner else [("Relu", "")] * 2
        nodes = [
            helper.make_node(kinds[0][0], ["a"], ["b"], domain=kinds[0][1]),
            helper.make_node(kinds[1][0], ["b"], ["c"], domain=kinds[1][1]),
        ]
        functions.append(helper.make_function("mine", f"f{level}", ["a"], ["c"], nodes, opsets))
    with pytest.raises(LoadmasterError, match="call each other"):
        lm.load(model([helper.make_node("f29", ["x"], ["y"], domain="mine")], functions=functions, opsets=opsets))


def test_thousands_of_ops_of_one_name() -> None:
    names = ["x", *(f"t{i}" for i in range(4_000)), "y"]
    nodes = [helper.make_node("Relu", [a], [b], name="same") for a, b in itertools.pairwise(names)]
    graph = lm.load(model(nodes))
    assert len(set(graph.op_name)) == graph.num_ops == 4_001


def test_a_constant_in_another_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(np.array([7], np.int64).tobytes())
    monkeypatch.chdir(tmp_path)
    hidden = TensorProto(name="c", data_type=TensorProto.INT64, dims=[1], data_location=TensorProto.EXTERNAL)
    hidden.external_data.add(key="location", value="secret")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=hidden),
        helper.make_node("ConstantOfShape", ["c"], ["ones"]),
        helper.make_node("Add", ["x", "ones"], ["y"]),
    ]
    with pytest.raises(LoadmasterError, match="unknown"):  # seven is not known
        lm.load(model(nodes))
    nodes = [nodes[0], helper.make_node("Cast", ["c"], ["f"], to=FLOAT), helper.make_node("Add", ["x", "f"], ["y"])]
    assert lm.load(model(nodes)).num_ops == 1


@pytest.mark.parametrize("version", [2**40, -1, 2**62])
def test_a_version_of_any_size(version: int) -> None:
    nodes = [constant("c", np.array([1], np.int64)), helper.make_node("Add", ["x", "c"], ["y"])]
    with contextlib.suppress(LoadmasterError):
        assert lm.load(model(nodes, opsets=[helper.make_opsetid("", version)])).num_ops >= 1


def test_a_domain_that_is_no_text() -> None:
    raw = model([helper.make_node("Relu", ["x"], ["y"])], opsets=[helper.make_opsetid("domain", 20)])
    spoiled = raw.SerializeToString().replace(b"domain", b"\xff\xfe\xfdain")
    with pytest.raises(LoadmasterError):
        lm.load(onnx.load_from_string(spoiled))


def test_more_elements_than_a_number_holds() -> None:
    nodes = [helper.make_node("Size", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=FLOAT)]
    assert lm.load(model(nodes, inputs=[2**40, 2**40])).num_ops == 1  # Size is folded, its value unknown
