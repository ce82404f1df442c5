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
from typing import NamedTuple

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.simulator.arenas.fitting import fit
from loadmaster.simulator.arenas.scratch import FOUND, NONE, STOPPED, FitScratch, Rule, scratch_for
from loadmaster.simulator.arenas.sections import blocks_of
from loadmaster.simulator.threads import cores

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
    seed: int = 0,
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
        seed: of the orders that are varied at random.
    """
    alive = np.flatnonzero((end > begin) & (nbytes > 0))
    offset = np.zeros(len(nbytes), np.int64)
    if not len(alive):
        return Fit(ints(offset), True, 0)
    lives = ints(begin[alive]), ints(end[alive]), ints(nbytes[alive])
    place, sure, used = _search(*lives, capacity, work, stop, seed)
    if place is None:
        return Fit(None, sure, used)
    offset[alive] = place
    return Fit(ints(offset), True, used)


def _search(
    begin: Ints, end: Ints, nbytes: Ints, capacity: int, work: int, stop: Callable[[], bool], seed: int
) -> tuple[Ints | None, bool, int]:
    """A run is quick or endless, depending on the order in which blocks are tried: short runs in many orders, slowly
    growing longer."""
    blocks = blocks_of(begin, end, nbytes)
    each = 1 + int((blocks.last - blocks.first).mean())  # what looking at a block costs, in sections
    used, rules = 0, _rules(begin, end, nbytes, seed)
    with ThreadPoolExecutor(cores()) as pool:
        while used < work and not stop():
            most = 1 + (work - used) // each
            scratches = [
                scratch_for(blocks, rule, capacity, min(limit, most)) for rule, limit in islice(rules, cores())
            ]
            jobs = [pool.submit(fit, scratch) for scratch in scratches]
            # The first in order that comes to an end counts: the answer does not depend on how many run at once.
            for scratch, job in zip(scratches, jobs, strict=True):
                found = job.result()
                used += int(scratch.state.done[0]) * each
                if found != STOPPED:
                    _stop(scratches)
                    return (ints(scratch.state.offset) if found == FOUND else None), found == NONE, used
    return None, False, used


def _stop(scratches: list[FitScratch]) -> None:
    for scratch in scratches:
        scratch.state.stop[0] = 1


def _rules(begin: Ints, end: Ints, nbytes: Ints, seed: int) -> Iterator[tuple[Rule, int]]:
    """(rule, blocks to look at): by life, by bytes x life, by the fullest section that a block is in, in all six orders
    of these, anew for each part that the blocks fall into or not; and the same varied at random."""
    rng, size = None, len(nbytes)
    life = (end - begin).astype(np.float64)
    keys = np.stack([life, life * nbytes, np.ones(size)])
    run = float(FIRST_RUN * size)
    while True:
        for number, (spread, anew) in enumerate(((0.0, True), (0.0, False), (NOISE, True), (NOISE, False))):
            for place, rows in enumerate(SIX):
                factor = keys[list(rows)]
                if spread:
                    rng = rng or np.random.default_rng(seed)
                    factor = factor * np.exp(spread * rng.normal(size=(3, size)))
                part = 1.0 if number == 0 and place < 3 else VARIED
                yield Rule(factor, rows.index(2), anew), int(run * part)
        run *= GROWTH
