"""Floating-point operations of an ATen op, from the shapes of what it reads and makes.

A multiply and an add are two. Products count their multiply-adds only, as torch.utils.flop_counter does; terms of
lower order (the bias of `addmm`, the bias gradient of a convolution) are left out. Everything else counts a small
multiple of the elements it works on, and moving data counts nothing.

torch 2.13's own counter is not used where it is wrong or silent: it forgets `groups` in the weight gradient of a
convolution and knows neither attention on the CPU, nor `_grouped_mm`, nor matrix-vector products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from loadmaster.importers.torch.opaque import told_flops

Formula = Callable[..., int]  # of the tensors made, then the op's own arguments
Made = Sequence[Tensor]

# Adam: 3 for the mean of the gradient, 4 for that of its square, 5 for the step, whose size is one number for all
# weights (Kingma and Ba 2014, arXiv 1412.6980, end of section 2). SGD: scale and subtract.
OPTIMIZER_FLOPS_PER_ELEMENT = {"adam": 12, "adamw": 13, "sgd": 2}

_MOVES = {
    "_to_copy", "cat", "stack", "clone", "copy", "lift_fresh_copy", "repeat", "roll", "flip", "embedding", "gather",
    "index", "index_select", "take", "index_put", "_unsafe_index", "index_copy", "scatter", "slice_scatter",
    "select_scatter", "as_strided_scatter", "diagonal_scatter", "select_backward", "slice_backward",
    "unfold_backward", "diagonal_backward", "value_selecting_reduction_backward", "constant_pad_nd",
    "reflection_pad1d", "reflection_pad2d", "replication_pad2d", "tril", "triu", "pixel_shuffle", "pixel_unshuffle",
    "im2col", "arange", "full", "zeros", "ones", "eye", "scalar_tensor", "fill", "zero", "linspace", "full_like",
    "zeros_like", "ones_like", "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
    "new_empty_strided", "new_zeros", "new_ones", "new_full", "tril_indices", "triu_indices", "upsample_nearest2d",
}  # fmt: skip

# Passes over the data: softmax takes a maximum, subtracts, exponentiates, sums and divides; norms take mean and
# variance, normalise and scale. Transcendental functions count as four.
_PER_ELEMENT = {
    "_softmax": 5, "_safe_softmax": 5, "_log_softmax": 5, "_softmax_backward_data": 4, "_log_softmax_backward_data": 4,
    "logsumexp": 4, "logcumsumexp": 4,
    "native_layer_norm": 8, "native_layer_norm_backward": 12, "native_group_norm": 8, "native_group_norm_backward": 12,
    "native_batch_norm": 8, "_native_batch_norm_legit": 8, "_native_batch_norm_legit_functional": 8,
    "_batch_norm_with_update": 8, "_batch_norm_with_update_functional": 8, "_native_batch_norm_legit_no_training": 4,
    "native_batch_norm_backward": 12, "batch_norm_backward": 12, "_fused_rms_norm": 5, "_fused_rms_norm_backward": 8,
    "gelu": 8, "gelu_backward": 14, "silu": 5, "silu_backward": 8, "mish": 8, "mish_backward": 14,
    "sigmoid": 4, "sigmoid_backward": 3, "tanh": 4, "tanh_backward": 3, "exp": 4, "log": 4, "log1p": 4, "expm1": 4,
    "sin": 4, "cos": 4, "erf": 4, "pow": 4, "softplus": 6, "softplus_backward": 6, "elu": 5, "elu_backward": 5,
    "hardswish": 4, "hardsigmoid": 3, "native_dropout": 3, "native_dropout_backward": 2,
    "var": 3, "var_mean": 3, "std": 3, "std_mean": 3, "linalg_vector_norm": 2, "addcmul": 3, "addcdiv": 3, "lerp": 3,
    "upsample_bilinear2d": 8, "grid_sampler_2d": 10, "binary_cross_entropy_with_logits": 8,
}  # fmt: skip


def flops_of(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], made: Sequence[Tensor]) -> int:
    """Of one call, tensors given by example (fake ones will do); `made` are the tensors it returns."""
    told = told_flops(op, args, kwargs)
    if told is not None:
        return told
    name = plain_name(op)
    formula = _FORMULAS.get(name) or _attention_formula(name)
    if formula is not None:
        return formula(made, *args, **kwargs)
    if name in _MOVES:
        return 0
    if op.overloadpacket in flop_registry:
        result = made[0] if len(made) == 1 else tuple(made)
        return int(flop_registry[op.overloadpacket](*args, **kwargs, out_val=result))
    return _PER_ELEMENT.get(name, 1) * _most_elements((*args, *kwargs.values(), *made))


def plain_name(op: OpOverload) -> str:
    """The name without namespace and overload; of an in-place op that of its twin, so `add` for aten.add_.Tensor."""
    name: str = op._schema.name.rpartition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _most_elements(values: Sequence[Any]) -> int:
    """Elements of the largest tensor touched: the result of an elementwise op, the operand of a reduction."""
    most = 0
    for value in values:
        if isinstance(value, Tensor):
            most = max(most, value.numel())
        elif isinstance(value, (list, tuple)):
            most = max(most, _most_elements(value))
    return most


def _mm(made: Made, a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel() * b.shape[-1]


def _addmm(made: Made, bias: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel() * b.shape[-1]


def _mv(made: Made, a: Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel()


def _addmv(made: Made, bias: Tensor, a: Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel()


def _linear(made: Made, x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    return 2 * x.numel() * weight.shape[0]


def _grouped_mm(made: Made, a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Groups split the rows of `a`, the columns of `b`, or what they are summed over; or both have a group axis."""
    per_group = a.shape[1:] if a.dim() == 3 and b.dim() == 2 else a.shape
    return 2 * math.prod(per_group) * b.shape[-1]


def _convolution(made: Made, x: Tensor, weight: Tensor, *rest: Any, **__: Any) -> int:
    """Weight is [out, in / groups, ...] and meets each output; when transposed [in, out / groups, ...], each input."""
    transposed = rest[4]  # after bias, stride, padding, dilation
    return 2 * (x if transposed else made[0]).numel() * math.prod(weight.shape[1:])


def _convolution_backward(made: Made, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **__: Any) -> int:
    """As many multiply-adds as forward for the input's gradient, and again for the weight's."""
    transposed, mask = rest[4], rest[7]  # after bias sizes, stride, padding, dilation; then output padding, groups
    return 2 * (x if transposed else grad).numel() * math.prod(weight.shape[1:]) * (int(mask[0]) + int(mask[1]))


def _attention_formula(name: str) -> Formula | None:
    if not name.startswith("_scaled_dot_product") or "attention" not in name:
        return None
    return _attention_backward if name.endswith("_backward") else _attention


def _attention(made: Made, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Scores from query and key, then their product with value; a causal mask is not discounted."""
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (query.shape[-1] + value.shape[-1])


def _attention_backward(made: Made, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """The scores again, gradients of query and key from theirs; gradients of value and of the weights (Dao et al.
    2022, arXiv 2205.14135, algorithm 4)."""
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (3 * query.shape[-1] + 2 * value.shape[-1])


def _pool(made: Made, x: Tensor, kernel: Sequence[int], *_: Any, **__: Any) -> int:
    return made[0].numel() * math.prod(kernel)


def _pool_backward(made: Made, grad: Tensor, x: Tensor, kernel: Sequence[int], *_: Any, **__: Any) -> int:
    return grad.numel() * math.prod(kernel)


def _of_first(made: Made, first: Tensor, *_: Any, **__: Any) -> int:
    return first.numel()


def _added(made: Made, x: Tensor, dim: int, index: Tensor, source: Any, *_: Any, **__: Any) -> int:
    return source.numel() if isinstance(source, Tensor) else index.numel()


def _of_targets(made: Made, scores: Tensor, target: Tensor, *_: Any, **__: Any) -> int:
    return target.numel()


def _of_gradient_targets(made: Made, grad: Tensor, scores: Tensor, target: Tensor, *_: Any, **__: Any) -> int:
    return target.numel()


def _embedding_bag(made: Made, weight: Tensor, index: Tensor, *_: Any, **__: Any) -> int:
    return index.numel() * weight.shape[-1]


def _sort(made: Made, x: Tensor, *_: Any, **__: Any) -> int:
    return x.numel() * max(1, math.ceil(math.log2(max(2, max(x.shape, default=1)))))


def _top(made: Made, x: Tensor, count: int, *_: Any, **__: Any) -> int:
    return x.numel() * max(1, math.ceil(math.log2(max(2, count))))


def _fourier(made: Made, x: Tensor, dims: Sequence[int], *_: Any, **__: Any) -> int:
    """The usual 5 n log2 n of a radix-2 transform (Cooley and Tukey 1965)."""
    larger = max(x, made[0], key=Tensor.numel)
    length = math.prod(larger.shape[dim] for dim in dims)
    return math.ceil(5 * larger.numel() * math.log2(max(2, length)))


# Of matrices, after Golub and Van Loan, Matrix Computations, 4th edition; what iterates is a usual case.


def _sides(x: Tensor) -> tuple[int, int, int]:
    """Matrices in the batch, then their longer and shorter side."""
    *batch, rows, columns = x.shape
    return math.prod(batch), max(rows, columns), min(rows, columns)


def _factored(thirds: int) -> Formula:
    """So many thirds of n cubed: 1 for Cholesky, 2 for LU, 6 for an inverse."""

    def formula(made: Made, x: Tensor, *_: Any, **__: Any) -> int:
        batch, _long, n = _sides(x)
        return batch * thirds * n**3 // 3

    return formula


def _solved(made: Made, x: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    return _factored(2)(made, x) + 2 * right.numel() * x.shape[-1]


def _solved_triangular(made: Made, x: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    return right.numel() * max(x.shape[-1], right.shape[-1] if x.shape[-1] != x.shape[-2] else 0)


def _qr(made: Made, x: Tensor, *_: Any, **__: Any) -> int:
    batch, m, n = _sides(x)
    return batch * (4 * m * n * n - 4 * n**3 // 3)


def _svd(made: Made, x: Tensor, full_matrices: bool = False, compute_uv: bool = True, **_: Any) -> int:
    batch, m, n = _sides(x)
    return batch * (4 * m * m * n + 8 * m * n * n + 9 * n**3 if compute_uv else 4 * m * n * n - 4 * n**3 // 3)


def _eigh(made: Made, x: Tensor, UPLO: str = "L", compute_v: bool = True, **_: Any) -> int:
    batch, _m, n = _sides(x)
    return batch * (9 * n**3 if compute_v else 4 * n**3 // 3)


def _eig(made: Made, x: Tensor, *_: Any, **__: Any) -> int:
    batch, _m, n = _sides(x)
    return batch * 25 * n**3


def _distances(made: Made, a: Tensor, *_: Any, **__: Any) -> int:
    return 3 * made[0].numel() * a.shape[-1]


_FORMULAS: dict[str, Formula] = {
    "linalg_cholesky_ex": _factored(1), "cholesky": _factored(1), "linalg_ldl_factor_ex": _factored(1),
    "linalg_lu_factor_ex": _factored(2), "linalg_lu": _factored(2), "_linalg_det": _factored(2),
    "_linalg_slogdet": _factored(2), "linalg_inv_ex": _factored(6), "cholesky_inverse": _factored(2),
    "_linalg_solve_ex": _solved, "linalg_solve_triangular": _solved_triangular, "linalg_qr": _qr, "_linalg_svd": _svd,
    "_linalg_eigh": _eigh, "linalg_eig": _eig, "_linalg_eigvals": _eig, "_cdist_forward": _distances,
    "mm": _mm, "bmm": _mm, "addmm": _addmm, "baddbmm": _addmm, "addbmm": _addmm, "_addmm_activation": _addmm,
    "mv": _mv, "addmv": _addmv, "dot": _mv, "vdot": _mv, "linear": _linear, "_grouped_mm": _grouped_mm,
    "convolution": _convolution, "_convolution": _convolution, "convolution_backward": _convolution_backward,
    "max_pool2d_with_indices": _pool, "max_pool3d_with_indices": _pool, "avg_pool2d": _pool, "avg_pool3d": _pool,
    "avg_pool2d_backward": _pool_backward, "avg_pool3d_backward": _pool_backward,
    "max_pool2d_with_indices_backward": _of_first, "max_pool3d_with_indices_backward": _of_first,
    "embedding_dense_backward": _of_first, "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "index_add": _added, "scatter_add": _added, "scatter_reduce": _added,
    "nll_loss_forward": _of_targets, "nll_loss2d_forward": _of_targets,
    "nll_loss_backward": _of_gradient_targets, "nll_loss2d_backward": _of_gradient_targets,
    "sort": _sort, "argsort": _sort, "topk": _top,
    "_fft_r2c": _fourier, "_fft_c2c": _fourier, "_fft_c2r": _fourier,
}  # fmt: skip
