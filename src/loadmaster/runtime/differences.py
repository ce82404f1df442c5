"""How far the tensors of two runs are apart, and how far they may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Share of a tensor's largest value by which it may differ where kernels do: some thousand roundings of the format.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
_NOISE = 1e-3  # gradients this far below the largest of all are rounding noise of others

_OWN = 2.0  # times what the module differs from itself under other kernels

Values = dict[str, Tensor]


@dataclass(frozen=True)
class TensorDifference:
    """Of one tensor between two runs.

    Attributes:
        name: of the tensor.
        largest: difference of an element.
        allowed: what it may be.
    """

    name: str
    largest: float
    allowed: float


def differences(planned: Values, module: Values, exact: Values, rate: float) -> list[TensorDifference]:
    """Of every planned tensor from the module's. `exact`: the module's under other kernels; `rate`: of Adam."""
    gradients = [_largest(value) for name, value in module.items() if name.startswith("gradient")]
    noise = _NOISE * max(gradients, default=0.0)
    own = {name: _apart(value, module[name]) for name, value in exact.items() if value.is_floating_point()}
    return [
        _difference(name, planned[name], module[name], noise, _slack(name, planned, module, rate), own.get(name, 0.0))
        for name in planned
    ]


def equal(one: Tensor, other: Tensor) -> bool:
    """To the bit; nothing is no number in one alone."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def follows(name: str, planned: Values, module: Values) -> bool:
    """Whether it is state of the optimizer that differs as its gradient does, which is compared itself."""
    kind, _, weight = name.rpartition(" of ")
    gradient = f"gradient of {weight}"
    return kind not in ("", "gradient") and gradient in planned and not equal(planned[gradient], module[gradient])


def _slack(name: str, planned: Values, module: Values, rate: float) -> float:
    """Adam moves a weight by up to its rate whatever the size of the gradient, so noise in that may move it either way;
    from equal gradients it moves it alike."""
    kind, _, weight = name.partition(" ")
    gradient = f"gradient of {weight}"
    if kind != "weight" or (gradient in planned and equal(planned[gradient], module[gradient])):
        return 0.0
    return 2 * rate


def _difference(
    name: str, value: Tensor, reference: Tensor, noise: float, slack: float, own: float
) -> TensorDifference:
    if not reference.dtype.is_floating_point:
        return TensorDifference(name, float(not equal(value, reference)), 0.5)
    largest = _apart(value, reference)
    scale = _largest(reference)
    if name.startswith("gradient"):
        scale = max(scale, noise)
    allowed = max(TOLERANCE.get(reference.dtype, 1e-3) * max(scale, 1e-12), _OWN * own)
    return TensorDifference(name, largest, allowed + slack)


def _apart(value: Tensor, reference: Tensor) -> float:
    """The largest difference; infinite where only one of the two is a number."""
    if not value.numel() or torch.equal(value, reference):
        return 0.0
    apart = (value - reference).abs_()
    apart = torch.where((value == reference) | (value.isnan() & reference.isnan()), 0.0, apart)
    return float(apart.nan_to_num(nan=float("inf")).max())


def _largest(tensor: Tensor) -> float:
    """Of all elements."""
    return float(tensor.abs().nan_to_num().max()) if tensor.numel() else 0.0
