"""Steps captured for a GPU, on CPUs: the attention of GPUs by other kernels, which compute what torch's own do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.importers.torch.step import Target  # noqa: E402
from loadmaster.runtime.attention import ON_CPU  # noqa: E402
from loadmaster.runtime.verify import verify_step  # noqa: E402

aten = torch.ops.aten


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0, masked: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.mixes, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.dropout, self.masked, self.causal = dropout, masked, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mixes(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if self.masked else None
        mixed = F.scaled_dot_product_attention(
            query, key, value, mask, self.dropout if self.training else 0.0, is_causal=self.causal
        )
        return self.out(mixed.transpose(1, 2).reshape(x.shape)).square().mean()


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "masked": {"masked": True},
    "dropout": {"dropout": 0.3},
    "causal dropout": {"dropout": 0.3, "causal": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_planned_for_gpus_runs_on_cpus(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = Attention(**KINDS[kind]).to(dtype), (torch.randn(2, 20, 32, dtype=dtype),)
    result = lm.plan(module, inputs=inputs, on="2xh200", method="random", budget=lm.Budget(None, 1), seed=3)
    assert result.problem.source.captured["gpu"] and set(result.problem.graph.kind) & set(ON_CPU)
    result.save(tmp_path / "plan.json")
    losses = []
    for _ in range(2):  # the second time with the weights that the first left
        other = copy.deepcopy(module)
        torch.manual_seed(1)
        step = lm.apply(other, inputs, tmp_path / "plan.json", devices=["cpu", "cpu"])
        found = verify_step(step, inputs)
        assert found.ok and found.must_equal_capture and found.equals_capture, found
        losses.append([float(step(*inputs)) for _ in range(3)])
    assert losses[0] == losses[1]


def test_heads_in_groups_share_their_keys() -> None:
    """Flash attention takes fewer keys than queries, and gives as many gradients; against keys that were repeated."""
    torch.manual_seed(0)
    shapes = {"query": (2, 6, 5, 8), "key": (2, 2, 5, 8), "value": (2, 2, 5, 8)}
    given = {name: torch.randn(*shape, requires_grad=True) for name, shape in shapes.items()}
    query, key, value = given.values()
    wanted = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    plain = [tensor.detach() for tensor in given.values()]
    made, sums, *_, state, none, _ = ON_CPU["aten._scaled_dot_product_flash_attention.default"](*plain, 0.0, True)
    assert torch.allclose(made, wanted, atol=1e-6)
    gradient, backward = torch.randn_like(made), ON_CPU["aten._scaled_dot_product_flash_attention_backward.default"]
    found = backward(gradient, *plain, made, sums, None, None, 5, 5, 0.0, True, state, none)
    for one, other in zip(found, torch.autograd.grad(wanted, list(given.values()), gradient), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_plan_for_cpus_has_the_attention_of_cpus() -> None:
    module, inputs = Attention(), (torch.randn(2, 20, 32),)
    result = lm.plan(module, inputs=inputs, on="2xcpu", method="one-device", budget=lm.Budget(None, 1))
    assert "gpu" not in result.problem.source.captured
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in result.problem.graph.kind


@pytest.mark.parametrize("kind", ["dropout", "causal dropout"])
def test_dropout_in_attention_drops_what_torch_would(kind: str) -> None:
    """The same random numbers as the module on a CPU, where attention with dropout is plain products."""
    torch.manual_seed(0)
    module, inputs = Attention(**KINDS[kind]), (torch.randn(2, 20, 32),)
    captured = capture_step(module, inputs, training=True, target=Target(gpu=True))
    plan = lm.plan(captured.graph, on="1xh200", method="one-device", budget=lm.Budget(None, 1))
    step = lm.apply(module, inputs, plan, devices=["cpu"])
    torch.manual_seed(5)
    wanted = module.train()(*inputs)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.allclose(step(*inputs), wanted, rtol=1e-5) and torch.equal(torch.rand(1), after)


def test_gradients_of_a_bias_and_of_dropout_are_those_of_autograd() -> None:
    """The kernels against the formula of attention, differentiated by autograd."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 7, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)
    forward = ON_CPU["aten._scaled_dot_product_efficient_attention.default"]
    backward = ON_CPU["aten._scaled_dot_product_efficient_attention_backward.default"]
    made, sums, state, offset = forward(query.detach(), key.detach(), value.detach(), bias.detach(), True, 0.25)
    assert sums.shape == (2, 3, 32)
    torch.set_rng_state(state)
    noise = torch.empty(2, 3, 7, 7, dtype=torch.float64).bernoulli_(0.75) / 0.75
    shares = (query @ key.mT / 8**0.5 + bias).softmax(-1) * noise
    wanted = shares @ value
    assert torch.allclose(made, wanted)
    gradient = torch.randn_like(wanted)
    found = backward(
        gradient,
        query.detach(),
        key.detach(),
        value.detach(),
        bias.detach(),
        made,
        sums,
        state,
        offset,
        0.25,
        [True] * 4,
    )
    for one, other in zip(found, torch.autograd.grad(wanted, [query, key, value, bias], gradient), strict=True):
        assert torch.allclose(one, other)
