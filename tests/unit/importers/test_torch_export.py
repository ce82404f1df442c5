"""Captured graphs against counts by hand, against other ways to find the same thing, and against real runs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from loadmaster.errors import ImportFailed, UnknownName  # noqa: E402
from loadmaster.graph import INPUT, OUTPUT, STATE, WEIGHT, Graph  # noqa: E402
from loadmaster.importers.torch_export import capture, capture_fake  # noqa: E402


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).sum()


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        query, key, value = self.attention(self.norm(x)).view(batch, steps, 3, 2, width // 2).unbind(2)
        mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        x = x + self.drop(mixed.transpose(1, 2).reshape(batch, steps, width))
        return x + self.drop(self.outer(F.gelu(self.inner(x))))


class Transformer(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList(Block(8, dropout) for _ in range(2))
        self.head = nn.Linear(8, 50)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


class ConvNet(nn.Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=inplace)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.norm(self.conv(x))).mean((2, 3)))


WORDS = torch.arange(12).view(2, 6)
IMAGES = torch.ones(2, 4, 6, 6)


def ops(graph: Graph, kind: str) -> list[int]:
    return [op for op in range(graph.num_ops) if graph.kind[op].startswith(kind)]


def kinds(graph: Graph) -> list[str]:
    """Of the ops that are not views, in order, without their overloads."""
    return [graph.kind[op].split(".")[1] for op in range(graph.num_ops) if not graph.is_view[op]]


def owned_bytes(graph: Graph, role: int) -> int:
    return int(graph.nbytes[(graph.role == role) & (graph.alias_of < 0)].sum())


def readers_of_memory(graph: Graph, tensor: int) -> set[int]:
    """Ops that read the tensor's memory, through whatever alias."""
    same = [t for t in range(graph.num_tensors) if graph.owner[t] == graph.owner[tensor]]
    return {int(op) for t in same for op in graph.readers_of(t)}


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
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    for kind in ("aten.gelu.default", "aten.gelu_backward.default"):
        for op in ops(graph, kind):
            name, line = graph.source[op].split(":")
            assert name == os.path.basename(__file__)
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
import torch
from tests.unit.importers.test_torch_export import ConvNet, IMAGES, capture
print(capture(ConvNet(True), (IMAGES,), training=True).digest)
"""


def test_the_same_model_gives_the_same_digest_in_another_process() -> None:
    first, second = (capture(ConvNet(True), (IMAGES,), training=True).digest for _ in range(2))
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    again = subprocess.run([sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True)
    assert first == second == again.stdout.strip()


def test_a_zoo_entry_gives_the_same_digest_twice() -> None:
    from loadmaster.zoo import ENTRIES
    from loadmaster.zoo.capture import capture_entry

    first, second = (capture_entry(ENTRIES["rnnlm-2"], training=True) for _ in range(2))
    assert first.digest == second.digest
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


def test_control_flow_on_values_is_refused_with_its_place() -> None:
    for make in (Branches, Selects):
        with pytest.raises(ImportFailed) as caught:
            capture(make(), (torch.ones(4),), training=False)
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
