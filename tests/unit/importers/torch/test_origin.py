"""Scopes and source lines, against the names of weights and the text of the models."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from loadmaster.graph import WEIGHT  # noqa: E402
from loadmaster.importers.torch.export import capture  # noqa: E402
from tests.unit.importers.torch import models as torch_models  # noqa: E402
from tests.unit.importers.torch.models import WORDS, Transformer, ops, readers_of_memory  # noqa: E402


def test_forward_ops_are_scoped_where_their_weight_is() -> None:
    graph = capture(Transformer(), (WORDS,), training=True)
    checked = 0
    for tensor, name in enumerate(graph.tensor_name):
        if graph.role[tensor] == WEIGHT and graph.alias_of[tensor] < 0:
            readers = [op for op in readers_of_memory(graph, tensor) if not graph.kind[op].startswith("optim.")]
            assert {graph.scope[op] for op in readers} == {name.rpartition(".")[0]}
            checked += len(readers)
    assert checked > 20


def test_backward_ops_are_scoped_where_the_weight_is_whose_gradient_they_make() -> None:
    graph = capture(Transformer(), (WORDS,), training=True)
    updates = ops(graph, "optim.")
    for op in updates:
        weight = graph.op_name[op].removeprefix("adam:")
        gradient = graph.reads_of(op)[1]
        maker = int(graph.producer[graph.owner[gradient]])
        assert graph.scope[maker] == graph.scope[op] == weight.rpartition(".")[0]
    scoped = [op for op in range(graph.num_ops) if graph.scope[op]]
    assert len(scoped) > 0.85 * graph.num_ops  # the rest is the model's own forward: embedding sums and the loss


def test_backward_ops_have_the_line_of_their_forward_op() -> None:
    graph = capture(Transformer(), (WORDS,), training=True)
    model_file = Path(torch_models.__file__)
    lines = model_file.read_text(encoding="utf-8").splitlines()
    for kind in ("aten.gelu.default", "aten.gelu_backward.default"):
        for op in ops(graph, kind):
            name, line = graph.source[op].split(":")
            assert name == model_file.name
            assert "F.gelu" in lines[int(line) - 1]
    assert not any("/" in source for source in graph.source)


def test_a_cell_called_in_every_step_has_one_scope() -> None:
    class Rnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.GRUCell(4, 4), nn.GRUCell(4, 4)])

        def forward(self, x: Tensor) -> Tensor:
            first, second = x.new_zeros(2, 4), x.new_zeros(2, 4)
            for step in x.unbind(1):
                first = self.layers[0](step, first)
                second = self.layers[1](first, second)
            return second.sum()

    graph = capture(Rnn(), (torch.ones(2, 3, 4),), training=True)
    products = [graph.scope[op] for op in ops(graph, "aten.addmm")]
    assert products == ["layers.0", "layers.0", "layers.1", "layers.1"] * 3


class Fork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.gate = nn.Linear(4, 4), Gate()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        shared = self.gate(self.trunk(x))
        return (self.left(shared) + self.right(shared)).sum()


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x > 0)  # the comparison needs no gradient, and comes right after the trunk's product


def test_an_op_without_gradient_does_not_take_the_backward_ops_of_the_op_before() -> None:
    graph = capture(Fork(), (torch.ones(2, 4),), training=True)
    (update,) = (op for op in range(graph.num_ops) if graph.op_name[op] == "adam:trunk.weight")
    gradient = graph.owner[graph.reads_of(update)[1]]
    assert graph.scope[graph.producer[gradient]] == "trunk"


def test_a_sum_of_gradients_is_scoped_with_one_of_them() -> None:
    graph = capture(Fork(), (torch.ones(2, 4),), training=True)
    forward_sum, gradient_sum = ops(graph, "aten.add.Tensor")
    assert graph.scope[forward_sum] == ""
    assert graph.scope[gradient_sum] in ("left", "right")


def test_the_first_gradient_comes_from_the_loss() -> None:
    graph = capture(Fork(), (torch.ones(2, 4),), training=True)
    (seed,), (loss, *_) = ops(graph, "aten.ones_like"), ops(graph, "aten.sum.default")
    assert graph.source[seed] == graph.source[loss] != ""
