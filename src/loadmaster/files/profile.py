"""Times of ops read from a profiler's trace: what torch.profiler exports as Chrome or Kineto JSON.

An op of the trace belongs to an op of the graph if name, shapes and dtypes of the operands are equal; the profiler
writes them with `record_shapes=True`. Kernels belong to the op that asked for them; without kernels (on a CPU) an op
takes its own time less that of the ops it calls.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any

from loadmaster.cost import Measured, OpTime
from loadmaster.errors import InvalidSetting
from loadmaster.graph import Graph

_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long int": "int64",
    "int": "int32", "bool": "bool", "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip
MOST_US = 2**53  # of a clock in microseconds, 285 years
Key = tuple[Any, ...]


def is_profile(data: Any) -> bool:
    """Whether it is a trace of torch's profiler (or of Chrome): an object with events."""
    return isinstance(data, dict) and isinstance(data.get("traceEvents"), list)


def costs_from_profile(data: Mapping[str, Any], graph: Graph, kind: str, where: str) -> Measured:
    """The times of the graph's ops that the trace has, on the kind of device it was made on."""
    seen = _times_by_key(data["traceEvents"])
    times: dict[str, OpTime] = {}
    for number, name in enumerate(graph.op_name):
        signature = graph.signature.get(name)
        found = seen.get(_key_of(signature)) if signature else None
        if signature and found:
            times[signature] = _op_time(graph, number, found)
    if not times:
        fix = "profile the same model with torch.profiler.profile(record_shapes=True)"
        raise InvalidSetting("no op of the trace is an op of the model", where, fix)
    return Measured({kind: times})


def _op_time(graph: Graph, op: int, found: list[float]) -> OpTime:
    low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
    facts = graph.kind[op], graph.dtype[op], int(graph.flops[op]), int(graph.bytes_moved[op])
    stable = len(found) > 1 and high - low <= 0.1 * middle
    return OpTime(*facts, round(middle), round(low), round(high), round(middle), 0, 0, stable)


def _times_by_key(events: list[Any]) -> dict[Key, list[float]]:
    """Nanoseconds of every call, by what tells calls apart."""
    times: dict[Key, list[float]] = {}
    for event, taken in calls(events):
        if taken is not None and "Input Dims" in event.get("args", {}):
            times.setdefault(_key_of_event(event), []).append(taken)
    return times


def calls(events: list[Any]) -> list[tuple[dict[str, Any], float | None]]:
    """Every call of an op with its nanoseconds, in the order of their start: what its kernels took (None: it has none),
    or, in a trace without kernels, its own time."""
    events = [event for event in events if _is_sound(event)]
    ops = [e for e in events if e.get("cat") in ("cpu_op", "Operator") and "name" in e]
    kernels: dict[Any, float] = {}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            asked_by = event.get("args", {}).get("External id")
            kernels[asked_by] = kernels.get(asked_by, 0.0) + event["dur"] * 1e3
    inner = {} if kernels else _inner_ns(ops)
    own = (max(event["dur"] * 1e3 - inner.get(id(event), 0.0), 0.0) for event in ops)
    taken = (
        (kernels.get(e.get("args", {}).get("External id")) if kernels else ns) for e, ns in zip(ops, own, strict=True)
    )
    return sorted(zip(ops, taken, strict=True), key=lambda call: float(call[0]["ts"]))


def _is_sound(event: Any) -> bool:
    """Whether it says what ran and for how long, in the types that a profiler writes; others are marks, or damaged."""
    if not isinstance(event, dict) or not isinstance(event.get("args", {}), dict):
        return False
    args = event.get("args", {})
    numbers: list[Any] = [event.get(key) for key in ("ts", "dur")]
    lists = [args.get(key, []) for key in ("Input Dims", "Input type")]
    return (
        all(type(number) in (int, float) and 0 <= number <= MOST_US for number in numbers)
        and all(isinstance(event.get(key, ""), str) for key in ("cat", "name"))
        and isinstance(event.get("tid", 0), str | int)
        and isinstance(args.get("External id", 0), str | int)
        and all(isinstance(given, list) for given in lists)
        and all(isinstance(dims, list) and all(isinstance(size, int | list) for size in dims) for dims in lists[0])
        and all(isinstance(word, str) for word in lists[1])
    )


def _inner_ns(ops: list[Any]) -> dict[int, float]:
    """Of each op, what the ops take that it calls: events of a thread that lie within it."""
    inner: dict[int, float] = {}
    stack: list[Any] = []
    for event in sorted(ops, key=lambda e: (*_thread(e), e["ts"], -e["dur"])):
        while stack and (_thread(stack[-1]) != _thread(event) or _end(stack[-1]) < _end(event) - 1e-6):
            stack.pop()
        if stack:
            inner[id(stack[-1])] = inner.get(id(stack[-1]), 0.0) + event["dur"] * 1e3
        stack.append(event)
    return inner


def _thread(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event.get("pid", 0)), str(event.get("tid", 0))


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def _key_of_event(event: Mapping[str, Any]) -> Key:
    args = event["args"]
    name = event["name"].partition("::")[2]
    types = [_DTYPES.get(text, text) for text in args.get("Input type", [])]
    rows = zip(args["Input Dims"], types, strict=False)
    return name, tuple(
        (dtype, tuple(dims)) for dims, dtype in rows if dims and not any(isinstance(size, list) for size in dims)
    )


def _key_of(signature: str) -> Key:
    name, args, _ = json.loads(signature)
    tensors = [part for part in args if isinstance(part, dict) and part.get("tensor") and part["shape"]]
    plain = name.split(".")[1] if name.count(".") == 2 else name
    return plain, tuple((part["tensor"], tuple(part["shape"])) for part in tensors)
