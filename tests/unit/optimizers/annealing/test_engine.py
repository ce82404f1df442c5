"""The loop of annealing: every move can be taken back, what is kept up as it goes is what is found from nothing, and
where a walk stops does not change where it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.optimizers.annealing import engine
from loadmaster.optimizers.annealing.acceptance import slack_of
from loadmaster.optimizers.annealing.chains import Chains, ChainStart, Decisions, epochs, spread_ranks
from loadmaster.optimizers.annealing.moves import fusion, order, place
from loadmaster.optimizers.annealing.sets import draw_set
from loadmaster.optimizers.annealing.state import (
    BORDER,
    FUSE_WINDOW,
    KINDS,
    NEAR,
    RAN,
    ROOMY,
    SHIFT,
    SINGLE,
    SLICE,
    WINDOW,
)
from loadmaster.optimizers.annealing.xorshift import seeded
from loadmaster.optimizers.fusion.starts import fusing_for, kernels_of
from loadmaster.optimizers.simple import legal
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Score, Search
from loadmaster.simulator import simulate
from tests.reference import judge
from tests.strategies import problems
from tests.unit.optimizers.fusion.test_search import tangled
from tests.unit.optimizers.test_search_methods import problem_of

PLACES = (WINDOW, SLICE, NEAR, SINGLE, BORDER)


def chains_of(problem: Problem, decisions: Decisions, seed: int = 1, count: int = 1, budget: int = 10_000) -> Chains:
    """Chains from a random plan; with kernels, where these are decided."""
    search, rng = Search(problem, Budget(None, budget), seed), np.random.default_rng(seed)
    device = legal(problem, rng.integers(0, problem.num_devices, problem.num_ops))
    own = ints(np.arange(problem.num_ops))
    rank = spread_ranks(search, Plan.of(problem, device, rng.permutation(problem.num_ops)))
    score = search.score(Plan.of(problem, device, rank))
    fusing = fusing_for(problem, count) if decisions.fusing else []
    fused = tuple(kernels_of(problem, own)) if decisions.fusing else ChainStart.fused
    return Chains(search, coarsen(problem, own), decisions, [ChainStart(device, rank, score, fused)] * count, fusing)


def columns(chains: Chains) -> dict[str, Any]:
    """All that a move may change and has to put back."""
    chain, scratch, fusing = chains.chains[0], chains.scratch[0], chains.fusing[0]
    named = {"place": chain.place, "rank": chain.rank, "priority": chain.priority, "kernel": chain.kernel}
    named |= {"sequence": chain.sequence, "score": chain.score, "load": scratch.load, "tail": scratch.tail}
    return {name: column.tolist() for name, column in named.items()} | {"fusing": fusing is not None}


def around(chains: Chains, change: Callable[[Any], Callable[[], None]], times: int = 60) -> int:
    """Applies and undoes a move many times; how often it changed something. `change` returns what undoes it."""
    changed, state = 0, seeded(7)
    engine.measure(chains.layout, chains.chains[0], chains.scratch[0])
    for _ in range(times):
        before = columns(chains)
        undo = change(state)
        changed += columns(chains) != before
        undo()
        assert columns(chains) == before
    return changed


@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
@pytest.mark.parametrize("swaps", [False, True])
def test_a_move_of_placement_is_undone(objective: str, swaps: bool) -> None:
    problem = problem_of(10, "4xp100-pcie", objective)
    chains = chains_of(problem, Decisions())
    chain, scratch, rng = chains.chains[0], chains.scratch[0], np.random.default_rng(3)

    def change(state: Any) -> Callable[[], None]:
        kind, seed = int(rng.choice(PLACES)), int(rng.integers(problem.num_ops))
        count, _ = draw_set(chains.layout, chains.terrain, chain.place, scratch, kind, seed, False, state)
        target, swapped = rng.integers(4), rng.integers(4) if swaps else np.int64(-1)
        moved, top = place.apply(chains.layout, chains.terrain, chain, scratch, count, target, swapped)
        load = np.bincount(chain.place, problem.op_ns[np.arange(problem.num_ops), chain.place], 4)
        assert scratch.load.tolist() == load.tolist()
        return lambda: place.undo(chains.layout, chains.terrain, chain, scratch, moved, top)

    assert around(chains, change) > 20


@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_a_move_of_order_is_undone(objective: str) -> None:
    problem = problem_of(10, "4xp100-pcie", objective)
    chains = chains_of(problem, Decisions())
    chain, scratch, rng = chains.chains[0], chains.scratch[0], np.random.default_rng(3)

    def change(state: Any) -> Callable[[], None]:
        if rng.random() < 0.3:
            order.follow(chains.layout, chains.terrain, chain, scratch)
        else:
            seed = int(rng.integers(problem.num_ops))
            count, _ = draw_set(chains.layout, chains.terrain, chain.place, scratch, SHIFT, seed, False, state)
            order.apply(chain, scratch, count, np.int64(rng.integers(-(2**30), 2**30)))
        assert chain.rank.min() >= 0
        return lambda: order.undo(chain, scratch)

    assert around(chains, change) > 40


@pytest.mark.parametrize("kind", range(FUSE_WINDOW, KINDS))
def test_a_move_of_fusion_is_undone(kind: int) -> None:
    chains = chains_of(tangled(60, 4), Decisions(fusing=True))
    chain, scratch, fusing = chains.chains[0], chains.scratch[0], chains.fusing[0]
    chain.priority[:] = np.random.default_rng(2).uniform(1, 20, len(chain.priority))
    kernels = []

    def change(state: Any) -> Callable[[], None]:
        count, toward = fusion.draw_pairs(fusing, chain, kind, np.int64(-1), state)
        fusion.apply(fusing, chain, kind, count, toward, state)
        fusion.merge_anew(fusing, chain, scratch, 0, count)
        kernels.append(tuple(fusing.trial.tolist()))
        return lambda: fusion.undo(fusing, chain)

    assert around(chains, change, 30) > 10
    assert len(set(kernels)) > 3  # the kernels that were tried are the chain's only once they are taken


def walk(chains: Chains, simulations: int, hot: float) -> None:
    """The first chain alone, which nobody calls back."""
    habits = engine.Habits(chains.weights, 0.5, 0.5, hot, hot, 0, 1)
    given = (chains.chains[0], chains.scratch[0], None, chains.fusing[0], habits, simulations, None)
    engine.walk(chains.layout, chains.terrain, *given)


def assert_stands(chains: Chains) -> None:
    """A chain is where it says: loads, tails, score and best score are what another route gives."""
    problem = chains.problem
    for chain, scratch in zip(chains.chains, chains.scratch, strict=True):
        kept = scratch.load.tolist(), scratch.tail.tolist()
        engine.measure(chains.layout, chain, scratch)
        assert scratch.load.tolist() == kept[0], "loads have drifted"
        if chains.terrain.goal.step_price > 0:
            assert scratch.tail.tolist() == kept[1], "tails have drifted"
        parts = ((chain[0:5], chain.score[:2]), (chain[5:10], chain.score[2:]))
        for (device, rank, _, kernel, _), score in parts:
            plan = Plan.of(problem, device, rank, kernel if len(kernel) else None)
            assert tuple(score.tolist()) == judge(problem, plan).score(problem.objective)


@pytest.mark.parametrize("fusing", [False, True])
@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
@pytest.mark.parametrize("hot", [0.0, 0.02])
def test_what_is_kept_up_is_what_is_found_from_nothing(objective: str, fusing: bool, hot: float) -> None:
    problem = tangled(40, 5) if fusing else problem_of(6, "4xp100-pcie")
    chains = chains_of(problem.with_objective(objective), Decisions(fusing=fusing))
    first = chains.chains[0].score.tolist()
    for _ in range(6):
        walk(chains, 50, hot)
        assert_stands(chains)
    assert chains.chains[0].score.tolist()[2:] < first[2:]


@settings(max_examples=15, deadline=None)
@given(problem=problems(max_ops=10, max_devices=3))
def test_chains_stand_where_they_say_on_problems_of_every_kind(problem: Problem) -> None:
    chains = chains_of(problem, Decisions(fusing=True), budget=90)
    if chains.weights.any():
        walk(chains, 80, 0.05)
        assert_stands(chains)


@pytest.mark.parametrize("fusing", [False, True])
def test_where_a_walk_stops_does_not_change_where_it_goes(fusing: bool) -> None:
    problem = tangled(50, 6)
    whole, parts = (chains_of(problem, Decisions(fusing=fusing)) for _ in range(2))
    for chains, steps in ((whole, [300]), (parts, [1] * 40 + [7, 53, 100, 100])):
        for some in steps:
            walk(chains, some, 0.02)
    for name, one, other in zip(whole.chains[0]._fields, whole.chains[0], parts.chains[0], strict=True):
        assert one.tolist() == other.tolist(), name
    assert whole.chains[0].counts[RAN] == 300


def test_a_cold_walk_never_gets_worse_and_a_hot_one_does() -> None:
    cold, hot = (chains_of(problem_of(10, "4xp100-pcie"), Decisions(), 2) for _ in range(2))
    seen = []
    for _ in range(40):
        cold.cool(10, 0.0, 0.0)
        hot.cool(10, 0.3, 0.3)
        seen.append(int(hot.chains[0].score[1]))
        assert cold.chains[0].score[:2].tolist() == cold.chains[0].score[2:].tolist()
    assert any(later > earlier for earlier, later in pairwise(seen))


def test_the_rule_of_metropolis_and_the_cooling() -> None:
    """A plan worse by a share d is kept with chance exp(-d ÷ temperature)."""
    state, temperature = seeded(5), 0.01
    drawn = np.array([slack_of(temperature, state) for _ in range(20_000)])
    for worse in (0.002, 0.01, 0.03):
        assert (drawn >= worse).mean() == pytest.approx(np.exp(-worse / temperature), abs=0.015)
    assert slack_of(0.0, state) == 0.0
    habits = engine.Habits(np.ones(KINDS), 0.5, 0.5, 0.01, 0.0001, 100, 200)
    told = [float(engine.temperature(habits, ran)) for ran in (100, 200, 300, 900)]
    assert told == pytest.approx([0.01, 0.001, 0.0001, 0.0001])


def test_what_is_too_full_is_emptied_and_stands_where_it_says() -> None:
    """All ops on one of four devices that holds a third of them: moves about that device bring it under its limit in
    fewer simulations than moves about any op, over ten seeds, and the score is what the simulator says."""
    problem = problem_of(24, "4xp100-pcie")
    place = np.zeros(problem.num_ops, np.int64)
    peak = int(simulate(problem, Plan.of(problem, place)).peak_bytes.max())
    tight = replace(problem, memory_bytes=ints(np.full(4, peak // 3)))
    score = Score.of(tight, simulate(tight, Plan.of(tight, place)))
    left = {False: 0, True: 0}
    for evict, seed in product(left, range(10)):
        search = Search(tight, Budget(None, 10_000), seed)
        start = ChainStart(place, np.arange(tight.num_ops), score)
        chains = Chains(search, coarsen(tight, ints(np.arange(tight.num_ops))), Decisions(evict=evict), [start])
        chains.cool(40, 0.0, 0.0)
        best = chains.chains[0]
        line = simulate(tight, Plan.of(tight, best.best_place, best.best_rank))
        assert (line.over_bytes, tight.value(line)) == tuple(map(int, best.score[2:]))
        left[evict] += line.over_bytes
    assert left[True] < left[False]


def test_epochs_grow_and_do_not_depend_on_a_budget() -> None:
    lengths = [length for length, _ in zip(epochs(100), range(6), strict=False)]
    assert lengths[0] == 100 and all(later > earlier for earlier, later in pairwise(lengths))


def test_a_chain_far_behind_goes_on_from_the_best() -> None:
    chains = chains_of(problem_of(10, "4xp100-pcie"), Decisions(), count=2)
    one, other = chains.chains
    chains.cool(200, 0.0, 0.0)
    one.score[:2] = np.array(one.score[2:]) * 10
    chains._share(0.0)
    best = min(chains.chains, key=lambda chain: chain.score.tolist()[2:])
    assert one.place.tolist() == best.best_place.tolist() and one.score[:2].tolist() == best.score[2:].tolist()
    line = simulate(chains.problem, Plan.of(chains.problem, other.best_place, other.best_rank))
    assert other.score[3] == line.step_ns


@pytest.mark.parametrize("seed", range(4))
def test_what_becomes_the_best_plan_fits_also_where_much_memory_was_left(seed: int) -> None:
    """Two outputs of 70 bytes, one on each device of 100: no message would be sent if both were on one of them, which
    is quicker and does not fit."""
    g = GraphBuilder("halves")
    small = [g.tensor(1) for _ in range(2)]
    for at in range(2):
        g.op(f"half{at}", "any", [], [g.tensor(70, "output"), small[at]], time_ns=10)
    g.op("join", "any", small, [g.tensor(1, "output")], time_ns=10)
    devices = tuple(Device(f"d{at}", "toy", 100, 1e9, 1e9) for at in range(2))
    links = dict.fromkeys([(0, 1), (1, 0)], Link(1e9, 500))
    problem = price(g.build(), Cluster("toy", devices, links, ints([[-1, 0], [1, -1]])))
    apart = Plan.of(problem, [0, 1, 0])
    search = Search(problem, Budget(None, 300), seed)
    start = ChainStart(apart.device, spread_ranks(search, apart), search.score(apart))
    chains = Chains(search, coarsen(problem, ints(np.arange(3))), Decisions(), [start])
    chains.cool(250, 0.5, 0.5)
    assert chains.chains[0].counts[ROOMY] == 1 and not problem.always_fits
    score, plan = chains.found
    judged = judge(problem, plan)
    assert judged.over_bytes == 0 and score == Score(0, judged.step_ns)
    assert judge(problem, Plan.of(problem, [0, 0, 0])).step_ns < judged.step_ns
