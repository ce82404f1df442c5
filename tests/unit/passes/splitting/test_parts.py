"""What a split graph costs, what it waits for, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.methods.splitting import solve_split
from loadmaster.passes.splitting import Split, axes_of, grow, is_part, split_graph
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve


def product(rows: int = 8, inner: int = 4, columns: int = 6, **settings: object) -> Graph:
    """y = relu(x w), then w is updated from y."""
    g = GraphBuilder("product")
    x = g.tensor(4 * rows * inner, "input", name="x", shape=(rows, inner))
    w = g.tensor(4 * inner * columns, "weight", name="w", shape=(inner, columns))
    y = g.tensor(4 * rows * columns, name="y", shape=(rows, columns))
    z = g.tensor(4 * rows * columns, "output", name="z", shape=(rows, columns))
    new = g.tensor(4 * inner * columns, "weight", name="new", shape=(inner, columns), alias_of=w)
    g.op("mm", "aten.mm.default", [x, w], [y], flops=2 * rows * inner * columns, **settings)  # type: ignore[arg-type]
    g.op("relu", "aten.relu.default", [y], [z], flops=rows * columns)
    g.op("update", "optim.sgd", [w, y], [new], after=["mm"])
    return g.build()


def names(graph: Graph) -> set[str]:
    return set(graph.op_name)


def test_parts_do_the_work_of_the_whole_and_read_their_share() -> None:
    whole, split = product(), split_graph(product(), [Split("mm", 0, 4)])
    parts = [op for op, name in enumerate(split.op_name) if name.startswith("mm/part")]
    assert len(parts) == 4
    assert split.flops[parts].sum() == whole.flops[0]
    share = 4 * (8 * 4 // 4 + 4 * 6 + 8 * 6 // 4)  # of x, all of w, of y
    assert split.bytes_moved[parts].tolist() == [share] * 4
    joined = split.op_name.index("join:y")
    assert split.bytes_moved[joined] == 2 * 4 * 8 * 6
    assert {split.shape[t] for p in parts for t in split.makes_of(p)} == {(2, 6)}


def test_partial_sums_are_added_in_pairs() -> None:
    split = split_graph(product(), [Split("mm", 2, 4)])
    adds = [op for op, kind in enumerate(split.kind) if kind == "aten.add.Tensor"]
    assert len(adds) == 3
    assert all(split.shape[t] == (8, 6) for op in adds for t in (*split.reads_of(op), *split.makes_of(op)))
    assert split.op_name[split.producer[split.tensor_name.index("y")]] == "join:y"


def test_an_update_in_place_waits_for_all_that_reads_the_weight() -> None:
    split = split_graph(product(), [Split("mm", 1, 2)])
    update = split.op_name.index("update")
    weight = split.tensor_name.index("w")
    readers = {int(op) for op in split.readers_of(weight)} - {update}
    assert readers and readers <= {int(op) for op in split.after_of(update)}


def test_ops_around_go_along_and_outputs_are_whole() -> None:
    split = split_graph(product(), [Split("mm", 0, 2, 2)])
    assert {"relu/part0", "relu/part1", "join:z", "join:y"} <= names(split)
    z = split.tensor_name.index("z")
    assert split.op_name[split.producer[z]] == "join:z"
    assert "join:y" not in names(split_graph(product_without_update(), [Split("mm", 0, 2, 2)]))


def product_without_update() -> Graph:
    g = GraphBuilder("forward")
    x, w = g.tensor(128, "input", shape=(8, 4)), g.tensor(96, "weight", shape=(4, 6))
    y, z = g.tensor(192, name="y", shape=(8, 6)), g.tensor(192, "output", shape=(8, 6))
    g.op("mm", "aten.mm.default", [x, w], [y], flops=384)
    g.op("relu", "aten.relu.default", [y], [z], flops=48)
    return g.build()


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="into 3 parts of 8"):
        grow(product(), Split("mm", 0, 3))
    with pytest.raises(InvalidSetting, match="along axis 3"):
        grow(product(), Split("mm", 3, 2))
    with pytest.raises(InvalidSetting, match="no op 'conv'"):
        grow(product(), Split("conv", 0, 2))
    assert axes_of(product(time_ns=5), 0) == ()
    assert axes_of(product(colocate="here"), 0) == ()
    assert axes_of(product(), 2) == (), "an update in place"


@pytest.mark.parametrize(
    ("kind", "reads", "makes"),
    [
        ("aten._softmax.default", [(4, 6)], [(4, 6)]),  # over which dimension?
        ("aten.transpose.int", [(4, 4, 4)], [(4, 4, 4)]),  # which two?
        ("aten.sum.dim_IntList", [(4, 4)], [(4,)]),  # which one?
        ("aten.native_dropout.default", [(4, 6)], [(4, 6), (4, 6)]),  # parts would draw other numbers
        ("aten.something_new.default", [(4, 6)], [(4, 6)]),
        ("aten._log_softmax.default", [(4, 6)], [(4, 6)]),  # nobody takes a loss by class of it
    ],
)
def test_kinds_and_shapes_that_leave_a_doubt(
    kind: str, reads: list[tuple[int, ...]], makes: list[tuple[int, ...]]
) -> None:
    g = GraphBuilder("doubt")
    given = [g.tensor(4 * int(np.prod(s)), "input", shape=s) for s in reads]
    g.op("op", kind, given, [g.tensor(4 * int(np.prod(s)), shape=s) for s in makes], flops=1)
    assert axes_of(g.build(), 0) == ()


def test_rows_of_rows_are_split_through_a_view() -> None:
    g = GraphBuilder("view")
    x = g.tensor(4 * 6 * 5 * 2, "input", shape=(6, 5, 2))
    flat = g.tensor(4 * 60, shape=(30, 2), alias_of=x)
    y = g.tensor(4 * 60, "output", name="y", shape=(30, 2))
    g.op("view", "aten.view.default", [x], [flat])
    g.op("relu", "aten.relu.default", [flat], [y], flops=60)
    graph = g.build()
    assert [axis.size for axis in axes_of(graph, 0)] == [6, 2]
    split = split_graph(graph, [Split("relu", 0, 3)])
    assert {split.shape[t] for t in split.reads_of(split.op_name.index("view/part0"))} == {(2, 5, 2)}
    assert {split.shape[t] for t in split.makes_of(split.op_name.index("view/part0"))} == {(10, 2)}
    with_five = split_graph(graph, [Split("relu", 0, 5)])  # five parts do not divide six rows: the view stays whole
    assert "view" in with_five.op_name and "relu/part4" in with_five.op_name


def test_the_search_splits_what_holds_a_step_up_and_nothing_else() -> None:
    """Three devices have no equal shares of it, two of them have a part each."""
    big = product_problem(4096, 3)
    found = solve_split(big, lambda graph: price(graph, "3xa100-nvlink"), "heft", Budget(None, 300))
    assert found.splits and found.result.value < 0.7 * found.before.value
    assert any(is_part(name) for name in found.result.problem.graph.op_name)
    again = solve_split(big, lambda graph: price(graph, "3xa100-nvlink"), "heft", Budget(None, 300))
    assert again.splits == found.splits and again.result.value == found.result.value
    small = product_problem(8)
    found = solve_split(small, lambda graph: price(graph, "2xa100-nvlink"), "heft", Budget(None, 300))
    assert not found.splits and found.result is found.before and found.way is None


def test_shares_on_all_devices_are_taken_where_they_beat_parts() -> None:
    def reprice(graph: Graph) -> Problem:
        return price(graph, "2xa100-nvlink")

    found = solve_split(product_problem(4096), reprice, "heft", Budget(None, 300))
    assert found.way and not found.splits
    for parts in (Split("mm", 0, 2, 400), Split("mm", 1, 2, 400), Split("mm", 2, 2, 1)):
        split = reprice(split_graph(product_problem(4096).source, [parts]))
        assert found.result.value <= solve(split, "placement", Budget(None, 100)).value


def product_problem(size: int, devices: int = 2) -> Problem:
    g, nbytes = GraphBuilder("big"), 4 * size * size
    x, w = g.tensor(nbytes, "input", shape=(size, size)), g.tensor(nbytes, "weight", shape=(size, size))
    y, total = g.tensor(nbytes, shape=(size, size)), g.tensor(4 * size, shape=(1, size))
    z = g.tensor(4 * size, "output", shape=(1, size))
    g.op("mm", "aten.mm.default", [x, w], [y], flops=2 * size**3)
    g.op("sum", "aten.sum.dim_IntList", [y], [total], flops=size * size)
    g.op("last", "aten.relu.default", [total], [z], flops=size)
    return price(g.build(), f"{devices}xa100-nvlink")


def test_a_slice_reads_and_writes_its_piece_and_a_join_remembers_along_what() -> None:
    split = split_graph(product(), [Split("mm", 0, 4)])
    slices = [op for op, name in enumerate(split.op_name) if name.startswith("slice:x")]
    assert len(slices) == 4
    assert split.bytes_moved[slices].tolist() == [2 * 4 * 8 * 4 // 4] * 4
    assert split.flops[slices].tolist() == [0] * 4
