"""The tree of decisions, depth first, the most promising first; compiled, and stopped and resumed at will.

Options of a decision are sorted by their bounds, and a level is left when the next bound is no better than the best
plan. Memory is one row for each decision taken; the depth is at most that of a whole timeline.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Whole
from loadmaster.methods.exact.branching.least import least, was_seen
from loadmaster.methods.exact.branching.moments import (
    OVER,
    PLACE,
    USUAL,
    BranchFacts,
    advance,
    begin,
    choose,
    options,
    room_of,
)

FINISHED, STOPPED, FOUND = 0, 1, 2


class Tree(NamedTuple):
    """Where the search stands: one level for each decision taken.

    Attributes:
        rows: [levels, numbers] the moment of each decision.
        option: [levels, widest] what can be chosen, best first.
        bound: [levels, widest] what none of its timelines beats.
        next: [levels] the option that is looked at next.
        depth: [1] levels in use; 0: finished.
        nodes: [1] moments looked at.
        memory: [entries, 3] moments met before.
        leaf: [numbers] the last timeline found.
        head: scratch.
    """

    rows: np.ndarray  # [levels, numbers]
    kind: np.ndarray  # [levels]
    what: np.ndarray  # [levels]
    option: np.ndarray  # [levels, widest]
    bound: np.ndarray  # [levels, widest]
    count: np.ndarray  # type: ignore[assignment]  # [levels]
    next: np.ndarray  # [levels]
    depth: np.ndarray  # [1]
    nodes: np.ndarray  # [1]
    memory: np.ndarray  # [entries, 3]
    leaf: np.ndarray  # [numbers]
    head: np.ndarray
    tail: np.ndarray
    first: np.ndarray
    last: np.ndarray
    order: np.ndarray


@compiled
def make_tree(facts: BranchFacts, entries: Whole) -> Tree:
    """Memory for a search of so many remembered moments, made once."""
    numbers, levels = room_of(facts)
    ops, devices = len(facts.ops), facts.devices
    widest = max(ops, devices, len(facts.tensors) * devices)
    tree = Tree(
        np.empty((levels, numbers), np.int64),
        np.zeros(levels, np.int64),
        np.zeros(levels, np.int64),
        np.zeros((levels, widest), np.int64),
        np.zeros((levels, widest), np.int64),
        np.zeros(levels, np.int64),
        np.zeros(levels, np.int64),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.zeros((entries, 3), np.uint64),
        np.zeros(numbers, np.int64),
        np.zeros((ops, devices), np.int64),
        np.zeros((ops, devices), np.int64),
        np.zeros(ops, np.int64),
        np.zeros(ops, np.int64),
        np.zeros(ops, np.int64),
    )
    # A first decision with one option, so that a problem without any choice has a leaf, too.
    begin(facts, tree.rows[0])
    tree.kind[0], tree.count[0], tree.depth[0] = OVER, 1, 1
    return tree


@compiled
def _open(facts: BranchFacts, tree: Tree, level: Whole) -> bool:
    """The moment of that level goes on to its next decision, whose options are weighed and sorted. Returns whether
    there is one."""
    row, trial = tree.rows[level], tree.leaf
    kind, what = advance(facts, row, tree.option[level])
    if kind == OVER:
        return False
    count = options(facts, row, kind, what, tree.option[level])
    for at in range(count):
        option = tree.option[level, at]
        trial[:] = row
        choose(facts, trial, kind, what, option)
        bound = least(facts, trial, tree.head, tree.tail, tree.first, tree.last, tree.order)
        tree.nodes[0] += 1
        likely = kind == PLACE and facts.ops[what, USUAL] == option
        here = at
        while here > 0 and (tree.bound[level, here - 1] > bound or (likely and tree.bound[level, here - 1] == bound)):
            tree.option[level, here], tree.bound[level, here] = (
                tree.option[level, here - 1],
                tree.bound[level, here - 1],
            )
            here -= 1
        tree.option[level, here], tree.bound[level, here] = option, bound
    tree.kind[level], tree.what[level], tree.count[level], tree.next[level] = kind, what, count, 0
    tree.depth[0] = level + 1
    return True


@compiled
def explore(facts: BranchFacts, tree: Tree, limit: Whole, most: Whole) -> Whole:
    """Looks for a timeline under `limit` until there is none (FINISHED), one is in `tree.leaf` (FOUND), or so many
    moments more were looked at (STOPPED)."""
    stop = tree.nodes[0] + most
    while tree.depth[0] > 0:
        level = tree.depth[0] - 1
        at = tree.next[level]
        if at >= tree.count[level] or tree.bound[level, at] >= limit:
            tree.depth[0] -= 1  # options are sorted: all others are no better
            continue
        if tree.nodes[0] >= stop:
            return STOPPED
        tree.next[level] = at + 1
        row = tree.rows[level + 1]
        row[:] = tree.rows[level]
        if level > 0:
            choose(facts, row, tree.kind[level], tree.what[level], tree.option[level, at])
        if not _open(facts, tree, level + 1):
            if row[0] < limit:
                tree.leaf[:] = row
                return FOUND
        elif len(tree.memory) and was_seen(tree.memory, facts, row):
            tree.depth[0] -= 1
    return FINISHED


@compiled
def proven(tree: Tree, limit: Whole) -> Whole:
    """No timeline that was not met yet is under this, nor under `limit`."""
    bound = limit
    for level in range(tree.depth[0]):
        for at in range(tree.next[level], tree.count[level]):
            bound = min(bound, tree.bound[level, at])
    return bound
