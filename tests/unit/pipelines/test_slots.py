"""Times and bytes of slots by hand, where op 0 makes the gradient, tensor 0 is the weight, and borders are met."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster import GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.pipelines import edges, slots
from loadmaster.pipelines.stages import BACKWARD, FORWARD, UPDATE
from loadmaster.problem import Problem
from tests.graphs.tiny import pair


def small() -> Problem:
    """Tensor 0 is a weight of 50 bytes, updated by op 1 from what op 0 makes; 40 bytes go from op 2 to ops 3 and 4. A
    state of 20 is updated with it, one of 30 is only read, by op 4."""
    g = GraphBuilder("small")
    w, state, fixed, x = g.tensor(50, "weight"), g.tensor(20, "state"), g.tensor(30, "weight"), g.tensor(9, "input")
    grad, sent, out = g.tensor(60), g.tensor(40), g.tensor(4, "output")
    new = [g.tensor(50, "weight", alias_of=w), g.tensor(20, "state", alias_of=state)]
    g.op("grad", "any", [x], [grad], time_ns=[10, 20])
    g.op("update", "optim.adam", [w, grad, state], new, time_ns=[6, 6])
    g.op("send", "any", [x], [sent], time_ns=[1, None])
    g.op("near", "any", [sent], [], time_ns=[2, 3])
    g.op("far", "any", [sent, fixed], [out], time_ns=[4, 5])
    return price(g.build(), pair())


SLOT = ints([0, 1, 0, 1, 2])
PHASE = ints([FORWARD, UPDATE, FORWARD, FORWARD, BACKWARD])


def test_work_of_a_microbatch_has_its_share_of_the_update() -> None:
    work = edges.work_of(small(), SLOT, PHASE, 3)
    assert work[:, 0].tolist() == [10 + 1, 6 // 3 + 2, 4]
    assert work[1:, 1].tolist() == [6 // 3 + 3, 5] and work[0, 1] > 2**49


def test_adding_gradients_takes_the_traffic_of_three_rounded_up() -> None:
    """60 bytes at a byte a ns; at 7 bytes a ns, 25 and a part more: where the gradient is made, and the update
    settles. The backward op, which passes nothing on, counts as one of weights."""
    problem = small()
    quick = replace(problem, bytes_per_s=ints([10**9, 7 * 10**9]))
    assert slots.slots_of(problem, SLOT, PHASE).weight[-2:].tolist() == [[180, 180], [184, 185]]
    assert slots.slots_of(quick, SLOT, PHASE).weight.tolist() == [[0, 0], [180, 26], [180, 26], [184, 31]]


def test_cuts_of_a_line_are_as_short_as_can_be_and_alike() -> None:
    """1, 1, 4, 2, 2 in three stages: 2, 4 and 4. What crosses the edge before the 4 is 9 for the stages on both sides,
    more than their work: then 1, 5 and 4."""
    work = ints(np.array([[1], [1], [4], [2], [2]]))
    assert edges.balanced_edges(work, (0, 0, 0)) == (2, 3)
    crossing = ints([0, 0, 18, 0, 0, 0])
    assert edges.balanced_edges(work, (0, 0, 0), crossing) == (1, 3)
    assert edges.balanced_edges(work, (0,)) == ()
