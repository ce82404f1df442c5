"""TFLite models: read, planned for little memory, written in the new order; and run where LiteRT is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import ImportFailed, InvalidPlan, LoadmasterError, UnreadableFile
from loadmaster.files import cluster_from_json
from loadmaster.graph import INPUT, OUTPUT, WEIGHT, Graph
from loadmaster.importers import load
from loadmaster.importers.tensorflow.tflite import write_order
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from tests.unit.importers.tensorflow.tflite_models import MODELS, branchy

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
