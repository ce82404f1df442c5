"""Axes of ops by their shapes alone; that splits along them compute the same is checked with torch beside this."""

from __future__ import annotations

import pytest

from loadmaster.passes.splitting import axes_of
from loadmaster.passes.splitting.axes import SUM, Axis, _attention_backward
from tests.unit.optimizers.fusion.test_spaces import Shape, one_op

IMAGE, KERNEL, MADE = (8, 3, 9, 9), (16, 3, 3, 3), (8, 16, 7, 7)
BACK = "aten.convolution_backward.default"


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
