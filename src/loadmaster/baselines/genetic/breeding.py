"""The compiled loop of BRKGA: draw, cross, decode, simulate.

A chromosome is a row of 16-bit numbers: affinities of ops, or blocks of them, to devices, priorities of ops, priorities
of sends. A generation is bred in threads, each row from a random state of its own, so that the result does not depend
on how many there are. An evaluation stops once it is worse than the worst elite: its exact value would change nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.problem.objective import Goal
from loadmaster.search.xorshift import RandomState, draw
from loadmaster.simulator.loop import run, stops_at, value_of
from loadmaster.simulator.state import NO_RECORD, Layout, Record, RunScratch, make_run_scratch

HEAVY_PENALTY = np.int64(2**61)  # above every value: plans that do not fit come last, by how much they are over
STOPPED = np.int64(2**62)


class GeneDecoder(NamedTuple):
    """How genes become a plan: affinities of a block of ops to devices, priorities of ops, priorities of sends.

    Attributes:
        block_of: [ops] block whose affinities place the op.
        sends: whether there are genes for sends.
    """

    block_of: np.ndarray  # [ops]
    blocks: int
    sends: bool
    able: np.ndarray  # [ops, devices]
    limits: np.ndarray  # [devices]
    goal: Goal


class Prior(NamedTuple):
    """Where a fresh gene is drawn from, and how often it comes from the elite parent.

    Attributes:
        center: [genes] float32.
        width: [genes] float32.
        shape: [genes] uint8, row of the table.
        table: [shapes, 256] float32, inverse distribution functions on [0, 1]
        bias: [genes] uint8, of 256: chance of the elite parent's gene.
    """

    center: np.ndarray  # [genes]
    width: np.ndarray  # [genes]
    shape: np.ndarray  # [genes]
    table: np.ndarray  # [shapes, 256]
    bias: np.ndarray  # [genes]


@compiled(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """splitmix64: unlike seeds for neighbouring numbers."""
    value += np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled(inline="always")
def _mutant(genes: NDArray[np.uint16], prior: Prior, state: RandomState) -> None:
    # Arrays are taken out of their tuples once, as in the simulator's loop.
    table, shape, center, width = prior.table, prior.shape, prior.center, prior.width
    for gene in range(len(genes)):
        bits = draw(state)
        row = shape[gene]
        cell = np.int64(bits & np.uint64(255))
        low = table[row, cell]
        high = table[row, cell + 1] if cell < 255 else np.float32(1.0)
        inside = np.float32(np.float64((bits >> np.uint64(8)) & np.uint64(65535)) / 65536.0)
        drawn = low + (high - low) * inside
        value = center[gene] + width[gene] * (drawn - np.float32(0.5))
        genes[gene] = np.uint16(min(np.float32(65535.0), max(np.float32(0.0), value * np.float32(65536.0))))


@compiled(inline="always")
def _child(
    genes: NDArray[np.uint16],
    elite: NDArray[np.uint16],
    other: NDArray[np.uint16],
    bias: NDArray[np.uint8],
    state: RandomState,
) -> None:
    count = len(genes)
    for start in range(0, count, 8):
        bits = draw(state)
        for gene in range(start, min(count, start + 8)):
            byte = (bits >> np.uint64(8 * (gene - start))) & np.uint64(255)
            genes[gene] = elite[gene] if byte < np.uint64(bias[gene]) else other[gene]


@compiled(inline="always")
def decode(
    layout: Layout, decoder: GeneDecoder, genes: NDArray[np.uint16], place: Ints32, rank: Ints32, send_rank: Ints
) -> None:
    """Writes the plan that genes stand for: the device of highest affinity among those that can, priorities as
    ranks."""
    best: Whole
    chosen: Whole
    devices, ops = layout.devices, len(place)
    block_of, able = decoder.block_of, decoder.able
    for op in range(ops):
        start = block_of[op] * devices
        best, chosen = -1, 0
        for device in range(devices):
            value = np.int64(genes[start + device])
            if able[op, device] and value > best:
                best, chosen = value, device
        place[op] = chosen
    base = decoder.blocks * devices
    for op in range(ops):
        rank[op] = genes[base + op]
    if decoder.sends:
        base += ops
        for slot in range(len(send_rank)):
            send_rank[slot] = genes[base + slot]


def breed(layout: Layout, *given: Any) -> None:
    """Fills rows low … high-1 of the new population and scores them. `order`: old rows, elites first."""
    _breed(layout, *given, make_run_scratch(layout, False), NO_RECORD)  # type: ignore[call-arg]


@compiled
def _breed(
    layout: Layout,
    decoder: GeneDecoder,
    prior: Prior,
    old: NDArray[np.uint16],
    new: NDArray[np.uint16],
    order: Ints,
    elites: Whole,
    mutants: Whole,
    seed: Whole,
    low: Whole,
    high: Whole,
    fitness: Ints,
    most: Whole,
    scratch: RunScratch,
    record: Record,
) -> None:
    place, rank = np.empty(len(layout.waits), np.int32), np.empty(len(layout.waits), np.int32)
    send_rank = np.empty(len(layout.nbytes) * layout.devices if decoder.sends else 0, np.int64)
    peak, state = np.empty(layout.devices, np.int64), np.empty(2, np.uint64)
    size = len(new)
    for row in range(low, high):
        state[0] = _mix(np.uint64(seed) + np.uint64(row))
        state[1] = _mix(state[0])
        if row >= size - mutants:
            _mutant(new[row], prior, state)
        else:
            elite = order[np.int64(draw(state) % np.uint64(elites))]
            other = order[elites + np.int64(draw(state) % np.uint64(size - elites))]
            _child(new[row], old[elite], old[other], prior.bias, state)
        decode(layout, decoder, new[row], place, rank, send_rank)
        fitness[row] = score(layout, decoder, place, rank, send_rank, scratch, record, peak, most)


@compiled
def score(
    layout: Layout,
    decoder: GeneDecoder,
    place: Ints32,
    rank: Ints32,
    send_rank: Ints,
    scratch: RunScratch,
    record: Record,
    peak: Ints,
    most: Whole,
) -> Whole:
    """The value; for a plan that does not fit, a number above every value; STOPPED when it passes `most`."""
    most_ns, most_bytes = stops_at(decoder.goal, np.int64(most))
    step = run(layout, place, rank, send_rank, scratch, most_ns, most_bytes, peak, False, record)
    if step < 0:
        return STOPPED
    over = np.int64(0)
    for device in range(layout.devices):
        over += max(np.int64(0), peak[device] - decoder.limits[device])
    if over > 0:
        return HEAVY_PENALTY + min(over, HEAVY_PENALTY // 2)
    return value_of(decoder.goal, step, peak, scratch.worked)


@compiled
def decode_one(layout: Layout, decoder: GeneDecoder, genes: NDArray[np.uint16]) -> tuple[Ints32, Ints32, Ints]:
    """(place, rank, order of sends) of one row of genes."""
    place, rank = np.empty(len(layout.waits), np.int32), np.empty(len(layout.waits), np.int32)
    send_rank = np.empty(len(layout.nbytes) * layout.devices if decoder.sends else 0, np.int64)
    decode(layout, decoder, genes, place, rank, send_rank)
    return place, rank, send_rank
