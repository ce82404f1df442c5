"""The compiled way from kernels to a score: what `passes.fuse` makes of a plan's kernels, for one plan after another.

A kernel goes by the number of its lowest op, and tensors keep theirs, so that nothing has to be numbered anew: what a
run gives depends on the order of ties and of tensors alone. Ops that are no lowest op of a kernel never become ready.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.compiled import Struct, compiled
from loadmaster.graph import ACTIVATION
from loadmaster.graph.columns import Ints, Ints32, Whole, ints
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.kernel_time import beyond_ns, kernel_ns, moving_ns
from loadmaster.simulator.lives import depth_of
from loadmaster.simulator.loop import run
from loadmaster.simulator.state import FIXED, MADE, NO_RECORD, Layout, Record, RunScratch, make_run_scratch

# Rule 12, as `passes.fuse` has it.
_moving_ns: Any = compiled(error_model="numpy", _nrt=False)(moving_ns)
_beyond_ns: Any = compiled(error_model="numpy", _nrt=False)(beyond_ns)
_kernel_ns: Any = compiled(error_model="numpy", _nrt=False)(kernel_ns)

NO_KERNELS = -2  # instead of a step time: the entries are no kernels, or a kernel would wait for itself
NEVER = 2**30  # things to wait for of an op that is part of another's kernel

# The columns of a Layout that depend on the kernels.
CHANGING = (
    "op_ns",
    "workspace",
    "tie",
    "op_of_tie",
    "waits",
    "make_start",
    "makes",
    "read_start",
    "reads",
    "next_start",
    "nexts",
    "reader_start",
    "readers",
    "maker",
    "dispatch",
)


class Facts(Struct):
    """What a contraction needs to know of the problem beside its Layout.

    Attributes:
        may_vanish: [tensors] takes no memory and no traffic where it is read in its own kernel alone.
        reader_bytes: [reads] bytes of each read, tensor by tensor.
        bases_first: made tensors, those that are overwritten in place before those that overwrite them.
    """

    producer: np.ndarray  # [tensors]
    may_vanish: np.ndarray  # [tensors]
    reader_bytes: np.ndarray  # [reads]
    bases_first: np.ndarray
    after_start: np.ndarray
    after: np.ndarray
    traffic: np.ndarray  # [ops]
    compute: np.ndarray  # [ops * devices]
    fixed: np.ndarray  # [ops * devices]
    bytes_per_s: np.ndarray  # [devices]
    launch_ns: np.ndarray  # [devices]


class Space(Struct):
    """Scratch for one thread, and what changes of the layout, to write to.

    Attributes:
        total: [3, ops] compute, fixed, traffic of each kernel.
        launch: [ops] of each kernel, the longest of its members'.
        mate: next op of the same kernel, or -1.
        last: last op of the kernel so far.
    """

    op_ns: np.ndarray
    workspace: np.ndarray
    tie: np.ndarray
    op_of_tie: np.ndarray
    waits: np.ndarray
    make_start: np.ndarray
    makes: np.ndarray
    read_start: np.ndarray
    reads: np.ndarray
    next_start: np.ndarray
    nexts: np.ndarray
    reader_start: np.ndarray
    readers: np.ndarray
    maker: np.ndarray
    dispatch: np.ndarray
    sources: np.ndarray
    rank: np.ndarray
    saved: np.ndarray
    stamp: np.ndarray
    fill: np.ndarray
    inner: np.ndarray
    total: np.ndarray  # [3, ops]
    launch: np.ndarray  # [ops]
    mate: np.ndarray
    last: np.ndarray
    pairs: np.ndarray  # [2, afters]


def facts_of(problem: Problem) -> Facts:
    """Of a problem whose ops are single ops."""
    graph = problem.graph
    by_tensor = np.argsort(graph.reads, kind="stable")
    read = np.zeros(graph.num_tensors, bool)
    read[graph.reads] = True
    own = graph.is_fresh & (graph.role == ACTIVATION)
    made = np.flatnonzero(graph.is_made)
    return Facts(
        graph.producer.astype(np.int32),
        (own & read & ~graph.is_base).astype(np.int8),
        ints(problem.read_bytes[by_tensor]),
        made[np.argsort(depth_of(graph.alias_of)[made], kind="stable")].astype(np.int32),
        graph.after_start.astype(np.int32),
        graph.after.astype(np.int32),
        problem.traffic_bytes,
        problem.compute_ns.reshape(-1),
        problem.fixed_ns.reshape(-1),
        problem.bytes_per_s,
        problem.launch_ns,
    )


def make_space(layout: Layout) -> tuple[Layout, Space]:
    """A layout that shows what is written to the space."""
    ops, tensors = len(layout.waits), len(layout.nbytes)
    columns = {name: np.empty_like(getattr(layout, name)) for name in CHANGING}
    # Kernels of a graph may number fewer than its ops, but a source is listed for each op.
    sources = np.empty(ops, layout.sources.dtype)
    space = Space(
        **columns,
        sources=sources,
        rank=np.empty(ops, np.int32),
        saved=np.empty(ops, np.int64),
        stamp=np.empty(ops, np.int64),
        fill=np.empty(ops, np.int64),
        inner=np.empty(tensors, np.int8),
        total=np.empty((3, ops), np.int64),
        launch=np.empty(ops, np.int64),
        mate=np.empty(ops, np.int64),
        last=np.empty(ops, np.int64),
        pairs=np.empty((2, len(layout.nexts)), np.int64),
    )
    return layout._replace(**columns, sources=sources), space


def run_many(layout: Layout, facts: Facts, shown: Layout, *given: Any) -> None:
    """Scores plans low … high-1; `shown` is the layout that make_space made of `layout`."""
    scratch = (make_run_scratch(shown, False), NO_RECORD, np.empty(0, np.int64))
    _run_many(layout, facts, shown, *given, *scratch)  # type: ignore[call-arg]


@compiled(_nrt=False)
def _run_many(
    layout: Layout,
    facts: Facts,
    shown: Layout,
    space: Space,
    places: Ints32,
    ranks: Ints32,
    kernels: Ints32,
    low: Whole,
    high: Whole,
    most_ns: Whole,
    most_bytes: Whole,
    step_ns: Ints,
    peaks: Ints,
    busy_ns: Ints,
    scratch: RunScratch,
    record: Record,
    no_sends: Ints,
) -> None:
    rank, left = space.rank, scratch.left
    for k in range(low, high):
        kernel = kernels[k if len(kernels) > 1 else 0]
        if not contract(layout, facts, space, places[k], ranks[k if len(ranks) > 1 else 0], kernel):
            step_ns[k] = NO_KERNELS
            continue
        time = run(shown, places[k], rank, no_sends, scratch, most_ns, most_bytes, peaks[k], False, record)
        for at in range(len(scratch.worked)):
            busy_ns[k, at] = scratch.worked[at]
        if time >= 0:
            for op in range(len(kernel)):
                if kernel[op] == op and left[op] != 0:
                    time = np.int64(NO_KERNELS)
        step_ns[k] = time


@compiled(_nrt=False, apart=True, no_cpython_wrapper=True)
def contract(layout: Layout, facts: Facts, space: Space, place: Ints32, rank: Ints32, kernel: Ints32) -> bool:
    """Writes the layout of the kernels into the space; False where the entries are no kernels."""
    ops = len(kernel)
    for op in range(ops):
        if kernel[op] < 0 or kernel[op] > op or kernel[kernel[op]] != kernel[op]:
            return False
    space.stamp[:] = -1
    space.saved[:] = 0
    for op in range(ops):
        space.waits[op] = 0 if kernel[op] == op else NEVER
    _tensors(layout, facts, space, kernel)
    _reads(layout, space)
    _makes(facts, space, kernel)
    _afters(facts, space, kernel)
    _prices(layout, facts, space, place, rank, kernel)
    _sources(space)
    return True


@compiled(_nrt=False)
def _tensors(layout: Layout, facts: Facts, space: Space, kernel: Ints32) -> None:
    """Readers of each tensor, each kernel once; which tensors vanish; how much each kernel reads and makes."""
    producer, may_vanish, reader_bytes = facts.producer, facts.may_vanish, facts.reader_bytes
    reader_start, readers, nbytes = layout.reader_start, layout.readers, layout.nbytes
    origin, old_maker = layout.origin, layout.maker
    new_start, new_readers, maker, inner = space.reader_start, space.readers, space.maker, space.inner
    read_start, make_start, waits = space.read_start, space.make_start, space.waits
    stamp, saved = space.stamp, space.saved
    read_start[:] = 0
    make_start[:] = 0
    filled = 0
    for tensor in range(len(producer)):
        made_by = producer[tensor]
        home = kernel[made_by] if made_by >= 0 else -1
        maker[tensor] = kernel[old_maker[tensor]] if old_maker[tensor] >= 0 else old_maker[tensor]
        begin, end = reader_start[tensor], reader_start[tensor + 1]
        new_start[tensor] = filled
        for at in range(begin, end):
            reader = kernel[readers[at]]
            if reader == home or stamp[reader] == tensor:
                continue
            stamp[reader] = tensor
            new_readers[filled] = reader
            filled += 1
            if origin[tensor] != FIXED:
                read_start[reader + 1] += 1
                if origin[tensor] == MADE:
                    waits[reader] += 1
        inner[tensor] = may_vanish[tensor] and filled == new_start[tensor]
        if inner[tensor]:
            saved[made_by] += nbytes[tensor]
            for at in range(begin, end):
                saved[readers[at]] += reader_bytes[at]
        elif made_by >= 0:
            make_start[home + 1] += 1
    new_start[len(producer)] = filled


@compiled(_nrt=False)
def _reads(layout: Layout, space: Space) -> None:
    """The readers of tensors that come and go, the other way round."""
    origin, reader_start, readers = layout.origin, space.reader_start, space.readers
    read_start, reads, fill = space.read_start, space.reads, space.fill
    _start_rows(read_start, fill)
    for tensor in range(len(origin)):
        if origin[tensor] != FIXED:
            for at in range(reader_start[tensor], reader_start[tensor + 1]):
                reader = readers[at]
                reads[fill[reader]] = tensor
                fill[reader] += 1


@compiled(_nrt=False)
def _start_rows(start: Ints32, fill: Ints) -> None:
    """Counts to starts, in place, and where each row is filled from."""
    for row in range(len(fill)):
        start[row + 1] += start[row]
        fill[row] = start[row]


@compiled(_nrt=False)
def _makes(facts: Facts, space: Space, kernel: Ints32) -> None:
    producer, bases_first, inner = facts.producer, facts.bases_first, space.inner
    make_start, makes, fill = space.make_start, space.makes, space.fill
    _start_rows(make_start, fill)
    for tensor in bases_first:
        if not inner[tensor]:
            home = kernel[producer[tensor]]
            makes[fill[home]] = tensor
            fill[home] += 1


@compiled(_nrt=False)
def _afters(facts: Facts, space: Space, kernel: Ints32) -> None:
    """What comes after each kernel, each pair once."""
    after_start, after = facts.after_start, facts.after
    next_start, nexts, waits = space.next_start, space.nexts, space.waits
    stamp, fill, mate, last, pairs = space.stamp, space.fill, space.mate, space.last, space.pairs
    next_start[:] = 0
    if len(after) == 0:
        return
    stamp[:] = -1
    for op in range(len(kernel)):
        mate[op] = -1
        if kernel[op] != op:
            mate[last[kernel[op]]] = op
        last[kernel[op]] = op
    count = 0
    for head in range(len(kernel)):
        op = head if kernel[head] == head else -1
        while op >= 0:
            for at in range(after_start[op], after_start[op + 1]):
                earlier = kernel[after[at]]
                if earlier != head and stamp[earlier] != head:
                    stamp[earlier] = head
                    pairs[0, count], pairs[1, count] = earlier, head
                    count += 1
                    next_start[earlier + 1] += 1
                    waits[head] += 1
            op = mate[op]
    _start_rows(next_start, fill)
    for pair in range(count):
        earlier = pairs[0, pair]
        nexts[fill[earlier]] = pairs[1, pair]
        fill[earlier] += 1


@compiled(_nrt=False)
def _prices(layout: Layout, facts: Facts, space: Space, place: Ints32, rank: Ints32, kernel: Ints32) -> None:
    """Sums and lowest of the members' columns, and the time of each kernel on its device (rule 12)."""
    devices, old_ns, old_tie, old_workspace = layout.devices, layout.op_ns, layout.tie, layout.workspace
    traffic, compute, fixed = facts.traffic, facts.compute, facts.fixed
    op_ns, tie, workspace, op_of_tie = space.op_ns, space.tie, space.workspace, space.op_of_tie
    low, total, saved, launch, rate = space.rank, space.total, space.saved, space.launch, facts.bytes_per_s
    asking, old_asking = space.dispatch, layout.dispatch
    for op in range(len(kernel)):
        head = kernel[op]
        device = place[head]
        slot = op * devices + device
        if head == op:
            total[0, op], total[1, op] = 0, 0
            total[2, op], launch[op] = 0, 0
            workspace[op], tie[op], low[op] = 0, old_tie[op], rank[op]
            op_ns[slot] = 0
            if len(asking) > 0:
                asking[op] = 0
        if len(asking) > 0:
            asking[head] = max(asking[head], old_asking[op])
        total[0, head] += compute[slot]
        moved = max(np.int64(0), traffic[op] - saved[op])
        own = fixed[slot]
        if own < 0:  # else it is all that the op adds
            own = _beyond_ns(own, compute[slot], _moving_ns(moved, rate[device]))
        total[1, head] += own
        total[2, head] += moved
        launch[head] = max(launch[head], min(old_ns[slot], facts.launch_ns[device]))
        workspace[head] += old_workspace[op]
        tie[head] = min(tie[head], old_tie[op])
        low[head] = min(low[head], rank[op])
        if old_ns[slot] == CANNOT:
            op_ns[head * devices + device] = CANNOT
    for op in range(len(kernel)):
        if kernel[op] == op:
            slot = op * devices + place[op]
            op_of_tie[tie[op]] = op
            if op_ns[slot] != CANNOT:
                moving = _moving_ns(total[2, op], rate[place[op]])
                op_ns[slot] = _kernel_ns(launch[op], total[0, op], moving, total[1, op])


@compiled(_nrt=False)
def _sources(space: Space) -> None:
    """Kernels that wait for nothing; the rest of the list is filled with an op that waits for ever."""
    waits, sources = space.waits, space.sources
    count, other = 0, -1
    for op in range(len(waits)):
        if waits[op] == 0:
            sources[count] = op
            count += 1
        else:
            other = op
    sources[count:] = other
