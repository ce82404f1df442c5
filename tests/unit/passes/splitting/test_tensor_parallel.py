"""Megatron's split, worked out another way: what each device computes, how often all wait for each other."""

from __future__ import annotations

import re

import pytest

import loadmaster as lm
from loadmaster.errors import InvalidSetting
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.passes.splitting.tensor_parallel import MEGATRON, tensor_parallel
from loadmaster.plans import Plan
from loadmaster.simulator import simulate

ROWS, WIDTH = 64, 16


def layer() -> Graph:
    """x -> norm -> up (columns) -> relu -> down (rows) -> + x, and the update of a weight."""
    build = GraphBuilder("layer")
    nbytes = 4 * ROWS * WIDTH

    def tensor(name: str, columns: int, role: str = "activation", rows: int = ROWS) -> int:
        return build.tensor(4 * rows * columns, role, name=name, shape=(rows, columns))

    x, norm = tensor("x", WIDTH, "input"), tensor("norm", WIDTH)
    up, down = (
        tensor("mlp.up_proj.weight", 4 * WIDTH, "weight", WIDTH),
        tensor("mlp.down_proj.weight", WIDTH, "weight", 4 * WIDTH),
    )
    hidden, active, out, y = (
        tensor("hidden", 4 * WIDTH),
        tensor("active", 4 * WIDTH),
        tensor("out", WIDTH),
        tensor("y", WIDTH, "output"),
    )
    flops = 2 * ROWS * WIDTH * 4 * WIDTH
    build.op("norm", "aten.native_layer_norm.default", [x], [norm], flops=ROWS * WIDTH, bytes_moved=2 * nbytes)
    build.op("up", "aten.mm.default", [norm, up], [hidden], flops=flops, bytes_moved=9 * nbytes)
    build.op("relu", "aten.relu.default", [hidden], [active], flops=4 * ROWS * WIDTH, bytes_moved=8 * nbytes)
    build.op("down", "aten.mm.default", [active, down], [out], flops=flops, bytes_moved=9 * nbytes)
    build.op("add", "aten.add.Tensor", [out, x], [y], flops=ROWS * WIDTH, bytes_moved=3 * nbytes)
    return build.build()


def test_products_are_shared_out_and_the_rest_is_everywhere() -> None:
    graph = layer()
    made = tensor_parallel(graph, 4, lambda nbytes: nbytes)
    new = made.graph
    assert made.reductions == 1
    flops = {name: int(new.flops[op]) for op, name in enumerate(new.op_name)}
    for name in ("up", "relu", "down"):
        assert sum(flops[f"{name}@{p}"] for p in range(4)) == graph.flops[graph.op_name.index(name)]
    for name in ("norm", "add"):
        assert {flops[f"{name}@{p}"] for p in range(4)} == {int(graph.flops[graph.op_name.index(name)])}
    ring = new.op_name.index("all-reduce out@2")
    assert new.time_ns[ring].max() == 4 * ROWS * WIDTH  # what is given for all the bytes of the result
    assert {new.op_name[op] for op in new.after_of(ring)} == {f"down@{p}" for p in range(4)}
    weights = [t for t, name in enumerate(new.tensor_name) if name.startswith("mlp.up_proj.weight")]
    assert sum(int(new.nbytes[t]) for t in weights) == 4 * WIDTH * 4 * WIDTH


def test_devices_keep_step_and_nothing_is_sent() -> None:
    made = tensor_parallel(layer(), 2, lambda nbytes: 1_000_000)
    problem = lm.price(made.graph, "2xa100-nvlink")
    line = simulate(problem, Plan.of(problem, [made.device[name] for name in problem.graph.op_name]))
    assert not len(line.send_tensor)
    alone = sum(int(problem.op_ns[op, 0]) for op, name in enumerate(problem.graph.op_name) if name.endswith("@0"))
    assert line.step_ns == alone and alone > 1_000_000


def test_a_model_of_the_zoo_has_four_all_reduces_a_layer() -> None:
    """GPT-2: two forward and two backward in each of twelve layers, the tables of words, rows of the loss, the loss."""
    graph = lm.load("zoo:gpt2/train")
    one = tensor_parallel(graph, 1, lambda nbytes: 0)
    base, whole = lm.price(graph, "1xa100-nvlink"), lm.price(one.graph, "1xa100-nvlink")
    alone = simulate(base, Plan.of(base, [0] * base.num_ops))
    assert simulate(whole, Plan.of(whole, [0] * whole.num_ops)).step_ns == alone.step_ns
    inside = [name for name in one.device if re.match(r"all-reduce .*@0$", name)]
    assert one.reductions == len(inside) and 4 * 12 <= one.reductions <= 4 * 12 + 6


def test_names_that_mean_nothing_are_told() -> None:
    with pytest.raises(InvalidSetting, match="no weight"):
        tensor_parallel(layer(), 2, lambda nbytes: 0, re.compile("no such layer"))
    assert MEGATRON.search("model.layers.3.self_attn.q_proj.weight") and not MEGATRON.search("ln_1.weight")
