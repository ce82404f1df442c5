"""Times of a profiler's trace, given to a captured model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.errors import ImportFailed, LoadmasterError
from loadmaster.graph import UNGIVEN, Graph, GraphBuilder
from loadmaster.importers import load
from loadmaster.importers.benchmarks.trace import with_times


def model(*kinds: str) -> Graph:
    builder = GraphBuilder("net")
    last = builder.tensor(8, "input")
    for number, kind in enumerate(kinds):
        made = builder.tensor(8, "output" if number == len(kinds) - 1 else "activation")
        builder.op(f"op{number}", kind, [last], [made], flops=8)
        last = made
    return builder.build()


def call(name: str, start: float, length: float, key: int = 0, cat: str = "cpu_op") -> dict[str, Any]:
    event = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "pid": 1, "tid": 1}
    return {**event, "args": {"External id": key}} if key else event


def written(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return path


def times(graph: Graph) -> list[int]:
    return [int(t) for t in graph.time_ns[:, 0]]


def test_own_times_in_order(tmp_path: Path) -> None:
    trace = written(
        tmp_path,
        call("aten::linear", 0, 10),
        call("aten::mm", 2, 5),
        call("aten::relu", 20, 3),
        call("aten::mm", 30, 7.5),
    )
    g = with_times(model("aten.linear.default", "aten.mm.default", "aten.relu.default", "aten.mm.default"), trace)
    assert times(g) == [5_000, 5_000, 3_000, 7_500]


def test_kernels_win(tmp_path: Path) -> None:
    trace = written(
        tmp_path,
        call("aten::mm", 0, 50, key=1),
        call("gemm", 5, 2, key=1, cat="kernel"),
        call("split_k", 8, 1, key=1, cat="kernel"),
    )
    assert times(with_times(model("aten.mm.default"), trace)) == [3_000]


def test_other_counts_take_the_mean_and_the_rest_is_left_to_the_cost_model(tmp_path: Path) -> None:
    trace = written(tmp_path, call("aten::mm", 0, 4), call("aten::mm", 10, 8))
    with pytest.warns(UserWarning, match="no time in the trace for relu"):
        g = with_times(model("aten.mm.default", "aten.relu.default"), trace)
    assert times(g) == [6_000, UNGIVEN]


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"ph": "X"}],
        [call("aten::add", 0, 1)],
        [call("aten::mm", 0, -1)],
        [{**call("aten::mm", 0, 1), "dur": "x"}],
        [3],
    ],
)
def test_traces_that_say_nothing(events: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ImportFailed):
        with_times(model("aten.mm.default"), written(tmp_path, *events))


@pytest.mark.filterwarnings("ignore:.*no time in the trace")
def test_a_real_profile_of_a_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        net(torch.ones(4, 32))
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    (tmp_path / "timed_net.py").write_text(
        "import torch\ndef build():\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))\n"
        "    return net, torch.ones(4, 32)\n"
    )
    monkeypatch.chdir(tmp_path)
    g = load("timed_net:build#times=trace.json", training=False)
    products = [int(g.time_ns[op, 0]) for op in range(g.num_ops) if "addmm" in g.kind[op]]
    assert len(products) == 2 and min(products) > 0
    with pytest.raises(LoadmasterError):
        load("timed_net:build#times=nothing.json", training=False)
