"""TFLite models: read, planned for little memory, written in the new order; and run where LiteRT is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import ImportFailed, InvalidPlan, InvalidSetting, LoadmasterError, UnreadableFile
from loadmaster.files import cluster_from_json, graph_from_json, graph_to_json
from loadmaster.graph import INPUT, OUTPUT, WEIGHT, Graph
from loadmaster.importers import load
from loadmaster.importers.tensorflow.tflite import write_order
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from tests.unit.importers.tensorflow.tflite_models import (
    CONCATENATION,
    CONV_2D,
    FULLY_CONNECTED,
    MODELS,
    RELU,
    Model,
    branchy,
)

MUL, RESHAPE, STRIDED_SLICE, SHAPE, IF, WHILE = 18, 22, 45, 77, 118, 119
every_model = pytest.mark.parametrize("name", MODELS)
BOARD = cluster_from_json(
    {
        "schema": "loadmaster.cluster/1",
        "devices": [
            {
                "name": "board",
                "kind": "cpu",
                "memory_bytes": 2**20,
                "flops_per_s": 1e8,
                "bytes_per_s": 1e8,
                "launch_ns": 9,
            }
        ],
        "links": [],
    }
)


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.tflite"
    path.write_bytes(MODELS[name]())
    return path


def small_plan(graph: Graph) -> tuple[Problem, Plan]:
    problem = price(graph, BOARD, objective="peak-memory")
    return problem, solve(problem, "memory-order", Budget(None, 400), 0).plan


def arena_bytes(graph: Graph, order: list[int]) -> int:
    """Most bytes of activations and inputs alive at once when ops run in this order; constants are not in the arena."""
    place = {op: position for position, op in enumerate(order)}
    alive = np.zeros(len(order) + 1, np.int64)
    for tensor in range(graph.num_tensors):
        if graph.role[tensor] == WEIGHT:
            continue
        maker, readers = int(graph.producer[tensor]), [place[int(op)] for op in graph.readers_of(tensor)]
        first = place[maker] if maker >= 0 else 0
        last = len(order) - 1 if graph.role[tensor] in (OUTPUT, INPUT) else max(readers, default=first)
        alive[first : last + 1] += graph.nbytes[tensor]
    return int(alive.max())


def test_chain_by_hand(tmp_path: Path) -> None:
    g = load(written(tmp_path, "chain"))
    assert g.kind == ("FULLY_CONNECTED", "RELU") * 3
    assert list(map(int, g.flops)) == [2 * 16 * 32, 32, 2 * 32 * 32, 32, 2 * 32 * 8, 8]
    weights = [int(g.nbytes[t]) for t in range(g.num_tensors) if g.role[t] == WEIGHT]
    assert sum(weights) == 4 * (16 * 32 + 32 + 32 * 32 + 32 + 32 * 8 + 8)


@every_model
def test_the_order_of_a_plan_is_written(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    g = load(path)
    _, plan = small_plan(g)
    order = write_order(path, plan, tmp_path / "new.tflite")
    new = load(tmp_path / "new.tflite")
    assert [n.partition(":")[2] for n in new.op_name] == [n.partition(":")[2] for n in order]
    assert sorted(new.flops) == sorted(g.flops) and new.tensor_name == g.tensor_name
    for op, old in zip(range(new.num_ops), (g.op_name.index(n) for n in order), strict=True):
        assert list(new.reads_of(op)) == list(g.reads_of(old)) and list(new.makes_of(op)) == list(g.makes_of(old))


def test_a_branchy_model_needs_a_smaller_arena(tmp_path: Path) -> None:
    path = written(tmp_path, "branchy")
    g = load(path)
    _, plan = small_plan(g)
    write_order(path, plan, tmp_path / "new.tflite")
    before = arena_bytes(g, list(range(g.num_ops)))
    new = load(tmp_path / "new.tflite")
    after = arena_bytes(new, list(range(new.num_ops)))
    assert after < 0.45 * before


@every_model
def test_outputs_are_equal_in_litert(name: str, tmp_path: Path) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    path = written(tmp_path, name)
    _, plan = small_plan(load(path))
    write_order(path, plan, tmp_path / "new.tflite")

    def run(model: Path) -> Any:
        interpreter = litert.Interpreter(str(model))
        interpreter.allocate_tensors()
        given = interpreter.get_input_details()[0]
        interpreter.set_tensor(given["index"], np.random.default_rng(0).random(given["shape"], np.float32))
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    first, second = run(path), run(tmp_path / "new.tflite")
    assert first.any() and np.array_equal(first, second)


def test_plans_of_other_models_are_refused(tmp_path: Path) -> None:
    _, plan = small_plan(load(written(tmp_path, "chain")))
    with pytest.raises(InvalidPlan, match="another model"):
        write_order(written(tmp_path, "branchy"), plan, tmp_path / "new.tflite")
    with pytest.raises(InvalidPlan, match="tflite"):
        write_order(tmp_path / "chain.tflite", plan, tmp_path / "new.bin")


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    whole = branchy()
    path = tmp_path / "bad.tflite"
    for damaged in (b"", b"TFL3", b"\x10\0\0\0TFL3", whole[:200], b"\xff\xff\xff\x7fTFL3" + whole[8:], b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises((UnreadableFile, ImportFailed)):
            load(path)


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    whole, path = MODELS["chain"](), tmp_path / "bad.tflite"
    for place in range(0, len(whole), 7):
        raw = bytearray(whole)
        raw[place] ^= 0xFF
        path.write_bytes(raw)
        try:
            load(path)
        except LoadmasterError as error:
            assert error.what


def open_reshape() -> bytes:
    """[batch, 8] becomes [batch * 2, 4], whose rows are read from the shape while the model runs."""
    m = Model()
    x = m.given([-1, 8])
    shape = m.op(SHAPE, [x], [2])
    m.tensors[shape][1] = ("b", 2)
    rows = m.op(STRIDED_SLICE, [shape, m.numbers([0]), m.numbers([1]), m.numbers([1])], [1], (32, {}))
    m.tensors[rows][1] = ("b", 2)
    twice = m.op(MUL, [rows, m.numbers([2])], [1], (21, {}))
    wanted = m.op(CONCATENATION, [twice, m.numbers([4])], [2], (10, {0: ("i", 0)}))
    y = m.op(RESHAPE, [x, wanted], [1, 4], (17, {}))
    return m.written([m.op(FULLY_CONNECTED, [y, m.weight([16, 4])], [1, 16], (8, {0: ("b", 0)}))])


@pytest.mark.parametrize("behind", ["batch=32", "t0.0=32", "input0.0=32"])
def test_open_sizes_go_through_the_shapes_a_model_computes(behind: str, tmp_path: Path) -> None:
    path = tmp_path / "open.tflite"
    path.write_bytes(open_reshape())
    one, many = load(path), load(f"{path}#{behind}")
    assert one.flops[-1] == 2 * 2 * 4 * 16 and many.flops[-1] == 32 * one.flops[-1]
    assert many.shape[many.makes_of(many.num_ops - 1)[0]] == (64, 16)
    assert not many.assumed


@every_model
def test_shapes_are_those_of_litert(name: str, tmp_path: Path) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    path = written(tmp_path, name)
    interpreter = litert.Interpreter(str(path))
    interpreter.allocate_tensors()
    said = {tensor["name"]: tuple(map(int, tensor["shape"])) for tensor in interpreter.get_tensor_details()}
    g = load(path)
    assert {name: g.shape[tensor] for tensor, name in enumerate(g.tensor_name)}.items() <= said.items()


def test_a_size_that_is_not_open_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="no open size 'batch'"):
        load(f"{written(tmp_path, 'chain')}#batch=8")
    (tmp_path / "open.tflite").write_bytes(open_reshape())
    with pytest.raises(InvalidSetting, match=r"t0\.0"):
        load(f"{tmp_path / 'open.tflite'}#rows=8")


def test_a_size_that_leaves_nothing_is_refused_with_the_sizes_to_give(tmp_path: Path) -> None:
    m = Model()
    x = m.given([1, -1, 8, 3])
    valid = (1, {0: ("b", 1), 1: ("i", 1), 2: ("i", 1), 4: ("i", 1), 5: ("i", 1)})
    (tmp_path / "m.tflite").write_bytes(m.written([m.op(CONV_2D, [x, m.weight([8, 5, 5, 3])], [1, 1, 4, 8], valid)]))
    with pytest.raises(ImportFailed, match=r"t0\.1=SIZE"):
        load(tmp_path / "m.tflite")
    assert load(f"{tmp_path / 'm.tflite'}#t0.1=9").shape[-1] == (1, 5, 4, 8)


def with_bodies(kind: int) -> bytes:
    """IF or WHILE around a product of [4, 8] with [8, 8]; the other part is one RELU, or a loop's condition."""
    m = Model()
    x, flag = m.given([4, 8]), m.given([1])
    m.tensors[flag][1] = ("b", 6)
    inner, other = m.body(), m.body()
    a, b = inner.given([4, 8]), other.given([4, 8])
    product = inner.part([inner.op(FULLY_CONNECTED, [a, inner.weight([8, 8])], [4, 8], (8, {0: ("b", 0)}))])
    small = other.part([other.op(RELU, [b], [4, 8])])
    numbers = {0: ("i", 1), 1: ("i", 2)}
    if kind == IF:
        return m.written([m.op(IF, [flag, x], [4, 8], (92, numbers))], (product, small))
    return m.written([m.op(WHILE, [x], [4, 8], (93, numbers))], (small, product))


def test_bodies_of_a_branch_and_a_loop_count(tmp_path: Path) -> None:
    """A branch counts as its larger side, a loop as one turn with its condition; both are said to be assumed."""
    product, relu = 2 * 4 * 8 * 8, 4 * 8
    for kind, flops in ((IF, product), (WHILE, product + relu)):
        path = tmp_path / f"{kind}.tflite"
        path.write_bytes(with_bodies(kind))
        with pytest.raises(ImportFailed, match="assumed"):
            load(path)
        g = load(path, assume=True)
        assert list(g.flops) == [flops] and list(g.assumed.values()) == ["arithmetic"]
        assert g.bytes_moved[0] >= 4 * (8 * 8 + 2 * 4 * 8)
        assert int(g.nbytes[g.role == WEIGHT].sum()) == 4 * 8 * 8
        again = graph_from_json(graph_to_json(g))
        assert again.digest == g.digest and again.assumed == g.assumed


def test_an_unknown_op_is_assumed_not_known(tmp_path: Path) -> None:
    m = Model()
    x = m.given([2, 8])
    (tmp_path / "m.tflite").write_bytes(m.written([m.op(250, [x], [2, 8])]))
    assert list(load(tmp_path / "m.tflite", assume=True).assumed.values()) == ["arithmetic"]
