"""What is said of plans that break a rule: which op it is, how many there are, and what would be right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.errors import InvalidPlan
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from tests.graphs.tiny import pair


def three_pairs() -> Problem:
    """Six ops: 1 cannot run on d0, 2 and 5 must be together, 3 reads 2 and 4 reads 3; 5 reads 2 and 4."""
    build = GraphBuilder("six")
    made = [build.tensor(10) for _ in range(6)]
    reads = ([], [], [0], [2], [3], [2, 4])
    for at, some in enumerate(reads):
        times = [None, 5] if at == 1 else [5, 5]
        group = {"colocate": "first"} if at in (2, 5) else {}
        build.op(f"op{at}", "any", [made[one] for one in some], [made[at]], time_ns=times, **group)
    return price(build.build(), pair())


def said(plan: Plan, problem: Problem) -> tuple[str, str, str]:
    with pytest.raises(InvalidPlan) as raised:
        check(plan, problem)
    first, *where, fix = str(raised.value).split("\n")
    return first, "".join(line.partition(": ")[2] for line in where), fix.partition(": ")[2].strip()


GOOD = [0, 1, 0, 0, 0, 0]
CASES: list[tuple[dict[str, list[int]], str, str, str]] = [
    (
        {"device": [0, 1, 0, 2, -1, 0]},
        "op 'op3' is placed on device 2",
        "op 3 of 6; 2 ops are placed off the cluster",
        "use 0 to 1 (d0, d1)",
    ),
    ({"device": [0, 0, 0, 0, 0, 0]}, "op 'op1' cannot run on 'd0'", "op 1 of 6", "use d1"),
    ({"device": [0, 1, 0, 0, 0, 1]}, "ops 'op5' and 'op2' must share a device", "colocation group 0",
     "place the whole group together"),
    ({"device": [0, 1, 1, 0, 0, 0]}, "ops 'op2' and 'op5' must share a device", "colocation group 0",
     "place the whole group together"),
    ({"rank": [0, 1, 2, -1, 4, -1]}, "op 'op3' has rank -1", "op 3 of 6", "ranks are 0 to 2147483647"),
    ({"rank": [0, 2**31, 2, 3, 4, 5]}, "op 'op1' has rank 2147483648", "op 1 of 6", "ranks are 0 to 2147483647"),
    ({"kernel": [0, 1, 2, 4, 4, 5]}, "op 'op3' is in kernel 4", "op 3 of 6",
     "a kernel's number is that of its lowest op"),
    ({"kernel": [0, 1, 2, 2, 3, 5]}, "op 'op4' is in kernel 3", "op 4 of 6",
     "a kernel's number is that of its lowest op"),
    ({"kernel": [0, 0, 2, 3, 4, 5]}, "ops 'op1' and 'op0' are one kernel on two devices", "op 1",
     "a kernel runs on one device"),
    ({"kernel": [0, 1, 2, 3, 4, 2]}, "the kernel of 'op2', 'op5' would wait for itself", "kernel 2",
     "fuse only ops with no path that leaves the kernel and comes back"),
    ({"kernel": [0, 1, 2, 3, 3]}, "'kernel' has 5 entries for 6 ops", "views are folded away and have none",
     "give one entry per op"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "what", "where", "fix"), CASES)
def test_refusals(given: dict[str, list[int]], what: str, where: str, fix: str) -> None:
    problem = three_pairs()
    plan = Plan.of(problem, **({"device": GOOD} | given))  # type: ignore[arg-type]
    assert said(plan, problem) == (what, where, fix)


@pytest.mark.parametrize("rank", [0, 2**31 - 1])
def test_ranks_at_the_edge_are_none(rank: int) -> None:
    problem = three_pairs()
    plan = Plan.of(problem, GOOD, [rank] * 6, [0, 1, 2, 2, 2, 2])
    check(plan, problem)
    sends = np.full((problem.graph.num_tensors, 2), rank)
    check(replace(plan, send_rank=ints(sends)), problem)
    check(replace(plan, send_rank=ints(sends * 0 - 1)), problem)
    for off in (-2, 2**31):
        odd = sends.copy()
        odd[3, 1] = off
        words = said(replace(plan, send_rank=ints(odd)), problem)
        assert words == ("a send has a rank out of range", "send_rank", "use 0 to 2147483647, or -1 for none")
    words = said(replace(plan, send_rank=ints(sends[:, :1])), problem)
    assert words[0] == "'send_rank' has shape (6, 1)" and words[-1] == "it must be (6, 2): tensors, devices"


def test_another_graph_or_cluster() -> None:
    problem = three_pairs()
    plan = Plan.of(problem, GOOD)
    for kind, name, digest in (
        ("graph", "six", problem.graph.digest),
        ("cluster", problem.cluster.name, problem.cluster.digest),
    ):
        words = said(replace(plan, **{f"{kind}_digest": "abc"}), problem)  # type: ignore[arg-type]
        assert words == (
            f"the plan was made for another {kind}: digest abc, but '{name}' has {digest}",
            f"{kind} '{name}'",
            f"plan again, or give the {kind} the plan was made for",
        )


def test_a_plan_in_words() -> None:
    problem = three_pairs()
    end = f", {problem.graph.digest})"
    assert repr(Plan.of(problem, GOOD)) == f"Plan(6 ops on 2 devices{end}"
    assert repr(Plan.of(problem, [1] * 6, None, [0, 1, 2, 2, 2, 2])) == f"Plan(6 ops in 3 kernels on 1 device{end}"


def test_kernels_that_wait_for_each_other_name_the_lowest() -> None:
    """a feeds d, c feeds b: kernels of a and b, c and d, neither of which a path leaves and comes back to."""
    build = GraphBuilder("circle")
    one, two = build.tensor(1), build.tensor(1)
    build.op("x", "any", [], [], time_ns=1)
    build.op("a", "any", [], [one], time_ns=1)
    build.op("c", "any", [], [two], time_ns=1)
    build.op("b", "any", [two], [], time_ns=1)
    build.op("d", "any", [one], [], time_ns=1)
    problem = price(build.build(), pair())
    plan = Plan.of(problem, [0] * 5, None, [0, 1, 2, 1, 2])
    assert said(plan, problem)[:2] == ("the kernel of 'a', 'b' would wait for itself", "kernel 1")
