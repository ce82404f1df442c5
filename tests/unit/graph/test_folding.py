"""Folding: what remains once views are gone, by hand and against a walk over the unfolded graph."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given, settings

from loadmaster.graph import OUTPUT, ROLES, Graph, GraphBuilder
from loadmaster.graph.folding import fold
from tests.graphs.tiny import views
from tests.strategies import graphs


def reads(graph: Graph) -> list[list[str]]:
    return [[graph.tensor_name[t] for t in graph.reads_of(op)] for op in range(graph.num_ops)]


def afters(graph: Graph) -> dict[str, list[str]]:
    return {graph.op_name[op]: [graph.op_name[a] for a in graph.after_of(op)] for op in range(graph.num_ops)}


def test_views_of_views_vanish_into_their_base() -> None:
    folded, source_ops, read_bytes = fold(views())
    assert folded.op_name == ("a", "b", "c", "d")
    assert source_ops.tolist() == [0, 3, 4, 5]
    assert folded.num_tensors == 4 and (folded.alias_of < 0).all()
    assert [folded.reads_of(op).tolist() for op in range(4)] == [[], [0], [0], [1, 2]]
    assert read_bytes.tolist() == [50, 25, 20, 20]  # what was seen of the base, not all of it


def test_nothing_changes_without_views() -> None:
    g = GraphBuilder()
    a, b = g.tensor(1, name="a"), g.tensor(2, "output", name="b")
    g.op("x", "any", [], [a])
    g.op("y", "any", [a], [b], after=["x"])
    graph = g.build()
    folded, source_ops, _ = fold(graph)
    assert folded.digest == graph.digest and source_ops.tolist() == [0, 1]


def test_two_views_and_the_base_are_one_read_whose_bytes_add_up() -> None:
    g = GraphBuilder()
    x = g.tensor(100, "input", name="x")
    left, right = g.tensor(30, alias_of=x), g.tensor(20, alias_of=x)
    g.op("split", "view", [x], [left, right])
    g.op("read", "any", [left, right, x], flops=1)
    folded, _, read_bytes = fold(g.build())
    assert reads(folded) == [["x"]] and read_bytes.tolist() == [150]


def test_an_expanded_view_reads_no_more_than_there_is() -> None:
    g = GraphBuilder()
    x = g.tensor(10, "input")
    wide = g.tensor(1000, alias_of=x)
    g.op("expand", "view", [x], [wide])
    g.op("read", "any", [wide], flops=1)
    assert fold(g.build())[2].tolist() == [10]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_base_is_an_output_if_any_view_of_it_is(depth: int) -> None:
    g = GraphBuilder()
    base = shown = g.tensor(10)
    g.op("make", "any", [], [base], flops=1)
    for index in range(depth):
        view = g.tensor(5, "output" if index == depth - 1 else "activation", alias_of=shown)
        g.op(f"view{index}", "view", [shown], [view])
        shown = view
    assert fold(g.build())[0].role.tolist() == [OUTPUT]


@pytest.mark.parametrize("role", ["weight", "state", "input"])
def test_a_view_of_a_weight_as_output_leaves_the_weight_what_it_is(role: str) -> None:
    g = GraphBuilder()
    w = g.tensor(10, role)
    g.op("view", "view", [w], [g.tensor(5, "output", alias_of=w)])
    g.op("op", "any", [w], flops=1)
    assert fold(g.build())[0].role.tolist() == [ROLES.index(role)]


def test_a_weight_declared_as_alias_of_another_is_that_one() -> None:
    g = GraphBuilder()
    w = g.tensor(10, "weight", name="embedding")
    tied = g.tensor(10, "weight", name="head", alias_of=w)
    g.op("embed", "any", [w], flops=1)
    g.op("project", "any", [tied], flops=1)
    assert reads(fold(g.build())[0]) == [["embedding"], ["embedding"]]


class TestUpdates:
    def chain(self) -> Graph:
        """A view of an update of a view of what `make` made."""
        g = GraphBuilder()
        base = g.tensor(100, name="base")
        half = g.tensor(50, name="half", alias_of=base)
        over = g.tensor(50, name="over", alias_of=half)
        shown = g.tensor(10, name="shown", alias_of=over)
        g.op("make", "any", [], [base], flops=1)
        g.op("half", "view", [base], [half])
        g.op("over", "any", [half], [over], flops=1)
        g.op("shown", "view", [over], [shown])
        g.op("read", "any", [shown], flops=1)
        return g.build()

    def test_an_update_stays_and_points_at_the_base(self) -> None:
        folded, _, _ = fold(self.chain())
        assert folded.tensor_name == ("base", "over")
        assert folded.alias_of.tolist() == [-1, 0]
        assert reads(folded) == [[], ["base"], ["over"]]

    def test_an_update_has_the_bytes_of_its_owner(self) -> None:
        assert fold(self.chain())[0].nbytes.tolist() == [100, 100]

    def test_what_is_overwritten_unread_is_waited_for_without_traffic(self) -> None:
        g = GraphBuilder()
        base = g.tensor(100, name="base")
        g.op("make", "any", [], [base], flops=1)
        g.op("fill", "any", [], [g.tensor(100, alias_of=base)], flops=1)
        folded, _, read_bytes = fold(g.build())
        assert reads(folded) == [[], ["base"]] and read_bytes.tolist() == [0]

    def test_what_is_overwritten_or_shown_unread_comes_first_all_the_same(self) -> None:
        g = GraphBuilder()
        base = g.tensor(100, name="base")
        shown, over, tied = (g.tensor(100, alias_of=base) for _ in range(3))
        g.op("through tied", "any", [tied], flops=1)  # an alias that no op makes
        g.op("through view", "any", [shown], flops=1)
        g.op("view", "view", [], [shown])
        g.op("fill", "any", [], [over], flops=1)
        g.op("make", "any", [], [base], flops=1)
        folded, _, _ = fold(g.build())
        assert folded.op_name[0] == "make" and set(folded.op_name[1:]) == {"through tied", "through view", "fill"}
        assert reads(folded) == [[], ["base"], ["base"], ["base"]]

    def test_an_op_may_make_a_tensor_and_show_it_too(self) -> None:
        g = GraphBuilder()
        base = g.tensor(100, name="base")
        shown = g.tensor(50, name="shown", alias_of=base)
        g.op("make", "any", [], [base, shown], flops=1)
        g.op("read", "any", [shown], flops=1)
        folded, _, read_bytes = fold(g.build())
        assert folded.tensor_name == ("base",) and folded.makes.tolist() == [0]
        assert reads(folded) == [[], ["base"]] and read_bytes.tolist() == [50]

    def test_updaters_of_one_weight_share_a_group(self) -> None:
        g = GraphBuilder()
        w, v = g.tensor(10, "weight"), g.tensor(10, "state")
        first = g.tensor(10, "state", alias_of=w)
        g.op("free", "any", [w], flops=1)
        g.op("one", "any", [w], [first], flops=1)
        g.op("two", "any", [first], [g.tensor(10, "state", alias_of=first)], flops=1)
        g.op("alone", "any", [v], [g.tensor(10, "state", alias_of=v)], flops=1)
        colocate = fold(g.build())[0].colocate.tolist()
        assert colocate[1] == colocate[2] >= 0
        assert colocate[0] == colocate[3] == -1

    def test_groups_of_updaters_are_joined(self) -> None:
        g = GraphBuilder()
        w = g.tensor(10, "weight")
        for name, group in (("a", "left"), ("b", "right")):
            g.op(name, "any", [w], [g.tensor(10, "state", alias_of=w)], flops=1, colocate=group)
        g.op("mate of a", "any", flops=1, colocate="left")
        g.op("mate of b", "any", flops=1, colocate="right")
        g.op("other", "any", flops=1, colocate="other")
        *together, other = fold(g.build())[0].colocate.tolist()
        assert len(set(together)) == 1 and other not in together

    def test_updates_of_an_activation_need_no_group(self) -> None:
        g = GraphBuilder()
        x = g.tensor(10)
        g.op("make", "any", [], [x], flops=1)
        for name in "ab":
            g.op(name, "any", [x], [g.tensor(10, alias_of=x)], flops=1)
        assert fold(g.build())[0].colocate.tolist() == [-1, -1, -1]


class TestBarriers:
    def test_readers_of_a_view_wait_for_what_the_view_came_after(self) -> None:
        g = GraphBuilder()
        x = g.tensor(10, "input", name="x")
        view = g.tensor(10, alias_of=x)
        g.op("first", "any", flops=1)
        g.op("view", "view", [x], [view], after=["first"])
        g.op("through", "any", [view], flops=1)
        g.op("direct", "any", [x], flops=1)
        assert afters(fold(g.build())[0]) == {"first": [], "through": ["first"], "direct": []}

    def test_barriers_pass_through_views_of_views(self) -> None:
        g = GraphBuilder()
        x = g.tensor(10, "input")
        one, two = g.tensor(10, alias_of=x), g.tensor(10, alias_of=1)
        g.op("first", "any", flops=1)
        g.op("second", "any", flops=1)
        g.op("one", "view", [x], [one], after=["first"])
        g.op("two", "view", [one], [two], after=["second"])
        g.op("read", "any", [two], flops=1)
        assert afters(fold(g.build())[0])["read"] == ["first", "second"]

    def test_after_a_view_is_after_what_it_shows_and_waits_for(self) -> None:
        g = GraphBuilder()
        made = g.tensor(10)
        g.op("make", "any", [], [made], flops=1)
        g.op("first", "any", flops=1)
        g.op("view", "view", [made], [g.tensor(10, alias_of=made)], after=["first"])
        g.op("late", "any", flops=1, after=["view"])
        assert afters(fold(g.build())[0])["late"] == ["make", "first"]

    def test_a_view_that_reads_another_tensor_waits_for_its_maker(self) -> None:
        g = GraphBuilder()
        x, index = g.tensor(10, "input", name="x"), g.tensor(8, name="index")
        view = g.tensor(5, alias_of=x)
        g.op("find", "any", [], [index], flops=1)
        g.op("narrow", "view", [x, index], [view])
        g.op("read", "any", [view], flops=1)
        folded, _, _ = fold(g.build())
        assert reads(folded) == [[], ["x"]]  # the index itself is not moved
        assert afters(folded)["read"] == ["find"]


def waits_for(graph: Graph) -> list[set[int]]:
    """[ops] every op that must have ended first, through whatever comes between."""
    before: list[set[int]] = []
    for op in range(graph.num_ops):
        makers = {int(graph.producer[t]) for t in graph.reads_of(op)} - {-1}
        direct = makers | {int(a) for a in graph.after_of(op)}
        before.append(direct.union(*(before[earlier] for earlier in direct)))
    return before


@settings(max_examples=200)
@given(graphs())
def test_folding_keeps_every_order_among_what_remains(graph: Graph) -> None:
    folded, source_ops, _ = fold(graph)
    real = {int(op) for op in source_ops}
    old, new = waits_for(graph), waits_for(folded)
    for op, source in enumerate(source_ops.tolist()):
        assert {int(source_ops[earlier]) for earlier in new[op]} >= old[source] & real


@settings(max_examples=200)
@given(graphs())
def test_folded_graphs_have_owners_and_updates_only(graph: Graph) -> None:
    folded, source_ops, read_bytes = fold(graph)
    assert not folded.is_view.any()
    assert len(source_ops) == int((~graph.is_view).sum()) == folded.num_ops
    assert len(read_bytes) == len(folded.reads)
    for tensor in range(folded.num_tensors):
        if folded.alias_of[tensor] >= 0:
            assert folded.producer[tensor] >= 0 and folded.nbytes[tensor] == folded.nbytes[folded.owner[tensor]]
    for op in range(folded.num_ops):
        assert len(set(folded.reads_of(op).tolist())) == len(folded.reads_of(op))


def test_a_graph_is_folded_once_and_forgotten_with_it() -> None:
    graph = GraphBuilder("shown")
    x = graph.tensor(8, "input")
    graph.op("view", "view", [x], [graph.tensor(4, alias_of=x)])
    graph.op("use", "any", [1], [graph.tensor(8, "output")], flops=1)
    shown = graph.build()
    kept = weakref.ref(fold(shown)[0])
    assert fold(shown)[0] is kept()
    del shown
    gc.collect()
    assert kept() is None
