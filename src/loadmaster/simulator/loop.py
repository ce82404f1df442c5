# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# mypy: disable-error-code="assignment,arg-type"
"""The compiled inner loop of the simulator: arrays in, arrays out. The rules are in rules.py.

One call runs one step. Devices and channels are resources 0 … devices-1, devices … devices+channels-1; each has a
heap of what waits for it, keyed (rank << 32) | id. Nothing of size tensors x devices is reset between candidates:
`hold` is written when a tensor is made.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.compiled.structs import Struct
from loadmaster.graph.columns import positions, rows_of
from loadmaster.problem import Problem
from loadmaster.problem.objective import BUSIEST, PEAK

MADE, FIXED, UPDATED = 0, 1, 2  # where a tensor comes from: an op; resident; resident and overwritten in place
FOREVER = np.iinfo(np.int64).max
MOST_HEAPS = 2**22  # entries of heaps that lie where any placement finds room, which saves a look at each placement


class Layout(Struct):
    """A Problem as the loop wants it: flat, narrow, with every index it needs computed once."""

    devices: int
    channels: int
    op_ns: np.ndarray  # [ops * devices]
    workspace: np.ndarray  # [ops]
    tie: np.ndarray  # [ops] order among equal ranks
    op_of_tie: np.ndarray  # [ops]
    waits: np.ndarray  # [ops] made tensors read + ops come after
    sources: np.ndarray  # ops that wait for nothing
    make_start: np.ndarray
    makes: np.ndarray
    read_start: np.ndarray  # reads of tensors that come and go; fixed ones are left out
    reads: np.ndarray
    next_start: np.ndarray  # ops that come after each op
    nexts: np.ndarray
    reader_start: np.ndarray
    readers: np.ndarray
    nbytes: np.ndarray
    origin: np.ndarray  # MADE, FIXED or UPDATED
    maker: np.ndarray  # producer of a made tensor, updater of an updated one
    base: np.ndarray  # tensor it overwrites in place, or -1
    stays: np.ndarray  # 1: alive to the end
    fixed: np.ndarray  # list of fixed tensors
    updated: np.ndarray  # list of updated tensors
    send_classes: int
    send_ns: np.ndarray  # [tensors * classes]
    send_class: np.ndarray  # [devices * devices]
    channel: np.ndarray  # [devices * devices] resource number
    heap_start: np.ndarray  # [resources] where its heap lies, with room for all that may ever wait
    heap_room: int
    packed: bool  # that would be too much: heaps lie as close as the placement of each run allows
    most_sends: int  # of any placement
    dispatch: np.ndarray  # [ops] what the host needs to ask for each; empty: nobody waits for a host (rule 14)
    contention: bool  # False: a channel carries any number of transfers at a time
    rest: np.ndarray  # [ops] how long the step goes on after each, at least; empty: nothing follows them


class RunScratch(Struct):
    """Scratch space for one thread."""

    left: np.ndarray
    hold: np.ndarray
    heap: np.ndarray
    size: np.ndarray
    busy: np.ndarray
    event_ns: np.ndarray
    event_at: np.ndarray
    dirty: np.ndarray
    is_dirty: np.ndarray
    memory: np.ndarray
    count: np.ndarray
    low: np.ndarray
    far: np.ndarray
    come_at: np.ndarray
    come_key: np.ndarray
    tally: np.ndarray  # [3]
    tail: np.ndarray  # [ops] least time from the start of an op to the end of the step; empty: not known
    ahead: np.ndarray  # [devices] time of the ops that a device has yet to start
    worked: np.ndarray  # [resources + devices] what each did, written by a run: see Timeline.busy_ns
    unasked: np.ndarray  # [ops] what must be asked for before it; empty without a host
    queue: np.ndarray  # [ops] its place among what its device was asked for
    asked: np.ndarray  # [2 * devices] ops that each device was asked for, and that it has started
    heap_start: np.ndarray  # [resources] where heaps lie in this run
    before: np.ndarray  # [devices] memory when it was last written down


class Record(Struct):
    """What a recorded run writes down; empty arrays when it does not."""

    start_ns: np.ndarray  # [ops]
    end_ns: np.ndarray
    turn: np.ndarray  # [ops] order of dispatch
    send_key: np.ndarray  # [sends] tensor * devices + destination
    send_start_ns: np.ndarray
    send_end_ns: np.ndarray
    curve_device: np.ndarray
    curve_ns: np.ndarray
    curve_bytes: np.ndarray
    counts: np.ndarray  # [2] sends, points of the curve


def layout_of(problem: Problem) -> Layout:
    graph, devices = problem.graph, problem.num_devices
    narrow = np.int32
    origin = np.where(graph.producer >= 0, MADE, np.where(problem.updater >= 0, UPDATED, FIXED)).astype(np.int8)
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
    heap_start, heap_room = _heaps(problem, channels)
    most_sends = int(np.minimum(np.diff(reader_start), devices - 1)[origin != FIXED].sum())
    close = problem.num_ops + len(problem.dispatch_ns) + most_sends
    packed = heap_room > MOST_HEAPS and heap_room > close
    was_read = np.diff(reader_start) > 0
    return Layout(
        devices,
        channels,
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
        np.where(graph.producer >= 0, graph.alias_of, -1).astype(narrow),
        problem.stays.astype(np.int8),
        np.flatnonzero((origin == FIXED) & was_read).astype(narrow),
        np.flatnonzero(origin == UPDATED).astype(narrow),
        max(1, problem.send_ns.shape[1]),
        problem.send_ns.reshape(-1),
        problem.send_class.reshape(-1).astype(narrow),
        (channel.reshape(-1) + devices).astype(narrow),
        heap_start,
        close if packed else heap_room,
        packed,
        most_sends,
        problem.dispatch_ns,
        problem.cluster.contention,
        problem.rest_ns,
    )


def _bases_first(problem: Problem) -> np.ndarray:
    """[makes] the tensors of each op, those it overwrites in place (in a fused kernel) before those that do."""
    graph = problem.graph
    depth, under = np.zeros(graph.num_tensors, np.int64), graph.alias_of
    while (under >= 0).any():
        depth += under >= 0
        under = np.where(under >= 0, graph.alias_of[under], -1)
    return graph.makes[np.lexsort((graph.makes, depth[graph.makes], rows_of(graph.make_start)))]


def _heaps(problem: Problem, channels: int) -> tuple[np.ndarray, int]:
    """Room for all that may ever wait: every op on one device, every tensor for each destination of a channel."""
    devices, channel = problem.num_devices, problem.cluster.channel
    source, _ = wired = np.nonzero(channel >= 0)
    fan = np.zeros(channels, np.int64)
    pairs, count = np.unique(channel[wired] * devices + source, return_counts=True)
    np.maximum.at(fan, pairs // devices, count)
    of_host = [len(problem.dispatch_ns)]
    room = np.concatenate([np.full(devices, problem.num_ops), problem.graph.num_tensors * fan, of_host])
    start = np.zeros(len(room), np.int64)
    np.cumsum(room[:-1], out=start[1:])
    return start, int(room.sum())


def make_run_scratch(layout: Layout, bounded: bool) -> RunScratch:
    """`bounded`: the caller fills `tail` and `ahead`, so that a run which must pass most_ns is stopped early."""
    resources = layout.devices + layout.channels + 1  # the last is the host
    running = resources + 1 + (0 if layout.contention else layout.most_sends)
    coming = len(layout.waits) + layout.most_sends + len(layout.dispatch)
    return RunScratch(
        np.empty(len(layout.waits), np.int32),
        np.empty(len(layout.nbytes) * layout.devices, np.int32),
        np.empty(layout.heap_room, np.int64),
        np.zeros(resources, np.int32),
        np.empty(resources, np.int64),
        np.empty(running, np.int64),
        np.empty(running, np.int32),
        np.empty(resources, np.int32),
        np.zeros(resources, np.int8),
        np.empty(layout.devices, np.int64),
        np.zeros(layout.devices, np.int32),
        np.empty(layout.devices, np.int64),
        np.empty(layout.devices, np.int64),
        np.empty(coming, np.int32),
        np.empty(coming, np.int64),
        np.zeros(3, np.int64),
        np.zeros(len(layout.waits) if bounded else 0, np.int64),
        np.zeros(layout.devices, np.int64),
        np.zeros(resources - 1 + layout.devices, np.int64),
        np.empty(len(layout.dispatch), np.int32),
        np.empty(len(layout.dispatch), np.int64),
        np.zeros(2 * layout.devices, np.int64),
        layout.heap_start.copy(),
        np.empty(layout.devices, np.int64),
    )


@compiled(_nrt=False)
def pack_heaps(layout, place, room):
    """Lays heaps side by side with room for what this placement can make wait: the ops of each device, the sends of
    each channel."""
    devices, maker, origin, channel = layout.devices, layout.maker, layout.origin, layout.channel
    reader_start, readers, start, seen = layout.reader_start, layout.readers, room.heap_start, room.low
    start[:] = 0
    seen[:] = -1
    for op in range(len(place)):
        start[place[op]] += 1
    for tensor in range(len(origin)):
        if origin[tensor] == FIXED or reader_start[tensor] == reader_start[tensor + 1]:
            continue
        home = np.int64(place[maker[tensor]])
        for at in range(reader_start[tensor], reader_start[tensor + 1]):
            where = place[readers[at]]
            if where != home and seen[where] != tensor:
                seen[where] = tensor
                start[channel[home * devices + where]] += 1
    total = np.int64(0)
    for at in range(len(start)):
        total, start[at] = total + start[at], total


def make_record(ops: int, sends: int, points: int) -> Record:
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


# The parts of a run: each becomes machine code within it. They are given the few arrays that they need: whole tuples of
# arrays take long to compile.
_part = compiled(error_model="numpy", _nrt=False, forceinline=True)


@_part
def _push(heap, start, size, key):
    """Puts a key on the heap of so many that lies at `start`."""
    here = np.int64(size)
    while here > 0:
        parent = (here - 1) >> 1
        if heap[start + parent] <= key:
            break
        heap[start + here] = heap[start + parent]
        here = parent
    heap[start + here] = key


@_part
def _pop(heap, start, left_over):
    """Takes the lowest key off the heap at `start`, where so many are left then."""
    lowest, moved, here = heap[start], heap[start + left_over], 0
    while True:
        child = 2 * here + 1
        if child >= left_over:
            break
        if child + 1 < left_over and heap[start + child + 1] < heap[start + child]:
            child += 1
        if heap[start + child] >= moved:
            break
        heap[start + here] = heap[start + child]
        here = child
    heap[start + here] = moved
    return lowest


@_part
def _push_event(event_ns, event_at, events, end, at):
    here = events
    while here > 0:
        parent = (here - 1) >> 1
        if event_ns[parent] <= end:
            break
        event_ns[here] = event_ns[parent]
        event_at[here] = event_at[parent]
        here = parent
    event_ns[here] = end
    event_at[here] = at


@_part
def _pop_event(event_ns, event_at, left_over):
    """What ends first; so many are left then."""
    first = np.int64(event_at[0])
    end, moved_at, here = event_ns[left_over], event_at[left_over], 0
    while True:
        child = 2 * here + 1
        if child >= left_over:
            break
        if child + 1 < left_over and event_ns[child + 1] < event_ns[child]:
            child += 1
        if event_ns[child] >= end:
            break
        event_ns[here] = event_ns[child]
        event_at[here] = event_at[child]
        here = child
    event_ns[here] = end
    event_at[here] = moved_at
    return first


@_part
def _wake(waking, op):
    """One thing less to wait for; an op that waits for nothing more will be queued."""
    left, place, rank, tie, queue, hosted, come_at, come_key, tally = waking
    left[op] -= 1
    if left[op] == 0:
        order = np.int64(rank[op]) if len(rank) > 0 else tally[1]
        if hosted:
            order = queue[op]
        tally[1] += 1
        come_at[tally[2]] = place[op]
        come_key[tally[2]] = (order << 32) | np.int64(tie[op])
        tally[2] += 1


@_part
def _ask(asking, op):
    """Queues it for the host, which asks for what has the lowest rank."""
    _, rank, tie, host, come_at, come_key, tally = asking
    order = np.int64(rank[op]) if len(rank) > 0 else np.int64(0)
    come_at[tally[2]] = host
    come_key[tally[2]] = (order << 32) | np.int64(tie[op])
    tally[2] += 1


@_part
def _ask_later(asking, op):
    """One thing less that must be asked for before it."""
    unasked = asking[0]
    unasked[op] -= 1
    if unasked[op] == 0:
        _ask(asking, op)


@_part
def _let_go(holding, tensor, device):
    """One use of the tensor on the device less; when none is left it is freed, and what it kept alive there."""
    hold, base, place, maker, origin, nbytes, memory, devices = holding
    while True:
        slot = tensor * devices + device
        hold[slot] -= 1
        if hold[slot] > 0:
            break
        if base[tensor] < 0 or place[maker[tensor]] != device:
            memory[device] -= nbytes[tensor]
            break
        tensor = np.int64(base[tensor])
        if origin[tensor] != MADE:
            break


@_part
def _announce(reading, holding, waking, linked, tensor, device, made):
    """Counts who needs the tensor where, queues its sends, and wakes its readers on the device."""
    reader_start, readers, stays, count, far, low = reading
    left, place, rank, _, _, _, come_at, come_key, tally = waking
    send_ns, send_classes, send_class, channel, send_rank, worked, resources = linked
    hold, devices = holding[0], holding[7]
    local, fars = 0, 0
    for at in range(reader_start[tensor], reader_start[tensor + 1]):
        op = readers[at]
        where = place[op]
        if where == device:
            local += 1
            if made:
                _wake(waking, op)
        else:
            order = np.int64(rank[op]) if len(rank) > 0 else tally[1]
            if count[where] == 0:
                far[fars] = where
                fars += 1
                low[where] = order
            elif order < low[where]:
                low[where] = order
            count[where] += 1
            if not made:
                left[op] += 1
    longest = np.int64(0)
    for index in range(fars):
        where = far[index]
        slot = tensor * devices + where
        ns = send_ns[tensor * send_classes + send_class[device * devices + where]]
        worked[resources + where] += ns
        longest = max(longest, ns)
        hold[slot] = count[where]
        count[where] = 0
        order = low[where]
        if len(send_rank) > 0 and send_rank[slot] >= 0:
            order = send_rank[slot]
        come_at[tally[2]] = channel[device * devices + where]
        come_key[tally[2]] = (order << 32) | np.int64(slot)
        tally[2] += 1
    worked[resources + device] += longest
    hold[tensor * devices + device] = local + fars + stays[tensor]


@compiled(error_model="numpy", _nrt=False, apart=True)  # callers without number: it takes seconds to compile
def run(layout, place, rank, send_rank, room, most_ns, most_bytes, peak, recording, record):
    """Runs one step; returns its time, or -1 once it must pass most_ns or a device passes most_bytes.

    Without ranks, ops and sends go first come first served. Arrays are taken out of their tuples once: reading one from
    a tuple inside the loop would count its references each time, which costs more than the loop itself.
    """
    devices, op_ns, workspace, tie, op_of_tie = (
        layout.devices,
        layout.op_ns,
        layout.workspace,
        layout.tie,
        layout.op_of_tie,
    )
    make_start, makes, read_start, reads = layout.make_start, layout.makes, layout.read_start, layout.reads
    next_start, nexts, reader_start, readers = layout.next_start, layout.nexts, layout.reader_start, layout.readers
    nbytes, origin, maker, base, stays = layout.nbytes, layout.origin, layout.maker, layout.base, layout.stays
    send_classes, send_ns, send_class = layout.send_classes, layout.send_ns, layout.send_class
    channel, heap_start, rest = layout.channel, room.heap_start, layout.rest
    contention, unqueued = layout.contention, layout.devices + layout.channels + 1  # sends that no channel counts
    left, hold, heap, size, busy = room.left, room.hold, room.heap, room.size, room.busy
    event_ns, event_at, dirty, is_dirty = room.event_ns, room.event_at, room.dirty, room.is_dirty
    memory, count, low, far = room.memory, room.count, room.low, room.far
    come_at, come_key = room.come_at, room.come_key  # what is to be queued: resource and key
    tally = room.tally  # [0] resources to look at this round, [1] ops that became ready, [2] things to be queued
    tail, ahead, worked = room.tail, room.ahead, room.worked
    resources = devices + layout.channels
    bounded = len(room.tail) > 0
    dispatch, unasked, queue, asked = layout.dispatch, room.unasked, room.queue, room.asked
    host, hosted = devices + layout.channels, len(layout.dispatch) > 0

    waking = (left, place, rank, tie, queue, hosted, come_at, come_key, tally)
    asking = (unasked, rank, tie, host, come_at, come_key, tally)
    holding = (hold, base, place, maker, origin, nbytes, memory, devices)
    linked = (send_ns, send_classes, send_class, channel, send_rank, worked, resources)
    reading = (reader_start, readers, stays, count, far, low)
    if layout.packed:
        pack_heaps(layout, place, room)
    # Time 0: residents in place, updated weights queued for other readers, first ops ready.
    for device in range(devices):
        memory[device] = 0
        far[device] = -1
    for at in range(len(size)):
        size[at] = 0
        busy[at] = -1
        is_dirty[at] = 0
    worked[:] = 0
    for op in range(len(left)):
        left[op] = layout.waits[op]
    tally[:] = 0
    if hosted:
        asked[:] = 0
        for op in range(len(left)):
            unasked[op] = layout.waits[op]
            left[op] += 1
    for tensor in layout.fixed:
        for at in range(reader_start[tensor], reader_start[tensor + 1]):
            device = place[readers[at]]
            if far[device] != tensor:
                far[device] = tensor
                memory[device] += nbytes[tensor]
    for tensor in layout.updated:
        home = place[maker[tensor]]
        memory[home] += nbytes[tensor]
        _announce(reading, holding, waking, linked, tensor, home, False)
    for op in layout.sources:
        if hosted:
            if unasked[op] == 0:
                _ask(asking, op)
        elif left[op] == 0:
            left[op] = 1
            _wake(waking, op)
    for device in range(devices):
        peak[device] = memory[device]
    for device in range(devices):
        if peak[device] > most_bytes:
            return np.int64(-1)

    events, now, turn, last = 0, np.int64(0), 0, np.int64(0)
    sends, points = 0, 0
    before = room.before
    for device in range(devices):
        before[device] = memory[device]
    if recording:
        for device in range(devices):
            record.curve_device[points] = device
            record.curve_ns[points] = 0
            record.curve_bytes[points] = before[device]
            points += 1
    while True:
        for index in range(tally[2]):
            at, key = come_at[index], come_key[index]
            _push(heap, heap_start[at], size[at], key)
            size[at] += 1
            if busy[at] < 0 and is_dirty[at] == 0:
                is_dirty[at] = 1
                dirty[tally[0]] = at
                tally[0] += 1
        tally[2] = 0
        # Everything free takes the first thing that waits for it; a link without contention takes all of them.
        index = 0
        while index < tally[0]:
            at = dirty[index]
            is_dirty[at] = 0
            if size[at] == 0:
                index += 1
                continue
            if hosted and at < devices:
                # A device starts what it was asked for in the order in which it was asked.
                if heap[heap_start[at]] >> 32 != asked[devices + at]:
                    index += 1
                    continue
                asked[devices + at] += 1
            running = np.int64(at)
            size[at] -= 1
            key = _pop(heap, heap_start[at], size[at]) & 0xFFFFFFFF
            if at < devices or at == host or contention:
                index += 1
            if at < devices:
                op = np.int64(op_of_tie[key])
                busy[at] = op
                end = now + op_ns[op * devices + at]
                if bounded:
                    if now + tail[op] > most_ns or now + ahead[at] > most_ns:
                        return np.int64(-1)
                    ahead[at] -= end - now
                where = np.int64(at)
                memory[at] += workspace[op]
                for make in range(make_start[op], make_start[op + 1]):
                    if base[makes[make]] < 0:
                        memory[at] += nbytes[makes[make]]
                if recording:
                    record.start_ns[op] = now
                    record.end_ns[op] = end
                    if not hosted:
                        record.turn[op] = turn
                        turn += 1
            elif at == host:
                op = np.int64(op_of_tie[key])
                busy[at] = op
                end = now + dispatch[op]
                where = np.int64(place[op])
                if recording:
                    record.turn[op] = turn
                    turn += 1
            else:
                if contention:
                    busy[at] = key
                else:
                    running = unqueued + key
                tensor, where = key // devices, key % devices
                link = send_class[place[maker[tensor]] * devices + where]
                end = now + send_ns[tensor * send_classes + link]
                memory[where] += nbytes[tensor]
                if recording:
                    record.send_key[sends] = key
                    record.send_start_ns[sends] = now
                    record.send_end_ns[sends] = end
                sends += 1
            if at != host:
                worked[at] += end - now
            if memory[where] > peak[where]:
                peak[where] = memory[where]
                if memory[where] > most_bytes:
                    return np.int64(-1)
            _push_event(event_ns, event_at, events, end, running)
            events += 1
        tally[0] = 0
        if recording:
            for device in range(devices):
                if memory[device] != before[device]:
                    before[device] = memory[device]
                    record.curve_device[points] = device
                    record.curve_ns[points] = now
                    record.curve_bytes[points] = before[device]
                    points += 1
        if events == 0:
            break
        now = event_ns[0]
        if now > most_ns:
            return np.int64(-1)
        while events > 0 and event_ns[0] == now:
            events -= 1
            at = _pop_event(event_ns, event_at, events)
            if at < unqueued:
                done = busy[at]
                busy[at] = -1
                if is_dirty[at] == 0:
                    is_dirty[at] = 1
                    dirty[tally[0]] = at
                    tally[0] += 1
            else:
                done = at - unqueued
            if at < devices:
                last = max(last, now + rest[done]) if len(rest) > 0 else now
                memory[at] -= workspace[done]
                for make in range(make_start[done], make_start[done + 1]):
                    _announce(reading, holding, waking, linked, np.int64(makes[make]), at, True)
                # What is written in place comes before what it overwrites, which it may keep alive.
                for make in range(make_start[done + 1] - 1, make_start[done] - 1, -1):
                    tensor = np.int64(makes[make])
                    under = np.int64(base[tensor])
                    if hold[tensor * devices + at] == 0:
                        if under < 0:
                            memory[at] -= nbytes[tensor]
                    elif under >= 0 and origin[under] == MADE:
                        hold[under * devices + at] += 1
                for read in range(read_start[done], read_start[done + 1]):
                    tensor = np.int64(reads[read])
                    if origin[tensor] == MADE or place[maker[tensor]] != at:
                        _let_go(holding, tensor, at)
                for index in range(next_start[done], next_start[done + 1]):
                    _wake(waking, nexts[index])
            elif at == host:
                device = place[done]
                queue[done] = asked[device]
                asked[device] += 1
                _wake(waking, done)
                for make in range(make_start[done], make_start[done + 1]):
                    tensor = np.int64(makes[make])
                    for reader in range(reader_start[tensor], reader_start[tensor + 1]):
                        _ask_later(asking, readers[reader])
                for index in range(next_start[done], next_start[done + 1]):
                    _ask_later(asking, nexts[index])
            else:
                tensor, where = done // devices, done % devices
                if origin[tensor] == MADE:
                    _let_go(holding, tensor, np.int64(place[maker[tensor]]))
                for reader in range(reader_start[tensor], reader_start[tensor + 1]):
                    if place[readers[reader]] == where:
                        _wake(waking, readers[reader])
    record.counts[0] = sends
    record.counts[1] = points
    return last


@compiled(_nrt=False)
def value_of(goal, step_ns, peak, worked):
    """What a step that ran to its end is worth; the same as Goal.values."""
    if goal.kind == PEAK:
        largest = peak[0]
        for device in range(1, len(peak)):
            largest = max(largest, peak[device])
        return largest
    if goal.kind == BUSIEST:
        held_up, most = goal.held_up, np.int64(0)
        devices, resources = len(held_up), len(worked) - len(held_up)
        for at in range(resources):
            shipping = worked[resources + at] * held_up[at] if at < devices else np.int64(0)
            most = max(most, worked[at] + shipping)
        return most
    value, price = step_ns * goal.step_price, goal.busy_price
    for device in range(len(price)):
        value += price[device] * worked[device]
    return value


@compiled(_nrt=False)
def stops_at(goal, most):
    """(most_ns, most_bytes): a run that passes either is worth more than `most`."""
    if goal.kind == PEAK:
        return FOREVER, most
    return (most // goal.step_price if goal.step_price > 0 else FOREVER), FOREVER


def run_many(layout, places, ranks, low, high, most_ns, most_bytes, step_ns, peaks, busy_ns) -> None:
    """Scores candidates low … high-1; a single row of ranks serves all."""
    scratch = (make_run_scratch(layout, False), make_record(0, 0, 0), np.empty(0, np.int64))
    _run_many(layout, places, ranks, low, high, most_ns, most_bytes, step_ns, peaks, busy_ns, *scratch)


@compiled(_nrt=False)
def _run_many(
    layout, places, ranks, low, high, most_ns, most_bytes, step_ns, peaks, busy_ns, room, record, no_sends
):  # fmt: skip
    worked = room.worked
    for k in range(low, high):
        rank = ranks[k if len(ranks) > 1 else 0]
        step_ns[k] = run(layout, places[k], rank, no_sends, room, most_ns, most_bytes, peaks[k], False, record)
        for at in range(len(worked)):
            busy_ns[k, at] = worked[at]
