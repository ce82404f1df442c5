"""Captured graphs against counts by hand, against other ways to find the same thing, and against real runs."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from loadmaster.errors import ImportFailed, UnknownName  # noqa: E402
from loadmaster.graph import INPUT, OUTPUT, STATE, WEIGHT  # noqa: E402
from loadmaster.importers.torch.export import capture, capture_fake  # noqa: E402
from tests.unit.importers.torch.models import (  # noqa: E402
    IMAGES,
    WORDS,
    Block,
    ConvNet,
    Mlp,
    Transformer,
    kinds,
    ops,
    owned_bytes,
)


def test_mlp_inference_by_hand() -> None:
    graph = capture(Mlp(), (torch.ones(8, 16),), training=False)
    assert kinds(graph) == ["addmm", "relu", "addmm", "sum"]
    assert [int(f) for f in graph.flops[~graph.is_view]] == [2 * 8 * 16 * 32, 8 * 32, 2 * 8 * 32 * 4, 32]
    moved = [16 * 32 + 32 + 8 * 16 + 8 * 32, 2 * 8 * 32, 32 * 4 + 4 + 8 * 32 + 32, 32 + 1]
    assert [int(b) for b in graph.bytes_moved[~graph.is_view]] == [4 * elements for elements in moved]
    assert owned_bytes(graph, WEIGHT) == 4 * (16 * 32 + 32 + 32 * 4 + 4)
    assert owned_bytes(graph, INPUT) == 4 * 8 * 16
    assert owned_bytes(graph, OUTPUT) == 4
    assert owned_bytes(graph, STATE) == 0


@pytest.mark.parametrize(("optimizer", "copies", "per_element"), [("adam", 2, 12), ("sgd", 0, 2)])
def test_mlp_training_by_hand(optimizer: str, copies: int, per_element: int) -> None:
    graph = capture(Mlp(), (torch.ones(8, 16),), training=True, optimizer=optimizer)
    weights = {"first.weight": 512, "first.bias": 32, "second.weight": 128, "second.bias": 4}
    assert owned_bytes(graph, WEIGHT) == 4 * sum(weights.values())
    assert owned_bytes(graph, STATE) == copies * 4 * sum(weights.values())
    assert owned_bytes(graph, OUTPUT) == 4
    expected = {
        "addmm": 2 * 8 * 16 * 32 + 2 * 8 * 32 * 4,
        "relu": 256,
        "threshold_backward": 256,
        "mm": 2 * 8 * 32 * 4 + 2 * 8 * 32 * 4 + 2 * 8 * 16 * 32,  # both gradients of the second layer, one of the first
        "sum": 32 + 32 + 256,  # loss and the gradients of both biases
        "ones_like": 0,
        optimizer: per_element * sum(weights.values()),
    }
    found: dict[str, int] = {}
    for op in range(graph.num_ops):
        if not graph.is_view[op]:
            name = graph.kind[op].split(".")[1]
            found[name] = found.get(name, 0) + int(graph.flops[op])
    assert found == expected
    for op in ops(graph, "optim."):
        weight = graph.op_name[op].removeprefix(f"{optimizer}:")
        touched = 3 + 2 * copies  # reads weight, gradient and state, writes weight and state
        assert graph.bytes_moved[op] == touched * 4 * weights[weight]
        assert [int(graph.alias_of[t]) for t in graph.makes_of(op)] == [
            int(t) for t in graph.reads_of(op) if graph.role[t] in (WEIGHT, STATE)
        ]


def test_backward_of_a_grouped_convolution() -> None:
    graph = capture(ConvNet(), (IMAGES,), training=True)
    (forward,), (backward,) = ops(graph, "aten.convolution.default"), ops(graph, "aten.convolution_backward")
    multiply_adds = 2 * 8 * 4 * 4 * (4 // 2) * 3 * 3  # results, each from half of the channels and a 3 x 3 window
    assert graph.flops[forward] == 2 * multiply_adds
    assert graph.flops[backward] == 2 * multiply_adds  # of the weight alone: the image needs no gradient


def test_tied_weights_are_one_weight() -> None:
    model = Transformer()
    model.head.weight = model.embedding.weight
    graph = capture(model, (WORDS,), training=True)
    assert owned_bytes(graph, WEIGHT) == sum(4 * weight.numel() for weight in model.parameters())
    assert "head.weight" not in graph.tensor_name
    (update,) = (op for op in range(graph.num_ops) if graph.op_name[op] == "adam:embedding.weight")
    before = {graph.kind[op] for op in graph.after_of(update)}
    assert {"aten.embedding.default", "aten.addmm.default"} <= before


def test_views_are_aliases_without_cost() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            doubled = x * 2
            first, second = doubled.chunk(2)
            return first.t(), second

    graph = capture(Halves(), (torch.ones(4, 6),), training=False)
    assert kinds(graph) == ["mul"]
    assert int(graph.flops[graph.is_view].sum()) == int(graph.bytes_moved[graph.is_view].sum()) == 0
    outputs = [t for t in range(graph.num_tensors) if graph.role[t] == OUTPUT]
    assert [graph.shape[t] for t in outputs] == [(2, 6), (6, 2)]
    assert {graph.tensor_name[graph.owner[t]] for t in outputs} == {"mul"}
    assert [int(graph.nbytes[t]) for t in outputs] == [48, 48]


def test_an_input_given_twice_is_one_input() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * y

    x = torch.ones(4, 6)
    assert owned_bytes(capture(Product(), (x, x), training=False), INPUT) == 96
    assert owned_bytes(capture(Product(), (x, x.clone()), training=False), INPUT) == 192


def test_an_input_that_shows_part_of_its_memory_holds_all_that_it_spans() -> None:
    every_second = torch.ones(4, 6)[:, ::2]
    assert owned_bytes(capture(nn.ReLU(), (every_second,), training=False), INPUT) == 4 * (3 * 6 + 2 * 2 + 1)
    repeated = torch.ones(1, 6).expand(4, 6)
    assert owned_bytes(capture(nn.ReLU(), (repeated,), training=False), INPUT) == 4 * 6


def test_dtype_is_that_of_the_arithmetic() -> None:
    graph = capture(nn.Embedding(10, 4).to(torch.bfloat16), (WORDS % 10,), training=False)
    assert graph.dtype == ("bfloat16",)
    graph = capture(Mlp().double(), (torch.ones(8, 16).double(),), training=False)
    assert set(graph.dtype) == {"float64"}


def test_the_loss_is_the_output_or_its_loss_or_the_mean_of_it() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.line(x)
            return {"loss": y.pow(2).sum(), "logits": y.exp()}

    given = capture(WithLoss(), {"x": torch.ones(3, 4)}, training=True)
    assert "pow" in kinds(given) and "exp" not in kinds(given)
    mean = capture(nn.Linear(4, 4), (torch.ones(3, 4),), training=True)
    assert kinds(mean)[:2] == ["addmm", "mean"]
    assert owned_bytes(mean, OUTPUT) == 4


def test_a_frozen_weight_has_no_update_and_an_unused_one_neither() -> None:
    model = Mlp()
    model.first.weight.requires_grad_(False)
    model.extra = nn.Linear(3, 3)
    graph = capture(model, (torch.ones(8, 16),), training=True)
    updated = {graph.op_name[op] for op in ops(graph, "optim.")}
    assert updated == {"adam:first.bias", "adam:second.weight", "adam:second.bias"}


def test_the_module_is_left_as_it_was() -> None:
    model = ConvNet(inplace=True).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.norm.train()
    capture(model, (IMAGES,), training=True)
    assert not model.training and model.norm.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not isinstance(weight.grad, Tensor) for weight in model.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_part_kept_in_evaluation_mode_stays_in_it() -> None:
    model = ConvNet().train()
    model.norm.eval()
    graph = capture(model, (IMAGES,), training=True, optimizer="sgd")
    assert owned_bytes(graph, STATE) == 0
    assert owned_bytes(capture(ConvNet(), (IMAGES,), training=True, optimizer="sgd"), STATE) == 2 * 8 * 4 + 8


def test_a_module_without_memory_is_captured_too() -> None:
    with torch.device("meta"):
        model = Transformer()
    real = capture(Transformer(), (WORDS,), training=True)
    assert capture(model, (WORDS,), training=True).digest == real.digest
    assert capture_fake(lambda training: (Transformer(), (WORDS,)), training=True).digest == real.digest


def test_seven_billion_weights_take_no_memory() -> None:
    def build(training: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
        return nn.Sequential(*(Block(8192, 0.0) for _ in range(13))), (torch.randn(1, 128, 8192),)

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = capture_fake(build, training=True)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert owned_bytes(graph, WEIGHT) > 4 * 6_000_000_000
    assert owned_bytes(graph, STATE) == 2 * owned_bytes(graph, WEIGHT)
    assert grown_kib < 2 * 2**20


DIGEST = """
from loadmaster.importers.torch.export import capture
from tests.unit.importers.torch.models import IMAGES, ConvNet
print(capture(ConvNet(True), (IMAGES,), training=True).digest)
"""


def test_the_same_model_gives_the_same_digest_in_another_process() -> None:
    first, second = (capture(ConvNet(True), (IMAGES,), training=True).digest for _ in range(2))
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    again = subprocess.run([sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True)
    assert first == second == again.stdout.strip()


def test_a_zoo_entry_gives_the_digest_that_is_shipped() -> None:
    from loadmaster.zoo import ENTRIES
    from loadmaster.zoo.capture import capture_entry
    from loadmaster.zoo.shelf import index

    first = capture_entry(ENTRIES["rnnlm-2"], training=True)
    assert first.digest == index()["rnnlm-2/train"].digest
    assert first.name == "rnnlm-2/train"
    # 2 layers x 40 steps of two products each, and one for all words at the end.
    products = [op for op in ops(first, "aten.addmm") + ops(first, "aten.mm") if first.op_name[op]]
    forward_flops = 2 * 40 * 2 * (2 * 64 * 2048 * 8192) + 2 * 64 * 40 * 2048 * 10_000
    # Backward takes two products for each; the first hidden states are constant, yet torch multiplies there as well.
    assert sum(int(first.flops[op]) for op in products) == pytest.approx(3 * forward_flops, rel=0.02)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Selects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[x > 0]


def test_control_flow_on_unknown_values_is_refused_with_its_place() -> None:
    large = 2**23  # more than is computed to find a value out
    for make in (Branches, Selects):
        with pytest.raises(ImportFailed) as caught:
            capture_fake(lambda training, make=make: (make(), (torch.empty(large),)), training=False)
        assert caught.value.__cause__ is not None
        assert os.path.basename(__file__) in caught.value.where
        assert "value of a tensor" in caught.value.fix


def test_inputs_that_do_not_fit_are_refused_with_the_module() -> None:
    with pytest.raises(ImportFailed) as caught:
        capture(Mlp(), (torch.ones(8, 17),), training=True)
    assert "module 'first'" in caught.value.where
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ImportFailed):
        capture(Mlp(), (), training=True)
    with pytest.raises(ImportFailed):
        capture(Mlp(), {"y": torch.ones(8, 16)}, training=True)
    with pytest.raises(ImportFailed, match="NoneType"):
        capture(Mlp(), None, training=True)


class Chooses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_has_no_known_cost_is_refused() -> None:
    with pytest.raises(ImportFailed, match="'cond' is not an op of torch"):
        capture(Chooses(), (torch.ones(4),), training=False)
    with pytest.raises(ImportFailed, match="sparse=False"):
        capture(nn.Embedding(10, 4, sparse=True), (WORDS % 10,), training=True)
    with pytest.raises(ImportFailed, match="plain"):
        capture(torch.jit.trace(nn.ReLU(), torch.ones(4)), (torch.ones(4),), training=False)


def test_a_recurrent_layer_is_unrolled_with_or_without_gradient() -> None:
    lstm, x = nn.LSTM(4, 5), torch.ones(3, 2, 4)
    for training in (False, True):
        graph = capture(lstm, (x,), training=training)
        # All steps of the input at once, then the hidden state of each step.
        flops = [int(graph.flops[op]) for op in ops(graph, "aten.addmm")]
        assert flops == [2 * 3 * 2 * 4 * 20, *[2 * 2 * 5 * 20] * 3]


def test_what_torch_compile_returns_is_captured_as_the_module_inside() -> None:
    model = Mlp()
    inside = capture(model, (torch.ones(8, 16),), training=True)
    assert capture(torch.compile(model), (torch.ones(8, 16),), training=True).digest == inside.digest


@pytest.mark.parametrize("training", [False, True])
def test_what_torch_export_returns_is_captured_as_the_module_it_was(training: bool) -> None:
    model, x = Mlp(), torch.ones(8, 16)
    exported = capture(torch.export.export(model, (x,)).module(), (x,), training=training)
    assert exported.digest == capture(model, (x,), training=training).digest
    assert set(exported.source) == {""}  # generated code has no lines of its own


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ImportFailed, match="no weight"):
        capture(nn.ReLU(), (torch.ones(4),), training=True)
    with pytest.raises(ImportFailed, match="no float"):
        capture(nn.Flatten(), (WORDS,), training=True)
    with pytest.raises(ImportFailed, match="function"):
        capture(lambda x: x, (torch.ones(4),), training=True)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="adam"):
        capture(Mlp(), (torch.ones(8, 16),), training=True, optimizer="adan")


def test_a_failing_builder_is_named() -> None:
    def broken(training: bool) -> tuple[nn.Module, Any]:
        raise ValueError("no such size")

    with pytest.raises(ImportFailed, match="no such size"):
        capture_fake(broken, training=True, name="mine")


def test_the_package_does_not_import_torch() -> None:
    program = "import loadmaster, loadmaster.zoo, loadmaster.graph, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("share", "training"), [(0.5, False), (0.0, True), (0.5, True)])
def test_dropout_is_an_op_only_where_it_drops(share: float, training: bool) -> None:
    """Against the ops that a real forward pass issues."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = nn.Linear(8, 8), nn.Dropout(share)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.drop(self.inner(x)).relu(), 0.0).exp()

    names: list[str] = []

    class Issued(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.name().removeprefix("aten::").partition(".")[0])
            return func(*args, **(kwargs or {}))

    module, x = Dropping(), torch.randn(4, 8)
    with Issued(), torch.set_grad_enabled(training):
        module.train(training)(x)
    drops = training and share > 0
    expected = ["t", "addmm", *(["bernoulli_"] if drops else []), "relu", "exp"]
    assert [name for name in names if name in {*expected, "clone"}] == expected
    captured = kinds(capture(module, (x,), training=training))
    assert captured[: 3 + drops] == ["addmm", *(["native_dropout"] if drops else []), "relu", "exp"]
    assert "clone" not in captured


class Ragged(nn.Module):
    """Two sizes that do not go together: torch writes a traceback to its log before it raises."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[:, 1:])


def test_what_torch_writes_to_its_log_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    monkeypatch.delenv("TORCH_LOGS", raising=False)
    handler, logger = Collect(), logging.getLogger("torch._subclasses.fake_tensor")  # where such lines come from
    logger.addHandler(handler)
    try:
        with pytest.raises(ImportFailed, match="Ragged could not be traced"):
            capture(Ragged(), (torch.ones(4, 8),), training=False)
        assert seen == [] and handler.level == logging.NOTSET
        logger.error("afterwards")
        monkeypatch.setenv("TORCH_LOGS", "+dynamo")
        with pytest.raises(ImportFailed):
            capture(Ragged(), (torch.ones(4, 8),), training=False)
        assert seen[0] == "afterwards" and len(seen) > 1
    finally:
        logger.removeHandler(handler)
