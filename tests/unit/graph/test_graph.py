"""Graph and GraphBuilder: what is refused, by name, and what the digest sees."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InvalidGraph
from loadmaster.graph import MOST_BYTES, NOWHERE, ROLES, UNGIVEN, Graph, GraphBuilder
from tests.graphs import GRAPHS
from tests.strategies import graphs


def two_ops(**second: Any) -> GraphBuilder:
    g = GraphBuilder("two")
    a, b = g.tensor(10), g.tensor(20)
    g.op("first", "any", [], [a])
    g.op("second", "any", [a], [b], **second)
    return g


def refusal(builder: GraphBuilder) -> InvalidGraph:
    with pytest.raises(InvalidGraph) as caught:
        builder.build()
    assert caught.value.where and caught.value.fix
    return caught.value


class TestColumns:
    def test_rows(self) -> None:
        graph = two_ops(after=["first"]).build()
        assert graph.num_ops == 2 and graph.num_tensors == 2
        assert [graph.reads_of(op).tolist() for op in (0, 1)] == [[], [0]]
        assert [graph.makes_of(op).tolist() for op in (0, 1)] == [[0], [1]]
        assert [graph.after_of(op).tolist() for op in (0, 1)] == [[], [0]]
        assert [graph.readers_of(tensor).tolist() for tensor in (0, 1)] == [[1], []]
        assert graph.producer.tolist() == [0, 1]

    def test_columns_are_read_only(self) -> None:
        graph = two_ops().build()
        for column in (graph.nbytes, graph.is_made, graph.is_base, graph.own_bytes):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 1

    def test_whose_memory_a_tensor_lies_in(self) -> None:
        g = GraphBuilder()
        w = g.tensor(8, "weight")
        y = g.tensor(4)
        over, onto = g.tensor(8, "state", alias_of=w), g.tensor(4, alias_of=y)
        g.op("make", "any", [w], [y], flops=1)
        g.op("update", "any", [w, y], [over], flops=1, colocate=0)
        g.op("add_", "any", [y], [onto], flops=1)
        graph = g.build()
        assert graph.is_made.tolist() == [False, True, True, True]
        assert graph.is_alias.tolist() == [False, False, True, True]
        assert graph.is_fresh.tolist() == [False, True, False, False]
        assert graph.is_in_place.tolist() == [False, False, True, True]
        assert graph.is_base.tolist() == [True, True, False, False]
        assert graph.own_bytes.tolist() == [8, 4, 0, 0]
        assert graph.is_colocated.tolist() == [False, True, False]

    def test_a_tensor_read_twice_by_an_op_is_read_once(self) -> None:
        g = GraphBuilder()
        x = g.tensor(8, "input")
        g.op("square", "mul", [x, x], [g.tensor(8)])
        assert g.build().reads.tolist() == [x]

    def test_bytes_moved_default_to_what_is_read_and_written(self) -> None:
        g = GraphBuilder()
        x = g.tensor(8, "input")
        big = g.tensor(1000, alias_of=x)  # an expanded view: no more bytes than there are
        g.op("expand", "view", [x], [big])
        g.op("add", "add", [x, big], [g.tensor(100)])
        g.op("told", "add", [x], [g.tensor(100)], bytes_moved=5)
        assert g.build().bytes_moved.tolist() == [16, 116, 5]

    def test_given_times(self) -> None:
        g = GraphBuilder()
        g.op("a", "any", time_ns=[1, None])
        g.op("b", "any", time_ns=7)
        g.op("c", "any")
        assert g.build().time_ns.tolist() == [[1, NOWHERE], [7, 7], [UNGIVEN, UNGIVEN]]

    def test_a_callers_list_is_copied(self) -> None:
        g = GraphBuilder()
        x = g.tensor(1, "input")
        reads = [x]
        g.op("a", "any", reads)
        reads.append(99)
        assert g.build().reads.tolist() == [x]

    def test_owner_is_the_end_of_the_chain(self) -> None:
        g = GraphBuilder()
        a, b, c = g.tensor(8, "input"), g.tensor(8, alias_of=0), g.tensor(8, alias_of=1)
        g.op("b", "view", [a], [b])
        g.op("c", "view", [b], [c])
        assert g.build().owner.tolist() == [0, 0, 0]

    def test_dependencies_hold_each_op_once(self) -> None:
        g = GraphBuilder()
        a, b = g.tensor(1), g.tensor(1)
        g.op("make", "any", [], [a, b])
        g.op("read", "any", [a, b], after=["make"])
        start, before = g.build().dependencies
        assert start.tolist() == [0, 0, 1] and before.tolist() == [0]


class TestViews:
    def view(self, **settings: Any) -> bool:
        g = GraphBuilder()
        x = g.tensor(8, "input")
        g.op("op", "any", [x], [g.tensor(8, alias_of=x)], **settings)
        return bool(g.build().is_view[0])

    def test_aliases_alone_without_work_are_a_view(self) -> None:
        assert self.view()

    def test_work_makes_it_an_update(self) -> None:
        assert not self.view(flops=1)
        assert not self.view(time_ns=0)
        assert not self.view(time_ns=[None, 3])

    def test_an_output_of_its_own_makes_it_an_op(self) -> None:
        g = GraphBuilder()
        x = g.tensor(8, "input")
        g.op("both", "any", [x], [g.tensor(8, alias_of=x), g.tensor(8)])
        g.op("nothing", "any", [x])
        assert g.build().is_view.tolist() == [False, False]


class TestOrder:
    def test_ops_are_sorted_and_otherwise_stay_in_place(self) -> None:
        g = GraphBuilder()
        a, b = g.tensor(1), g.tensor(1)
        g.op("last", "any", [b])
        g.op("x", "any")
        g.op("second", "any", [a], [b])
        g.op("first", "any", [], [a], after=["x"])
        assert g.build().op_name == ("x", "first", "second", "last")

    def test_after_and_producer_follow_the_ops_to_their_new_places(self) -> None:
        g = GraphBuilder()
        a = g.tensor(1)
        g.op("last", "any", [a], after=["first"])
        g.op("first", "any", [], [a])
        graph = g.build()
        assert graph.op_name == ("first", "last")
        assert graph.producer.tolist() == [0] and graph.after_of(1).tolist() == [0]

    @settings(max_examples=60)
    @given(graphs())
    def test_every_op_comes_after_what_it_waits_for(self, graph: Graph) -> None:
        for op in range(graph.num_ops):
            assert all(graph.producer[tensor] < op for tensor in graph.reads_of(op))
            assert all(earlier < op for earlier in graph.after_of(op))


class TestRefusals:
    def test_no_ops(self) -> None:
        assert "no ops" in refusal(GraphBuilder("empty")).what

    def test_two_ops_of_one_name(self) -> None:
        g = two_ops()
        g.op("first", "any")
        error = refusal(g)
        assert "'first'" in error.what and "0 and 2" in error.where

    def test_unknown_tensor(self) -> None:
        g = two_ops()
        g.op("third", "any", [17])
        assert "'third' names tensor 17" in refusal(g).what

    def test_made_twice(self) -> None:
        g = GraphBuilder()
        a = g.tensor(1, name="it")
        g.op("one", "any", [], [a])
        g.op("two", "any", [], [a])
        assert "'it' is made twice, by 'one' and 'two'" in refusal(g).what

    def test_activation_that_no_op_makes(self) -> None:
        g = two_ops()
        g.tensor(4, name="lost")
        error = refusal(g)
        assert "'lost'" in error.what and "role" in error.fix

    def test_input_that_an_op_makes(self) -> None:
        g = GraphBuilder()
        g.op("maker", "any", [], [g.tensor(1, "input", name="x")])
        assert "'x' is an input, but op 'maker' makes it" in refusal(g).what

    def test_unknown_role(self) -> None:
        with pytest.raises(InvalidGraph, match=r"'t' has unknown role 'gradient'") as caught:
            GraphBuilder().tensor(1, "gradient", name="t")
        assert all(role in caught.value.fix for role in ROLES)

    def test_unknown_after(self) -> None:
        assert "'second' comes after 'zeroth'" in refusal(two_ops(after=["zeroth"])).what

    def test_circle_of_ops_is_spelled_out(self) -> None:
        g = GraphBuilder()
        a, b = g.tensor(1), g.tensor(1)
        g.op("free", "any")
        g.op("x", "any", [b], [a])
        g.op("y", "any", [a], [b])
        g.op("downstream", "any", [a])
        assert "'x' <- 'y' <- 'x'" in refusal(g).what

    def test_an_op_that_waits_for_itself(self) -> None:
        g = GraphBuilder()
        g.op("self", "any", after=["self"])
        assert "'self' <- 'self'" in refusal(g).what

    def test_circle_of_aliases(self) -> None:
        g = GraphBuilder()
        g.tensor(1, "weight", name="p", alias_of=1)
        g.tensor(1, "weight", name="q", alias_of=0)
        g.op("op", "any")
        error = refusal(g)
        assert "p" in error.what and "q" in error.what and "circle" in error.what

    def test_alias_of_nothing(self) -> None:
        g = GraphBuilder()
        g.tensor(1, "weight", name="w", alias_of=9)
        g.op("op", "any")
        with pytest.raises(InvalidGraph, match="'w' is an alias of 9"):
            g.build()

    @pytest.mark.parametrize(
        ("value", "word"),
        [(-1, "negative"), (1.5, "whole"), (True, "whole"), ("8", "whole"), (MOST_BYTES + 1, "large")],
    )
    def test_sizes_that_are_none(self, value: Any, word: str) -> None:
        with pytest.raises(InvalidGraph, match=word) as caught:
            GraphBuilder("g").tensor(value, name="t")
        assert "'t'" in caught.value.what

    @pytest.mark.parametrize("column", ["flops", "bytes_moved", "workspace_bytes", "time_ns"])
    def test_negative_numbers_of_ops(self, column: str) -> None:
        with pytest.raises(InvalidGraph, match=f"{column} of op 'bad' is negative"):
            GraphBuilder().op("bad", "any", **{column: -1})  # type: ignore[arg-type]

    def test_times_for_different_numbers_of_devices(self) -> None:
        g = GraphBuilder()
        g.op("a", "any", time_ns=[1, 2])
        g.op("b", "any", time_ns=[1, 2, 3])
        assert "[2, 3]" in refusal(g).what

    def test_bytes_that_add_up_to_nonsense(self) -> None:
        g = two_ops()
        for _ in range(4097):
            g.tensor(MOST_BYTES, "weight")
        assert "add up" in refusal(g).what


class TestDigest:
    def build(self, *, name: str = "g", op: str = "op", scope: str = "", tensor: str = "t", **settings: Any) -> str:
        g = GraphBuilder(name)
        x = g.tensor(settings.pop("nbytes", 8), settings.pop("role", "input"), name=tensor)
        kind = settings.pop("kind", "any")
        g.op("before", "any")
        g.op(op, kind, [x], [g.tensor(8)], scope=scope, source=scope, **settings)
        return g.build().digest

    def test_names_scopes_and_sources_are_left_out(self) -> None:
        assert self.build() == self.build(name="h", op="other", scope="block.0", tensor="u")

    @pytest.mark.parametrize(
        "change",
        [
            {"nbytes": 9},
            {"role": "weight"},
            {"kind": "other"},
            {"flops": 1},
            {"workspace_bytes": 1},
            {"bytes_moved": 1},
            {"colocate": "group"},
            {"dtype": "float16"},
            {"after": ["before"]},
            {"time_ns": 5},
        ],
    )
    def test_all_that_matters_to_a_plan_is_in_it(self, change: dict[str, Any]) -> None:
        assert self.build() != self.build(**change)

    def test_group_names_are_left_out(self) -> None:
        assert self.build(colocate="one") == self.build(colocate="two")

    def test_tiny_graphs_differ(self) -> None:
        assert len({make().digest for make in GRAPHS.values()}) == len(GRAPHS)
        assert all(make().digest == make().digest for make in GRAPHS.values())

    def test_readers_are_the_reads_backwards(self) -> None:
        for make in GRAPHS.values():
            graph = make()
            forward = {(op, int(t)) for op in range(graph.num_ops) for t in graph.reads_of(op)}
            backward = {(int(op), t) for t in range(graph.num_tensors) for op in graph.readers_of(t)}
            assert forward == backward
            assert np.array_equal(np.sort(graph.reads), np.sort([t for _, t in forward]))


@given(st.integers(1, 200))
@settings(max_examples=20)
def test_long_alias_chains_have_one_owner(length: int) -> None:
    g = GraphBuilder()
    g.tensor(8, "weight")
    for index in range(length):
        g.tensor(8, alias_of=index)
    g.op("op", "any", [length])
    assert set(g.build().owner.tolist()) == {0}


@settings(max_examples=60, deadline=None)
@given(graphs(devices=3), st.data())
def test_a_copy_has_every_column_of_the_graph(graph: Graph, data: st.DataObject) -> None:
    signed = data.draw(st.sets(st.sampled_from(graph.op_name)))
    graph = replace(graph, signature={name: f"call of {name}" for name in signed}, captured={"mode": "train"})
    copy = GraphBuilder.of(graph).build()
    for column in fields(Graph):
        was, now = getattr(graph, column.name), getattr(copy, column.name)
        assert np.array_equal(was, now) if isinstance(was, np.ndarray) else was == now, column.name


def test_what_is_given_replaces_what_is_copied() -> None:
    old = two_ops(colocate="g", time_ns=[3, None], signature="call").build()
    builder = GraphBuilder("new")
    a = builder.copy_tensor(old, 0, None, nbytes=5)
    builder.copy_op(old, 1, [], [a], time_ns=7, colocate=None)
    new = builder.build()
    assert new.nbytes.tolist() == [5] and new.tensor_name == ("0",)
    assert new.time_ns.tolist() == [[7]] and new.colocate.tolist() == [-1] and new.signature == {"second": "call"}
