"""The trace, checked against the Trace Event Format by a reader of its own, and against the timeline.

Perfetto's trace processor is a program that its package downloads when first used; it is not needed here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.plans import Plan
from loadmaster.report.chrome_trace import write_trace
from loadmaster.report.explain import replayed
from loadmaster.search import Budget, Result, solve
from tests.unit.report.subjects import schedule_of, tiny, training_like

NEEDED = {
    "X": {"name": str, "cat": str, "ts": (int, float), "dur": (int, float), "pid": int, "tid": int},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "ts": (int, float), "pid": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int},
    "t": {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int},
    "f": {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int, "bp": str},
}


def read(path: Path) -> list[dict[str, Any]]:
    """Parses the file and holds every event against the format."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert set(document) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        for field, kind in NEEDED[event["ph"]].items():
            assert isinstance(event[field], kind), (field, event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    check_rows(events)
    check_arrows(events)
    return events


def ns(us: float) -> int:
    assert abs(us * 1000 - round(us * 1000)) < 1e-3
    return round(us * 1000)


def check_rows(events: list[dict[str, Any]]) -> None:
    """Every row has a name, and on one row nothing overlaps."""
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    assert set(rows) <= named
    for spans in rows.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def check_arrows(events: list[dict[str, Any]]) -> None:
    """Each arrow has one start and one end, in order of time, each inside a slice of its row."""
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            arrows[event["cat"], event["name"], event["id"]].append(event)
            assert any(low <= ns(event["ts"]) <= high for low, high in slices[event["pid"], event["tid"]])
    for steps in arrows.values():
        assert [step["ph"] for step in steps] in (["s", "t", "f"], ["s", "f"])
        times = [step["ts"] for step in steps]
        assert times == sorted(times)


def traced(result: Result, folder: Path) -> list[dict[str, Any]]:
    write_trace(folder / "trace.json", schedule_of(result))
    return read(folder / "trace.json")


def test_worked_example(tmp_path: Path) -> None:
    events = traced(tiny(), tmp_path)
    ops = {e["name"]: (e["tid"], ns(e["ts"]), ns(e["dur"])) for e in events if e["ph"] == "X" and e["cat"] == "op"}
    assert ops == {"a": (0, 0, 10), "b": (0, 10, 20), "c": (1, 25, 30), "d": (0, 64, 10)}
    sent = [
        (e["name"], e["args"]["bytes"], ns(e["ts"]), ns(e["dur"]))
        for e in events
        if e.get("cat") == "transfer" and e["ph"] == "X"
    ]
    assert sent == [("output of a", 100, 10, 15), ("output of c", 40, 55, 9)]
    # from a (0) over the wire (10) to c (25); from c (25) over the wire (55) to d (64)
    arrows = [(e["ph"], e["id"], ns(e["ts"])) for e in events if e["ph"] in "stf"]
    assert arrows == [("s", 0, 0), ("t", 0, 10), ("f", 0, 25), ("s", 1, 25), ("t", 1, 55), ("f", 1, 64)]
    held = [(ns(e["ts"]), e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["name"] == "bytes on d0"]
    assert [(at, most) for at, most in held if most] == [(0, 100), (10, 150), (30, 50), (55, 90), (64, 98), (74, 8)]


def test_every_number_is_that_of_the_timeline(tmp_path: Path) -> None:
    problem = price(training_like(600), "4xp100-pcie")
    result = solve(problem, "greedy-fusion", Budget(None, 4))
    events, line = traced(result, tmp_path), result.timeline
    heads = np.unique(result.plan.kernel)
    ops = sorted((ns(e["ts"]), ns(e["dur"]), e["tid"]) for e in events if e["ph"] == "X" and e["cat"] == "op")
    assert ops == sorted(
        zip(line.start_ns[heads], line.end_ns[heads] - line.start_ns[heads], result.plan.device[heads], strict=True)
    )
    sends = sorted((ns(e["ts"]), ns(e["dur"])) for e in events if e["ph"] == "X" and e["cat"] == "transfer")
    assert sends == sorted(zip(line.send_start_ns, line.send_end_ns - line.send_start_ns, strict=True))
    for device, name in enumerate(problem.cluster.device_names):
        points = [
            (ns(e["ts"]), e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["name"] == f"bytes on {name}"
        ]
        assert points == list(zip(*line.curve(device), strict=True))
    fused = [e for e in events if e.get("cat") == "op" and e["ph"] == "X" and "ops" in e["args"]]
    assert sum(e["args"]["ops_count"] for e in fused) == problem.num_ops - (len(heads) - len(fused))


def test_odd_names_survive(tmp_path: Path) -> None:
    g = GraphBuilder("odd")
    names = ["<script>alert(1)</script>", 'a "quoted"\nline', "\\", "ümlaut 漢"]
    for name in names:
        g.op(name, "any", [], [g.tensor(8, "output")], time_ns=1)
    problem = price(g.build(), "2xp100-pcie")
    events = traced(replayed(problem, Plan.of(problem, [0, 1, 0, 1])), tmp_path)
    assert sorted(e["name"] for e in events if e["ph"] == "X") == sorted(names)
