"""A Chrome trace of a step, for ui.perfetto.dev or chrome://tracing: devices, links, arrows for transfers, memory.

The format is the Trace Event Format: times are microseconds, written here to the nanosecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.files.writing import writing
from loadmaster.report.occupancy import wire_name
from loadmaster.report.schedule import Schedule

DEVICES, LINKS, MEMORY = 1, 2, 3  # process numbers
MOST_NAMED = 20  # ops of a kernel that are listed

Event = dict[str, Any]


def write_trace(path: str | Path, schedule: Schedule) -> None:
    """One event a line, so that the file can be read with a pager, too."""
    with writing(path) as part, part.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ns","otherData":')
        json.dump(_origin(schedule), file)
        file.write(',"traceEvents":[\n')
        for number, event in enumerate(trace_events(schedule)):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _origin(schedule: Schedule) -> dict[str, str]:
    whole, plan = schedule.whole, schedule.plan
    return {
        "graph": whole.source.name,
        "graph_digest": plan.graph_digest,
        "cluster": whole.cluster.name,
        "cluster_digest": plan.cluster_digest,
    }


def trace_events(schedule: Schedule) -> Iterator[Event]:
    """Events of Chrome's trace format (chrome://tracing, Perfetto): ops, sends, arrows between them and memory over
    time."""
    yield from _names(schedule)
    yield from _ops(schedule)
    yield from _sends(schedule)
    yield from _arrows(schedule)
    yield from _memory(schedule)


def _us(ns: int) -> float:
    # Three decimals are exact up to 2^53 ns / 1000; repr of the float gives them back.
    return round(ns / 1000, 3)


def _names(schedule: Schedule) -> Iterator[Event]:
    cluster = schedule.problem.cluster
    for number, name in ((DEVICES, "devices"), (LINKS, "links"), (MEMORY, "memory")):
        yield {"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": number, "tid": 0, "name": "process_sort_index", "args": {"sort_index": number}}
    used = np.unique(schedule.send_channel).tolist()
    rows = [(DEVICES, device, name) for device, name in enumerate(cluster.device_names)]
    rows += [(LINKS, channel, wire_name(schedule, channel)) for channel in used]
    for process, row, name in rows:
        yield {"ph": "M", "pid": process, "tid": row, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "tid": row, "name": "thread_sort_index", "args": {"sort_index": row}}


def _ops(schedule: Schedule) -> Iterator[Event]:
    graph = schedule.whole.graph
    members: list[list[int]] = [[] for _ in range(schedule.num_kernels)]
    for op, kernel in enumerate(schedule.kernel_of.tolist()):
        members[kernel].append(op)
    columns = (schedule.heads, schedule.device, schedule.start_ns, schedule.end_ns)
    for kernel, (head, device, start, end) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        args: dict[str, Any] = {"scope": graph.scope[head], "kind": graph.kind[head], "source": graph.source[head]}
        if len(members[kernel]) > 1:
            args["ops"] = [graph.op_name[op] for op in members[kernel][:MOST_NAMED]]
            args["ops_count"] = len(members[kernel])
        yield {
            "ph": "X",
            "pid": DEVICES,
            "tid": device,
            "name": schedule.label(kernel),
            "cat": "op",
            "ts": _us(start),
            "dur": _us(end - start),
            "args": {key: value for key, value in args.items() if value != ""},
        }


def _sends(schedule: Schedule) -> Iterator[Event]:
    line, names = schedule.timeline, schedule.problem.cluster.device_names
    columns = (schedule.send_tensor, schedule.send_channel, line.send_src, line.send_dst)
    times = (line.send_start_ns, line.send_end_ns)
    for tensor, channel, src, dst, start, end in zip(*(c.tolist() for c in (*columns, *times)), strict=True):
        yield {
            "ph": "X",
            "pid": LINKS,
            "tid": channel,
            "name": schedule.tensor_label(tensor),
            "cat": "transfer",
            "ts": _us(start),
            "dur": _us(end - start),
            "args": {"bytes": int(schedule.problem.graph.nbytes[tensor]), "from": names[src], "to": names[dst]},
        }


def _arrows(schedule: Schedule) -> Iterator[Event]:
    """From the op that makes a tensor through its transfer to the first op that reads it there."""
    line, graph = schedule.timeline, schedule.problem.graph
    reader = _first_readers(schedule)
    for send, tensor in enumerate(schedule.send_tensor.tolist()):
        arrow = {"name": "transfer", "cat": "transfer", "id": send}
        producer, channel = int(graph.producer[tensor]), int(schedule.send_channel[send])
        start = _us(int(line.send_start_ns[send]))
        if producer >= 0:
            made = {"pid": DEVICES, "tid": int(schedule.device[producer]), "ts": _us(int(schedule.start_ns[producer]))}
            yield {"ph": "s", **arrow, **made}
            yield {"ph": "t", **arrow, "pid": LINKS, "tid": channel, "ts": start}
        else:
            yield {"ph": "s", **arrow, "pid": LINKS, "tid": channel, "ts": start}
        read = int(reader[send])
        there = {"pid": DEVICES, "tid": int(schedule.device[read]), "ts": _us(int(schedule.start_ns[read]))}
        yield {"ph": "f", "bp": "e", **arrow, **there}


def _first_readers(schedule: Schedule) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[sends] the kernel that reads it first."""
    sends, graph = schedule.read_send, schedule.problem.graph
    reader = np.repeat(np.arange(schedule.num_kernels), np.diff(graph.read_start))[sends >= 0]
    by_turn = np.argsort(-schedule.turn[reader], kind="stable")
    first = np.full(len(schedule.send_tensor), -1, np.int64)
    first[sends[sends >= 0][by_turn]] = reader[by_turn]
    return first


def _memory(schedule: Schedule) -> Iterator[Event]:
    for device, name in enumerate(schedule.problem.cluster.device_names):
        counter = {"ph": "C", "pid": MEMORY, "tid": 0, "name": f"bytes on {name}"}
        for ns, nbytes in zip(*(column.tolist() for column in schedule.timeline.curve(device)), strict=True):
            yield {**counter, "ts": _us(ns), "args": {"bytes": nbytes}}
