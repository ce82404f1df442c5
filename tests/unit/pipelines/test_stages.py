"""A step in stages and microbatches, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.pipelines.microbatches import Action, Replicas, repeated
from loadmaster.pipelines.pipelined import Pipelined
from loadmaster.pipelines.stages import (
    BACKWARD,
    FORWARD,
    UPDATE,
    WEIGHT,
    Staged,
    in_stages,
    phases_of,
    settle_stages,
    weight_ops,
)
from loadmaster.problem import Problem
from tests.graphs import pair


def step() -> Problem:
    """Forward f0 makes A and B of the input X and the weights W and V, f1 makes T of A, f2 the loss of
    T; backward b1 makes GA of A, B and the loss, b0 the gradient GW of GA and X; u updates W. T and GA are read at
    once, V is not updated."""
    g = GraphBuilder("step")
    w, x = g.tensor(100, "weight", name="W"), g.tensor(10, "input", name="X")
    a, t, loss = g.tensor(20, name="A"), g.tensor(30, name="T"), g.tensor(4, "output", name="loss")
    ga, gw = g.tensor(40, name="GA"), g.tensor(100, name="GW")
    new = g.tensor(100, "state", name="W2", alias_of=w)
    v, b = g.tensor(50, "weight", name="V"), g.tensor(6, name="B")
    g.op("f0", "mm", [x, w, v], [a, b], time_ns=10, workspace_bytes=5)
    g.op("f1", "mm", [a], [t], time_ns=20, workspace_bytes=7)
    g.op("f2", "mm", [t], [loss], time_ns=30, workspace_bytes=1)
    g.op("b1", "mm", [a, b, loss], [ga], time_ns=5, workspace_bytes=2)
    g.op("b0", "mm", [ga, x], [gw], time_ns=6, workspace_bytes=3)
    g.op("u", "optim.sgd", [w, gw], [new], time_ns=7, workspace_bytes=9, after=["f0"])
    return price(g.build(), pair())


def staged(*stage: int, split_backward: bool = False) -> Staged:
    problem = step()
    return in_stages(problem, ints(stage), phases_of(problem), split_backward=split_backward)


def test_phases_are_what_outputs_need_the_updates_and_the_rest() -> None:
    assert phases_of(step()).tolist() == [FORWARD] * 3 + [BACKWARD] * 2 + [UPDATE]
    g = GraphBuilder("forward only")
    x = g.tensor(8, "input")
    g.op("a", "mm", [x], [g.tensor(8, "output")], time_ns=1)
    g.op("b", "mm", [x], [g.tensor(8)], time_ns=1)
    assert phases_of(price(g.build(), pair())).tolist() == [FORWARD, FORWARD]


def priced(*ops: tuple[str, str, str, str]) -> Problem:
    """Of (name, kind, names of what it reads, of what it makes); W is a weight, X given, capitals outputs."""
    g, tensors = GraphBuilder("some"), dict[str, int]()
    for name in ("W", "X"):
        tensors[name] = g.tensor(100, "weight" if name == "W" else "input", name=name)
    for name, kind, reads, makes in ops:
        for made in makes.split():
            over = tensors["W"] if kind.startswith("optim.") else None
            role = "state" if over is not None else "output" if made.isupper() else "activation"
            tensors[made] = g.tensor(10, role, name=made, alias_of=over)
        g.op(name, kind, [tensors[t] for t in reads.split()], [tensors[t] for t in makes.split()], time_ns=1)
    return price(g.build(), pair())


def test_the_first_and_the_last_op_may_make_outputs() -> None:
    first = priced(("f", "mm", "X W", "Y"), ("b", "mm", "Y", "g"), ("u", "optim.sgd", "W g", "w"))
    assert phases_of(first).tolist() == [FORWARD, BACKWARD, UPDATE]
    last = priced(("b", "mm", "X", "g"), ("e", "mm", "X", "h"), ("u", "optim.sgd", "W g", "w"), ("f", "mm", "h", "Y"))
    assert phases_of(last).tolist() == [BACKWARD, FORWARD, UPDATE, FORWARD]
    between = priced(
        ("b", "mm", "X", "t"), ("f", "mm", "X W", "Y"), ("c", "mm", "t", "g"), ("u", "optim.sgd", "W g", "w")
    )
    assert phases_of(between).tolist() == [BACKWARD, FORWARD, BACKWARD, UPDATE]


def test_of_several_the_latest_counts_forward_and_the_earliest_backward() -> None:
    forward = priced(("a", "mm", "X", "a"), ("b", "mm", "X", "b"), ("c", "mm", "a b", "Y"))
    assert settle_stages(forward, ints([0, 2, 1]), phases_of(forward)).tolist() == [0, 2, 2]
    backward = priced(
        ("a", "mm", "X", "a"), ("b", "mm", "X", "b"), ("c", "mm", "a b", "g"), ("u", "optim.sgd", "W g", "w")
    )
    assert settle_stages(backward, ints([0, 2, 1, 1]), phases_of(backward)).tolist() == [0, 2, 0, 0]


def test_the_gradient_of_an_update_may_be_made_by_the_first_op() -> None:
    problem = priced(("b", "mm", "X", "g"), ("u", "optim.sgd", "W g", "w"))
    assert settle_stages(problem, ints([2, 0]), phases_of(problem)).tolist() == [2, 2]


def test_what_waits_after_the_last_update_is_looked_at() -> None:
    """f, the last op, is forward and reads what b made, so that b is not a weight's gradient; nor is what b waits for
    because c, which stands behind it, is."""
    problem = priced(("b", "mm", "X", "g"), ("u", "optim.sgd", "W g", "w"), ("f", "mm", "g", "Y"))
    phase = ints([BACKWARD, UPDATE, FORWARD])
    assert not weight_ops(problem, ints([0, 0, 0]), phase).any()
    line = priced(("a", "mm", "X", "a"), ("f", "mm", "X", "Y"), ("c", "mm", "a", "g"), ("u", "optim.sgd", "W g", "w"))
    assert np.flatnonzero(weight_ops(line, ints([0] * 4), phases_of(line))).tolist() == [0, 2]


def test_stages_go_up_the_line_and_down_again() -> None:
    """f1 is no earlier than f0, which it reads, and b0 no later than b1; the update goes where the gradient is made."""
    problem = step()
    phase = phases_of(problem)
    assert settle_stages(problem, ints([1, 0, 2, 0, 1, 5]), phase).tolist() == [1, 1, 2, 0, 0, 0]
    assert settle_stages(problem, ints([0, 1, 1, 1, 0, 5]), phase).tolist() == [0, 1, 1, 1, 0, 0]
    assert settle_stages(problem, ints([0, 1, 2, 2, 2, 0]), phase).tolist() == [0, 1, 2, 2, 2, 2]


def test_gradients_of_weights_are_what_no_other_stage_waits_for() -> None:
    problem = step()
    phase = phases_of(problem)
    assert np.flatnonzero(weight_ops(problem, ints([0] * 6), phase)).tolist() == [3, 4]
    assert np.flatnonzero(weight_ops(problem, ints([0, 1, 1, 1, 0, 0]), phase)).tolist() == [4]


def test_an_action_takes_what_its_ops_take_one_after_another() -> None:
    """Of the forward pass T is its own: with the workspace of f1 that is 37. Of the backward pass GA is: 43 with that
    of b0."""
    made = staged(0, 0, 0, 0, 0, 0)
    assert (made.num_stages, made.stage.tolist(), made.phase.tolist()) == (1, [0, 0, 0], [FORWARD, BACKWARD, UPDATE])
    assert made.problem.op_ns.tolist() == [[60, 60], [11, 11], [7, 7]]
    assert made.problem.graph.workspace_bytes.tolist() == [37, 43, 9]


def test_stages_apart_keep_what_passes_between_them() -> None:
    """T goes from one stage to the next, and so does GA: nothing is a stage's own but its workspace."""
    made = staged(0, 0, 1, 1, 0, 0)
    assert made.num_stages == 2
    names = [(int(p), int(s)) for p, s in zip(made.phase, made.stage, strict=True)]
    assert names == [(FORWARD, 0), (FORWARD, 1), (BACKWARD, 1), (BACKWARD, 0), (UPDATE, 0)]
    assert made.problem.graph.workspace_bytes.tolist() == [7, 1, 2, 3, 9]
    assert made.problem.op_ns[:, 0].tolist() == [30, 30, 5, 6, 7]


def test_gradients_of_weights_are_actions_of_their_own() -> None:
    made = staged(0, 1, 1, 1, 0, 0, split_backward=True)
    assert made.phase.tolist() == [FORWARD, FORWARD, BACKWARD, WEIGHT, UPDATE]


def test_what_a_pipeline_remembers_gives_stages_and_phases_again() -> None:
    problem, stages = step(), (0, 1, 1, 1, 0, 0)
    whole = [FORWARD] * 3 + [BACKWARD] * 2 + [UPDATE]
    for apart in (False, True):
        stage, phase = Pipelined(2, "", stages, apart, False).actions_of(problem)
        assert stage.tolist() == list(stages)
        assert phase.tolist() == (whole if not apart else [*whole[:4], WEIGHT, UPDATE])
    for wrong in (stages[:5], (*stages, 0)):
        with pytest.raises(InvalidPlan, match=f"of {len(wrong)} ops, the step has 6"):
            Pipelined(2, "", wrong, False, False).actions_of(problem)


# The same for several microbatches


def ops_of(graph: Graph) -> dict[str, tuple[set[str], set[str], set[str]]]:
    """(reads, makes, after) of every op, by name."""
    tensor, op = graph.tensor_name, graph.op_name
    return {
        name: (
            {tensor[t] for t in graph.reads_of(at)},
            {tensor[t] for t in graph.makes_of(at)},
            {op[e] for e in graph.after_of(at)},
        )
        for at, name in enumerate(op)
    }


def test_gradients_are_added_up_from_the_first_microbatch_to_the_last() -> None:
    """F0 makes A and B, as one, and the loss; B0 makes GW, which is read by the update. A device adds 100 bytes to 100
    in 300 ns: it reads both and writes one."""
    graph = repeated(staged(0, 0, 0, 0, 0, 0), 3)
    found = ops_of(graph)
    assert set(found) == {"F0.0", "F0.1", "F0.2", "B0.0", "B0.1", "B0.2", "U0"}
    total, added = "gradients 2 of replica 0", "gradients 2 of replica 0, added"
    assert found["F0.1"] == ({"W", "V", "X.1"}, {"F0:0.1", "F0:1.1"}, set())
    assert found["B0.0"] == ({"X.0", "F0:0.0", "F0:1.0"}, {total}, set())
    assert found["B0.1"] == ({"X.1", "F0:0.1", "F0:1.1", total}, set(), set())
    assert found["B0.2"] == ({"X.2", "F0:0.2", "F0:1.2", total}, {added}, {"B0.0", "B0.1"})
    assert found["U0"] == ({"W", added}, {"U0:3.0"}, {"F0.0", "F0.1", "F0.2"})
    time = dict(zip(graph.op_name, graph.time_ns.max(axis=1).tolist(), strict=True))
    assert time == {"F0.0": 60, "F0.1": 60, "F0.2": 60, "B0.0": 11, "B0.1": 311, "B0.2": 311, "U0": 7}
    size = dict(zip(graph.tensor_name, graph.nbytes.tolist(), strict=True))
    assert (size[total], size["F0:0.1"], size["X.2"], size["W"]) == (100, 26, 10, 100)
    base = {graph.tensor_name[t]: int(alias) for t, alias in enumerate(graph.alias_of) if alias >= 0}
    assert base == {added: graph.tensor_name.index(total), "U0:3.0": graph.tensor_name.index("W")}
    assert set(graph.colocate.tolist()) == {0}


def test_one_microbatch_is_added_to_nothing() -> None:
    graph = repeated(staged(0, 0, 0, 0, 0, 0), 1)
    assert graph.time_ns.max(axis=1).tolist() == [60, 11, 7]
    assert ops_of(graph)["U0"][0] == {"W", "gradients 2 of replica 0"}


def test_replicas_have_their_own_weights_and_pass_their_gradients_round() -> None:
    """Two replicas of the one stage take microbatches 0 and 2, and 1 and 3. The ring passes half of 100 bytes on twice,
    each in 5 + 5 ns, when the last microbatch of each has been added."""
    replicas = Replicas((2,), (Link(1e10, 5),))
    graph = repeated(staged(0, 0, 0, 0, 0, 0), 4, replicas=replicas)
    found = ops_of(graph)
    assert found["F0.2"][0] == {"W", "V", "X.2"} and found["F0.3"][0] == {"W of replica 1", "V", "X.3"}
    assert "V of replica 1" not in graph.tensor_name
    first, second = (f"gradients 2 of replica {k}" for k in (0, 1))
    assert [found[f"B0.{m}"][1] for m in range(4)] == [{first}, {second}, {f"{first}, added"}, {f"{second}, added"}]
    assert found["B0.3"][2] == {"B0.1"}
    for replica, total in enumerate((first, second)):
        name = "U0" if replica == 0 else "U0.1"
        assert found[f"R0.{replica}"] == ({f"{total}, added"}, set(), {"B0.2", "B0.3"})
        assert found[name][2] == {f"F0.{replica}", f"F0.{replica + 2}", f"R0.{replica}"}
    time = dict(zip(graph.op_name, graph.time_ns.max(axis=1).tolist(), strict=True))
    assert time["R0.0"] == time["R0.1"] == 2 * 10 and time["B0.1"] == 11 and time["B0.2"] == 311
    group = dict(zip(graph.op_name, graph.colocate.tolist(), strict=True))
    assert group["F0.0"] == group["B0.2"] == group["R0.0"] == group["U0"] != group["F0.1"]
    assert group["F0.1"] == group["B0.3"] == group["R0.1"] == group["U0.1"]


def test_as_many_microbatches_as_replicas() -> None:
    graph = repeated(staged(0, 0, 0, 0, 0, 0), 2, replicas=Replicas((2,), (Link(1e10, 5),)))
    found = ops_of(graph)
    assert found["R0.1"] == ({"gradients 2 of replica 1"}, set(), {"B0.0", "B0.1"})
    assert graph.time_ns[graph.op_name.index("B0.1")].max() == 11


def test_other_stages_read_the_weight_of_the_first_replica() -> None:
    problem = priced(
        ("f0", "mm", "X W", "a"),
        ("f1", "mm", "a W", "Y"),
        ("b1", "mm", "a Y", "h"),
        ("b0", "mm", "h X", "g"),
        ("u", "optim.sgd", "W g", "w"),
    )
    made = in_stages(problem, ints([0, 1, 1, 0, 0]), phases_of(problem), split_backward=False)
    found = ops_of(repeated(made, 2, replicas=Replicas((2, 1), (Link(1e10, 5), None))))
    assert found["F0.1"][0] == {"W of replica 1", "X.1"} and found["F1.1"][0] == {"W", "F0:0.1"}
    assert found["U0.1"][0] == {"W of replica 1", "gradients 3 of replica 1"}
    assert found["U0.1"][2] == {"R0.1"}


def test_what_an_action_writes_over_is_that_of_its_microbatch() -> None:
    """The first op makes the first tensor, the second writes over it."""
    g = GraphBuilder("over")
    a, x = g.tensor(8, name="A"), g.tensor(8, "input", name="X")
    over = g.tensor(8, name="A2", alias_of=a)
    g.op("f0", "mm", [x], [a], time_ns=1)
    g.op("f1", "relu_", [a], [over], time_ns=1)
    g.op("f2", "mm", [over], [g.tensor(8, "output")], time_ns=1)
    problem = price(g.build(), pair())
    graph = repeated(in_stages(problem, ints([0, 1, 2]), phases_of(problem), split_backward=False), 2)
    base = {graph.tensor_name[t]: graph.tensor_name[alias] for t, alias in enumerate(graph.alias_of) if alias >= 0}
    assert base == {"F1:1.0": "F0:0.0", "F1:1.1": "F0:0.1"}


def test_a_ring_passes_parts_rounded_up() -> None:
    replicas = Replicas((1, 3), (None, Link(1e9, 7)))
    assert replicas.reduce_ns(0, 100) == 0
    assert replicas.reduce_ns(1, 100) == 2 * 2 * (7 + 34)
    assert replicas.reduce_ns(1, 99) == 2 * 2 * (7 + 33)


def test_an_order_becomes_part_of_the_graph() -> None:
    order = [Action(FORWARD, 0, 0), Action(FORWARD, 0, 1), Action(BACKWARD, 0, 0), Action(BACKWARD, 0, 1)]
    found = ops_of(repeated(staged(0, 0, 0, 0, 0, 0), 2, [order]))
    assert [found[name][2] for name in ("F0.0", "F0.1", "B0.0", "B0.1")] == [set(), {"F0.0"}, {"F0.1"}, {"B0.0"}]
