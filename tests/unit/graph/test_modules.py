"""Modules: which unit an op belongs to, and plans that keep units whole."""

import numpy as np
import pytest

from loadmaster import Budget, Graph, GraphBuilder, InvalidSetting, price, solve
from loadmaster.graph.modules import bind, unit_path, units_of


def two_layers(tied: bool = False) -> Graph:
    """embed -> add (of the model itself) -> layers.0.(a, b) -> layers.1.(a, b) -> head, which may share its weight."""
    g = GraphBuilder("stack")
    x, table = g.tensor(400, "input"), g.tensor(4000, "weight", name="embed.weight")
    tensor = g.tensor(400)
    g.op("embed", "embedding", [x, table], [tensor], flops=100, scope="embed")
    last = g.tensor(400)
    g.op("add", "add", [tensor], [last], flops=100, scope="")
    for layer in range(2):
        for part in "ab":
            weight, out = g.tensor(4000, "weight", name=f"layers.{layer}.{part}.weight"), g.tensor(400)
            g.op(f"{part}{layer}", "mm", [last, weight], [out], flops=10_000, scope=f"layers.{layer}.{part}")
            last = out
    head = table if tied else g.tensor(4000, "weight", name="head.weight")
    g.op("head", "mm", [last, head], [g.tensor(400, "output")], flops=10_000, scope="head")
    return g.build()


def test_blocks_are_members_of_lists_of_layers() -> None:
    assert unit_path("model.layers.3.mlp.up", "block") == "model.layers.3"
    assert unit_path("model.layers.3.mlp.up", "module") == "model.layers.3.mlp.up"
    assert unit_path("encoder.stage.1.unit.2.conv", "block") == "encoder.stage.1"
    assert unit_path("encoder.stage.1.unit.2.conv", "block", {"encoder.stage.1.unit.2"}) == "encoder.stage.1.unit.2"
    assert unit_path("lm_head", "block") == "lm_head"


def test_ops_of_the_whole_model_go_with_their_reader() -> None:
    units = units_of(two_layers(), "block")
    assert units.names == ("embed", "layers.0", "layers.1", "head")
    graph = two_layers()
    by_op = {graph.op_name[op]: units.names[unit] for op, unit in enumerate(units.of_op)}
    assert by_op == {
        "embed": "embed",
        "add": "layers.0",
        "a0": "layers.0",
        "b0": "layers.0",
        "a1": "layers.1",
        "b1": "layers.1",
        "head": "head",
    }
    held = {graph.tensor_name[t]: units.names[u] for t, u in enumerate(units.of_tensor) if u >= 0}
    assert held["layers.1.b.weight"] == "layers.1"


def test_units_that_share_a_weight_are_bound_together() -> None:
    graph = two_layers(tied=True)
    bound = bind(graph, "block")
    group = dict(zip(graph.op_name, bound.colocate.tolist(), strict=True))
    assert group["embed"] == group["head"] != group["a0"]
    assert group["a0"] == group["b0"] != group["a1"]


@pytest.mark.parametrize("method", ["random", "heft", "anneal", "metis"])
@pytest.mark.parametrize("granularity", ["module", "block"])
def test_every_method_keeps_units_whole(method: str, granularity: str) -> None:
    graph = two_layers()
    problem = price(graph, "4xp100-pcie")
    spec = f"whole-modules:granularity={granularity},inner=[{method}]"
    result = solve(problem, spec, Budget(None, 60), seed=1)
    units = units_of(problem.graph, granularity)  # type: ignore[arg-type]
    for unit in range(len(units.names)):
        assert len(np.unique(result.plan.device[units.of_op == unit])) == 1


def test_a_graph_without_modules_says_so() -> None:
    g = GraphBuilder("plain")
    g.op("relu", "relu", [g.tensor(4, "input")], [g.tensor(4, "output")], flops=1)
    with pytest.raises(InvalidSetting, match="no op says which module"):
        units_of(g.build(), "block")
