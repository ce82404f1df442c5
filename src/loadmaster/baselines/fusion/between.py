"""Which pairs of ops can share a kernel in any way of fusing: a kernel holds all that lies between its ops.

Where something that cannot be fused, or too much, lies on a way from producer to reader, no merge can ever join the
two, and the pair is left out once for all: searches draw fewer pairs and bounds count more tensors as stored. Compiled;
from each end it looks at so many ops (`MOST_VISITS`) and no more.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Ints, Ints32, Whole
from loadmaster.graph.order import sort_by

MOST_VISITS = 400  # ops or kernels looked at from each end; pairs with more between them count as impossible


def possible(
    before_start: Ints32,
    before: Ints32,
    follow_start: Ints32,
    follow: Ints32,
    producers: Ints,
    consumers: Ints,
    fusable: Bools,
    most_members: int,
) -> Bools:
    """[pairs] whether all that lies on a way from producer to consumer may be one kernel with them."""
    able = np.zeros(len(producers), np.bool_)
    program, ways = np.arange(len(fusable)), (before_start, before)
    ahead, behind, between = (np.full_like(program, -1) for _ in ("ahead", "behind", "between"))
    stack, other_stack, spare = (np.empty_like(program) for _ in ("stack", "other_stack", "spare"))
    _possible(
        ways, (follow_start, follow), producers, consumers, fusable, most_members,
        program, ahead, behind, between, stack, other_stack, spare, able,
    )  # fmt: skip
    return able


@compiled(_nrt=False)
def _possible(
    before: tuple[Ints32, Ints32],
    follow: tuple[Ints32, Ints32],
    producers: Ints,
    consumers: Ints,
    fusable: Bools,
    most_members: Whole,
    program: Ints,
    ahead: Ints,
    behind: Ints,
    between: Ints,
    stack: Ints,
    other_stack: Ints,
    spare: Ints,
    able: Bools,
) -> None:
    found: Whole
    met: Whole
    for pair in range(len(producers)):
        a, b = producers[pair], consumers[pair]
        stack[0], other_stack[0], found, met = a, b, 1, 1
        ahead[a] = behind[b] = pair
        # Whichever end comes to a stop first knows all that may lie between.
        for turn in range(MOST_VISITS):
            found = _spread(follow[0], follow[1], stack, turn, found, a, b, ahead, pair)
            if found == turn + 1:
                able[pair] = _fits(before[0], before[1], b, ahead, between, pair, stack, fusable, most_members)
                break
            met = _spread(before[0], before[1], other_stack, turn, met, a, b, behind, pair)
            if met == turn + 1:
                sort_by(program, other_stack, met, spare)
                given = (a, other_stack, met, between, pair, fusable, most_members)
                able[pair] = _fit_behind(before[0], before[1], *given)
                break


@compiled(_nrt=False)
def _spread(
    start: Ints32,
    others: Ints32,
    stack: Ints,
    turn: Whole,
    size: Whole,
    low: Whole,
    high: Whole,
    stamps: Ints,
    mark: Whole,
) -> Whole:
    """Puts the neighbours of the op whose turn it is on the stack; ops are in program order. With more than there are
    turns for, it cannot come to a stop, and the rest of them need no look: an op may have very many readers."""
    here = stack[turn]
    for index in range(start[here], start[here + 1]):
        other = others[index]
        if other > high or size > MOST_VISITS:
            break
        if low <= other <= high and stamps[other] != mark:
            stamps[other] = mark
            stack[size] = other
            size += 1
    return size


@compiled(_nrt=False)
def _fit_behind(
    start: Ints32,
    before: Ints32,
    first: Whole,
    known: Ints,
    count: Whole,
    between: Ints,
    mark: Whole,
    fusable: Bools,
    most_members: Whole,
) -> bool:
    """The same from the other end: of the known, which all lead to the consumer, those that the first op leads to."""
    size = 0
    between[first] = mark
    for turn in range(count):
        here = known[turn]
        for index in range(start[here], start[here + 1]):
            if between[before[index]] == mark:
                between[here] = mark
                break
        if between[here] == mark:
            size += 1
            if not fusable[here] or size > most_members:
                return False
    return True


@compiled(_nrt=False)
def _fits(
    start: Ints32,
    others: Ints32,
    first: Whole,
    known: Ints,
    between: Ints,
    mark: Whole,
    stack: Ints,
    fusable: Bools,
    most_members: Whole,
) -> bool:
    """Whether what can be reached from the first op among the known may be one kernel."""
    stack[0], size, done = first, 1, 0
    between[first] = mark
    while done < size:
        here = stack[done]
        done += 1
        if not fusable[here] or size > most_members:
            return False
        for index in range(start[here], start[here + 1]):
            other = others[index]
            if known[other] == mark and between[other] != mark:
                between[other] = mark
                stack[size] = other
                size += 1
    return True
