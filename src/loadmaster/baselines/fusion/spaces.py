"""What may share a kernel: ops by their loops, as PyTorch's Inductor fuses for a GPU, and pairs by what lies between.

A kernel is one loop over points, or over rows and the points of each. Pointwise ops join where they have as many
points, or fewer that are read many times; reductions where rows and points are equal; what works on the results of a
reduction where it has a point for each row. Sums down columns, and rows so long that they are cut into parts, end with
the kernel: nothing in it reads them at every point. Sizes that are not known fit all.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import compiled
from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import Bools, Ints, Ints32, Whole, ints, rows_of
from loadmaster.graph.kinds import ALONE, GATHERING, POINTWISE, REDUCING, SCATTERING, bare_name, fusing_of
from loadmaster.graph.order import sort_by

# Inductor cuts a row into parts where rows are fewer than twice a GPU's multiprocessors and longer than this.
FEW_ROWS, LONG_ROW = 256, 8192
MOST_ELEMENTS = np.iinfo(np.int64).max


class Spaces(NamedTuple):
    """The loop of each op.

    Attributes:
        points: [ops] 0: not known.
        rows: [ops] of a reduction; 0: it reduces nothing, or its points are not known.
        apart: [ops] what it reduces to is there only when the kernel has ended.
        down: [ops] it reads down columns, not along rows.
    """

    points: Ints  # [ops]
    rows: Ints  # [ops]
    apart: Bools  # [ops]
    down: Bools  # [ops]


@compiled(_nrt=False)
def fits(points: Whole, rows: Whole, apart: bool, other_points: Whole, other_rows: Whole) -> bool:
    """Whether a kernel may hold the first loop and another that reads what it makes."""
    if points == 0 or other_points == 0:
        return True
    if rows == 0:
        return other_points % points == 0
    if other_rows != 0:
        return points == other_points and rows == other_rows and not apart
    return other_points == rows or (other_points == points and not apart)


def spaces_of(graph: Graph) -> Spaces:
    """What each op loops over, which decides whether two loops can be one: its points and, of reductions, their
    rows."""
    elements = _elements(graph)
    read, made = _largest(graph.read_start, graph.reads, elements), _largest(graph.make_start, graph.makes, elements)
    ways = ways_of(graph)
    both = np.where((read > 0) & (made > 0), np.maximum(read, made), 0)
    points = np.where(ways == SCATTERING, read, np.where(ways == REDUCING, both, made))
    rows, apart, down = np.zeros(graph.num_ops, np.int64), np.zeros(graph.num_ops, bool), np.zeros(graph.num_ops, bool)
    for op in np.flatnonzero((ways == REDUCING) & (points > 0)).tolist():
        points[op], rows[op], apart[op], down[op] = _reduction(graph, op, elements, int(made[op]), int(points[op]))
    return Spaces(ints(points), ints(rows), apart, down)


def ways_of(graph: Graph) -> NDArray[np.str_]:
    """[ops] in which way each may be fused, by its kind."""
    return np.array([fusing_of(kind) for kind in graph.kind], np.str_)


def fusable(graph: Graph) -> Bools:
    """[ops] that may share a kernel at all: not alone by their kind, and not writing in place."""
    free: Bools = ways_of(graph) != ALONE
    free[graph.producer[graph.is_in_place]] = False
    return free


def joinable(graph: Graph, spaces: Spaces, producers: Ints, consumers: Ints) -> Bools:
    """[pairs] whether the second may read inside a kernel what the first makes there.

    What is read out of order, by a lookup or down columns, must be there first, but for what nobody else reads: a
    compiler computes that where it is looked up.
    """
    ways, readers = ways_of(graph), np.zeros(graph.num_ops, np.int64)
    made = graph.is_made
    np.add.at(readers, graph.producer[made], np.diff(graph.readers[0])[made] + (graph.role[made] != ACTIVATION))
    out_of_order = (ways[consumers] == GATHERING) | spaces.down[consumers]
    looked_up = (readers[producers] == 1) & np.isin(ways[producers], (POINTWISE, GATHERING))
    fit = fit_each(spaces.points, spaces.rows, spaces.apart, producers, consumers)
    able: Bools = fit & (ways[producers] != SCATTERING) & (~out_of_order | looked_up)
    return able


def fit_each(points: Ints, rows: Ints, apart: Bools, producers: Ints, consumers: Ints) -> Bools:
    """[pairs] whether the loops of producer and consumer can be one, as `fits` has it."""
    own, more = points[producers], points[consumers]
    lines, others, alone = rows[producers], rows[consumers], apart[producers]
    reduced = np.where(
        others != 0, (own == more) & (lines == others) & ~alone, (more == lines) | ((more == own) & ~alone)
    )
    plain = more % np.maximum(own, 1) == 0
    able: Bools = (own == 0) | (more == 0) | np.where(lines == 0, plain, reduced)
    return able


def _reduction(graph: Graph, op: int, elements: Ints, made: int, points: int) -> tuple[int, int, bool, bool]:
    """(points, rows, apart, down) of a reduction."""
    bare = bare_name(graph.kind[op])
    if bare.startswith("nll_loss"):  # a number of each row, looked up
        return int(elements[graph.reads_of(op)].min()), 1, True, False
    if made == points:  # it makes a tensor like the one it reads
        if bare in ("native_layer_norm", "_fused_rms_norm"):
            return points, int(elements[graph.makes_of(op)].min()) or points, False, False
        return points, points // _row_length(graph, op, elements), False, False
    rows, reads = max(1, made), graph.reads_of(op)
    down = _reads_down(graph.shape[reads[elements[reads].argmax()]] or (), rows)
    return points, rows, down or (rows < FEW_ROWS and points > rows * LONG_ROW), down


def _row_length(graph: Graph, op: int, elements: Ints) -> int:
    makes = graph.makes_of(op)
    shape = graph.shape[makes[elements[makes].argmax()]] or (1,)
    return max(1, shape[-1])


def _reads_down(shape: tuple[int, ...], rows: int) -> bool:
    """Whether it is the last dimensions that stay; where rows may be either, that is taken."""
    first = {prod(shape[:count]) for count in range(len(shape))}
    last = {prod(shape[len(shape) - count :]) for count in range(1, len(shape))}
    return rows not in first or rows in last


def _elements(graph: Graph) -> Ints:
    """[tensors] 0: not known, or more than 63 bits hold, as only a damaged file says."""
    counts = (0 if shape is None else prod(shape) for shape in graph.shape)
    return ints([count if count <= MOST_ELEMENTS else 0 for count in counts])


def _largest(start: Ints, tensors: Ints, elements: Ints) -> Ints:
    """[ops] the most elements of a tensor that it reads, or makes; 0 where one is not known."""
    most, unknown, owner = np.zeros(len(start) - 1, np.int64), np.zeros(len(start) - 1, bool), rows_of(start)
    np.maximum.at(most, owner, elements[tensors])
    np.logical_or.at(unknown, owner, elements[tensors] == 0)
    return ints(np.where(unknown, 0, most))


# Which pairs of ops can share a kernel in any way of fusing: a kernel holds all that lies between its ops.
#
# Where something that cannot be fused, or too much, lies on a way from producer to reader, no merge can ever join the
# two, and the pair is left out once for all: searches draw fewer pairs and bounds count more tensors as stored.
# Compiled; from each end it looks at so many ops (`MOST_VISITS`) and no more.

MOST_VISITS = 400  # ops or kernels looked at from each end; pairs with more between them count as impossible


def possible(
    before: tuple[Ints32, Ints32],
    follow: tuple[Ints32, Ints32],
    producers: Ints,
    consumers: Ints,
    fusable: Bools,
    most_members: int,
) -> Bools:
    """[pairs] whether all that lies on a way from producer to consumer may be one kernel with them. `before`, `follow`:
    (start, ops) of what each op waits for, and of what waits for it."""
    able = np.zeros(len(producers), np.bool_)
    program = np.arange(len(fusable))
    ahead, behind, between = (np.full_like(program, -1) for _ in ("ahead", "behind", "between"))
    stack, other_stack, spare = (np.empty_like(program) for _ in ("stack", "other_stack", "spare"))
    _possible(
        before, follow, producers, consumers, fusable, most_members,
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
