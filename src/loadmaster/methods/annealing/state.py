"""What the compiled loop of annealing works on: the terrain that moves need to know, a chain, and scratch space.

Three lifetimes: a Terrain is made once for a problem, a Chain is where one walker stands, and its Scratch is kept with
it so that a walk can stop after any move and go on as if it had not.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Floats, Ints, Ints32, Whole, ints, inverse
from loadmaster.passes.groups import mirrored_order
from loadmaster.problem import Problem
from loadmaster.problem.objective import Goal
from loadmaster.search.budget import Score
from loadmaster.search.xorshift import RandomState
from loadmaster.simulator import layout
from loadmaster.simulator.loop import times_alone
from loadmaster.simulator.state import NO_RECORD, Layout, Record, RunScratch, make_record, make_run_scratch

# Kinds of moves. Place: a window of the program, one op, ops beside a border between devices. Order: ranks of a set
# shifted, all set by the critical path.
WINDOW, SINGLE, BORDER, SHIFT, CRITICAL, KINDS = range(6)
WAYS = 2 * 2  # of each kind: about any op or one that the step waits for; ranks kept or set anew by the critical path
ARMS = KINDS * WAYS
# Entries of Chain.counts: simulations so far, at how many the next look at what the step waits for is due, draws in a
# row that changed nothing, how many critical ops are known, and whether much memory was left at the last look.
RAN, LOOK_AT, IDLE, WAITED, ROOMY, COUNTS = range(6)
TOP_RANK = int(np.iinfo(np.int32).max)


@compiled(_nrt=False)
def copy(source: Floats | Ints32 | Ints, low: Whole, high: Whole, target: Floats | Ints32 | Ints) -> None:
    """Entries low … high-1 to the front of another array. A slice would first ask whether the two overlap."""
    for at in range(low, high):
        target[at - low] = source[at]


class Terrain(Struct):
    """What moves need to know of the problem besides its layout.

    Attributes:
        mirror_at: [ops] place in by_mirror.
        goal: the objective, in numbers. Where a ns of the step has no price, tails are not kept up.
        quick: the step time decides, which the loop without memory tells sooner.
        always_fits: no plan can be too large.
    """

    read_start: np.ndarray
    reads: np.ndarray
    producer: np.ndarray
    after_start: np.ndarray
    after: np.ndarray
    by_mirror: np.ndarray
    mirror_at: np.ndarray  # [ops]
    colocate: np.ndarray
    mate_start: np.ndarray  # [colocation groups + 1]
    mates: np.ndarray
    able: np.ndarray  # [ops, devices]
    limits: np.ndarray  # [devices]
    goal: Goal
    quick: bool
    always_fits: bool


class Chain(Struct):
    """One walker: where it stands, the best it has seen, and what it did.

    Attributes:
        score: [4] over and value where it stands, over and value of the best.
        random: [2] state of its generator.
        counts: [COUNTS] see RAN and the others.
        spent: [ARMS] runs of late, in whole ones.
        gained: [ARMS] how often that made the plan better.
    """

    place: np.ndarray
    rank: np.ndarray
    best_place: np.ndarray
    best_rank: np.ndarray
    score: np.ndarray  # [4]
    random: np.ndarray  # [2]
    counts: np.ndarray  # [COUNTS]
    spent: np.ndarray  # [ARMS]
    gained: np.ndarray  # [ARMS]


class Scratch(Struct):
    """What one chain writes to between and during moves; kept, so that a walk can stop and go on at any move.

    Attributes:
        running: of the simulator.
        record: of the last look.
        empty: a record of nothing.
        tail: [ops] least time from the start of an op to the end of the step.
        load: [devices] time of the ops placed there.
        full: [devices] peaks of the last plan that was kept.
        members: ops that a move is about.
        touched: ops that it moved.
        old_place: where those were.
        stamp: [ops] the last move that listed or moved it.
        arms: [ARMS] chances of every way of every kind.
        total: [1] sum of these chances.
        critical: ops that the step waits for.
        turns: ops in order of dispatch.
    """

    running: RunScratch
    record: Record
    empty: Record
    no_sends: np.ndarray
    tail: np.ndarray  # [ops]
    load: np.ndarray  # [devices]
    peak: np.ndarray  # [devices]
    full: np.ndarray  # [devices]
    members: np.ndarray
    touched: np.ndarray
    old_place: np.ndarray
    old_rank: np.ndarray
    old_tail: np.ndarray
    stamp: np.ndarray  # [ops]
    mark: np.ndarray  # [1]
    arms: np.ndarray  # [ARMS]
    total: np.ndarray  # [1]
    critical: np.ndarray
    turns: np.ndarray
    turn_of: np.ndarray  # [ops]


def terrain_of(problem: Problem, mirrored: bool = True) -> Terrain:
    """Of a problem. `mirrored`: backward ops move with the forward ops they belong to."""
    graph = problem.graph
    by_mirror = mirrored_order(problem) if mirrored else ints(np.arange(problem.num_ops))
    members = np.flatnonzero(graph.is_colocated)
    mate_start, mates = inverse(
        ints(np.arange(len(members) + 1)), ints(graph.colocate[members]), int(graph.colocate.max(initial=-1)) + 1
    )
    return Terrain(
        graph.read_start,
        graph.reads,
        graph.producer,
        graph.after_start,
        graph.after,
        by_mirror,
        ints(np.argsort(by_mirror)),
        graph.colocate,
        mate_start,
        ints(members[mates]),
        np.ascontiguousarray(problem.able),
        problem.memory_bytes,
        problem.goal,
        times_alone(layout(problem), problem.goal),
        problem.always_fits,
    )


def chain_of(place: np.ndarray, rank: np.ndarray, score: Score, random: RandomState) -> Chain:
    """A walker at a start."""
    return Chain(
        place.astype(np.int32),
        rank.astype(np.int32),
        place.astype(np.int32),
        rank.astype(np.int32),
        np.array((*score, *score), np.int64),
        random,
        np.zeros(COUNTS, np.int64),
        np.zeros(ARMS),
        np.zeros(ARMS),
    )


def make_scratch(layout: Layout, aims: bool) -> Scratch:
    """For one chain. `aims`: it looks at what the step waits for."""
    ops, devices = len(layout.waits), layout.devices
    most_sends = layout.most_sends if aims else 0
    running = make_run_scratch(layout, True)
    return Scratch(
        running,
        make_record(ops, most_sends, 2 * (ops + most_sends) + devices),
        NO_RECORD,
        np.empty(0, np.int64),
        running.tail,
        load=np.zeros(devices, np.int64),
        peak=np.zeros(devices, np.int64),
        full=np.zeros(devices, np.int64),
        members=np.empty(ops, np.int64),
        touched=np.empty(ops, np.int64),
        old_place=np.empty(ops, np.int32),
        old_rank=np.empty(ops, np.int32),
        old_tail=np.empty(ops, np.int64),
        stamp=np.full(ops, -1, np.int64),
        mark=np.zeros(1, np.int64),
        arms=np.zeros(ARMS),
        total=np.zeros(1),
        critical=np.empty(ops, np.int64),
        turns=np.empty(ops, np.int64),
        turn_of=np.empty(ops, np.int64),
    )
