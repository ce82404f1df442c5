"""The cut of torch's partitioner: the fewest bytes from which light ops make again what the backward part reads.

A minimum cut between what must be stored (results of heavy ops, inputs) and what the backward part reads, over tensors
weighed by their bytes, found by scipy's maximum flow, in the manner of AOTAutograd's partitioner.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from loadmaster.graph.columns import Bools
from loadmaster.methods.memory.changes import make_again
from loadmaster.methods.memory.closures import closure_of
from loadmaster.methods.memory.draft import Draft, Drop

MOST_FLOW = 2**30  # capacities of scipy's maximum flow are 32 bits wide


def turning_point(draft: Draft) -> int:
    """The position where most is held: forward before it, backward after it."""
    return int(draft.memory.max(axis=0).argmax())


def can_leave(draft: Draft, number: int) -> bool:
    """A tensor that is stored, and can be made again."""
    version = draft.versions[number]
    return bool(draft.able[draft.producer[version.tensor]]) and draft.may_leave[version.tensor] and not version.inner


def saved_by_cut(draft: Draft, turn: int) -> set[int]:
    """Tensors made before the turn of the least bytes together from which light ops can make what is read after it."""
    made = [v for v in draft.versions if v.job < 0 and v.made < turn]
    number = {version.tensor: i for i, version in enumerate(made)}
    source, sink = 2 * len(made), 2 * len(made) + 1
    scale = sum(draft.nbytes[v.tensor] for v in made) // MOST_FLOW + 1
    rows: list[tuple[int, int, int]] = []
    for version in made:
        at, maker = number[version.tensor], draft.producer[version.tensor]
        free = draft.able[maker] and not draft.heavy[maker] and version.tensor not in draft.overwritten
        size = MOST_FLOW if version.inner else max(1, draft.nbytes[version.tensor] // scale)
        rows.append((2 * at, 2 * at + 1, size))
        if not free:
            rows.append((source, 2 * at, MOST_FLOW))
        for read in draft.reads[maker] if free else ():
            rows.append((2 * number[read] + 1 if read in number else source, 2 * at, MOST_FLOW))
        if any(where > turn for where, _ in version.uses):
            rows.append((2 * at + 1, sink, MOST_FLOW))
    return {v.tensor for v, cut in zip(made, _cut(rows, source, sink, len(made)), strict=True) if cut}


def _cut(rows: list[tuple[int, int, int]], source: int, sink: int, count: int) -> list[bool]:
    """[tensors] whether the way through it is cut."""
    if not rows:
        return []
    best = {(a, b): size for a, b, size in rows}
    heads, tails = np.array(list(best), np.int32).T
    sizes = np.array(list(best.values()), np.int32)
    net = coo_array((sizes, (heads, tails)), shape=(sink + 1, sink + 1)).tocsr()
    flow = maximum_flow(net, source, sink).flow
    left = net - flow
    left.eliminate_zeros()
    reached = np.zeros(sink + 1, bool)
    reached[breadth_first_order(left, source, return_predecessors=False)] = True
    return [bool(reached[2 * i] and not reached[2 * i + 1]) for i in range(count)]


def make_light_again(draft: Draft, saved: set[int]) -> None:
    """Makes all that is read after the turn again from what is saved, as late as possible."""
    turn = turning_point(draft)
    allowed = np.array([not any(t in saved for t in makes) for makes in draft.makes]) & draft.able & ~draft.heavy
    left = {}
    for number, version in enumerate(draft.versions):
        later = [use for use in version.uses if use[0] > turn]
        if version.made < turn and later and version.tensor not in saved and can_leave(draft, number):
            left[version.tensor] = (number, later)
    for tensor in sorted(left, key=lambda t: min(at for at, _ in left[t][1])):
        if tensor in left and not _joined(draft, left, tensor, allowed):
            _apart(draft, left, tensor, allowed)


def _joined(draft: Draft, left: dict[int, Drop], tensor: int, allowed: Bools) -> bool:
    """Makes it inside all the kernels that read it, where those are light."""
    number, later = left[tensor]
    places = sorted({at for at, _ in later})
    closures = [closure_of(draft, (tensor,), at, allowed, True, left) if draft.open[at] else None for at in places]
    if any(closure is None for closure in closures):
        return False
    del left[tensor]
    for at, closure in zip(places, closures, strict=True):
        assert closure is not None
        make_again(draft, [(number, [use for use in later if use[0] == at])], closure, at)
    return True


def _apart(draft: Draft, left: dict[int, Drop], tensor: int, allowed: Bools) -> None:
    """Makes it once, for all that read it, and what is made on the way for all that read that."""
    first = min(at for at, _ in left[tensor][1])
    closure = closure_of(draft, (tensor,), first, allowed, False, left)
    closure = closure or closure_of(draft, (tensor,), first, allowed, False)
    if closure is None:
        del left[tensor]
        return
    made = [t for op in closure.ops for t in draft.makes[op] if t in left]
    targets = [tensor, *(t for t in made if t != tensor and min(at for at, _ in left[t][1]) >= first)]
    whole = closure_of(draft, tuple(targets), first, allowed, False, left)
    targets, closure = (targets, whole) if whole is not None else ([tensor], closure)
    make_again(draft, [left.pop(t) for t in targets], closure, first)
