"""What the compiled loop of the simulator works on: a problem as the loop wants it, scratch space, and what a recorded
run writes down.

A Layout is made once for a problem and shared by all threads, a RunScratch once for a thread, so that a run allocates
nothing. Indices are 32 bits wide, so that more of a large graph is in the processor's caches.
"""

from __future__ import annotations

from threading import local
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from loadmaster.compiled import Struct
from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, Ints32, Whole, positions, rows_of
from loadmaster.problem import Problem
from loadmaster.simulator.lives import depth_of

# Places in RunScratch.tally: resources to look at in this round, ops that became ready, resources woken in this round,
# things that go on; of a recorded run kernels dispatched, sends begun, points of the memory curve.
DIRTY, READY, WOKEN, EVENTS, TURNS, SENDS, POINTS = range(7)
TALLIES = 7
# A device, a channel or the host while a step runs: where its heap lies and how many wait there, what it does, and
# whether it will be looked at in this round. A record, for these are read together all the time.
# (`np.record`: so that fields are attributes in plain Python, too, where loops are run without being compiled.)
RESOURCE = np.dtype((np.record, [("heap", np.int64), ("busy", np.int64), ("queued", np.int32), ("is_dirty", np.int32)]))
FREE = -1  # what a resource does that does nothing
KEY = 0xFFFFFFFF  # the part of a heap's key below its rank
MADE, FIXED, UPDATED = 0, 1, 2  # where a tensor comes from: an op; resident; resident and overwritten in place
MOST_HEAPS = 2**22  # entries of heaps that lie where any placement finds room, which saves a look at each placement
_KEPT = local()


class Layout(Struct):
    """A Problem as the loop wants it: flat, narrow, with every index it needs computed once. Read-only while runs go
    on; `contraction` writes layouts of fused plans into space of its own.

    Attributes:
        devices, channels: how many; resources are devices first, then channels, then the host.
        shift: bits that a device's number takes; a tensor on a device is `tensor << shift | device`.
        op_ns: [ops * devices]
        tie: [ops] order among equal ranks; `op_of_tie` is the same the other way round.
        waits: [ops] made tensors read + ops come after.
        sources: ops that wait for nothing.
        make_start, makes: what each op makes.
        read_start, reads: reads of tensors that come and go; fixed ones are left out.
        next_start, nexts: ops that come after each op.
        reader_start, readers: ops that read each tensor.
        origin: [tensors] MADE, FIXED or UPDATED.
        maker: [tensors] producer of a made tensor, updater of an updated one.
        base: [tensors] tensor it overwrites in place, or -1.
        stays: [tensors] 1: alive to the end.
        fixed, updated: lists of fixed and of updated tensors (rule 7).
        send_ns, send_class: [tensors * classes], [devices * devices] as in Problem.
        channel: [devices * devices] resource number.
        heap_start: [resources] where its heap lies, with room for all that may ever wait.
        packed: such room would be too much: heaps lie as close as the placement of each run allows.
        most_sends: of any placement.
        dispatch: [ops] what the host needs to ask for each; empty: nobody waits for a host (rule 14).
        contention: False: a channel carries any number of transfers at a time.
        rest: [ops] how long the step goes on after each, at least; empty: nothing follows them.
    """

    devices: int
    channels: int
    shift: int
    op_ns: np.ndarray  # [ops * devices]
    workspace: np.ndarray  # [ops]
    tie: np.ndarray  # [ops]
    op_of_tie: np.ndarray  # [ops]
    waits: np.ndarray  # [ops]
    sources: np.ndarray
    make_start: np.ndarray
    makes: np.ndarray
    read_start: np.ndarray
    reads: np.ndarray
    next_start: np.ndarray
    nexts: np.ndarray
    reader_start: np.ndarray
    readers: np.ndarray
    nbytes: np.ndarray
    origin: np.ndarray
    maker: np.ndarray
    base: np.ndarray
    stays: np.ndarray
    fixed: np.ndarray
    updated: np.ndarray
    send_classes: int
    send_ns: np.ndarray  # [tensors * classes]
    send_class: np.ndarray  # [devices * devices]
    channel: np.ndarray  # [devices * devices]
    heap_start: np.ndarray  # [resources]
    heap_entries: int
    packed: bool
    most_sends: int
    dispatch: np.ndarray  # [ops]
    contention: bool
    rest: np.ndarray  # [ops]


class RunScratch(Struct):
    """Scratch space for one thread; a run writes over what the last one left, so one must never serve two runs at once.

    Attributes:
        left: [ops] what each still waits for.
        hold: [tensors << shift] uses that are left of a tensor on a device; written when it is made or sent.
        heap: what waits for each resource, keyed (order << 32) | id; heap_start: where each begins in this run.
        resources: [resources] what each does and how much waits for it; see RESOURCE.
        event_ns, event_at: heap of what ends when, and the resource that it ends on.
        dirty: resources to look at in this round; woken: those that did nothing when something came for them.
        memory: [devices] bytes held now; `before`: when it was last written down.
        count, low, far: [devices] readers of one tensor on each, their lowest rank, and devices that have any.
        tally: [TALLIES] how many there are of what: see DIRTY and those after it.
        tail: [ops] least time from the start of an op to the end of the step; empty: not known.
        ahead: [devices] time of the ops that a device has yet to start.
        worked: [resources + devices] what each did, written by a run: see Timeline.busy_ns.
        unasked: [ops] what must be asked for before it; empty without a host.
        queue: [ops] its place among what its device was asked for.
        asked: [2 * devices] ops that each device was asked for, and that it has started.
    """

    left: np.ndarray
    hold: np.ndarray
    heap: np.ndarray
    resources: np.ndarray  # [resources] RESOURCE
    event_ns: np.ndarray
    event_at: np.ndarray
    dirty: np.ndarray
    woken: np.ndarray
    memory: np.ndarray
    count: np.ndarray
    low: np.ndarray
    far: np.ndarray
    tally: np.ndarray  # [TALLIES]
    tail: np.ndarray  # [ops]
    ahead: np.ndarray  # [devices]
    worked: np.ndarray  # [resources + devices]
    unasked: np.ndarray  # [ops]
    queue: np.ndarray  # [ops]
    asked: np.ndarray  # [2 * devices]
    heap_start: np.ndarray  # [resources]
    before: np.ndarray  # [devices]


class Record(Struct):
    """What a recorded run writes down; empty arrays when it does not.

    Attributes:
        turn: [ops] order of dispatch.
        send_key: [sends] tensor * devices + destination.
        counts: [2] sends, points of the curve.
    """

    start_ns: np.ndarray  # [ops]
    end_ns: np.ndarray
    turn: np.ndarray  # [ops]
    send_key: np.ndarray  # [sends]
    send_start_ns: np.ndarray
    send_end_ns: np.ndarray
    curve_device: np.ndarray
    curve_ns: np.ndarray
    curve_bytes: np.ndarray
    counts: np.ndarray  # [2]


class Step(NamedTuple):
    """One run of the loop: what it follows and where it writes.

    Attributes:
        place: [ops] device of each.
        rank: [ops]
        hosted: kernels wait until the host has asked for them (rule 14).
        contended: a channel carries one transfer at a time (rule 5).
        ranked: ops have ranks; else they and their sends go in the order they came.
        rests: the step goes on for a while after some ops (`Layout.rest`).
    """

    layout: Layout
    scratch: RunScratch
    place: Ints32
    rank: Ints32
    most_ns: Whole
    hosted: bool
    contended: bool
    ranked: bool
    rests: bool


class Ledger(NamedTuple):
    """What a run keeps beside the time: what each device holds, what each resource did, how sends are ranked.

    Attributes:
        send_rank: [tensors * devices] or empty.
        held: [devices] bytes now; peak: the most so far; most_bytes: what no device may pass.
        uses: [tensors << shift] what still needs a tensor on a device; written when it is made or sent.
        worked: [resources + devices] see Timeline.busy_ns.
        recording: starts, ends and the curve of memory go to `record`.
    """

    send_rank: Ints
    held: Ints
    peak: Ints
    most_bytes: Whole
    uses: Ints32
    worked: Ints
    recording: bool
    record: Record


def layout_of(problem: Problem) -> Layout:
    """The problem flat and narrow, as the compiled loop wants it."""
    graph, devices = problem.graph, problem.num_devices
    narrow = np.int32
    shift = (devices - 1).bit_length()
    if graph.num_tensors << shift > KEY:  # a send's number would run into its rank
        raise InvalidSetting(
            f"{graph.num_tensors:,} tensors on {devices:,} devices are more than can be simulated",
            f"'{graph.name}' on '{problem.cluster.name}'",
            f"use fewer than {KEY // max(1, graph.num_tensors) + 1:,} devices, or coarsen the graph",
        )
    origin = np.where(graph.is_made, MADE, np.where(problem.is_updated, UPDATED, FIXED)).astype(np.int8)
    moving = origin[graph.reads] != FIXED
    read_start = np.zeros(problem.num_ops + 1, np.int64)
    np.cumsum(np.bincount(rows_of(graph.read_start)[moving], minlength=problem.num_ops), out=read_start[1:])
    made_reads = rows_of(graph.read_start)[origin[graph.reads] == MADE]
    waits = np.bincount(made_reads, minlength=problem.num_ops) + np.diff(graph.after_start)
    reader_start, readers = graph.readers
    next_start = np.zeros(problem.num_ops + 1, np.int64)
    np.cumsum(np.bincount(graph.after, minlength=problem.num_ops), out=next_start[1:])
    nexts = rows_of(graph.after_start)[np.argsort(graph.after, kind="stable")]
    op_of_tie = np.argsort(problem.tie, kind="stable")
    channel = problem.cluster.channel
    channels = int(channel.max(initial=-1)) + 1
    heap_start, heap_entries = _heaps(problem, channels)
    most_sends = int(np.minimum(np.diff(reader_start), devices - 1)[origin != FIXED].sum())
    close = problem.num_ops + len(problem.dispatch_ns) + most_sends
    packed = heap_entries > MOST_HEAPS and heap_entries > close
    was_read = np.diff(reader_start) > 0
    return Layout(
        devices,
        channels,
        shift,
        problem.op_ns.reshape(-1),
        graph.workspace_bytes,
        positions(op_of_tie).astype(narrow),
        op_of_tie.astype(narrow),
        waits.astype(narrow),
        np.flatnonzero(waits == 0).astype(narrow),
        graph.make_start.astype(narrow),
        _bases_first(problem).astype(narrow),
        read_start.astype(narrow),
        graph.reads[moving].astype(narrow),
        next_start.astype(narrow),
        nexts.astype(narrow),
        reader_start.astype(narrow),
        readers.astype(narrow),
        graph.nbytes,
        origin,
        np.where(origin == UPDATED, problem.updater, graph.producer).astype(narrow),
        np.where(graph.is_made, graph.alias_of, -1).astype(narrow),
        problem.stays.astype(np.int8),
        np.flatnonzero((origin == FIXED) & was_read).astype(narrow),
        np.flatnonzero(origin == UPDATED).astype(narrow),
        max(1, problem.send_ns.shape[1]),
        problem.send_ns.reshape(-1),
        problem.send_class.reshape(-1).astype(narrow),
        (channel.reshape(-1) + devices).astype(narrow),
        heap_start,
        close if packed else heap_entries,
        packed,
        most_sends,
        problem.dispatch_ns,
        problem.cluster.contention,
        problem.rest_ns,
    )


def _bases_first(problem: Problem) -> np.ndarray:
    """[makes] the tensors of each op, those it overwrites in place (in a fused kernel) before those that do."""
    graph = problem.graph
    return graph.makes[np.lexsort((graph.makes, depth_of(graph.alias_of)[graph.makes], rows_of(graph.make_start)))]


def _heaps(problem: Problem, channels: int) -> tuple[np.ndarray, int]:
    """Room for all that may ever wait: every op on one device, every tensor for each destination of a channel."""
    devices, channel = problem.num_devices, problem.cluster.channel
    source, _ = wired = np.nonzero(channel >= 0)
    fan = np.zeros(channels, np.int64)
    pairs, count = np.unique(channel[wired] * devices + source, return_counts=True)
    np.maximum.at(fan, pairs // devices, count)
    of_host = [len(problem.dispatch_ns)]
    entries = np.concatenate([np.full(devices, problem.num_ops), problem.graph.num_tensors * fan, of_host])
    start = np.zeros(len(entries), np.int64)
    np.cumsum(entries[:-1], out=start[1:])
    return start, int(entries.sum())


def make_run_scratch(layout: Layout, bounded: bool) -> RunScratch:
    """`bounded`: the caller fills `tail` and `ahead`, so that a run which must pass most_ns is stopped early."""
    resources = layout.devices + layout.channels + 1  # the last is the host
    running = resources + 1 + (0 if layout.contention else layout.most_sends)
    return RunScratch(
        np.empty(len(layout.waits), np.int32),
        np.empty(len(layout.nbytes) << layout.shift, np.int32),
        np.empty(layout.heap_entries, np.int64),
        np.zeros(resources, RESOURCE),
        np.empty(running, np.int64),
        np.empty(running, np.int32),
        np.empty(resources, np.int32),
        np.empty(resources, np.int32),
        np.empty(layout.devices, np.int64),
        np.zeros(layout.devices, np.int32),
        np.empty(layout.devices, np.int64),
        np.empty(layout.devices, np.int64),
        np.zeros(TALLIES, np.int64),
        np.zeros(len(layout.waits) if bounded else 0, np.int64),
        np.zeros(layout.devices, np.int64),
        np.zeros(resources - 1 + layout.devices, np.int64),
        np.empty(len(layout.dispatch), np.int32),
        np.empty(len(layout.dispatch), np.int64),
        np.zeros(2 * layout.devices, np.int64),
        layout.heap_start.copy(),
        np.empty(layout.devices, np.int64),
    )


def kept_scratch(layout: Layout) -> RunScratch:
    """That of the thread that asks, which each run leaves ready for the next: to make one takes as long as to simulate
    some hundred ops."""
    kept: WeakKeyDictionary[Layout, RunScratch] = _KEPT.__dict__.setdefault("scratch", WeakKeyDictionary())
    if layout not in kept:
        kept[layout] = make_run_scratch(layout, False)
    return kept[layout]


def make_record(ops: int, sends: int, points: int) -> Record:
    """Room for what a recorded run writes down."""
    return Record(
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.empty(sends, np.int64),
        np.empty(sends, np.int64),
        np.empty(sends, np.int64),
        np.empty(points, np.int32),
        np.empty(points, np.int64),
        np.empty(points, np.int64),
        np.zeros(2, np.int64),
    )


NO_RECORD = make_record(0, 0, 0)  # of runs that write nothing down
