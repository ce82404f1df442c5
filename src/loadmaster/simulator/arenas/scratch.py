"""What a search under a capacity reads and writes: arrays that are made before it runs, so that the compiled loop
allocates nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import Struct
from loadmaster.graph.columns import Floats, Ints
from loadmaster.simulator.arenas.sections import Blocks

FOUND, NONE, STOPPED = 1, 0, -1  # a layout; there is none; the work given was not enough
MOST_NESTED = 1000  # times the number of blocks: room for choices, parts and turns of blocks within each other


class Rule(NamedTuple):
    """By what blocks are put in turn: three keys, the larger first.

    Attributes:
        factor: [3, blocks] keys, or factors of the key that changes.
        fullest: the row that is multiplied by the bytes that wait in the fullest section of the block.
        anew: once more for each part that the blocks fall into, by what waits then.
    """

    factor: Floats  # [3, blocks]
    fullest: int
    anew: bool


class State(NamedTuple):
    """Where the search stands.

    Attributes:
        offset: [blocks] or -1.
        low: [blocks] lowest place left.
        turn: [blocks] who is tried first among blocks with the same lowest place.
        total: [sections] bytes that wait.
        cut: [sections] waiting blocks that are in this section and the next.
        trail: what was changed: a block that rose, blocks + one that was placed, 2 blocks + one with a new turn.
        before: the lowest place or the turn that it had before.
        hot: [1] the section in which what waits could not be stacked the last time.
        done: [1] blocks looked at.
        stop: [1] 1: nobody needs the answer any more.
    """

    offset: Ints  # [blocks]
    low: Ints  # [blocks]
    turn: Ints  # [blocks]
    total: Ints  # [sections]
    cut: Ints  # [sections]
    trail: Ints
    before: Ints
    hot: Ints  # [1]
    done: Ints  # [1]
    stop: Ints  # [1]


class Frames(NamedTuple):
    """Choices under way, the outermost first. Each is one among the waiting blocks of a part, items[begin:end].

    Attributes:
        lowest, highest: [frames] sections of the part, the second past its end.
        least, least_turn: [frames] place and turn of the last block placed: the next comes after it.
        choice, choices_end: [frames] what is left to try, of `choices`.
        first_part, next_part, parts_end: [frames] the parts that its choice left, of `parts`; the next to be gone into.
        items_end: [frames] what is used of `items`.
        mark: [frames] where its trail begins.
        alone: [frames] 1: nothing waits above its choice, so that no other would do better.
        items, choices: blocks.
        parts: [parts, 4] begin and end in `items`, lowest and highest section.
    """

    begin: Ints  # [frames]
    end: Ints  # [frames]
    lowest: Ints  # [frames]
    highest: Ints  # [frames]
    least: Ints  # [frames]
    least_turn: Ints  # [frames]
    choice: Ints  # [frames]
    choices_end: Ints  # [frames]
    first_part: Ints  # [frames]
    next_part: Ints  # [frames]
    parts_end: Ints  # [frames]
    items_end: Ints  # [frames]
    mark: Ints  # [frames]
    alone: Ints  # [frames]
    items: Ints
    choices: Ints
    parts: Ints  # [parts, 4]


class Lineup(NamedTuple):
    """The waiting blocks of one part side by side; [blocks] each, of which the first so many are used.

    Attributes:
        height: where each would end at least.
        base: the lowest place of each, given what comes next.
    """

    block: Ints
    first: Ints
    last: Ints
    size: Ints
    low: Ints
    turn: Ints
    height: Ints
    base: Ints


class Notes(NamedTuple):
    """What is worked out on the way and soon forgotten.

    Attributes:
        keys: [3, blocks] by which turns are taken.
        order, other: [blocks]
        base: [blocks] lowest places, given what comes next.
        height: [sections] of what is stacked.
        under, second: [sections] where the lowest of what waits would end at least, and the second lowest.
    """

    keys: Floats  # [3, blocks]
    order: Ints  # [blocks]
    other: Ints  # [blocks]
    base: Ints  # [blocks]
    height: Ints  # [sections]
    under: Ints  # [sections]
    second: Ints  # [sections]


class FitScratch(Struct):
    """All of it.

    Attributes:
        capacity: bytes.
        work: limits the blocks looked at.
        turns_end: where the trail has no room for turns, so that there is enough for all else.
    """

    blocks: Blocks
    rule: Rule
    state: State
    frames: Frames
    lineup: Lineup
    notes: Notes
    capacity: int
    work: int
    turns_end: int


def scratch_for(blocks: Blocks, rule: Rule, capacity: int, work: int) -> FitScratch:
    """Nothing is placed yet."""
    count, sections, pairs = len(blocks.size), blocks.sections, blocks.pairs
    nested = min(count * (count + 1) // 2, MOST_NESTED * count) + count
    state = State(
        offset=np.full(count, -1, np.int64),
        low=np.zeros(count, np.int64),
        turn=np.zeros(count, np.int64),
        total=_covering(blocks.first, blocks.last, blocks.size, sections),
        cut=_covering(blocks.first, blocks.last - 1, np.ones(count, np.int64), sections),
        trail=np.empty(2 * (pairs + count) + nested, np.int64),
        before=np.empty(2 * (pairs + count) + nested, np.int64),
        hot=np.zeros(1, np.int64),
        done=np.zeros(1, np.int64),
        stop=np.zeros(1, np.int64),
    )
    of_frames = [np.zeros(count + 2, np.int64) for _ in range(14)]
    lists = np.empty(count + nested, np.int64), np.empty(nested, np.int64), np.empty((8 * count + 64, 4), np.int64)
    frames = Frames._make([*of_frames, *lists])
    lineup = Lineup(*(np.empty(count, np.int64) for _ in range(8)))
    notes = Notes(
        np.empty((3, count)),
        *(np.empty(count, np.int64) for _ in range(3)),
        *(np.empty(sections, np.int64) for _ in range(3)),
    )
    return FitScratch(blocks, rule, state, frames, lineup, notes, capacity, work, nested + pairs + count)


def _covering(first: Ints, last: Ints, amount: Ints, sections: int) -> Ints:
    """[sections] sum of the amounts over first … last - 1."""
    change = np.zeros(sections + 1, np.int64)
    np.add.at(change, first, amount)
    np.add.at(change, last, -amount)
    return np.cumsum(change)[:sections]
