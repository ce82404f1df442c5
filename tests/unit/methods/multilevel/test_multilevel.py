"""Large graphs: what windows, rolling lists and the clock promise, at sizes that tests can afford."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.baselines.lists.rolling import Rolling
from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.graph.columns import ints
from loadmaster.methods.multilevel import multilevel, refine
from loadmaster.methods.multilevel.slack import latest_starts
from loadmaster.passes.blocks import blocks
from loadmaster.passes.windows import window
from loadmaster.plans import Plan, check
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Search
from loadmaster.simulator import simulate
from loadmaster.zoo.synthetic import generate


def layered(ops: int = 300, seed: int = 0, cluster: str = "4xp100-pcie") -> Problem:
    return price(next(generate("layered", 1, seed=seed, ops=ops)), cluster)


def repeated(blocks: int, ops: int = 12) -> Problem:
    """The same block over and over: a fork of three ways that meet again."""
    build = GraphBuilder("repeated")
    last = build.tensor(2**10, "input")
    for block in range(blocks):
        ends = []
        for way in range(3):
            here = last
            for at in range((ops - 3) // 3):
                made = build.tensor(2**10, "activation")
                build.op(
                    f"{block}.{way}.{at}", "mul", [here], [made], scope=f"layers.{block}.way{way}", time_ns=100_000
                )
                here = made
            ends.append(here)
        last = build.tensor(2**10, "output" if block == blocks - 1 else "activation")
        build.op(f"{block}.end", "add", ends, [last], scope=f"layers.{block}", time_ns=100_000)
    return price(build.build(), "3xp100-pcie")


def test_a_window_of_everything_takes_as_long_as_the_whole() -> None:
    problem = layered()
    plan = Heft().optimize(Search(problem, Budget(None, 1)))
    every = ints(np.arange(problem.num_ops))
    part = window(problem, plan.device, every, np.zeros(problem.num_ops, bool), ints(np.zeros(problem.num_ops)))
    assert part.first == 0 and part.problem.num_ops == problem.num_ops
    line = simulate(part.problem, Plan.of(part.problem, plan.device, plan.rank))
    assert line.step_ns == simulate(problem, plan).step_ns


def test_a_window_holds_pinned_ops_and_ends_when_the_step_would() -> None:
    problem = layered()
    plan = Heft().optimize(Search(problem, Budget(None, 1)))
    scene = refine.WindowScene.of(problem, plan, simulate(problem, plan))
    ops = ints(np.sort(scene.order[100:200]))
    pinned = np.isin(ops, scene.order[100:120])
    part = window(problem, plan.device, ops, pinned, scene.rest_ns(ops))
    able = part.problem.op_ns[part.first : part.first + len(ops)] != CANNOT
    np.testing.assert_array_equal(able[pinned].sum(axis=1), 1)
    np.testing.assert_array_equal(able[pinned].argmax(axis=1), plan.device[ops[pinned]])
    assert able[~pinned].all()
    # After an op the step goes on for as long as its readers outside the window take, at least.
    graph, inside, end = problem.graph, set(ops.tolist()), int(scene.line.end_ns[ops].max())
    for at, op in enumerate(ops.tolist()):
        readers = {int(reader) for tensor in graph.makes_of(op) for reader in graph.readers_of(int(tensor))}
        for reader in readers - inside:
            assert part.problem.rest_ns[part.first + at] >= end - scene.latest_ns[reader]


def test_ops_started_at_their_latest_do_not_make_the_step_longer() -> None:
    """By hand: a chain of two on one device beside a short op whose result the last one needs."""
    build = GraphBuilder("slack")
    a, b, c, d = (build.tensor(0, role) for role in ("activation", "activation", "activation", "output"))
    build.op("a", "mul", [], [a], time_ns=10_000)
    build.op("b", "mul", [a], [b], time_ns=50_000)
    build.op("c", "mul", [], [c], time_ns=5_000)
    build.op("d", "mul", [b, c], [d], time_ns=10_000)
    problem = price(build.build(), "2xp100-pcie")
    plan = Plan.of(problem, [0, 0, 1, 0])
    line = simulate(problem, plan)
    latest, follower = latest_starts(problem, plan.device, line)
    send = int(problem.send_ns[2].max())
    assert line.step_ns == 70_000
    assert latest.tolist() == [0, 10_000, 60_000 - send - 5_000, 60_000]
    assert follower.tolist() == [1, 3, -1, -1]


@pytest.mark.parametrize("seed", range(3))
def test_rolling_in_one_way_is_a_thrifty_list_and_in_several_it_is_better(seed: int) -> None:
    problem = layered(400, seed)
    search = Search(problem, Budget(None, 10))
    one, several = (search.score(Rolling(ways).optimize(search)).value for ways in (1, 8))
    assert one == search.score(Heft(thrift=0.5).optimize(search)).value
    assert several < one


def test_the_clock_leaves_out_what_would_not_be_ready_in_time() -> None:
    search = Search(layered(), Budget(1.0))
    clock = multilevel.TimeLeft(search)
    assert clock.allows(60.0)
    assert not clock.allows(60.0 * 10**6)
    assert 0.5 < clock.share_before_the_end() < 1
    clock.run_s = 1.0  # a simulation takes all the time there is
    assert not clock.allows(1.0) and clock.share_before_the_end() == 0
    assert multilevel.TimeLeft(Search(layered(), Budget(None, 5))).allows(60.0 * 10**6)


def test_blocks_are_stretches_of_a_module_and_their_plans_those_of_the_whole() -> None:
    problem = repeated(100)
    coarse = blocks(problem, 600)
    assert coarse is not None and coarse.problem.num_ops <= 600 < problem.num_ops
    for block in range(coarse.problem.num_ops):
        members = np.flatnonzero(coarse.kernel_of == block)
        assert len({problem.graph.scope[op] for op in members}) == 1
        np.testing.assert_array_equal(members, np.arange(members[0], members[-1] + 1))
    small = Plan.of(coarse.problem, np.arange(coarse.problem.num_ops) % 3)
    whole = coarse.up(small)
    check(whole, problem)
    np.testing.assert_array_equal(whole.device, small.device[coarse.kernel_of])
    assert not whole.fuses
