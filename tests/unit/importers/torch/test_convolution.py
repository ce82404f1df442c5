"""The backward pass of a convolution as two ops, counted by hand and run against autograd."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, fx, nn  # noqa: E402

from loadmaster.graph import Graph  # noqa: E402
from loadmaster.importers.torch.export import capture  # noqa: E402
from loadmaster.importers.torch.origin import Origins  # noqa: E402
from loadmaster.importers.torch.step import trace_step  # noqa: E402
from tests.unit.importers.torch.models import kinds, ops  # noqa: E402


class Pair(nn.Module):
    """Images of 8 x 8 in 3 channels, then 6 x 6 in 4, then 3 x 3 in 6; only the second convolution has a bias."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3, bias=False)
        self.relu = nn.ReLU(inplace=inplace)
        self.outer = nn.Conv2d(4, 6, 2, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.inner(images))
        return self.outer(hidden)


IMAGES = (5, 3, 8, 8)
HIDDEN = (5, 4, 6, 6)
BYTES = {"images": 4 * 960, "hidden": 4 * 720, "result": 4 * 270, "inner": 4 * 108, "outer": 4 * 96, "bias": 4 * 6}


def captured(module: nn.Module) -> Graph:
    return capture(module, (torch.ones(IMAGES),), training=True, optimizer="sgd")


def halves(graph: Graph) -> list[int]:
    return ops(graph, "aten.convolution_backward")


def reads(graph: Graph, op: int) -> set[str]:
    return {graph.tensor_name[graph.owner[t]] for t in graph.reads_of(op)}


def test_two_convolutions_have_three_backward_ops() -> None:
    """The first one's images need no gradient."""
    assert kinds(captured(Pair())) == [
        "convolution", "relu", "convolution", "mean", "ones_like", "div",
        "convolution_backward", "convolution_backward", "threshold_backward", "convolution_backward",
        "sgd", "sgd", "sgd",
    ]  # fmt: skip


def test_each_half_counts_its_own_arithmetic() -> None:
    graph = captured(Pair())
    outer = 2 * 270 * 4 * 2 * 2  # each of the results from 4 channels and a 2 x 2 window
    inner = 2 * 720 * 3 * 3 * 3
    assert [int(graph.flops[op]) for op in halves(graph)] == [outer, outer, inner]
    assert [int(graph.flops[op]) for op in ops(graph, "aten.convolution.default")] == [inner, outer]


def test_each_half_reads_only_what_it_needs() -> None:
    graph = captured(Pair())
    assert [reads(graph, op) for op in halves(graph)] == [
        {"div", "outer.weight"},
        {"div", "relu"},
        {"threshold_backward", "input[0]"},
    ]
    made = [[graph.shape[t] for t in graph.makes_of(op)] for op in halves(graph)]
    assert made == [[HIDDEN], [(6, 4, 2, 2), (6,)], [(4, 3, 3, 3)]]
    assert [int(graph.bytes_moved[op]) for op in halves(graph)] == [
        BYTES["result"] + BYTES["outer"] + BYTES["hidden"],
        BYTES["result"] + BYTES["hidden"] + BYTES["outer"] + BYTES["bias"],
        BYTES["hidden"] + BYTES["images"] + BYTES["inner"],
    ]


def test_nothing_but_the_update_waits_for_the_gradient_of_a_weight() -> None:
    graph = captured(Pair())
    of_input, of_weight, _ = halves(graph)
    waiting = {int(op) for t in graph.makes_of(of_weight) for op in graph.readers_of(t)}
    assert {graph.op_name[op] for op in waiting} == {"sgd:outer.weight", "sgd:outer.bias"}
    # The weight is still read by the other half, which comes before it is written.
    (update,) = (op for op in waiting if graph.op_name[op] == "sgd:outer.weight")
    assert of_input in graph.after_of(update)


@pytest.mark.parametrize("inplace", [False, True])
def test_halves_have_the_module_and_the_line_of_their_forward_op(inplace: bool) -> None:
    """A step that writes to activations is traced twice."""
    graph = captured(Pair(inplace))
    assert [graph.scope[op] for op in halves(graph)] == ["outer", "outer", "inner"]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    for op in halves(graph):
        name, line = graph.source[op].split(":")
        assert name == Path(__file__).name
        assert f"self.{graph.scope[op]}(" in lines[int(line) - 1]


def test_a_frozen_weight_has_no_half_and_its_input_is_not_kept() -> None:
    module = Pair()
    module.outer.requires_grad_(False)
    graph = captured(module)
    assert [reads(graph, op) for op in halves(graph)] == [{"div", "outer.weight"}, {"threshold_backward", "input[0]"}]


def test_a_bias_alone_needs_neither_input_nor_weight() -> None:
    module = nn.Conv2d(3, 4, 3)
    module.weight.requires_grad_(False)
    graph = captured(module)
    assert [reads(graph, op) for op in halves(graph)] == [{"div"}]


def test_a_convolution_of_a_tensor_with_itself_reads_it_in_both_halves() -> None:
    class Correlation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.ones(4, 4, 3, 3))

        def forward(self) -> Tensor:
            doubled = self.kernel * 2
            return nn.functional.conv2d(doubled, doubled)

    graph = capture(Correlation(), (), training=True)
    assert [reads(graph, op) for op in halves(graph)] == [{"div", "mul"}, {"div", "mul"}]


MODELS = {
    "plain": (Pair, IMAGES),
    "in place": (lambda: Pair(inplace=True), IMAGES),
    "grouped": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3, padding=1, groups=2)), IMAGES),
    "transposed": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 6, 2, stride=2)), IMAGES),
    "dilated, one axis": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.Conv1d(4, 6, 2, dilation=2)), (5, 3, 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_halves_compute_what_autograd_computes(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    module, images = make(), torch.randn(shape)
    trace = trace_step(module, (images,), True, Origins())
    backward = [node for node in trace.module.graph.nodes if "convolution_backward" in str(node.target)]
    assert len(backward) == 3
    with torch.no_grad():
        given = [weight.detach().clone() for weight in module.parameters()]
        loss, *gradients = fx.Interpreter(trace.module).run(*given, images)
    expected = module(images).mean()
    expected.backward()
    assert torch.allclose(loss, expected)
    for gradient, weight in zip(gradients, module.parameters(), strict=True):
        assert torch.allclose(gradient, weight.grad, atol=1e-6)
        assert weight.grad.abs().max() > 1e-4
