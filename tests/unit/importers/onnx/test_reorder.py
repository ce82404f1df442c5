"""Nodes in plan order: a valid model that computes the same, by onnx's own evaluator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.importers.onnx.reorder import reorder  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402


def branches(path: Path) -> Path:
    """Two branches of three nodes each, with a view between, that meet."""
    nodes = [helper.make_node("Relu", ["x"], ["r"])]
    for side in "ab":
        nodes += [
            helper.make_node("MatMul", ["r", "w"], [f"m{side}"], name=f"m{side}"),
            helper.make_node("Reshape", [f"m{side}", "shape"], [f"v{side}"]),
            helper.make_node("Tanh", [f"v{side}"], [f"t{side}"], name=f"t{side}"),
        ]
    nodes.append(helper.make_node("Add", ["ta", "tb"], ["y"], name="add"))
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=(4, 4)).astype(np.float32), "w"),
        onnx.numpy_helper.from_array(np.array([2, 8], np.int64), "shape"),
    ]
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", [4, 4]), ("y", [2, 8]))]
    model = helper.make_model(helper.make_graph(nodes, "branches", *ends, weights))
    onnx.save_model(model, str(path))
    return path


def test_nodes_follow_the_plan_and_results_are_equal(tmp_path: Path) -> None:
    source = branches(tmp_path / "model.onnx")
    problem = lm.price(lm.load(source), "2xcpu")
    names = list(problem.graph.op_name)
    order = sorted(range(len(names)), key=lambda op: (names[op] == "add", names[op].endswith("a"), op))
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    plan = Plan.of(problem, [0] * len(names), rank)
    moved = reorder(source, plan, tmp_path / "out.onnx")
    assert moved > 0
    ordered = onnx.load_model(str(tmp_path / "out.onnx"))
    found = [node.name for node in ordered.graph.node if node.name]
    assert found.index("tb") < found.index("ma")
    x = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    before, after = (ReferenceEvaluator(str(p)).run(None, {"x": x})[0] for p in (source, tmp_path / "out.onnx"))
    assert np.array_equal(before, after)


def test_a_plan_of_another_model_is_refused(tmp_path: Path) -> None:
    source = branches(tmp_path / "model.onnx")
    g = lm.GraphBuilder("other")
    g.op("a", "any", [g.tensor(4, "input")], [g.tensor(4, "output")], flops=3)
    problem = lm.price(g.build(), "2xcpu")
    with pytest.raises(lm.InvalidPlan, match="another model"):
        reorder(source, Plan.of(problem, [0]), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
