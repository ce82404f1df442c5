"""List schedulers against the worked example of the HEFT paper, and their behaviour under contention and memory
limits."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.lists.loop import gap
from loadmaster.baselines.lists.schedulers import Cpop, Etf, Heft, critical_rank, upward_rank
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve

# Topcuoglu, Hariri and Wu 2002, figure 2: ten tasks, their times on three processors, and what each sends to whom.
TIMES = [
    (14, 16, 9),
    (13, 19, 18),
    (11, 13, 19),
    (13, 8, 17),
    (12, 13, 10),
    (13, 16, 9),
    (7, 15, 11),
    (5, 11, 14),
    (18, 12, 20),
    (21, 7, 16),
]
SENDS = {
    **{(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27},
    **{(4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13},
}


def even_cluster(count: int, memory: int = 2**40, bytes_per_s: float = 1e9) -> Cluster:
    """Equal devices, a byte per nanosecond on a wire for each pair."""
    channel = np.full((count, count), -1)
    links = {}
    for src in range(count):
        for dst in range(count):
            if src != dst:
                links[src, dst] = Link(bytes_per_s, 0)
                channel[src, dst] = src * count + dst
    devices = tuple(Device(f"p{i}", "p", memory, 1e12, 1e12) for i in range(count))
    return Cluster("even", devices, links, dense_channels(ints(channel)))


def paper_example() -> Problem:
    # Times are in units of 1,000 ns, so that rounding down means does not disturb the order of ranks.
    builder = GraphBuilder("heft-paper")
    edge = {pair: builder.tensor(1_000 * size) for pair, size in SENDS.items()}
    for task, times in enumerate(TIMES, start=1):
        inputs = [edge[pair] for pair in SENDS if pair[1] == task]
        outputs = [edge[pair] for pair in SENDS if pair[0] == task]
        builder.op(f"n{task}", "task", inputs, outputs, time_ns=[1_000 * time for time in times])
    return price(builder.build(), even_cluster(3))


def test_upward_ranks_are_those_printed_in_the_paper() -> None:
    # Table 3 of the paper.
    printed = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert upward_rank(paper_example()) / 1_000 == pytest.approx(printed, abs=0.01)


def length_without_contention(problem: Problem, plan: Plan) -> int:
    """The schedule as the paper counts it: every processor in the order of ranks, every transfer on a wire of its
    own."""
    graph, end, free = problem.graph, {}, dict.fromkeys(range(3), 0)
    for op in np.argsort(plan.rank).tolist():
        device = int(plan.device[op])
        arrivals = [0]
        for tensor in graph.reads_of(op).tolist():
            maker = int(graph.producer[tensor])
            arrivals.append(end[maker] + (int(graph.nbytes[tensor]) if plan.device[maker] != device else 0))
        end[op] = free[device] = max(free[device], *arrivals) + int(problem.op_ns[op, device])
    return max(end.values())


def test_heft_places_and_schedules_as_printed_in_the_paper() -> None:
    problem = paper_example()
    plan = Heft(contention=False).optimize(Search(problem, Budget(1)))
    assert (plan.device + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]  # figure 3a
    assert length_without_contention(problem, plan) == 80_000


def test_cpop_schedules_as_printed_in_the_paper() -> None:
    problem = paper_example()
    plan = Cpop(contention=False).optimize(Search(problem, Budget(1)))
    assert length_without_contention(problem, plan) == 86_000  # figure 3b


def test_contention_keeps_readers_together_where_one_wire_would_carry_all() -> None:
    """Four readers of four large tensors: one wire for all makes spreading them a loss."""
    builder = GraphBuilder("fan")
    for index in range(4):
        made = builder.tensor(100_000)
        builder.op(f"make{index}", "x", [], [made], time_ns=10)
        builder.op(f"read{index}", "x", [made], [builder.tensor(1, "output")], time_ns=50_000)
    problem = price(builder.build(), even_cluster(2))
    seen, blind = (solve(problem, Heft(contention=on), Budget(1)) for on in (True, False))
    assert seen.value <= blind.value


@pytest.mark.parametrize("method", [Heft(memory=True), Etf(memory=True), Etf(memory=True, favourite=True)])
def test_memory_aware_versions_spread_what_does_not_fit_on_one_device(method: Heft | Etf) -> None:
    """Eight weights of 100 bytes, a chain of ops, devices of 450 bytes: one device is fastest and does not fit."""
    builder = GraphBuilder("heavy")
    last = None
    for index in range(8):
        weight, made = builder.tensor(100, "weight"), builder.tensor(10)
        builder.op(f"op{index}", "x", [weight] if last is None else [weight, last], [made], time_ns=100)
        last = made
    problem = price(builder.build(), even_cluster(2, memory=450))
    assert solve(problem, "heft", Budget(1)).timeline.over_bytes > 0
    result = solve(problem, method, Budget(1))
    assert result.fits
    check(result.plan, problem)


def test_critical_rank_runs_the_long_branch_first() -> None:
    """One device, a short and a long branch: the long one's first op goes first."""
    builder = GraphBuilder("branches")
    short, long = builder.tensor(1), builder.tensor(1)
    builder.op("short", "x", [], [short], time_ns=5)
    builder.op("long", "x", [], [long], time_ns=5)
    builder.op("tail", "x", [long], [builder.tensor(1)], time_ns=100)
    problem = price(builder.build(), even_cluster(1))
    rank = critical_rank(problem, ints([0, 0, 0]))
    assert rank[1] < rank[0]


@pytest.mark.parametrize("scheduler", [Heft(), Etf()], ids=["heft", "etf"])
def test_an_op_waits_for_all_of_its_sends_over_one_wire(scheduler: Heft | Etf) -> None:
    # Both inputs of c lie on p0, where d runs until 17: c ends at 18 there. Over the wire they come one after the
    # other, at 11 and 21; were each alone on it, c would be done at 13.
    graph = GraphBuilder("two sends")
    a, b = graph.tensor(10), graph.tensor(10)
    graph.op("a", "any", [], [a], time_ns=[1, None])
    graph.op("b", "any", [], [b], time_ns=[1, None])
    graph.op("d", "any", [a, b], [graph.tensor(0)], time_ns=[15, None])
    graph.op("c", "any", [a, b], [graph.tensor(0)], time_ns=1)
    problem = price(graph.build(), even_cluster(2))
    plan = scheduler.optimize(Search(problem, Budget(None, 1)))
    assert plan.device.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("time", "begin"), [(9, 10), (10, 10), (11, 30), (0, 0)])
def test_a_gap_as_long_as_the_op_holds_it(time: int, begin: int) -> None:
    busy_from, busy_to = ints([0, 20]), ints([10, 30])
    assert gap(busy_from, busy_to, 2, 0, time) == (0 if time == 0 else begin)
    assert gap(busy_from, busy_to, 2, 12, 8) == 12
    assert gap(busy_from, busy_to, 2, 12, 9) == 30


def test_etf_takes_the_faster_of_two_devices_that_are_free_at_once() -> None:
    graph = GraphBuilder("one")
    graph.op("a", "any", [], [graph.tensor(10)], time_ns=[7, 2, 3])
    plan = Etf().optimize(Search(price(graph.build(), even_cluster(3)), Budget(None, 1)))
    assert plan.device.tolist() == [1]
