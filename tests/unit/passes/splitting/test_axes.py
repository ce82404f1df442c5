"""Axes of ops by their shapes alone; that splits along them compute the same is checked with torch beside this."""

from __future__ import annotations

import pytest

from loadmaster.graph import Graph, GraphBuilder
from loadmaster.passes.splitting import axes_of
from loadmaster.passes.splitting.axes import LOSS, SUM, Axis, _attention_backward

Shape = tuple[int, ...]
IMAGE, KERNEL, MADE = (8, 3, 9, 9), (16, 3, 3, 3), (8, 16, 7, 7)
BACK = "aten.convolution_backward.default"
QUERY, SUMS, ATTENTION = (2, 4, 8, 16), (2, 4, 8), "_scaled_dot_product_flash_attention_for_cpu"
# Ops with the shapes of what they read and make, and every way to split them: (size, reads, makes).
Ways = list[tuple[int, tuple[int | None, ...], tuple[int | str, ...]]]
SHAPES: dict[str, tuple[list[Shape], list[Shape], Ways]] = {
    "add.Tensor": ([(6, 4, 5), (4, 1)], [(6, 4, 5)], [(6, (0, None), (0,)), (4, (1, 0), (1,)), (5, (2, None), (2,))]),
    "view.default": ([(6, 4, 5)], [(24, 5)], [(6, (0,), (0,)), (5, (2,), (1,))]),
    "view.dtype": ([(1, 6, 4)], [(2, 3, 1, 4)], [(2, (1,), (0,)), (4, (2,), (3,))]),
    "transpose.int": ([(6, 4, 5)], [(4, 6, 5)], [(6, (0,), (1,)), (4, (1,), (0,)), (5, (2,), (2,))]),
    "t.default": ([(4, 4)], [(4, 4)], [(4, (0,), (1,)), (4, (1,), (0,))]),
    "mm.default": ([(6, 4), (4, 5)], [(6, 5)], [(6, (0, None), (0,)), (5, (None, 1), (1,)), (4, (1, 0), (SUM,))]),
    "addmm.default": ([(5,), (6, 4), (4, 5)], [(6, 5)], [(6, (None, 0, None), (0,)), (5, (0, None, 1), (1,))]),
    "addmm.out": ([(6, 5), (6, 4), (4, 5)], [(6, 5)], [(6, (0, 0, None), (0,)), (5, (1, None, 1), (1,))]),
    "bmm.default": (
        [(3, 6, 4), (3, 4, 5)],
        [(3, 6, 5)],
        [(3, (0, 0), (0,)), (6, (1, None), (1,)), (5, (None, 2), (2,)), (4, (2, 1), (SUM,))],
    ),
    "convolution.default": ([IMAGE, KERNEL], [MADE], [(8, (0, None), (0,)), (16, (None, 0), (1,))]),
    "convolution_backward.input": ([MADE, KERNEL], [IMAGE], [(8, (0, None), (0,))]),
    "convolution_backward.weight": ([MADE, IMAGE], [KERNEL, (16,)], [(8, (0, 0), (SUM, SUM))]),
    "convolution_backward.all": ([MADE, IMAGE, KERNEL], [IMAGE, KERNEL, (16,)], [(8, (0, 0, None), (0, SUM, SUM))]),
    "embedding.default": ([(50, 6), (3, 4)], [(3, 4, 6)], [(3, (None, 0), (0,)), (6, (1, None), (2,))]),
    "embedding_dense_backward.default": ([(3, 4, 6), (3, 4)], [(50, 6)], [(6, (2, None), (1,)), (3, (0, 0), (SUM,))]),
    "nll_loss_forward.default": ([(7, 50), (7,)], [(), ()], [(7, (0, 0), (LOSS, LOSS))]),
    "nll_loss_backward.default": ([(), (7, 50), (7,), ()], [(7, 50)], [(7, (None, 0, 0, None), (0,))]),
    "sum.dim_IntList": ([(6, 4, 5)], [(6, 5)], [(6, (0,), (0,)), (4, (1,), (SUM,)), (5, (2,), (1,))]),
    "mean.dim": ([(6, 4, 5)], [(6, 1, 5)], [(6, (0,), (0,)), (5, (2,), (2,))]),
    "native_layer_norm.default": (
        [(6, 4, 5), (5,), (5,)],
        [(6, 4, 5), (6, 4, 1), (6, 4, 1)],
        [(6, (0, None, None), (0, 0, 0))],
    ),
    "native_layer_norm_backward.default": (
        [(6, 4, 5), (6, 4, 5), (6, 4, 1), (6, 4, 1), (5,), (5,)],
        [(6, 4, 5), (5,), (5,)],
        [(6, (0, 0, 0, 0, None, None), (0, SUM, SUM))],
    ),
    "cat.default": ([(4, 6, 5), (4, 2, 5)], [(4, 8, 5)], [(4, (0, 0), (0,)), (5, (2, 2), (2,))]),
    "split.Tensor": ([(4, 8, 5)], [(4, 6, 5), (4, 2, 5)], [(4, (0,), (0, 0)), (5, (2,), (2, 2))]),
    f"{ATTENTION}.default": ([QUERY] * 3, [QUERY, SUMS], [(2, (0, 0, 0), (0, 0)), (4, (1, 1, 1), (1, 1))]),
    f"{ATTENTION}_backward.default": (
        [*[QUERY] * 5, SUMS],
        [QUERY] * 3,
        [(2, (0,) * 6, (0,) * 3), (4, (1,) * 6, (1,) * 3)],
    ),
}


def one_op(kind: str, reads: list[Shape], makes: list[Shape]) -> Graph:
    builder = GraphBuilder("one")
    read = [builder.tensor(1000, "input", shape=shape) for shape in reads]
    builder.op("op", kind, read, [builder.tensor(1000, shape=shape) for shape in makes], flops=1)
    return builder.build()


@pytest.mark.parametrize("kind", SHAPES)
def test_every_way_to_split_an_op(kind: str) -> None:
    reads, makes, ways = SHAPES[kind]
    assert [(axis.size, axis.reads, axis.makes) for axis in axes_of(one_op(f"aten.{kind}", reads, makes), 0)] == ways


def test_a_sum_has_no_more_dimensions_than_what_it_is_of() -> None:
    for kind in ("aten.sum.dim_IntList", "aten.mean.dim"):
        assert axes_of(one_op(kind, [(6, 4)], [(6, 4, 1)]), 0) == ()


@pytest.mark.parametrize(
    ("kind", "reads", "makes", "axes"),
    [
        ("aten.convolution.default", [IMAGE, KERNEL], [MADE], [Axis(8, (0, None), (0,)), Axis(16, (None, 0), (1,))]),
        (
            "aten.convolution.default",
            [IMAGE, KERNEL, (16,)],
            [MADE],
            [Axis(8, (0, None, None), (0,)), Axis(16, (None, 0, 0), (1,))],
        ),
        ("aten.convolution.default", [IMAGE, (16, 4, 3, 3)], [MADE], [Axis(8, (0, None), (0,))]),
        (BACK, [MADE, KERNEL], [IMAGE], [Axis(8, (0, None), (0,))]),
        (BACK, [MADE, IMAGE], [KERNEL], [Axis(8, (0, 0), (SUM,))]),
        (BACK, [MADE, IMAGE], [KERNEL, (16,)], [Axis(8, (0, 0), (SUM, SUM))]),
        (BACK, [MADE, IMAGE, KERNEL], [IMAGE, KERNEL, (16,)], [Axis(8, (0, 0, None), (0, SUM, SUM))]),
        (BACK, [MADE, (16, 4, 3, 3)], [IMAGE], []),
        (BACK, [MADE, KERNEL], [(7, 3, 9, 9)], []),
        ("aten.cat.default", [(4, 6, 5), (4, 2, 5)], [(4, 8, 5)], [Axis(4, (0, 0), (0,)), Axis(5, (2, 2), (2,))]),
        ("aten.cat.default", [(4, 6), (3, 6)], [(7, 6)], [Axis(6, (1, 1), (1,))]),
        ("aten.cat.default", [(4, 6), (4, 6, 1)], [(8, 6)], []),
        ("aten.cat.default", [(4, 6)], [(4, 6)], []),
    ],
)
def test_axes(kind: str, reads: list[Shape], makes: list[Shape], axes: list[Axis]) -> None:
    assert list(axes_of(one_op(kind, reads, makes), 0)) == axes


@pytest.mark.parametrize(
    ("mask", "samples", "heads"),
    [((1, 1, 8, 8), None, None), ((2, 1, 8, 8), 0, None), ((2, 4, 8, 8), 0, 1)],
)
def test_a_mask_is_cut_where_it_is_as_wide_as_what_it_hides(
    mask: Shape, samples: int | None, heads: int | None
) -> None:
    whole, sums = (2, 4, 8, 16), (2, 4, 8)
    reads, makes = [whole] * 5 + [sums, mask], [whole] * 3
    first, second = Axis(2, (*(0,) * 6, samples), (0,) * 3), Axis(4, (*(1,) * 6, heads), (1,) * 3)
    assert _attention_backward(reads, makes) == [first, second]
    assert _attention_backward([*reads[:6], (3, 4, 8, 8)], makes) == [Axis(4, (1,) * 7, (1,) * 3)]
    assert _attention_backward([*reads[:6], (8, 8)], makes) == []
