"""What each of two devices has of small steps, worked out by hand, and the graphs that become of them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.passes.splitting.axes import SUM, Axis
from loadmaster.passes.splitting.sharded import ShardedGraph, least_ns, ring_of, sharded_graph
from loadmaster.passes.splitting.sharding import SMALL, Layout, Sharding, Share, Way, more_axes, reshaped, shard
from tests.graphs import pair
from tests.unit.passes.splitting.test_axes import Shape, one_op

WHOLE, ROWS, COLUMNS, SUMMED = None, Share(0), Share(1), "summand"


class Step:
    """A graph by names of tensors; numbers take four bytes."""

    def __init__(self, **given: tuple[int, ...]) -> None:
        """W…: weights, others are inputs."""
        self.build, self.tensors = GraphBuilder("step"), dict[str, int]()
        for name, shape in given.items():
            self._tensor(name, shape, "weight" if name.startswith("W") else "input")

    def _tensor(self, name: str, shape: tuple[int, ...], role: str, over: str | None = None) -> None:
        base = None if over is None else self.tensors[over]
        self.tensors[name] = self.build.tensor(4 * prod(shape), role, name=name, shape=shape, alias_of=base)

    def op(
        self, kind: str, reads: str, view: bool = False, time: list[int | None] | None = None, **makes: tuple[int, ...]
    ) -> Step:
        """An op named after the first that it makes; OUT is the output, an update is over what it reads first."""
        over = reads.split()[0] if view or kind.startswith("optim.") else None
        for name, shape in makes.items():
            role = "output" if name.startswith("OUT") else "state" if kind.startswith("optim.") else "activation"
            self._tensor(name, shape, role, over)
        full = kind if kind.startswith("optim.") else f"aten.{kind}.default"
        flops, made = 0 if view else 100, [self.tensors[name] for name in makes]
        given = [self.tensors[t] for t in reads.split()]
        self.build.op(next(iter(makes)), full, given, made, flops=flops, time_ns=time)
        return self

    def graph(self) -> Graph:
        return self.build.build()

    def shard(self, way: Way, ways: int = 2) -> dict[str, Layout]:
        found = shard(self.graph(), ways, way)
        return {name: found.layout[tensor] for name, tensor in self.tensors.items()}


def trained(weight: tuple[int, int] = (4, 10), rows: int = 8) -> Step:
    """Y = X W; the gradient of W is X' Y, with which it is updated."""
    inner, columns = weight
    step = Step(X=(rows, inner), W=weight).op("mm", "X W", Y=(rows, columns)).op("relu", "Y", OUT=(rows, columns))
    step.op("t", "X", view=True, T=(inner, rows)).op("mm", "T Y", G=weight)
    return step.op("optim.sgd", "W G", W2=weight)


def test_samples_are_shared_and_gradients_are_summed() -> None:
    assert trained().shard("samples") == {
        **{"X": ROWS, "W": WHOLE, "Y": ROWS, "OUT": ROWS, "T": COLUMNS, "G": SUMMED, "W2": WHOLE}
    }
    assert set(trained(rows=9).shard("samples").values()) == {WHOLE}, "nine rows are no two equal shares"
    assert set(trained().shard("samples", 3).values()) == {WHOLE}


def stored(graph: Graph, found: Sharding) -> dict[str, Share]:
    return {graph.tensor_name[tensor]: share for tensor, share in found.stored.items()}


def test_large_weights_that_are_updated_lie_in_shares_of_their_rows() -> None:
    large = trained((4, SMALL // 16))
    graph = large.graph()
    assert graph.nbytes[large.tensors["W"]] == SMALL
    found = shard(graph, 2, "samples")
    assert stored(graph, found) == {"W": ROWS} and found.layout[large.tensors["W"]] is WHOLE
    assert found.source(large.tensors["W"]) == ROWS and found.source(large.tensors["X"]) == ROWS
    update = graph.op_name.index("W2")
    assert found.wanted[update] == (ROWS, ROWS) and found.layout[large.tensors["W2"]] == ROWS
    assert found.on_shares(graph, update)
    for smaller in (trained((4, SMALL // 16 - 1)), trained((5, SMALL // 16))):  # or its rows are no two equal shares
        graph = smaller.graph()
        found = shard(graph, 2, "samples")
        assert not found.stored and found.wanted[graph.op_name.index("W2")] == (WHOLE, WHOLE)
    fixed = Step(X=(8, 4), W=(4, SMALL // 16)).op("mm", "X W", OUT=(8, SMALL // 16)).graph()
    assert not shard(fixed, 2, "samples").stored, "nobody updates it"


def feed_forward(last: str = "relu") -> Step:
    step = Step(X=(6, 4), W1=(4, 8), W2=(8, 4)).op("mm", "X W1", U=(6, 8)).op("relu", "U", M=(6, 8))
    return step.op("mm", "M W2", D=(6, 4)).op(last, "D", OUT=(6, 4))


def test_the_first_product_is_by_columns_and_the_second_makes_summands() -> None:
    """What reads the summands takes its share of their rows, by a reduce-scatter."""
    assert feed_forward().shard("features") == {
        **{"X": WHOLE, "W1": COLUMNS, "W2": ROWS, "U": COLUMNS, "M": COLUMNS, "D": SUMMED, "OUT": ROWS}
    }
    assert feed_forward("something").shard("features")["OUT"] is WHOLE


def test_a_product_that_leads_to_no_summands_is_whole() -> None:
    alone = Step(X=(6, 4), W1=(4, 8)).op("mm", "X W1", U=(6, 8)).op("relu", "U", OUT=(6, 8))
    assert set(alone.shard("features").values()) == {WHOLE}
    odd = Step(X=(6, 4), W1=(4, 7), W2=(7, 4)).op("mm", "X W1", U=(6, 7)).op("mm", "U W2", OUT=(6, 4))
    assert set(odd.shard("features").values()) == {WHOLE}
    mixed = feed_forward().op("something", "U", OUT2=(6, 8))  # one of those that read the shares wants them whole
    assert mixed.shard("features")["U"] is WHOLE


def test_summands_that_are_added_or_seen_otherwise_are_summands() -> None:
    step = Step(X=(6, 4), W1=(4, 8), W2=(8, 4)).op("mm", "X W1", U=(6, 8)).op("mm", "U W2", D=(6, 4))
    step.op("add", "D D", E=(6, 4)).op("view", "E", view=True, F=(3, 8)).op("something", "F", OUT=(3, 8))
    found = step.shard("features")
    assert [found[name] for name in ("D", "E", "F", "OUT")] == [SUMMED, SUMMED, SUMMED, WHOLE]
    other = Step(X=(6, 4), Z=(6, 4), W1=(4, 8), W2=(8, 4)).op("mm", "X W1", U=(6, 8)).op("mm", "U W2", D=(6, 4))
    assert other.op("add", "D Z", OUT=(6, 4)).shard("features")["OUT"] == ROWS


def test_columns_of_several_blocks_are_cut_and_joined_again() -> None:
    """Queries, keys and values lie side by side: a device has a part of each, which it can cut out by itself."""
    step = Step(X=(6, 4), W1=(4, 12), W2=(12, 4)).op("mm", "X W1", H=(6, 12))
    step.op("split", "H", Q=(6, 4), K=(6, 4), V=(6, 4)).op("relu", "Q", R=(6, 4))
    step.op("cat", "R K V", C=(6, 12)).op("mm", "C W2", OUT=(6, 4))
    found = step.shard("features")
    three = {"W1": Share(1, 3), "H": Share(1, 3), "C": Share(1, 3), "W2": Share(0, 3)}
    assert found == {"X": WHOLE, **dict.fromkeys("QKVR", COLUMNS), **three, "OUT": SUMMED}
    uneven = Step(X=(6, 4), W1=(4, 12), W2=(12, 4)).op("mm", "X W1", H=(6, 12))
    uneven.op("split", "H", Q=(6, 2), K=(6, 6), V=(6, 4)).op("cat", "Q K V", C=(6, 12)).op("mm", "C W2", OUT=(6, 4))
    assert uneven.shard("features")["H"] is WHOLE


def test_shares_go_through_other_shapes() -> None:
    """Heads: of four, each device has two, as a part of the inner dimension before and after."""
    step = Step(X=(6, 4), W1=(4, 8), W2=(8, 4)).op("mm", "X W1", U=(6, 8)).op("view", "U", view=True, H=(6, 4, 2))
    step.op("relu", "H", M=(6, 4, 2)).op("view", "M", view=True, V=(6, 8)).op("mm", "V W2", OUT=(6, 4))
    found = step.shard("features")
    assert [found[name] for name in ("U", "H", "M", "V", "OUT")] == [COLUMNS, COLUMNS, COLUMNS, COLUMNS, SUMMED]


def test_a_weight_is_laid_out_through_its_views() -> None:
    step = Step(X=(6, 4), W1=(8, 4), W2=(8, 4)).op("t", "W1", view=True, T=(4, 8)).op("mm", "X T", U=(6, 8))
    found = step.op("mm", "U W2", OUT=(6, 4)).shard("features")
    assert (found["W1"], found["T"], found["U"], found["W2"], found["OUT"]) == (ROWS, COLUMNS, COLUMNS, ROWS, SUMMED)


def words(updated: bool = True) -> Step:
    step = Step(W=(50, 6), X=(3, 4)).op("embedding", "W X", E=(3, 4, 6)).op("relu", "E", OUT=(3, 4, 6))
    return step.op("embedding_dense_backward", "E X", G=(50, 6)).op("optim.sgd", "W G", W2=(50, 6)) if updated else step


def test_a_table_of_words_is_by_columns() -> None:
    graph, step = words().graph(), words()
    found = shard(graph, 2, "features")
    assert stored(graph, found) == {"W": COLUMNS, "E": Share(2)}
    assert step.shard("features") == {**{"W": WHOLE, "X": WHOLE, "E": WHOLE, "OUT": WHOLE, "G": COLUMNS, "W2": COLUMNS}}
    assert stored(words(updated=False).graph(), shard(words(updated=False).graph(), 2, "features")) == {"E": Share(2)}
    assert step.shard("samples")["E"] is WHOLE, "three rows of words are no two equal shares"


@pytest.mark.parametrize(
    ("kind", "reads", "makes", "axes"),
    [
        ("native_dropout", [(4, 6)], [(4, 6), (4, 6)], [Axis(4, (0,), (0, 0)), Axis(6, (1,), (1, 1))]),
        ("native_dropout", [(4, 6)], [(4, 6), (4, 1)], []),
        ("_softmax", [(4, 6, 5)], [(4, 6, 5)], [Axis(4, (0,), (0,)), Axis(6, (1,), (1,))]),
        ("_softmax_backward_data", [(4, 6), (4, 6)], [(4, 6)], [Axis(4, (0, 0), (0,))]),
        ("addmm", [(5,), (6, 4), (4, 5)], [(6, 5)], [Axis(4, (None, 1, 0), (SUM,))]),
        ("addmm", [(5,), (6, 4), (4, 5)], [(6, 5, 1)], []),
        ("mm", [(6, 4), (4, 5)], [(6, 5)], []),
        ("slice", [(4, 6)], [(4, 3)], [Axis(4, (0,), (0,))]),
        ("slice_backward", [(4, 3, 5)], [(4, 6, 5)], [Axis(4, (0,), (0,)), Axis(5, (2,), (2,))]),
        ("slice", [(4, 6)], [(4, 6)], []),
        ("slice", [(4, 6, 5)], [(4, 3, 2)], []),
        ("slice", [(4, 6)], [(4,)], []),
        ("transpose", [(4, 4, 5)], [(4, 4, 5)], [Axis(5, (2,), (2,))]),
        ("transpose", [(4, 5)], [(5, 4)], []),
    ],
)
def test_axes_of_shares_alone(kind: str, reads: list[Shape], makes: list[Shape], axes: list[Axis]) -> None:
    assert list(more_axes(one_op(f"aten.{kind}.default", reads, makes), 0)) == axes


@pytest.mark.parametrize(
    ("given", "made", "share", "ways", "found"),
    [
        ((6, 8), (6, 4, 2), Share(1), 2, Share(1)),
        ((2, 4, 6), (8, 6), Share(1), 2, Share(0, 2)),
        ((8, 6), (2, 4, 6), Share(0, 2), 2, Share(1)),
        ((8,), (1, 8), Share(0), 2, Share(1)),
        ((2, 3), (6,), Share(1), 3, Share(0, 2)),
        ((6,), (2, 3), Share(0), 2, Share(0)),
        ((6,), (2, 3), Share(0), 3, None),
        ((4, 6), (4, 6), Share(1, 3), 2, Share(1, 3)),
        ((4, 6), (4, 2, 3), Share(1, 3), 2, None),
        ((4, 2), (4, 2), Share(1), 2, Share(1)),
    ],
)
def test_a_share_in_another_shape(given: Shape, made: Shape, share: Share, ways: int, found: Share | None) -> None:
    assert reshaped(given, made, share, ways) == found


def test_no_rows_are_no_shares() -> None:
    assert Step(X=(0, 4)).op("relu", "X", OUT=(0, 4)).shard("samples") == {"X": WHOLE, "OUT": WHOLE}
    assert Step(X=()).op("relu", "X", OUT=()).shard("samples") == {"X": WHOLE, "OUT": WHOLE}


def test_shares_along_two_dimensions_meet_along_the_first() -> None:
    step = Step(X=(4, 4)).op("t", "X", view=True, T=(4, 4)).op("add", "X T", OUT=(4, 4))
    assert step.shard("samples") == {"X": ROWS, "T": COLUMNS, "OUT": ROWS}


def test_rows_that_are_put_together_along_columns_are_rows() -> None:
    step = Step(X=(8, 4)).op("relu", "X", A=(8, 4)).op("cat", "A X", OUT=(8, 8))
    assert step.shard("samples")["OUT"] == ROWS


def test_what_the_backward_pass_reads_is_no_part_of_a_stretch() -> None:
    """The first op makes the output: the product behind it is none of the forward pass."""
    step = Step(X=(6, 4), W1=(4, 8), W2=(8, 4)).op("mm", "X W1", OUT=(6, 8)).op("mm", "OUT W2", D=(6, 4))
    assert set(step.shard("features").values()) == {WHOLE}


def test_only_products_begin_a_stretch() -> None:
    step = Step(W1=(4, 8), W2=(8, 4)).op("relu", "W1", U=(4, 8)).op("mm", "U W2", OUT=(4, 4))
    assert set(step.shard("features").values()) == {WHOLE}


def test_an_update_shares_out_its_states_and_a_weight_that_nobody_else_reads() -> None:
    shape = (4, SMALL // 16)
    step = Step(W=shape, X=shape, M=shape, V=shape).op("relu", "X", G=shape).op("optim.adam", "W G M V", W2=shape)
    graph = step.graph()
    found = shard(graph, 2, "features")
    assert stored(graph, found) == {"W": ROWS} and found.wanted[1] == (ROWS,) * 4
    assert step.shard("features") == {"W": WHOLE, "X": WHOLE, "G": WHOLE, "M": ROWS, "V": ROWS, "W2": ROWS}


def test_a_table_that_was_read_whole_stays_as_it_lies() -> None:
    step = Step(W=(64, 256), X=(3, 4)).op("something", "W", S=(64, 256)).op("embedding", "W X", OUT=(3, 4, 256))
    graph = step.op("optim.sgd", "W S", W2=(64, 256)).graph()
    assert stored(graph, shard(graph, 2, "features")) == {"W": ROWS, "OUT": Share(2)}


# The graphs


def test_a_ring_is_as_fast_as_its_slowest_link() -> None:
    two = replace(pair(), links={(0, 1): Link(1e9, 7), (1, 0): Link(1e10, 5)})
    assert ring_of(two)(1, 100) == 7 + 50 and ring_of(two)(2, 101) == 2 * (7 + 51)
    device = two.devices[0]
    devices = tuple(replace(device, name=f"d{i}") for i in range(3))
    ends = [(i, j) for i in range(3) for j in range(3) if i != j]
    links = {end: Link(1e9, 7) for end in ends}
    channel = [[-1, 0, 1], [2, -1, 3], [4, 5, -1]]
    assert ring_of(replace(two, devices=devices, links=links, channel=ints(channel)))(1, 90) == 2 * (7 + 30)


def test_what_a_device_must_do_is_its_share_on_the_fastest() -> None:
    cluster = pair()
    slow = replace(cluster.devices[1], flops_per_s=5e8)
    problem = price(trained().graph(), replace(cluster, devices=(cluster.devices[0], slow)))
    names = problem.graph.op_name
    times = {name: int(problem.op_ns[op, 0]) for op, name in enumerate(names)}
    assert (problem.op_ns[:, 0] <= problem.op_ns[:, 1]).all() and set(names) == {"Y", "OUT", "G", "W2"}
    assert least_ns(problem, "samples") == sum(times[name] // 2 for name in ("Y", "OUT", "G")) + times["W2"]


def test_losses_of_shares_are_two_numbers_each() -> None:
    """16 bytes, of which a ring passes eight on, twice."""
    step = Step(X=(8, 4), T=(8,)).op("_log_softmax", "X", L=(8, 4)).op("nll_loss_forward", "L T", OUT=(), N=())
    made = sharded_graph(step.graph(), pair(link=Link(1e9, 0)), "samples")
    assert made is not None
    assert made.graph.time_ns[made.graph.op_name.index("all_reduce OUT@0")].max() == 2 * 8


def test_given_times_are_those_of_the_whole_op() -> None:
    step = Step(X=(8, 4)).op("relu", "X", Y=(8, 4)).op("relu", "Y", time=[3, 9], Z=(8, 4))
    made = sharded(step.op("relu", "Y", time=[None, 4], OUT=(8, 4)), "samples")
    given = {name: int(made.graph.time_ns[op].max()) for op, name in enumerate(made.graph.op_name)}
    assert given["Z@0"] == given["Z@1"] == 9 and given["OUT@1"] == 4 and given["Y@0"] < 0


def sharded(step: Step, way: Way) -> ShardedGraph:
    made = sharded_graph(step.graph(), pair(), way)
    assert made is not None
    return made


def test_gradients_are_reduced_and_all_else_runs_on_shares() -> None:
    """G has 160 bytes: a ring passes 80 on, in 5 + 8 ns, and does so twice for a sum on both devices."""
    made = sharded(trained(), "samples")
    graph = made.graph
    expected = {f"{name}@{part}": part for name in ("Y", "OUT", "T", "G", "W2") for part in (0, 1)}
    collectives = {f"{name}@{part}": part for name in ("all_reduce G", "all_gather OUT") for part in (0, 1)}
    assert made.device == expected | collectives
    flops = dict(zip(graph.op_name, graph.flops.tolist(), strict=True))
    assert flops["Y@0"] == flops["G@1"] == flops["OUT@0"] == 50 and flops["W2@1"] == 100
    ring = graph.op_name.index("all_reduce G@1")
    assert graph.time_ns[ring].max() == 2 * 13
    assert {graph.op_name[op] for op in graph.after_of(ring)} == {"G@0", "G@1"}
    assert graph.time_ns[graph.op_name.index("all_gather OUT@0")].max() == 5 + 16
    size = dict(zip(graph.tensor_name, graph.nbytes.tolist(), strict=True))
    assert (size["X@0"], size["W@1"], size["Y@0"], size["G@0"]) == (64, 160, 160, 160)
    shape = dict(zip(graph.tensor_name, graph.shape, strict=True))
    assert (shape["X@0"], shape["T@1"], shape["OUT by all_gather@0"]) == ((4, 4), (4, 4), (8, 10))
    assert graph.captured["sharding"] == {"way": "samples", "devices": 2, "graph": trained().graph().digest}


def test_no_share_no_graph() -> None:
    assert sharded_graph(trained(rows=9).graph(), pair(), "samples") is None


def test_summands_become_shares_of_those_that_read_them() -> None:
    made = sharded(feed_forward(), "features")
    rings = [name for name in made.device if name.startswith(("all_", "reduce_"))]
    assert rings == [f"{name}@{part}" for name in ("reduce_scatter D", "all_gather OUT") for part in (0, 1)]
    times = {made.graph.time_ns[made.graph.op_name.index(name)].max() for name in rings}
    assert times == {5 + 5}, "96 bytes: 48 on, once, at ten bytes a nanosecond"


def test_what_ops_take_is_shared() -> None:
    """Y reads half of X and all of W and makes half of itself: (64 + 160 + 160) of 608 bytes."""
    g = trained().graph()
    plain = replace(g, bytes_moved=g.bytes_moved * 0 + 608, workspace_bytes=g.workspace_bytes + 7)
    made = sharded_graph(plain, pair(), "samples")
    assert made is not None
    at = made.graph.op_name.index("Y@1")
    assert made.graph.bytes_moved[at] == 384 and made.graph.workspace_bytes[at] == 4
    update = made.graph.op_name.index("W2@1")
    assert made.graph.bytes_moved[update] == 608 and made.graph.workspace_bytes[update] == 7
