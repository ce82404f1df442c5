"""Applied steps against the ordinary loop of torch, over several steps: losses, weights, buffers, random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.importers.torch.step import loss_of  # noqa: E402
from loadmaster.runtime.apply import apply  # noqa: E402
from loadmaster.runtime.verify import verify_step  # noqa: E402
from loadmaster.search import Result  # noqa: E402
from tests.unit.importers.torch.models import IMAGES, WORDS, ConvNet, Mlp, Transformer  # noqa: E402

Inputs = tuple[Tensor, ...]


class NoTokens(nn.Module):
    """With a weight of no elements, as models whose configuration leaves a part out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(0, 16))
        self.mlp = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(torch.cat([self.tokens, x]))


MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "no tokens": (NoTokens, (torch.ones(8, 16),)),
    "mlp": (Mlp, (torch.ones(8, 16),)),
    "transformer": (Transformer, (WORDS,)),
    "conv": (ConvNet, (IMAGES,)),
    "conv in place": (lambda: ConvNet(True), (IMAGES,)),
}
FUSED = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def planned(module: nn.Module, inputs: Inputs, spec: str, training: bool = True, optimizer: str = "adam") -> Result:
    graph = capture_step(module, inputs, training=training, optimizer=optimizer).graph
    return lm.solve(lm.price(graph, "3xp100-pcie"), spec, lm.Budget(None, 30), seed=3)


def ordinary_loop(module: nn.Module, inputs: Inputs, optimizer: Any, steps: int) -> list[Tensor]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module(*inputs), "module")
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("spec", ["random", "expert", "joint"])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_ordinary_loop_to_the_bit(name: str, spec: str) -> None:
    make, inputs = MODELS[name]
    module = make().train()
    twin = copy.deepcopy(module)
    step = apply(module, inputs, planned(module, inputs, spec))
    torch.manual_seed(5)
    losses = [step(*inputs) for _ in range(3)]
    torch.manual_seed(5)
    assert all(map(torch.equal, losses, ordinary_loop(twin, inputs, FUSED["adam"](twin.parameters(), fused=True), 3)))
    for mine, theirs in zip(module.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("adam", lambda weights: torch.optim.Adam(weights, lr=0.01, weight_decay=0.1)),
        ("adam", lambda weights: torch.optim.Adam(weights, amsgrad=True)),
        ("adamw", lambda weights: torch.optim.AdamW(weights, lr=0.02)),
        ("adamw", lambda weights: torch.optim.AdamW(weights, fused=True)),
        ("sgd", lambda weights: torch.optim.SGD(weights, lr=0.1)),
        ("sgd", lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True)),
    ],
)
def test_settings_and_state_of_the_given_optimizer(kind: str, make: Any) -> None:
    """State from before is used, and a schedule that changes the rate is followed."""
    module, inputs = Transformer(dropout=0.0), (WORDS,)
    twin = copy.deepcopy(module)
    optimizers = [make(which.parameters()) for which in (module, twin)]
    for which, optimizer in zip((module, twin), optimizers, strict=True):
        ordinary_loop(which, inputs, optimizer, 2)
    optimizers[0].zero_grad()
    step = apply(module, inputs, planned(module, inputs, "random", optimizer=kind), optimizer=optimizers[0])
    for rate in (0.05, 0.01):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        step(*inputs)
        ordinary_loop(twin, inputs, optimizers[1], 1)
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    mine, theirs = (optimizer.state_dict()["state"] for optimizer in optimizers)
    for key in theirs:
        for part, value in theirs[key].items():
            assert (value is None and mine[key][part] is None) or torch.equal(mine[key][part], value)


@pytest.mark.parametrize("spec", ["random", "joint"])
@pytest.mark.parametrize("name", MODELS)
def test_inference_returns_what_the_module_returns(name: str, spec: str) -> None:
    make, inputs = MODELS[name]
    module = make().eval()
    step = apply(module, inputs, planned(module, inputs, spec, training=False))
    with torch.no_grad():
        assert torch.equal(step(*inputs), module(*inputs))


def test_gradients_without_an_optimizer() -> None:
    module, inputs = Transformer(dropout=0.0), (WORDS,)
    twin = copy.deepcopy(module)
    step = apply(module, inputs, planned(module, inputs, "random", optimizer="none"))
    loss = step(*inputs)
    expected = twin(*inputs)
    expected.backward()
    assert torch.equal(loss, expected.detach())
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None and torch.equal(mine.grad, theirs.grad)


def test_another_batch_and_loaded_weights() -> None:
    module = Mlp().eval()
    inputs = (torch.randn(8, 16),)
    step = apply(module, inputs, planned(module, inputs, "random", training=False))
    step(*inputs)
    module.load_state_dict(Mlp().state_dict())
    other = (torch.randn(8, 16),)
    with torch.no_grad():
        assert torch.equal(step(*other), module(*other))


def test_verification_says_equal_and_changes_nothing() -> None:
    module, inputs = ConvNet(), (IMAGES,)
    step = apply(module, inputs, planned(module, inputs, "random"), verify=True)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    seed = torch.get_rng_state()
    found = verify_step(step, inputs)
    assert found.equals_module and found.equals_capture and found.ok
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), seed)


def test_verification_finds_a_step_that_reads_too_early() -> None:
    """Two weights swapped in the program: what a wrong order or a wrong copy looks like."""
    module, inputs = Transformer(dropout=0.0), (WORDS,)
    step = apply(module, inputs, planned(module, inputs, "random"))
    alike: dict[Any, int] = {}
    for index, value in enumerate(step._residents):
        if isinstance(value, Tensor) and value.dim() == 2 and not value.dtype.is_complex:
            other = alike.setdefault((value.shape, value.dtype), index)
            if other != index:
                step._residents[index], step._residents[other] = step._residents[other], value
                break
    found = verify_step(step, inputs)
    assert not found.ok
    with pytest.raises(lm.CannotRun, match="differs from the module"):
        found.require()


def test_a_convolution_that_copies_an_operand_it_does_not_need() -> None:
    """Its input gradient is made without the input's values: what stands for them must bear being copied."""
    module = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4))
    inputs = (torch.randn(1, 3, 4, 4),)
    for spec in ("random", "one-device"):
        assert verify_step(apply(module, inputs, planned(module, inputs, spec)), inputs).equals_module


class Transposed(nn.Module):
    """Batch norm lays its result out otherwise than its fake kernel says, so that eager's reshape copies."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x.transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.head(normed.reshape(-1, 8))
        return out


@pytest.mark.parametrize("training", [True, False])
def test_a_view_of_the_trace_is_a_copy_where_eager_copies(training: bool) -> None:
    module, x = Transposed(), torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
    result = lm.solve(lm.price(lm.load(module, inputs=(x,), training=training), "2xcpu"), method="heft")
    lm.apply(module, (x,), result, training=training, verify=True)
