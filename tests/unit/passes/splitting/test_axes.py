"""Axes of ops by their shapes alone; that splits along them compute the same is checked with torch beside this."""

from __future__ import annotations

import json

import pytest

from loadmaster.graph import Graph, GraphBuilder
from loadmaster.passes.splitting import axes_of
from loadmaster.passes.splitting.axes import LOSS, SUM, Axis, _attention_backward, softmax_dim

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


NORM, MEAN = (6, 4), (6, 1)
LINE, LINE_KERNEL, LINE_MADE = (8, 3, 9), (16, 3, 3), (8, 16, 7)


@pytest.mark.parametrize(
    ("kind", "reads", "makes", "ways"),
    [
        ("add.Tensor", [(1, 6), (6,)], [(1, 6)], [(6, (1, 0), (1,))]),
        ("add.Tensor", [(4, 5), (1, 5)], [(4, 5)], [(4, (0, None), (0,)), (5, (1, 1), (1,))]),
        ("expand.default", [(4, 1)], [(4, 5)], [(4, (0,), (0,)), (5, (None,), (1,))]),
        ("view.default", [(1, 3)], [(1, 3)], [(3, (1,), (1,))]),
        ("view.default", [(2, 1, 3)], [(2, 3)], [(2, (0,), (0,)), (3, (2,), (1,))]),
        ("view.default", [(2, 3, 1)], [(2, 3)], [(2, (0,), (0,)), (3, (1,), (1,))]),
        ("view.default", [(2, 3)], [(2, 3, 1)], [(2, (0,), (0,)), (3, (1,), (1,))]),
        ("view.default", [(8,)], [(2, 1, 4)], [(2, (0,), (0,))]),
        ("view.default", [(1, 4)], [(4, 1)], [(4, (1,), (0,))]),
        ("view.default", [(6, 4)], [(4, 6)], [(2, (0,), (0,))]),
        ("transpose.int", [(2, 5, 3)], [(3, 5, 2)], [(2, (0,), (2,)), (5, (1,), (1,)), (3, (2,), (0,))]),
        ("addmm.default", [(1, 5), (6, 4), (4, 5)], [(6, 5)], [(6, (None, 0, None), (0,)), (5, (1, None, 1), (1,))]),
        ("addmm.default", [(6, 1), (6, 4), (4, 5)], [(6, 5)], [(6, (0, 0, None), (0,)), (5, (None, None, 1), (1,))]),
        ("addmm.default", [(2, 2), (2, 4), (4, 2)], [(2, 2)], [(2, (0, 0, None), (0,)), (2, (1, None, 1), (1,))]),
        ("addmm.default", [(1,), (6, 4), (4, 5)], [(6, 5)], [(6, (None, 0, None), (0,)), (5, (None, None, 1), (1,))]),
        ("addmm.default", [(), (6, 4), (4, 5)], [(6, 5)], [(6, (None, 0, None), (0,)), (5, (None, None, 1), (1,))]),
        ("convolution.default", [LINE, LINE_KERNEL], [LINE_MADE], [(8, (0, None), (0,)), (16, (None, 0), (1,))]),
        # As many channels before as after: the weight may be one of a transposed convolution.
        ("convolution.default", [(8, 4, 9), (4, 4, 3)], [(8, 4, 7)], [(8, (0, None), (0,))]),
        ("convolution_backward.default", [LINE_MADE, LINE_KERNEL], [LINE], [(8, (0, None), (0,))]),
        ("embedding.default", [(50, 6), (3,)], [(3, 6)], [(3, (None, 0), (0,)), (6, (1, None), (1,))]),
        ("sum.default", [(6, 4, 5)], [()], [(6, (0,), (SUM,)), (4, (1,), (SUM,)), (5, (2,), (SUM,))]),
        ("sum.dim_IntList", [(6, 4, 5)], [(1, 4, 5)], [(6, (0,), (SUM,)), (4, (1,), (1,)), (5, (2,), (2,))]),
        ("mean.dim", [(6, 4, 5)], [(4,)], [(4, (1,), (0,))]),
        ("native_layer_norm_backward.default", [NORM, NORM, MEAN, MEAN], [NORM], [(6, (0, 0, 0, 0), (0,))]),
        (
            f"{ATTENTION}.default",
            [QUERY, QUERY, QUERY, (2, 1, 8, 8)],
            [QUERY, SUMS],
            [(2, (0, 0, 0, 0), (0, 0)), (4, (1, 1, 1, None), (1, 1))],
        ),
    ],
)
def test_shapes_with_ones_and_ends(kind: str, reads: list[Shape], makes: list[Shape], ways: Ways) -> None:
    assert [(axis.size, axis.reads, axis.makes) for axis in axes_of(one_op(f"aten.{kind}", reads, makes), 0)] == ways


@pytest.mark.parametrize(
    ("kind", "reads", "makes"),
    [
        ("add.Tensor", [(4,), (4,)], [(4,), (4,)]),
        ("add.Tensor", [(2, 4)], [(4,)]),
        ("view.default", [(2, 3)], [(7,)]),
        ("view.default", [(4,), (4,)], [(4,)]),
        ("view.default", [(4,)], [(4,), (4,)]),
        ("view.default", [(0, 4)], [(4, 0)]),
        ("transpose.int", [(3, 3, 3)], [(3, 3, 3)]),
        ("transpose.int", [(2, 3, 4)], [(3, 4, 2)]),
        ("transpose.int", [(2, 3)], [(3, 2, 1)]),
        ("transpose.int", [(2, 3), (2, 3)], [(3, 2)]),
        ("transpose.int", [(2, 3)], [(3, 2), (3, 2)]),
        ("mm.default", [(6, 4), (4, 5)], [(6, 5), (6, 5)]),
        ("mm.default", [(6, 4), (4, 5, 1)], [(6, 5)]),
        ("addmm.default", [(1, 6, 5), (6, 4), (4, 5)], [(6, 5)]),
        ("addmm.default", [(5,), (6, 4), (4, 5)], [(6, 5), (6, 5)]),
        ("bmm.default", [(3, 6, 4), (4, 5)], [(3, 6, 5)]),
        ("convolution.default", [LINE], [LINE_MADE]),
        ("convolution.default", [LINE, LINE_KERNEL, (16,), (16,)], [LINE_MADE]),
        ("convolution.default", [LINE, LINE_KERNEL], [LINE_MADE, LINE_MADE]),
        ("convolution.default", [LINE, LINE_KERNEL], [(8, 16, 7, 1)]),
        ("convolution.default", [(8, 3), (16, 3)], [(8, 16)]),
        ("convolution_backward.default", [LINE_MADE, LINE], [LINE_KERNEL, (15,)]),
        ("convolution_backward.default", [MADE, IMAGE, KERNEL], [IMAGE, (15,)]),
        ("convolution_backward.default", [MADE, IMAGE, IMAGE], [IMAGE]),
        ("convolution_backward.default", [MADE, IMAGE, KERNEL], [KERNEL]),
        ("convolution_backward.default", [(4, 4, 3)] * 2, [(4, 4, 3)]),  # of the input, or of the weight?
        ("convolution_backward.default", [(8, 16), KERNEL], [IMAGE]),
        ("convolution_backward.default", [MADE, KERNEL], [IMAGE, (16,)]),
        ("embedding.default", [(50, 6), (3, 4), (3, 4)], [(3, 4, 6)]),
        ("embedding.default", [(50, 6), (3, 4)], [(3, 4, 6), (3, 4, 6)]),
        ("embedding.default", [(50, 6, 1), (3, 4)], [(3, 4, 6)]),
        ("embedding.default", [(50, 6), ()], [(6,)]),
        ("embedding_dense_backward.default", [(3, 4, 6), (3, 5)], [(50, 6)]),
        ("embedding_dense_backward.default", [(3, 4, 6), (3, 4)], [(50, 6), (50, 6)]),
        ("embedding_dense_backward.default", [(3, 4, 6), (3, 4)], [(50, 6, 1)]),
        ("embedding_dense_backward.default", [(6,), ()], [(50, 6)]),
        ("nll_loss_forward.default", [(7, 50), (7,)], [(), (1,)]),
        ("nll_loss_forward.default", [(7, 50), (7, 1)], [(), ()]),
        ("nll_loss_backward.default", [(), (7, 50), (7,), ()], [(7,)]),
        ("nll_loss_backward.default", [(1,), (7, 50), (7,), ()], [(7, 50)]),
        ("sum.dim_IntList", [(4, 4)], [(4,)]),  # which of the two?
        ("sum.dim_IntList", [(4, 5), (4, 5)], [(4,)]),
        ("sum.dim_IntList", [(4, 5)], [(4,), (4,)]),
        ("native_layer_norm.default", [(6, 4, 5)], [(6, 4, 5), (1, 4, 5), (6, 4, 1)]),
        ("native_layer_norm.default", [(6, 4, 5)], [(6, 4, 5), (6, 4), (6, 4)]),
        ("native_layer_norm_backward.default", [NORM, NORM, MEAN], [NORM]),
        ("native_layer_norm_backward.default", [(6,)] * 4, [(6,)]),
        ("native_layer_norm_backward.default", [NORM, (6, 5), MEAN, MEAN], [NORM]),
        ("native_layer_norm_backward.default", [NORM, NORM, MEAN, (6, 2)], [NORM]),
        ("native_layer_norm_backward.default", [NORM, NORM, MEAN, MEAN], [(6, 5)]),
        ("native_layer_norm_backward.default", [NORM, NORM, (1, 4), (1, 4)], [NORM]),
        # A weight as long as there are samples: which of the two a gradient is along cannot be told.
        ("native_layer_norm_backward.default", [(6, 6), (6, 6), MEAN, MEAN, (6,)], [(6, 6)]),
        ("native_layer_norm_backward.default", [(6, 6), (6, 6), MEAN, MEAN], [(6, 6), (6,)]),
        ("native_layer_norm_backward.default", [*[(6, 6, 5)] * 2, *[(6, 1, 1)] * 2, (6, 5)], [(6, 6, 5)]),
        (f"{ATTENTION}.default", [QUERY] * 2, [QUERY, SUMS]),
        (f"{ATTENTION}.default", [QUERY] * 5, [QUERY, SUMS]),
        (f"{ATTENTION}.default", [QUERY] * 3, [QUERY, QUERY]),
        (f"{ATTENTION}_backward.default", [*[QUERY] * 5, SUMS, QUERY, QUERY], [QUERY] * 3),
        (f"{ATTENTION}_backward.default", [*[QUERY] * 5, SUMS], [QUERY] * 2),
        ("something_new.default", [(4, 5)], [(4, 5)]),
        ("_log_softmax.default", [(7, 50)], [(7, 50)]),  # over which dimension?
    ],
)
def test_shapes_that_leave_a_doubt(kind: str, reads: list[Shape], makes: list[Shape]) -> None:
    assert axes_of(one_op(f"aten.{kind}", reads, makes), 0) == ()


def test_what_shares_memory_a_place_or_has_its_times_is_left_whole() -> None:
    """The first op, on the first tensor, of the first group."""
    shape = (4, 6)

    def axes(kind: str = "aten.relu.default", over: int | None = None, shown: bool = True, **given: object) -> int:
        g = GraphBuilder("first")
        x = g.tensor(96, "input", shape=shape)
        g.op("op", kind, [x], [g.tensor(96, shape=shape if shown else None, alias_of=over)], **given)  # type: ignore[arg-type]
        return len(axes_of(g.build(), 0))

    assert axes() == 2 and axes("aten.view.default", over=0) == 2
    assert axes(over=0, flops=24) == axes(shown=False) == axes(colocate="here") == 0
    assert axes(time_ns=5) == axes(time_ns=[None, 5]) == axes(time_ns=[5, None]) == 0


@pytest.mark.parametrize(
    ("kind", "args", "dim"),
    [
        ("_softmax", ["x", 1, False], 1),
        ("_log_softmax", ["x", -1, False], -1),
        ("_softmax_backward_data", ["g", "y", 0, 6], 0),
        ("_log_softmax_backward_data", ["g", "y", 2], 2),
        ("_softmax", ["x"], None),
        ("_softmax_backward_data", ["g", "y"], None),
        ("_softmax", ["x", "1"], None),
        ("relu", ["x", 1], None),
    ],
)
def test_what_a_softmax_is_over_is_in_its_call(kind: str, args: list[object], dim: int | None) -> None:
    g, shape = GraphBuilder("softmax"), (6, 4, 5)
    reads = [g.tensor(480, "input", shape=shape) for _ in range(2 if "backward" in kind else 1)]
    signature = json.dumps([kind, args, {}])
    g.op("op", f"aten.{kind}.default", reads, [g.tensor(480, shape=shape)], flops=1, signature=signature)
    graph = g.build()
    assert softmax_dim(graph, 0) == dim
    if dim is not None:
        kept = [d for d in range(3) if d != dim % 3]
        assert [(axis.size, axis.reads, axis.makes) for axis in axes_of(graph, 0)] == [
            (shape[d], (d,) * len(reads), (d,)) for d in kept
        ]


def test_a_softmax_over_one_dimension_reads_what_it_makes() -> None:
    g = GraphBuilder("odd")
    x, y = g.tensor(96, "input", shape=(6, 4)), g.tensor(96, shape=(6, 5))
    g.op("op", "aten._softmax.default", [x], [y], flops=1, signature=json.dumps(["_softmax", ["x", 1], {}]))
    assert axes_of(g.build(), 0) == () and softmax_dim(one_op("aten._softmax.default", [(6, 4)], [(6, 4)]), 0) is None


def classes(
    first: str = "aten._log_softmax.default", loss: str = "aten.nll_loss_forward.default", shape: Shape = (7, 50)
) -> Graph:
    """first -> loss; back reads the gradient and what first made, other the gradient and what was given."""
    g = GraphBuilder("classes")
    x, grad = (g.tensor(1400, "input", shape=shape) for _ in range(2))
    words, made = g.tensor(28, "input", shape=(7,)), g.tensor(1400, shape=shape)
    g.op("first", first, [x], [made], flops=1)
    g.op("loss", loss, [made, words], [g.tensor(4, "output", shape=()), g.tensor(4, shape=())], flops=1)
    for name, result in (("back", made), ("other", x)):
        g.op(name, "aten._log_softmax_backward_data.default", [grad, result], [g.tensor(1400, shape=shape)], flops=1)
    return g.build()


def test_a_loss_by_class_shows_what_a_softmax_is_over() -> None:
    graph = classes()
    assert graph.op_name == ("first", "loss", "back", "other")
    assert list(axes_of(graph, 0)) == [Axis(7, (0,), (0,))] and list(axes_of(graph, 2)) == [Axis(7, (0, 0), (0,))]
    assert axes_of(graph, 3) == ()
    without = classes(loss="aten.something.default")
    assert axes_of(without, 0) == axes_of(without, 2) == ()
    other = classes(first="aten.relu.default")
    assert axes_of(other, 2) == ()
    assert axes_of(classes(shape=(7, 25, 2)), 0) == ()
