"""FLOP formulas against counts made by running the op: of ones, a product's results add up to its multiply-adds."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from loadmaster.importers.torch.flops import OPTIMIZER_FLOPS_PER_ELEMENT, flops_of  # noqa: E402
from loadmaster.importers.torch.mutation import tensors_in  # noqa: E402
from loadmaster.importers.torch.traffic import bytes_of, visible_bytes  # noqa: E402

aten = torch.ops.aten


def ones(*shape: int) -> Any:
    return torch.ones(*shape)


def count(op: Any, *args: Any, **kwargs: Any) -> int:
    return flops_of(op, args, kwargs, tensors_in(op(*args, **kwargs)))


PRODUCTS = {
    "mm": (aten.mm.default, (ones(3, 5), ones(5, 7))),
    "bmm": (aten.bmm.default, (ones(2, 3, 5), ones(2, 5, 7))),
    "addmm": (aten.addmm.default, (torch.zeros(7), ones(3, 5), ones(5, 7))),
    "baddbmm": (aten.baddbmm.default, (torch.zeros(2, 3, 7), ones(2, 3, 5), ones(2, 5, 7))),
    "mv": (aten.mv.default, (ones(3, 5), ones(5))),
    "addmv": (aten.addmv.default, (torch.zeros(3), ones(3, 5), ones(5))),
    "dot": (aten.dot.default, (ones(9), ones(9))),
    "linear": (aten.linear.default, (ones(2, 3, 5), ones(7, 5))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_counts_each_multiply_add_as_two(name: str) -> None:
    op, args = PRODUCTS[name]
    assert count(op, *args) == 2 * int(op(*args).sum())


def convolve(groups: int, transposed: bool, stride: int = 1) -> tuple[Any, Any, list[Any]]:
    x = ones(2, 4, 6, 6)
    weight = ones(4, 6 // groups, 3, 3) if transposed else ones(6, 4 // groups, 3, 3)
    return x, weight, [[stride, stride], [0, 0], [1, 1], transposed, [0, 0], groups]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_with_groups(groups: int, transposed: bool, stride: int) -> None:
    x, weight, rest = convolve(groups, transposed, stride)
    made = aten.convolution.default(x, weight, None, *rest)
    assert count(aten.convolution.default, x, weight, None, *rest) == 2 * int(made.sum())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mask", [(True, True), (False, True), (True, False)])
def test_convolution_backward_with_groups(groups: int, transposed: bool, mask: tuple[bool, bool]) -> None:
    x, weight, rest = convolve(groups, transposed)
    grad = torch.ones_like(aten.convolution.default(x, weight, None, *rest))
    args = (grad, x, weight, [6], *rest, [*mask, True])
    gradients = aten.convolution_backward.default(*args)
    # The kernel may return a weight gradient nobody asked for along with that of the bias.
    expected = sum(2 * int(gradient.sum()) for gradient, wanted in zip(gradients, mask, strict=False) if wanted)
    assert count(aten.convolution_backward.default, *args) == expected


def test_torch_counts_a_grouped_weight_gradient_too_often() -> None:
    """The reason for a formula of our own; when this fails torch is right and ours can go."""
    x, weight, rest = convolve(2, transposed=False)
    grad = torch.ones_like(aten.convolution.default(x, weight, None, *rest))
    args = (grad, x, weight, [6], *rest, [True, True, False])
    with FlopCounterMode(display=False) as counter:
        aten.convolution_backward.default(*args)
    assert counter.get_total_flops() == count(aten.convolution_backward.default, *args) * (1 + 2) / 2


def test_attention_on_the_cpu() -> None:
    batch, heads, queries, keys, width = 2, 3, 5, 7, 4
    query = ones(batch, heads, queries, width)
    key = ones(batch, heads, keys, width)
    scores = batch * heads * queries * keys
    forward = scores * 2 * width + scores * 2 * width  # query x key, then weights x value
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert count(op, query, key, key) == forward
    out, logsumexp = op(query, key, key)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert count(backward, out, query, key, key, out, logsumexp, 0.0, False) == 5 * scores * 2 * width


def test_grouped_mm_counts_every_row_once() -> None:
    rows, inner, columns, groups = 16, 32, 48, 4
    a = torch.empty(rows, inner, device="meta", dtype=torch.bfloat16)
    b = torch.empty(groups, inner, columns, device="meta", dtype=torch.bfloat16)
    out = torch.empty(rows, columns, device="meta", dtype=torch.bfloat16)
    assert flops_of(aten._grouped_mm.default, (a, b), {}, [out]) == 2 * rows * inner * columns
    # Gradient of b: the rows of each group are what is summed over.
    grad = torch.empty(groups, inner, columns, device="meta", dtype=torch.bfloat16)
    assert flops_of(aten._grouped_mm.default, (a.t(), out), {}, [grad]) == 2 * rows * inner * columns
    # Groups split the columns of b.
    left, right = torch.empty(groups, 8, inner, device="meta"), torch.empty(inner, columns, device="meta")
    made = torch.empty(8, columns, device="meta")
    assert flops_of(aten._grouped_mm.default, (left, right), {}, [made]) == 2 * 8 * inner * columns


def test_elementwise_counts_its_result_and_a_reduction_its_operand() -> None:
    assert count(aten.add.Tensor, ones(4, 1), ones(1, 6)) == 24
    assert count(aten.relu.default, ones(4, 6)) == 24
    assert count(aten.sum.dim_IntList, ones(4, 6), [0]) == 24
    assert count(aten.mean.default, ones(4, 6)) == 24
    assert count(aten._softmax.default, ones(4, 6), -1, False) == 5 * 24


def test_writing_in_place_counts_as_its_twin() -> None:
    assert count(aten.mul_.Tensor, ones(4, 6), ones(4, 6)) == count(aten.mul.Tensor, ones(4, 6), ones(4, 6)) == 24


def test_pooling_looks_at_every_element_of_its_window() -> None:
    assert count(aten.avg_pool2d.default, ones(1, 2, 6, 6), [3, 3], [3, 3]) == 2 * 4 * 9
    assert count(aten.max_pool2d_with_indices.default, ones(1, 2, 6, 6), [2, 2]) == 2 * 9 * 4


def test_moving_data_counts_nothing() -> None:
    index = torch.zeros(3, dtype=torch.int64)
    assert count(aten.cat.default, [ones(4, 6), ones(4, 6)]) == 0
    assert count(aten.embedding.default, ones(100, 8), index) == 0
    assert count(aten.clone.default, ones(4, 6)) == 0
    assert count(aten.embedding_dense_backward.default, ones(3, 8), index, 100, -1, False) == 3 * 8


def test_fourier_transform() -> None:
    x = torch.ones(4, 16, dtype=torch.complex64)
    assert count(aten._fft_c2c.default, x, [1], 0, True) == 5 * 64 * math.log2(16)


class Counted:
    """A number that counts the arithmetic done with it and its results."""

    done = 0

    def _count(self, *_: Any) -> Counted:
        Counted.done += 1
        return self

    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __pow__ = _count


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_optimizer_counts_the_arithmetic_of_its_paper(optimizer: str) -> None:
    weight, gradient, m, v = Counted(), Counted(), Counted(), Counted()
    Counted.done = 0
    if optimizer == "adam":
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient * gradient
        weight - 0.01 * m / (v**0.5 + 1e-8)
    else:
        weight - 0.01 * gradient
    assert OPTIMIZER_FLOPS_PER_ELEMENT[optimizer] == Counted.done


def moved(op: Any, *args: Any, **kwargs: Any) -> int:
    read = [value for value in args if isinstance(value, torch.Tensor)]
    return bytes_of(op, read, tensors_in(op(*args, **kwargs)))


def test_bytes_of_an_ordinary_op_are_its_operands_and_results() -> None:
    assert moved(aten.mm.default, ones(3, 5), ones(5, 7)) == 4 * (15 + 35 + 21)
    assert moved(aten.add.Tensor, ones(4, 6), ones(1, 1).expand(4, 6)) == 4 * (24 + 1 + 24)


def test_gathers_read_what_they_fetch_and_not_the_table() -> None:
    table, index = ones(1000, 8), torch.zeros(3, dtype=torch.int64)
    fetched, written = 3 * 8 * 4, 3 * 8 * 4
    assert moved(aten.embedding.default, table, index) == fetched + 3 * 8 + written
    assert moved(aten.index_select.default, table, 0, index) == fetched + 3 * 8 + written
    assert moved(aten.embedding_dense_backward.default, ones(3, 8), index, 1000, -1, False) == 96 + 24 + 1000 * 8 * 4
    scores, target = ones(3, 1000), torch.zeros(3, dtype=torch.int64)
    assert moved(aten.nll_loss_forward.default, scores, target, None, 1, -100) == 3 * 4 + 3 * 8 + 4 + 4


def test_creators_write_only_and_allocators_do_nothing() -> None:
    assert moved(aten.zeros_like.default, ones(4, 6)) == 96
    assert moved(aten.full.default, [4, 6], 1.0) == 96
    assert moved(aten.empty_like.default, ones(4, 6)) == 0
    assert moved(aten.empty.memory_format, [4, 6]) == 0


def test_a_repeated_axis_is_seen_once() -> None:
    assert visible_bytes(ones(3, 1).expand(3, 100)) == 12
    assert visible_bytes(ones(10, 10)[2:4]) == 80
    assert visible_bytes(ones(0, 5)) == 0


def test_what_is_taken_for_its_shape_or_overwritten_is_not_read() -> None:
    assert moved(aten.copy.default, ones(4, 6), ones(4, 6)) == 2 * 96
    scores, target, total = ones(3, 1000), torch.zeros(3, dtype=torch.int64), ones(())
    back = moved(aten.nll_loss_backward.default, ones(()), scores, target, None, 1, -100, total)
    assert back == 4 + 3 * 8 + 4 + 4 * 3000  # the gradient, the targets, the total, and what is written
    image, gradient = ones(1, 2, 8, 8), ones(1, 2, 4, 4)
    pooled = moved(aten.avg_pool2d_backward.default, gradient, image, [2, 2], [2, 2], [0, 0], False, True, None)
    assert pooled == 4 * (32 + 128)
    index = torch.zeros(1, 2, 4, 4, dtype=torch.int64)
    args = (gradient, image, [2, 2], [2, 2], [0, 0], [1, 1], False, index)
    assert moved(aten.max_pool2d_with_indices_backward.default, *args) == 4 * 32 + 8 * 32 + 4 * 128
