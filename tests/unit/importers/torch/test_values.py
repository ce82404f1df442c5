"""Models that look at the numbers in their tensors while they are traced: captured as they run on what is given."""

from __future__ import annotations

import random
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from loadmaster.errors import ImportFailed  # noqa: E402
from loadmaster.graph import Graph  # noqa: E402
from loadmaster.importers.torch.export import capture, capture_fake  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*asks for the values of tensors")


def kinds(graph: Graph) -> Counter[str]:
    return Counter(kind.split(".")[1] for kind, view in zip(graph.kind, graph.is_view, strict=True) if not view)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp() if x.sum() > 0 else x.sin()


class Selects(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = x[x > 0]
        return kept.exp()


class Drops(nn.Module):
    """Layers left out at random, as LayerDrop does."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.layers, self.share = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)), share

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not (self.training and torch.rand([]) < self.share):
                x = layer(x)
        return x


class Writes(nn.Module):
    """The value asked for was written in place, through a view, after it was made."""

    def forward(self, x: Tensor) -> Tensor:
        marks = torch.zeros(4)
        marks[1:3].add_(2)
        marks[0] = -5
        return x.exp() if marks.sum().item() == -1 else x.sin()


class Routes(nn.Module):
    """A loop over the experts that got a token, by the weights of the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        with torch.no_grad():
            self.gate.weight.zero_()
            self.gate.bias.copy_(torch.tensor([0.0, 2.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            rows = (chosen == expert).nonzero().squeeze(1)
            out = out.index_add(0, rows, self.experts[expert](x[rows]))
        return out


@pytest.mark.parametrize(("sign", "taken"), [(1, "exp"), (-1, "sin")])
def test_a_branch_is_the_one_that_the_inputs_take(sign: int, taken: str) -> None:
    with pytest.warns(UserWarning, match=r"Branches asks for the values of tensors \(test_values.py:\d+\)"):
        graph = capture(Branches(), (sign * torch.ones(5),), training=False)
    assert set(kinds(graph)) & {"exp", "sin"} == {taken}


def test_a_size_that_depends_on_data_is_that_of_the_inputs() -> None:
    graph = capture(Selects(), (torch.tensor([1.0, -1.0, 2.0, 3.0]),), training=False)
    assert graph.shape[graph.makes_of(graph.num_ops - 1)[0]] == (3,)


def test_values_written_in_place_are_seen() -> None:
    assert kinds(capture(Writes(), (torch.ones(3),), training=False))["exp"] == 1


def test_experts_are_those_that_the_weights_choose() -> None:
    graph = capture(Routes(), (torch.ones(7, 4),), training=True)
    products = [op for op in range(graph.num_ops) if graph.kind[op].startswith("aten.addmm")]
    assert {graph.scope[op] for op in products} == {"gate", "experts.1"}


def test_dropped_layers_are_the_same_each_time_and_leave_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    first, second = (capture(Drops(0.5), (torch.ones(2, 4),), training=True) for _ in range(2))
    assert first.digest == second.digest
    assert 0 < kinds(first)["addmm"] < 6
    assert kinds(capture(Drops(0.0), (torch.ones(2, 4),), training=True))["addmm"] == 6
    torch.manual_seed(3)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_without_a_value_the_error_names_the_line_and_what_helps() -> None:
    def build(training: bool) -> tuple[nn.Module, tuple[Tensor]]:
        return Branches(), (torch.empty(2**23),)

    with pytest.raises(ImportFailed, match="value of a tensor") as caught:
        capture_fake(build, training=False)
    assert "test_values.py:" in caught.value.where


def test_groups_of_single_precision_are_multiplied() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 8, 16))

        def forward(self, x: Tensor) -> Tensor:
            return torch._grouped_mm(x, self.weight, offs=torch.tensor([3, 6], dtype=torch.int32))

    graph = capture(Grouped(), (torch.ones(6, 8),), training=True)
    flops = [int(graph.flops[op]) for op in range(graph.num_ops) if "_grouped_mm" in graph.kind[op]]
    assert flops == [2 * 6 * 8 * 16] * len(flops) and len(flops) == 2


def test_a_detector_whose_loss_matches_boxes_is_captured() -> None:
    """DETR: which queries are matched with which boxes depends on values, in the loss alone."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("scipy")
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "out_features": ["stage4"]}
    parts = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in SMALL.items()}
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=transformers.ResNetConfig(**sizes),
        d_model=32,
        num_queries=6,
        num_labels=5,
        **parts,
    )
    labels = [{"class_labels": torch.tensor([1, 2]), "boxes": torch.rand(2, 4)}]
    inputs = {"pixel_values": torch.rand(1, 3, 32, 32), "labels": labels}
    graph = capture(transformers.DetrForObjectDetection(config), inputs, training=True)
    assert any(kind.startswith("optim.") for kind in graph.kind)
    assert {"model.backbone", "model.encoder", "model.decoder"} <= {".".join(s.split(".")[:2]) for s in graph.scope}


SMALL = {"layers": 1, "ffn_dim": 64, "attention_heads": 4}


class Asks(nn.Module):
    """Whether all of a mask is ones, where the mask is made of a constant, of the input, or of a weight."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of, self.weight = of, nn.Parameter(torch.ones(4, 4))
        self.other = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.other(x)
        mask = {"constant": torch.arange(4), "input": x[0] * 0, "weight": self.weight.detach() - 1}[self.of]
        mask = mask.clone()
        mask += 1
        return x.exp() if (mask > 0).all() else x.sin()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("build", [capture, capture_fake])
def test_what_depends_on_nothing_given_is_known_without_memory_and_without_a_warning(build: object) -> None:
    inputs = (torch.randn(3, 4),)
    if build is capture:
        graph = capture(Asks("constant"), inputs, training=False)
    else:
        graph = capture_fake(lambda training: (Asks("constant"), inputs), training=False)
    assert kinds(graph)["exp"] == 1


def test_what_depends_on_what_is_given_is_said() -> None:
    for of in ("input", "weight"):
        with pytest.warns(UserWarning, match="asks for the values"):
            graph = capture(Asks(of), (torch.randn(3, 4),), training=False)
        assert kinds(graph)["exp"] == 1


class Overwrites(nn.Module):
    """Asks twice: what the second answer rests on was overwritten after it was read and before the first was asked."""

    def forward(self, x: Tensor) -> Tensor:
        counter = torch.zeros(1)
        before = counter + 0
        counter += 1
        x = x.exp() if counter > 0 else x.sin()
        return x.exp() if before > 0 else x.sin()


def test_a_value_is_that_of_its_time() -> None:
    found = kinds(capture(Overwrites(), (torch.randn(3),), training=False))
    assert (found["exp"], found["sin"]) == (1, 1)


def test_transformers_leaves_out_the_masks_that_it_leaves_out_in_reality() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
    config = transformers.Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1, use_cache=False)

    def build(training: bool) -> tuple[nn.Module, dict[str, Tensor]]:
        return transformers.Qwen2ForCausalLM(config), {"input_ids": torch.ones(2, 8, dtype=torch.int64)}

    real = capture(*build(False), training=False, name="qwen2")
    assert "bitwise_and" not in kinds(real)
    assert real.digest == capture_fake(build, training=False, name="qwen2").digest
