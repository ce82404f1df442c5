"""The loops of ops, by their shapes, and what may share one: cases as Inductor schedules them."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.fusion.greedy import greedy_kernels
from loadmaster.baselines.fusion.spaces import spaces_of
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder

Shape = tuple[int, ...] | None


def one_op(kind: str, reads: list[Shape], makes: list[Shape]) -> Graph:
    builder = GraphBuilder("one")
    read = [builder.tensor(1000, "input", shape=shape) for shape in reads]
    builder.op("op", kind, read, [builder.tensor(1000, shape=shape) for shape in makes], flops=1)
    return builder.build()


@pytest.mark.parametrize(
    ("kind", "reads", "makes", "points", "rows", "apart", "down"),
    [
        ("aten.add.Tensor", [(8, 64), (64,)], [(8, 64)], 512, 0, False, False),
        ("aten.native_dropout.default", [(8, 64)], [(8, 64), (8, 64)], 512, 0, False, False),
        (
            "aten.native_layer_norm.default",
            [(2, 4, 64), (64,)],
            [(2, 4, 64), (2, 4, 1), (2, 4, 1)],
            512,
            8,
            False,
            False,
        ),
        ("aten.native_layer_norm_backward.default", [(8, 64)] * 2, [(8, 64), (64,), (64,)], 512, 8, False, False),
        ("aten._softmax.default", [(2, 4, 64)], [(2, 4, 64)], 512, 8, False, False),
        ("aten.sum.dim_IntList", [(8, 64)], [(8,)], 512, 8, False, False),
        ("aten.sum.dim_IntList", [(8, 64)], [(1, 64)], 512, 64, True, True),
        ("aten.sum.dim_IntList", [(4, 8, 3, 3)], [(8,)], 288, 8, True, True),
        ("aten.mean.dim", [(4, 8, 3, 3)], [(4, 8)], 288, 32, False, False),
        ("aten.mean.default", [(8, 64)], [()], 512, 1, False, False),
        ("aten.mean.default", [(1024, 64)], [()], 65536, 1, True, False),
        ("aten.mean.default", [(128, 64)], [()], 8192, 1, False, False),
        ("aten.mean.default", [(129, 64)], [()], 8256, 1, True, False),
        ("aten.sum.dim_IntList", [(256, 8200)], [(256,)], 2099200, 256, False, False),
        ("aten.sum.dim_IntList", [(255, 8200)], [(255,)], 2091000, 255, True, False),
        ("aten.nll_loss_forward.default", [(8, 64), (8,)], [(), ()], 8, 1, True, False),
        ("aten.nll_loss_backward.default", [(8, 64), (8,)], [(8, 64)], 512, 0, False, False),
        ("aten.embedding.default", [(100, 64), (8,)], [(8, 64)], 512, 0, False, False),
        ("aten.embedding_dense_backward.default", [(8, 64), (8,)], [(100, 64)], 512, 0, False, False),
        ("aten.sum.dim_IntList", [None], [(8,)], 0, 0, False, False),
        ("aten.relu.default", [(8,)], [None], 0, 0, False, False),
    ],
)
def test_loops(
    kind: str, reads: list[Shape], makes: list[Shape], points: int, rows: int, apart: bool, down: bool
) -> None:
    found = spaces_of(one_op(kind, reads, makes))
    assert [column[0] for column in found] == [points, rows, apart, down]


def test_more_elements_than_there_can_be_are_not_known() -> None:
    """As only a damaged file says; a count of 63 bits is taken."""
    huge, largest = one_op("aten.neg.default", [(10**10, 10**10)], [(10**10, 10**10)]), (2**31, 2**31, 2)
    assert spaces_of(huge).points.tolist() == [0]
    assert spaces_of(one_op("aten.neg.default", [(2**31, 2**31)], [(2**31, 2**31)])).points.tolist() == [2**62]
    assert spaces_of(one_op("aten.neg.default", [largest], [largest])).points.tolist() == [0]


def kernels(ops: list[tuple[str, list[str], str, tuple[int, ...]]]) -> list[set[str]]:
    """Kernels of greedy fusion; each op reads tensors by the op that makes them, or as inputs by another name."""
    builder, known = GraphBuilder("chain"), dict[str, int]()
    read_by = {name for _, reads, _, _ in ops for name in reads}
    for name, reads, kind, shape in ops:
        for given in reads:
            if given not in known:
                known[given] = builder.tensor(4 * 8 * 64, "input", shape=(8, 64))
        known[name] = builder.tensor(
            4 * int(np.prod(shape)), "activation" if name in read_by else "output", shape=shape
        )
        builder.op(name, kind, [known[given] for given in reads], [known[name]], flops=1000)
    problem = price(builder.build(), Cluster.preset("1xp100-pcie"))
    found: dict[int, set[str]] = {}
    for op, head in enumerate(greedy_kernels(problem).tolist()):
        found.setdefault(head, set()).add(problem.graph.op_name[op])
    return list(found.values())


FULL = (8, 64)


def test_a_softmax_takes_what_comes_before_and_after() -> None:
    ops = [
        ("scale", ["x"], "aten.mul.Tensor", FULL),
        ("softmax", ["scale"], "aten._softmax.default", FULL),
        ("drop", ["softmax"], "aten.native_dropout.default", FULL),
        ("product", ["drop", "y"], "aten.mm.default", FULL),
        ("relu", ["product"], "aten.relu.default", FULL),
    ]
    assert kernels(ops) == [{"scale", "softmax", "drop"}, {"product"}, {"relu"}]


def test_a_sum_down_columns_stays_apart_from_what_others_read() -> None:
    ops = [
        ("relu", ["x"], "aten.relu.default", FULL),
        ("product", ["relu", "y"], "aten.mm.default", FULL),
        ("columns", ["relu"], "aten.sum.dim_IntList", (64,)),
        ("half", ["columns"], "aten.mul.Scalar", (64,)),
        ("all", ["columns", "product"], "aten.add.Tensor", FULL),
    ]
    assert kernels(ops) == [{"relu"}, {"product"}, {"columns", "half"}, {"all"}]


def test_a_lookup_takes_what_nobody_else_reads() -> None:
    ops = [
        ("relu", ["x"], "aten.relu.default", FULL),
        ("pad", ["relu"], "aten.constant_pad_nd.default", (8, 128)),
        ("other", ["y"], "aten.relu.default", FULL),
        ("cat", ["other"], "aten.cat.default", (8, 128)),
        ("tanh", ["other"], "aten.tanh.default", FULL),
    ]
    assert kernels(ops) == [{"relu", "pad"}, {"other", "tanh"}, {"cat"}]
