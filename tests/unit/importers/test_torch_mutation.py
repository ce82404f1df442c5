"""Writes in place and random ops: who must wait for whom, found by walking the captured graph."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from loadmaster.graph import STATE, WEIGHT, Graph  # noqa: E402
from loadmaster.importers.torch_export import capture  # noqa: E402
from tests.unit.importers.torch_models import (  # noqa: E402
    IMAGES,
    WORDS,
    ConvNet,
    Mlp,
    Transformer,
    kinds,
    ops,
    owned_bytes,
    readers_of_memory,
)


def states_written(graph: Graph) -> dict[str, str]:
    """Name of each state that is no optimizer's, and the kind of the op that writes it."""
    found = {}
    for tensor in range(graph.num_tensors):
        base, op = int(graph.alias_of[tensor]), int(graph.producer[tensor])
        if base >= 0 and graph.role[base] == STATE and not graph.kind[op].startswith("optim."):
            found[graph.tensor_name[base]] = graph.kind[op]
    return found


def test_batch_norm_writes_its_statistics_in_place() -> None:
    graph = capture(ConvNet(), (IMAGES,), training=True)
    assert states_written(graph) == {
        "norm.running_mean": "aten._native_batch_norm_legit.default",
        "norm.running_var": "aten._native_batch_norm_legit.default",
        "norm.num_batches_tracked": "aten.add_.Tensor",
    }
    assert not any(graph.is_view[graph.producer[t]] for t in range(graph.num_tensors) if graph.role[t] == STATE)


def test_batch_norm_in_evaluation_only_reads_them() -> None:
    graph = capture(ConvNet(), (IMAGES,), training=False)
    assert owned_bytes(graph, STATE) == 0
    named = dict(zip(graph.tensor_name, graph.role.tolist(), strict=True))
    assert named["norm.running_mean"] == named["norm.running_var"] == WEIGHT


def test_writes_to_activations_are_traced_away() -> None:
    """A ReLU in place makes the second trace, in which batch norm returns its statistics instead of writing them."""
    graph, plain = (capture(ConvNet(inplace), (IMAGES,), training=True) for inplace in (True, False))
    assert states_written(graph) == {
        "norm.running_mean": "aten._native_batch_norm_legit_functional.default",
        "norm.running_var": "aten._native_batch_norm_legit_functional.default",
        "norm.num_batches_tracked": "aten.add.Tensor",
    }
    assert not ops(graph, "aten.copy_") and not ops(graph, "aten.relu_")
    assert int(graph.flops.sum()) == int(plain.flops.sum())
    assert owned_bytes(graph, STATE) == owned_bytes(plain, STATE)
    assert graph.scope[ops(graph, "aten.threshold_backward")[0]] == "relu"


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        new = self.mean * 0.5 + x
        old_and_new = self.mean + new  # reads the old value after the new one is made
        self.mean.copy_(new)
        return old_and_new


def test_a_new_state_waits_for_those_who_read_the_old_one() -> None:
    graph = capture(Remembers(), (torch.ones(4),), training=False)
    (copy,) = ops(graph, "aten.copy_")
    assert states_written(graph) == {"mean": "aten.copy_.default"}
    assert {graph.op_name[op] for op in graph.after_of(copy)} == {"mul", "add_1"}
    assert not graph.is_view[copy]


class Replaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.copy_(self.mean * 0.5 + x)
        return self.mean * 2


def test_a_new_state_is_written_without_a_copy_where_nobody_needs_the_old_one() -> None:
    graph = capture(Replaces(), (torch.ones(4),), training=False)
    assert kinds(graph) == ["mul", "add", "mul"]
    assert states_written(graph) == {"mean": "aten.add.Tensor"}
    assert graph.producer[graph.reads_of(2)].tolist() == [1]
    assert graph.after_of(1).tolist() == [0]


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        before = self.count * x
        self.count.add_(1)
        between = self.count * x
        self.count.mul_(2)
        return before + between + self.count


def test_every_reader_of_a_state_sees_the_version_it_was_written_for() -> None:
    graph = capture(Counts(), (torch.ones(4),), training=False)
    op = {name: index for index, name in enumerate(graph.op_name)}
    assert op["mul"] in graph.after_of(op["add_"])  # reads what add_ overwrites
    assert graph.producer[graph.reads_of(op["mul_1"])].max() == op["add_"]
    assert op["mul_1"] in graph.after_of(op["mul_"])
    assert op["mul_"] in graph.producer[graph.reads_of(op["add_1"])]
    assert graph.colocate[op["add_"]] == graph.colocate[op["mul_"]] >= 0


@pytest.mark.parametrize("make", [Mlp, Transformer, ConvNet])
def test_an_update_comes_after_all_who_read_what_it_overwrites(make: Any) -> None:
    inputs = {Mlp: torch.ones(8, 16), Transformer: WORDS, ConvNet: IMAGES}[make]
    graph = capture(make(), (inputs,), training=True)
    updates = ops(graph, "optim.")
    assert len(updates) == len(list(make().parameters()))
    for op in updates:
        for made in graph.makes_of(op):
            assert readers_of_memory(graph, made) - {op} <= set(graph.after_of(op).tolist())


def test_weights_are_grouped_with_their_update_but_not_with_their_readers() -> None:
    graph = capture(Transformer(), (WORDS,), training=True)
    updates = ops(graph, "optim.")
    assert len({int(graph.colocate[op]) for op in updates}) == len(updates)
    assert all(graph.colocate[op] == -1 for op in range(graph.num_ops) if op not in updates)


def test_random_ops_are_chained_in_program_order() -> None:
    graph = capture(Transformer(dropout=0.1), (WORDS,), training=True)
    drops = ops(graph, "aten.native_dropout.default")
    assert len(drops) == 4
    assert [graph.after_of(op).tolist() for op in drops] == [[], *([op] for op in drops[:-1])]
    others = set(range(graph.num_ops)) - set(drops) - set(ops(graph, "optim."))
    assert not any(len(graph.after_of(op)) for op in others)  # attention that drops nothing draws nothing
