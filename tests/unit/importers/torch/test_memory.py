"""Peak memory of a captured graph against that of a real run, measured by the storages alive after every op."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, fx, nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from loadmaster.graph import OUTPUT, Graph  # noqa: E402
from loadmaster.importers.torch.graph import graph_of  # noqa: E402
from loadmaster.importers.torch.origin import Origins  # noqa: E402
from loadmaster.importers.torch.step import trace_step  # noqa: E402
from tests.unit.importers.torch.models import IMAGES, WORDS, ConvNet, Mlp, Transformer  # noqa: E402


class Meter(TorchDispatchMode):
    """Bytes of the storages that ops have made and that are still alive, at most."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.given = {tensor.untyped_storage()._cdata for tensor in given}
        self.alive: dict[int, tuple[Any, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.given:
                storage = tensor.untyped_storage()
                self.alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return made


def predicted_peak(graph: Graph) -> int:
    """Of what ops make, in the graph's own order: from the start of its maker to the end of its last reader."""
    last = {}
    for op in range(graph.num_ops):
        for tensor in (*graph.reads_of(op), *graph.makes_of(op)):
            last[int(graph.owner[tensor])] = op
    for tensor in range(graph.num_tensors):
        if graph.role[tensor] == OUTPUT:
            last[int(graph.owner[tensor])] = graph.num_ops
    alive = peak = 0
    for op in range(graph.num_ops):
        alive += sum(int(graph.nbytes[t]) for t in graph.makes_of(op) if graph.alias_of[t] < 0)
        peak = max(peak, alive)
        ended = [t for t, end in last.items() if end == op and graph.producer[t] >= 0]
        alive -= sum(int(graph.nbytes[t]) for t in ended)
    return peak


MODELS = {
    "mlp": (Mlp, torch.ones(8, 16)),
    "transformer": (Transformer, WORDS),
    "convolutions": (ConvNet, IMAGES),
    "in place": (lambda: ConvNet(inplace=True), IMAGES),
    "recurrent": (lambda: nn.LSTMCell(6, 9), torch.ones(5, 6)),
}


# Traced twice, batch norm makes new statistics (two of 8 floats, one count) that are copied at the end of the run; the
# graph writes them in place at once.
COPIED_BYTES = {("in place", True): 2 * 8 * 4 + 8}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_peak_in_program_order_is_that_of_a_real_run(name: str, training: bool) -> None:
    make, example = MODELS[name]
    module = make().train(training)
    trace = trace_step(module, (example,), training, Origins())
    given = [weight.detach().clone() for weight in (*module.parameters(), *module.buffers())]
    with Meter([*given, example]) as meter, torch.no_grad():
        fx.Interpreter(trace.module).run(*given, example)
    graph = graph_of(trace, "adam", name)
    assert predicted_peak(graph) == meter.peak - COPIED_BYTES.get((name, training), 0) > 0


def test_a_traced_step_computes_what_the_module_and_torch_compute() -> None:
    """Loss and gradients of the trace, run on real tensors, are those of an ordinary backward pass."""
    torch.manual_seed(0)
    module, images = ConvNet(inplace=True), torch.randn(2, 4, 6, 6)
    trace = trace_step(module, (images,), True, Origins())
    given = [tensor.detach().clone() for tensor in (*module.parameters(), *module.buffers())]
    with torch.no_grad():
        loss, *gradients = fx.Interpreter(trace.module).run(*given, images)
    expected = module(images).mean()
    expected.backward()
    assert torch.allclose(loss, expected)
    for gradient, weight in zip(gradients, module.parameters(), strict=True):
        assert torch.allclose(gradient, weight.grad, atol=1e-6)
    for new, buffer in zip(given[len(gradients) :], module.buffers(), strict=True):
        assert torch.allclose(new, buffer)
