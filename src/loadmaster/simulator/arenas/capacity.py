"""Offsets under a given capacity: `fit_in`, which looks for them until it has them, proves there are none, or stops.

One search of `fitting` is over in moments or never ends, depending on the order in which blocks are tried. So many
orders are tried in short runs that slowly grow (restarts, as in constraint programming): by how long blocks live, how
much they take, how full it is where they are, and variations at random from a fixed seed. Runs share the cores, and the
first in order that ends counts, so that the answer does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.simulator import cores

if TYPE_CHECKING:
    from loadmaster.simulator.arenas.fitting import Rule
    from loadmaster.simulator.arenas.sections import Blocks

# Where no reason is given, chosen by hand.
FIRST_RUN = 400  # times the number of blocks: blocks looked at in the first runs
GROWTH = 3.0  # of the runs, each time that every rule has had its turn
NOISE = 0.1  # spread of the factors that vary a rule
VARIED = 0.125  # of the length of a run, for all but the first three rules
SIX = ((2, 1, 0), (2, 0, 1), (0, 1, 2), (1, 0, 2), (0, 2, 1), (1, 2, 0))  # orders of the keys, the best first
FOREVER = np.iinfo(np.int64).max // 4


class Fit(NamedTuple):
    """Offsets that keep within the capacity, or none; `sure`: then there are no such offsets.

    Attributes:
        offset: [blocks] bytes; None: none were found.
        work: blocks times sections looked at.
    """

    offset: Ints | None
    sure: bool
    work: int


def fit_in(
    begin: Ints,
    end: Ints,
    nbytes: Ints,
    capacity: int,
    *,
    work: int = FOREVER,
    stop: Callable[[], bool] = lambda: False,
) -> Fit:
    """Looks for offsets of blocks with half-open lives under a capacity.

    >>> found = fit_in(np.array([0, 0, 5]), np.array([5, 9, 9]), np.array([4, 4, 4]), 8)
    >>> sorted(found.offset.tolist())  # two of them never meet, and share a place
    [0, 4, 4]

    Args:
        begin, end: [blocks] of their lives, in any unit of time.
        nbytes: [blocks]
        capacity: bytes.
        work: limits the search by a count, so that equal input gives equal offsets.
        stop: is asked before each run.
    """
    alive = np.flatnonzero((end > begin) & (nbytes > 0))
    offset = np.zeros(len(nbytes), np.int64)
    if not len(alive):
        return Fit(ints(offset), True, 0)
    place, sure, used = _search(ints(begin[alive]), ints(end[alive]), ints(nbytes[alive]), capacity, work, stop)
    if place is None:
        return Fit(None, sure, used)
    offset[alive] = place
    return Fit(ints(offset), True, used)


def _search(
    begin: Ints, end: Ints, nbytes: Ints, capacity: int, work: int, stop: Callable[[], bool]
) -> tuple[Ints | None, bool, int]:
    """A run is quick or endless, depending on the order in which blocks are tried: short runs in many orders, slowly
    growing longer."""
    from loadmaster.simulator.arenas import fitting, sections, waiting

    blocks = sections.blocks_of(begin, end, nbytes)
    each = 1 + int((blocks.last - blocks.first).mean())  # what looking at a block costs, in sections
    used, twin, rules = 0, _twins(blocks), _rules(begin, end, nbytes)

    def run(rule: Rule, limit: int) -> tuple[int, int, Ints]:
        state = waiting.make_state(blocks)
        found, done = fitting.fit(blocks, state, rule, twin, capacity, limit)
        return int(found), int(done), state.offset

    with ThreadPoolExecutor(cores()) as pool:
        while used < work and not stop():
            most = 1 + (work - used) // each
            jobs = [pool.submit(run, rule, min(limit, most)) for rule, limit in islice(rules, cores())]
            # The first in order that comes to an end counts: the answer does not depend on how many run at once.
            for found, done, offset in [job.result() for job in jobs]:
                used += done * each
                if found != fitting.STOPPED:
                    return (ints(offset) if found == fitting.FOUND else None), found == fitting.NONE, used
    return None, False, used


def _rules(begin: Ints, end: Ints, nbytes: Ints) -> Iterator[tuple[Rule, int]]:
    """(rule, blocks to look at): by life, by bytes x life, by the fullest section that a block is in, in all six orders
    of these, anew for each part that the blocks fall into or not; and the same varied at random."""
    from loadmaster.simulator.arenas.fitting import Rule

    rng, size = np.random.default_rng(0), len(nbytes)
    life = (end - begin).astype(np.float64)
    keys = np.stack([life, life * nbytes, np.ones(size)])
    run = float(FIRST_RUN * size)
    while True:
        for number, (spread, anew) in enumerate(((0.0, True), (0.0, False), (NOISE, True), (NOISE, False))):
            for place, rows in enumerate(SIX):
                factor = keys[list(rows)] * np.exp(spread * rng.normal(size=(3, size)))
                part = 1.0 if number == 0 and place < 3 else VARIED
                yield Rule(factor, rows.index(2), anew), int(run * part)
        run *= GROWTH


def _twins(blocks: Blocks) -> Ints:
    """[blocks] the last block before it that has the same size and lives in the same sections, or -1."""
    order = np.lexsort((np.arange(len(blocks.size)), blocks.size, blocks.last, blocks.first))
    alike = np.ones(len(order) - 1, bool)
    for column in (blocks.size, blocks.last, blocks.first):
        alike &= np.diff(column[order]) == 0
    twin = np.full(len(order), -1, np.int64)
    twin[order[1:][alike]] = order[:-1][alike]
    return ints(twin)
