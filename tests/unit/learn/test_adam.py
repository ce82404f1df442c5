"""Adam's steps, worked out by hand after Kingma and Ba (2015)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from loadmaster.learn.adam import Adam  # noqa: E402


def test_two_steps_by_hand() -> None:
    weight, still = torch.tensor([1.0, 1.0]), torch.tensor([5.0])
    adam = Adam([weight, still], rate=0.1, betas=(0.5, 0.75))
    weight.grad = torch.tensor([3.0, -8.0])
    adam.step()
    assert weight.tolist() == pytest.approx([0.9, 1.1])  # first, a step of the rate against the sign of the gradient
    weight.grad = torch.tensor([1.0, -8.0])
    adam.step()
    mean, square = (0.5 * 0.5 * 3 + 0.5 * 1) / 0.75, (0.75 * 0.25 * 9 + 0.25 * 1) / (1 - 0.75**2)
    assert weight.tolist() == pytest.approx([0.9 - 0.1 * mean / square**0.5, 1.2])
    assert still.tolist() == [5.0], "it has no gradient"
    adam.zero_grad()
    assert weight.grad is None
    adam.step()
    assert weight[1] == pytest.approx(1.2)


def test_averages_are_long_unless_told() -> None:
    weight = torch.tensor([0.0])
    adam = Adam([weight], rate=1.0)
    for gradient in (1.0, 0.0):
        weight.grad = torch.tensor([gradient])
        adam.step()
    mean, square = 0.9 * 0.1 / (1 - 0.9**2), 0.999 * 0.001 / (1 - 0.999**2)
    assert weight.tolist() == pytest.approx([-1 - mean / square**0.5], rel=1e-5)
