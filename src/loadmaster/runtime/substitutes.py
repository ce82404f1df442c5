"""What to call for a traced op: torch's own function for it, or the kernel that torch would take on that device.

Attention is captured for one kind of device and may run on the other (see `attention`). Batch norm is cuDNN's where
torch would take that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from loadmaster.runtime import attention

aten = torch.ops.aten
# A kernel may lay its result out in another order of memory than its fake one said: then eager's reshape copies, where
# the trace has a view. Both are called as a reshape, which is a view wherever one can be.
VIEW = "aten.view.default"


def substitute(target: Any, device: torch.device) -> Callable[..., Any]:
    """What to call for an op on that device."""
    name = str(target)
    if device.type == "cuda" and name in _ON_GPU:
        return _ON_GPU[name]
    if device.type == "cpu" and name in attention.ON_CPU:
        return attention.ON_CPU[name]
    if name == VIEW:
        return torch._C.TensorBase.reshape
    plain: Callable[..., Any] = _bound(name) or getattr(target, "_op", target)
    return partial(_alone, plain) if name in _IN_A_BUFFER else plain


# torch computes these into a tensor as large as their input and then lets the sum stand in the memory of that tensor.
_IN_A_BUFFER = ("aten.mse_loss.default", "aten.smooth_l1_loss.default")


def _alone(call: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """The result in memory of its own size."""
    made = call(*args, **kwargs)
    return made if made.dim() else made.clone()


# Ops that torch binds to Python one by one: such a function takes half the time of a call through the table of ops.
_BOUND = frozenset([
    "add.Tensor", "addmm.default", "as_strided.default", "baddbmm.default", "bmm.default", "cat.default",
    "clone.default", "cos.default", "cumsum.default", "div.Tensor", "embedding.default", "eq.Scalar", "eq.Tensor",
    "erf.default", "exp.default", "expand.default", "flip.default", "full_like.default", "gather.default",
    "gt.Scalar", "index_select.default", "le.Scalar", "le.Tensor", "log.default", "lt.Scalar", "masked_fill.Scalar",
    "maximum.default", "mean.dim", "minimum.default", "mm.default", "mul.Scalar", "mul.Tensor",
    "native_layer_norm.default", "ne.Scalar", "neg.default", "permute.default", "pow.Tensor_Scalar",
    "reciprocal.default", "relu.default", "rsqrt.default", "select.int", "sigmoid.default", "sin.default",
    "sqrt.default", "squeeze.dim", "sub.Tensor", "sum.dim_IntList", "t.default", "tanh.default", "transpose.int",
    "unsqueeze.default", "where.self",
])  # fmt: skip


def _bound(name: str) -> Callable[..., Any] | None:
    short = name.removeprefix("aten.")
    if short not in _BOUND:
        return None
    plain = short.partition(".")[0]
    found: Any = getattr(torch._C._VariableFunctions, plain, None) or getattr(torch._C.TensorBase, plain, None)
    return found  # type: ignore[no-any-return]


def lands_itself(target: Any, lands: Iterable[int | None], device: torch.device) -> Callable[..., Any] | None:
    """What writes those results into the tensors they are meant for by itself, where there is such an op."""
    if str(target) == "aten._native_batch_norm_legit_functional.default" and set(lands) == {3, 4}:
        return _cudnn_batch_norm if device.type == "cuda" else _batch_norm
    return None


def leaving_statistics(call: Callable[..., Any]) -> Callable[..., Any]:
    """A batch norm that updates none of its running statistics: in training, its result does not depend on them."""

    def run(x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, *rest: Any) -> Any:
        return call(x, weight, bias, mean.clone(), variance.clone(), *rest)

    return run


def _batch_norm(*args: Any) -> tuple[Any, ...]:
    return (*aten._native_batch_norm_legit.default(*args), None, None)


def _takes_cudnn(x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, eps: float) -> bool:
    """As torch itself decides. Other layouts than the plain one have a reserve, which no plan knows of."""
    if not (x.is_contiguous() and training):
        return False
    of_torch: Any = torch._C
    chosen = of_torch._select_batch_norm_backend(x, weight, bias, mean, variance, training, eps)
    return bool(chosen == of_torch._BatchNormBackend.Cudnn)


def _cudnn_batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    if not _takes_cudnn(x, weight, bias, mean, variance, training, eps):
        return _batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
    made = aten.cudnn_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
    return (*made[:3], None, None)


def _batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Any,
    mean: Any,
    variance: Any,
    kept_mean: Any,
    kept_scale: Any,
    training: bool,
    eps: float,
    wanted: list[bool],
) -> tuple[Any, ...]:
    if not (all(wanted) and _takes_cudnn(x, weight, weight, mean, variance, training, eps)):
        return aten.native_batch_norm_backward.default(  # type: ignore[no-any-return]
            gradient, x, weight, mean, variance, kept_mean, kept_scale, training, eps, wanted
        )
    reserve = torch.empty(0, dtype=torch.uint8, device=x.device)
    gradient = gradient.contiguous()
    return aten.cudnn_batch_norm_backward(  # type: ignore[no-any-return]
        x, gradient, weight, mean, variance, kept_mean, kept_scale, eps, reserve
    )


_ON_GPU: dict[str, Callable[..., Any]] = {
    **attention.ON_GPU,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
}
