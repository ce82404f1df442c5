"""A split graph computes what the graph before it computes: both are run, op by op, on real tensors."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, fx, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph import Graph  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.importers.torch.graph import Call, CapturedStep  # noqa: E402
from loadmaster.passes.splitting import Split, SplitGraph, axes_of, grow, split_region  # noqa: E402
from loadmaster.passes.splitting.axes import bare_kind  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402


class Words(nn.Module):
    """Embedding, attention by batched products (with a softmax over queries, which no shape tells), a norm, a head and
    its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12)

    def forward(self, words: Tensor) -> Tensor:
        seen = self.table(words)
        weights = torch.softmax(torch.bmm(seen, seen.transpose(1, 2)).sigmoid(), 1)
        mixed = torch.tanh(self.mix(self.norm(torch.bmm(weights, seen))))
        return F.cross_entropy(self.head(mixed).flatten(0, 1), words.flatten())


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3)
        self.head = nn.Linear(6, 4, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.second(torch.relu(self.first(images))))
        return F.cross_entropy(self.head(hidden.sum((2, 3))), torch.arange(4) % 4)


MODELS = {
    "words": (Words, lambda: torch.randint(0, 12, (4, 6))),
    "pictures": (Pictures, lambda: torch.randn(4, 2, 6, 6, dtype=torch.float64)),
}


def captured(name: str) -> tuple[CapturedStep, dict[str, Tensor]]:
    torch.manual_seed(0)
    kind, make = MODELS[name]
    module, given = kind().double(), make()
    step = capture_step(module, (given,), training=True, optimizer="none")
    real = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    places = step.trace.module.graph.find_nodes(op="placeholder")
    names = {node: entry.name for node, entry in zip(places, step.trace.given, strict=True)}
    values = {}
    for tensor, node in step.given.items():
        known = names.get(node)
        if known is None:
            values[step.graph.tensor_name[tensor]] = getattr(step.trace.module, str(node.target))
        else:
            values[step.graph.tensor_name[tensor]] = real[known].detach() if known in real else given
    return step, values


def call(entry: Call, graph: Graph, op: int, operands: list[Tensor], shape: tuple[int, ...] | None) -> Any:
    """The op on these operands, which stand for what it reads in the graph it was captured for."""
    of = dict(zip(graph.reads_of(op).tolist(), operands, strict=True))
    if shape is not None and bare_kind(graph.kind[op]) in ("view", "_unsafe_view", "reshape", "expand"):
        return operands[0].expand(shape) if "expand" in graph.kind[op] else operands[0].reshape(shape)

    def value(arg: Any) -> Any:
        if not isinstance(arg, fx.Node):
            return arg
        if arg in entry.reads:
            return of[entry.reads[arg]]
        form = arg.meta["val"]  # its values are not needed, but the number of its samples is
        return torch.zeros(
            (len(operands[0]), *form.shape[1:]) if arg is entry.node.args[1] else form.shape, dtype=form.dtype
        )

    args = fx.node.map_aggregate(entry.node.args, value)
    named = fx.node.map_aggregate(entry.node.kwargs, value)
    return entry.node.target(*args, **named)


def keep(values: dict[str, Tensor], graph: Graph, op: int, made: Any, makes: Any) -> None:
    names = [graph.tensor_name[t] for t in graph.makes_of(op)]
    flat = list(made) if isinstance(made, (list, tuple)) else [made]
    used = list(makes) if isinstance(makes, (list, tuple)) else [makes]
    kept = [value for value, tensor in zip(flat, used, strict=False) if tensor is not None]
    values.update(zip(names, kept, strict=True))


def run_whole(step: CapturedStep, given: dict[str, Tensor]) -> dict[str, Tensor]:
    graph, values = step.graph, dict(given)
    for op, entry in enumerate(step.calls):
        assert isinstance(entry, Call)
        operands = [values[graph.tensor_name[t]] for t in graph.reads_of(op)]
        keep(values, graph, op, call(entry, graph, op, operands, None), entry.makes)
    return values


def run_split(step: CapturedStep, made: SplitGraph, given: dict[str, Tensor]) -> dict[str, Tensor]:
    old, new, values = step.graph, made.graph, dict(given)
    for op, name in enumerate(new.op_name):
        operands = [values[new.tensor_name[t]] for t in new.reads_of(op)]
        names = [new.tensor_name[t] for t in new.makes_of(op)]
        origin = made.origin.get(name)
        if origin is None or origin.part >= 0:
            before = old.op_name.index(name) if origin is None else origin.op
            shape = None if origin is None else new.shape[new.makes_of(op)[0]]
            keep(values, new, op, call(step.calls[before], old, before, operands, shape), step.calls[before].makes)
        elif name.startswith("slice:"):
            number, length = int(re.search(r"/part(\d+)$", name)[1]), new.shape[new.makes_of(op)[0]][origin.dim]
            values[names[0]] = operands[0].narrow(origin.dim, number * length, length)
        elif new.kind[op] == "aten.cat.default":
            values[names[0]] = torch.cat(operands, origin.dim)
        elif new.kind[op] == "aten.add.Tensor":
            values[names[0]] = operands[0] + operands[1]
        else:  # losses of the parts, then their weights: the mean over all samples
            losses, weights = torch.stack(operands[: len(operands) // 2]), torch.stack(operands[len(operands) // 2 :])
            values |= {names[0]: (losses * weights).sum() / weights.sum(), names[1]: weights.sum()}
    return values


@pytest.mark.parametrize("ops", [1, 4, 1000])
@pytest.mark.parametrize("name", MODELS)
def test_every_way_to_split_every_op_computes_the_same(name: str, ops: int) -> None:
    step, given = captured(name)
    graph = step.graph
    expected = run_whole(step, given)
    wanted = [graph.tensor_name[t] for t in (*step.outputs, *step.gradients.values())]
    tried = set()
    for op in range(graph.num_ops):
        for number, axis in enumerate(axes_of(graph, op)):
            if axis.size % 2:
                continue
            split = Split(graph.op_name[op], number, 2, ops)
            made = split_region(graph, grow(graph, split))
            values = run_split(step, made, given)
            for tensor in wanted:
                torch.testing.assert_close(values[tensor], expected[tensor], msg=f"{split} {tensor}")
            tried.add(bare_kind(graph.kind[op]))
    if name == "words":
        assert tried >= {"mm", "addmm", "bmm", "embedding", "_log_softmax", "nll_loss_forward", "native_layer_norm"}
    else:
        assert tried >= {"convolution", "convolution_backward", "relu", "mm", "sum", "nll_loss_backward"}


def test_a_split_step_can_be_planned() -> None:
    step, _ = captured("words")
    for op in range(step.graph.num_ops):
        for number, axis in enumerate(axes_of(step.graph, op)):
            if axis.size % 2 == 0:
                made = split_region(step.graph, grow(step.graph, Split(step.graph.op_name[op], number, 2, 5)))
                problem = price(made.graph, "2xp100-pcie")
                line = simulate(problem, Plan.of(problem, [i % 2 for i in range(problem.num_ops)]))
                assert line.step_ns > 0
