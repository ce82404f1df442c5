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
from loadmaster.files.profile import calls
from loadmaster.files.text import PathLike, read_json
from loadmaster.graph import MOST_NS, UNGIVEN, Graph
from loadmaster.graph.columns import ints


def with_times(graph: Graph, trace: PathLike) -> Graph:
    """The same graph, where every op whose kind is in the trace takes what it took there."""
    data = read_json(trace)
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise UnreadableFile("there are no traceEvents in it", str(trace), "give what torch.profiler exported")
    measured = _durations_ns(events, str(trace))
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


def _durations_ns(events: list[Any], where: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for event, taken in calls(events):
        found[_plain(event["name"])].append(min(round(taken or 0.0), MOST_NS))
    if not found:
        raise ImportFailed("the trace has no ops of torch", where, "profile with ProfilerActivity.CPU")
    return found
