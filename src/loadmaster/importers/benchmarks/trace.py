"""Times of a profiler's trace (Kineto, as torch.profiler exports it) as the given times of a captured torch model.

The n-th call of an op in the trace is taken to be the n-th op of that kind in the graph. Where the trace has kernels of
a GPU, an op takes what its kernels take, else its own time on the CPU without that of the ops it calls. Where the two
count differently (a trace of several steps, say), each op of the kind takes the mean.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.errors import ImportFailed, UnreadableFile
from loadmaster.files.text import PathLike, read_json
from loadmaster.graph import MOST_NS, UNGIVEN, Graph
from loadmaster.graph.columns import ints

Event = dict[str, Any]


def with_times(graph: Graph, trace: PathLike) -> Graph:
    """The same graph, where every op whose kind is in the trace takes what it took there."""
    data = read_json(trace)
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise UnreadableFile("there are no traceEvents in it", str(trace), "give what torch.profiler exported")
    measured = _durations_ns([event for event in events if isinstance(event, dict)], str(trace))
    kinds = [_plain(kind) for kind in graph.kind]
    wanted: dict[str, list[int]] = defaultdict(list)
    for op, kind in enumerate(kinds):
        if not graph.is_view[op]:
            wanted[kind].append(op)
    times = np.full((graph.num_ops, 1), UNGIVEN, np.int64)
    for kind, ops in wanted.items():
        found = measured.get(kind)
        if found:
            mean = round(sum(found) / len(found))
            times[ops, 0] = found if len(found) == len(ops) else mean
    _check(graph, times, wanted, measured, str(trace))
    return replace(graph, time_ns=ints(times))


def _check(graph: Graph, times: Any, wanted: Any, measured: Any, where: str) -> None:
    timed = int((times != UNGIVEN).sum())
    if not timed:
        raise ImportFailed(
            f"none of the ops of {graph.name} is in the trace", where, "profile this model on this torch"
        )
    missing = sorted(kind for kind in wanted if kind not in measured)
    if missing:
        said = ", ".join(missing[:8])
        warnings.warn(f"{graph.name}: no time in the trace for {said}; the cost model decides", stacklevel=3)


def _plain(kind: str) -> str:
    """ "aten.mm.default" and "aten::mm" are both mm."""
    parts = kind.replace("::", ".").split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else kind


def _durations_ns(events: list[Event], where: str) -> dict[str, list[int]]:
    calls = [event for event in events if event.get("cat") in ("cpu_op", "Operator") and event.get("ph") == "X"]
    if not calls:
        raise ImportFailed("the trace has no ops of torch", where, "profile with ProfilerActivity.CPU")
    kernels = _kernel_ns(events)
    found: dict[str, list[int]] = defaultdict(list)
    for event, own_ns in _own_times(calls, where):
        key = _external(event)
        time_ns = kernels.get(key, own_ns if not kernels else 0) if key is not None else own_ns
        found[_plain(str(event.get("name")))].append(max(time_ns, 0))
    return found


def _external(event: Event) -> int | None:
    details = event.get("args")
    value = details.get("External id") if isinstance(details, dict) else None
    return value if isinstance(value, int) else None


def _kernel_ns(events: list[Event]) -> dict[int | None, int]:
    found: dict[int | None, int] = defaultdict(int)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and _external(event) is not None:
            found[_external(event)] += _ns(event, "dur", "a kernel")
    return dict(found)


def _ns(event: Event, key: str, where: str) -> int:
    """Of microseconds, as traces have them."""
    value: Any = event.get(key)
    if type(value) not in (int, float) or not 0 <= value * 1000 <= MOST_NS * 4:
        raise ImportFailed(f"'{key}' of '{str(event.get('name'))[:40]}' is no time", where, "export the trace again")
    return int(value * 1000 + 0.5)


def _own_times(calls: list[Event], where: str) -> list[tuple[Event, int]]:
    """Each call with its time less that of the calls inside it, in the order of their start."""
    rows = [(str(e.get("pid")), str(e.get("tid")), _ns(e, "ts", where), _ns(e, "dur", where), e) for e in calls]
    rows.sort(key=lambda row: (row[0], row[1], row[2], -row[3]))
    own = [row[3] for row in rows]
    open_calls: list[int] = []
    for number, (process, thread, start, duration, _) in enumerate(rows):
        while open_calls:
            outer = rows[open_calls[-1]]
            if outer[:2] == (process, thread) and start < outer[2] + outer[3]:
                own[open_calls[-1]] -= duration
                break
            open_calls.pop()
        open_calls.append(number)
    by_start = sorted(range(len(rows)), key=lambda number: rows[number][2])
    return [(rows[number][4], own[number]) for number in by_start]
