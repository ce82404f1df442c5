"""Static addresses: lives as the slow reference has them, no two blocks alive at once on the same bytes."""

from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster import Budget, Graph, GraphBuilder, price, solve
from loadmaster.graph.columns import Ints, ints
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import settle, simulate
from loadmaster.simulator.arenas import Arenas, assign_addresses
from loadmaster.simulator.arenas.arena import DeviceArena, pack_all
from tests.graphs.tiny import diamond, pair, shared_weight, zero_time
from tests.reference import Run, World
from tests.strategies import plans, problems

Pair = tuple[Problem, Plan]
problems_with_plans = problems(max_ops=10, max_devices=3, hosts=True).flatmap(lambda p: st.tuples(st.just(p), plans(p)))


def arenas_of(problem: Problem, plan: Plan, **settings_: int) -> Arenas:
    line = simulate(problem, plan)
    settled = settle(problem, plan, line)
    return assign_addresses(problem, settled, simulate(problem, settled), **settings_)


def assert_apart(arenas: Arenas) -> None:
    """A sweep over time that keeps the bytes in use as a sorted list, device by device."""
    for device in range(len(arenas.size_bytes)):
        blocks = np.flatnonzero((arenas.device == device) & (arenas.nbytes > 0))
        events = [(int(arenas.begin[b]), 1, int(b)) for b in blocks] + [(int(arenas.end[b]), 0, int(b)) for b in blocks]
        used: dict[int, tuple[int, int]] = {}
        for _, starts, block in sorted(events):  # what ends in a round ends before anything starts
            low = int(arenas.offset[block])
            high = low + int(arenas.nbytes[block])
            if not starts:
                del used[block]
                continue
            assert low >= 0 and high <= arenas.size_bytes[device]
            for other, (from_, to) in used.items():
                assert high <= from_ or to <= low, f"blocks {block} and {other} overlap on device {device}"
            used[block] = low, high


@settings(max_examples=200)
@given(pair_=problems_with_plans)
def test_no_two_blocks_alive_at_once_overlap(pair_: Pair) -> None:
    assert_apart(arenas_of(*pair_))


@settings(max_examples=200)
@given(pair_=problems_with_plans)
def test_lives_are_those_of_the_slow_reference(pair_: Pair) -> None:
    problem, plan = pair_
    arenas = arenas_of(problem, plan)
    world = World(problem, plan)
    run = Run(world)
    run.play()
    rounds = len(run.instants)
    assert arenas.round_ns.tolist() == run.instants
    theirs = Counter(
        (device, nbytes, begin, rounds if end == inf else end)
        for device, nbytes, begin, end in world._holdings(run)
        if nbytes
    )
    ours = zip(*(column.tolist() for column in (arenas.device, arenas.nbytes, arenas.begin, arenas.end)), strict=True)
    assert Counter(block for block in ours if block[1]) == theirs


@settings(max_examples=100)
@given(pair_=problems_with_plans)
def test_peak_is_that_of_the_simulator_and_no_arena_is_smaller(pair_: Pair) -> None:
    problem, plan = pair_
    arenas = arenas_of(problem, plan)
    assert arenas.peak_bytes.tolist() == simulate(problem, plan).peak_bytes.tolist()
    assert (arenas.size_bytes >= arenas.peak_bytes).all()
    assert arenas.ratio >= 1.0


def test_the_worked_example() -> None:
    # d0: A 100 B over [0, 30), B 50 B over [10, 74), C 40 B over [55, 74), D 8 B from 64; c on d1.
    problem = price(diamond(), pair())
    arenas = arenas_of(problem, Plan.of(problem, [0, 0, 1, 0]))
    until = [*arenas.round_ns.tolist(), inf]
    life = {
        (problem.graph.tensor_name[tensor], device): (until[begin], until[end])
        for tensor, device, begin, end in zip(
            *(column.tolist() for column in (arenas.tensor, arenas.device, arenas.begin, arenas.end)), strict=True
        )
        if tensor >= 0
    }
    assert life["0", 0] == (0, 30)
    assert life["1", 0] == (10, 74)
    assert life["2", 0] == (55, 74)
    assert life["3", 0] == (64, inf)
    assert life["0", 1] == (10, 55)
    assert arenas.peak_bytes.tolist() == [150, 140]
    assert arenas.size_bytes.tolist() == [150, 140]
    block = {name: arenas.block_of(tensor, 0) for tensor, name in enumerate(problem.graph.tensor_name)}
    assert arenas.block_of(0, 1) >= 0 > arenas.block_of(1, 1)
    # C arrives when A is gone: it takes A's bytes.
    assert arenas.offset[block["2"]] < 100


def test_what_is_freed_in_a_round_makes_way_for_what_starts_in_it() -> None:
    # a, b and c take no time, each 100 B: two are alive at once, never three.
    problem = price(zero_time(), "1xcpu")
    arenas = arenas_of(problem, Plan.of(problem, [0] * 4))
    assert arenas.peak_bytes.tolist() == arenas.size_bytes.tolist() == [230]
    assert len(set(arenas.round_ns.tolist())) < len(arenas.round_ns), "several rounds in one instant"


def test_an_update_in_place_has_the_address_of_its_weight_and_a_copy_its_own() -> None:
    problem = price(shared_weight(), pair())
    arenas = arenas_of(problem, Plan.of(problem, [0, 1, 0]))
    weight, new = 0, 4
    assert problem.graph.alias_of[new] == weight
    assert arenas.block_of(new, 0) == arenas.block_of(weight, 0) >= 0
    assert arenas.block_of(weight, 1) not in (-1, arenas.block_of(weight, 0))


def test_what_a_kernel_writes_twice_in_place_lives_as_long_as_the_last_of_it() -> None:
    graph = GraphBuilder("twice")
    first = graph.tensor(8)
    second = graph.tensor(8, alias_of=first)
    third = graph.tensor(8, "state", alias_of=second)
    graph.op("make", "any", [], [first], time_ns=5)
    graph.op("write", "any", [first], [second], time_ns=5)
    graph.op("write again", "any", [second], [third], time_ns=5)
    problem = price(graph.build(), "1xcpu")
    arenas = arenas_of(problem, Plan.of(problem, [0, 0, 0], kernel=[0, 0, 0]))
    assert arenas.end[arenas.block_of(first, 0)] == len(arenas.round_ns)


def test_a_fused_kernel_keeps_no_address_for_what_stays_inside() -> None:
    problem = price(diamond(), "1xcpu")
    arenas = arenas_of(problem, Plan.of(problem, [0] * 4, kernel=[0, 0, 0, 3]))
    inner, kept = 0, 1
    assert arenas.block_of(inner, 0) == -1
    assert arenas.block_of(kept, 0) >= 0


def test_equal_input_gives_equal_addresses_and_more_effort_no_larger_arena() -> None:
    problem = price(_waves(60), "2xp100-pcie")
    plan = solve(problem, "heft", Budget(None, 1)).plan
    once, again = (arenas_of(problem, plan, effort=3_000_000) for _ in range(2))
    assert once.offset.tolist() == again.offset.tolist()
    little = arenas_of(problem, plan, effort=1)
    assert (once.size_bytes <= little.size_bytes).all()
    assert_apart(little)
    assert_apart(once)
    assert once.ratio < 1.1


@pytest.mark.parametrize(("ops", "seed"), [(12, 2), (20, 3), (20, 7), (30, 5)])
def test_what_first_fit_by_size_leaves_is_improved_to_the_peak(ops: int, seed: int) -> None:
    problem = price(_waves(ops, seed), "1xp100-pcie")
    plan = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    assert arenas_of(problem, plan, effort=1).ratio > 1.04
    assert arenas_of(problem, plan, effort=5_000_000).ratio == 1.0


def _waves(ops: int, seed: int = 0) -> Graph:
    """Ops that read a few recent tensors of very unequal sizes."""
    rng = np.random.default_rng(seed)
    graph = GraphBuilder("waves")
    known: list[int] = []
    for op in range(ops):
        reads = {known[-1 - int(k)] for k in rng.integers(0, min(12, len(known)), 3)} if known else set()
        made = graph.tensor(int(2 ** rng.uniform(4, 14)))
        graph.op(f"op{op}", "any", sorted(reads), [made], flops=int(rng.integers(1, 10**6)))
        known.append(made)
    return graph.build()


@pytest.mark.parametrize("devices", [1, 4])
def test_many_tensors_lie_apart_and_close(devices: int) -> None:
    problem = price(_waves(8_000), f"{devices}xp100-pcie")
    plan = solve(problem, "one-device" if devices == 1 else "heft", Budget(None, 1)).plan
    line = simulate(problem, plan)
    arenas = assign_addresses(problem, plan, line)
    assert len(arenas.tensor) >= 8_000
    assert_apart(arenas)
    assert arenas.ratio < 1.25


def test_effort_that_one_device_does_not_need_goes_to_another() -> None:
    """Stacks that are perfect at once beside blocks cut from a rectangle, which first fit does not find."""
    rng = np.random.default_rng(3)
    easy = (ints(np.arange(20)), ints(np.arange(20) + 1), ints(np.full(20, 7)))
    hard = cut_up(rng, 14)
    begin, end, nbytes = (ints(np.concatenate(columns)) for columns in zip(easy, hard, strict=True))
    arenas = [
        DeviceArena(begin, end, nbytes, np.arange(20)),
        DeviceArena(begin, end, nbytes, np.arange(20, len(begin))),
    ]
    pack_all(arenas, 20_000_000, 0)
    assert [arena.size_bytes for arena in arenas] == [arena.peak_bytes for arena in arenas] == [7, 1000]


def cut_up(rng: np.random.Generator, cuts: int) -> tuple[Ints, Ints, Ints]:
    """(begin, end, nbytes) of a rectangle of 200 rounds and 1000 bytes, cut so often: it packs without a gap."""
    pieces = [(1, 201, 1000)]
    for _ in range(cuts):
        at = int(np.argmax([(end - begin) * size for begin, end, size in pieces]))
        begin, end, size = pieces.pop(at)
        if rng.random() < 0.5 and end - begin > 1:
            middle = int(rng.integers(begin + 1, end))
            pieces += [(begin, middle, size), (middle, end, size)]
        else:
            part = int(rng.integers(1, size))
            pieces += [(begin, end, part), (begin, end, size - part)]
    return tuple(ints(column) for column in zip(*pieces, strict=True))  # type: ignore[return-value]
