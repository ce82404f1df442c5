"""Task graphs of public benchmarks, written here in their formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.errors import ImportFailed, LoadmasterError, UnreadableFile
from loadmaster.graph import ACTIVATION, INPUT, OUTPUT, Graph
from loadmaster.importers import load

STG = """          3
          0          0          0
          1         20          1          0
          2          5          1          0
          3          7          2          1          2
          4          0          1          3
# Standard Task Graph, made for a test
"""
DOPPLER = """6
0, 1,
0, 0, 1, 2,
1, 2, 3, 3,
100,400
50,200
60,100
70,10,einsummable
"""


def _task(name: str, key: str, parents: list[str], reads: list[str], makes: list[str]) -> dict[str, Any]:
    return {"name": name, "id": key, "parents": parents, "children": [], "inputFiles": reads, "outputFiles": makes}


WORKFLOW: dict[str, Any] = {
    "name": "small",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                _task("split", "s", [], ["in"], ["x", "y"]),
                _task("work", "a", ["s"], ["x"], ["ax"]),
                _task("work", "b", ["s"], ["y"], ["by"]),
                _task("merge", "m", ["a", "b"], ["ax", "by"], ["out"]),
            ],
            "files": [
                {"id": name, "sizeInBytes": size}
                for name, size in {"in": 9, "x": 10, "y": 20, "ax": 30, "by": 40, "out": 50}.items()
            ],
        },
        "execution": {
            "makespanInSeconds": 9,
            "executedAt": "2026-01-01T00:00:00Z",
            "tasks": [{"id": t, "runtimeInSeconds": s} for t, s in {"s": 1, "a": 2.5, "b": 3, "m": 0.25}.items()],
        },
    },
}
OLD: dict[str, Any] = {
    "name": "old",
    "schemaVersion": "1.3",
    "workflow": {
        "tasks": [
            {"name": "a", "runtimeInSeconds": 2, "parents": [], "children": ["b"],
             "files": [{"link": "output", "name": "f", "sizeInBytes": 7}]},
            {"name": "b", "runtimeInSeconds": 1, "parents": ["a"], "children": [],
             "files": [{"link": "input", "name": "f", "sizeInBytes": 7}]},
        ]
    },
}  # fmt: skip


def written(folder: Path, name: str, content: str | dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def times(graph: Graph) -> list[int]:
    return [int(t) for t in graph.time_ns[:, 0]]


def edges(graph: Graph) -> set[tuple[str, str]]:
    start, before = graph.dependencies
    return {
        (graph.op_name[source], graph.op_name[op])
        for op in range(graph.num_ops)
        for source in before[start[op] : start[op + 1]]
    }


def test_standard_task_graph(tmp_path: Path) -> None:
    g = load(written(tmp_path, "small.stg", STG))
    assert g.op_name == ("t0", "t1", "t2", "t3", "t4") and times(g) == [0, 20_000, 5_000, 7_000, 0]
    assert edges(g) == {("t0", "t1"), ("t0", "t2"), ("t1", "t3"), ("t2", "t3"), ("t3", "t4")}


def test_standard_task_graph_with_communication(tmp_path: Path) -> None:
    text = "2\n0 0 0\n1 20 1 0 3\n2 5 2 0 4 1 6\n3 0 1 2 0\n"
    g = load(written(tmp_path, "small.stg", text))
    assert [int(n) for n in g.nbytes] == [4_000, 6_000, 0, 0]  # bytes that a link of 1 GB/s carries in that time


def test_doppler(tmp_path: Path) -> None:
    g = load(written(tmp_path, "small.txt", DOPPLER))
    assert times(g) == [100, 50, 60, 70] and [int(n) for n in g.nbytes] == [400, 200, 100, 10]
    assert edges(g) == {("n0", "n1"), ("n0", "n2"), ("n1", "n3"), ("n2", "n3")} and g.kind[3] == "einsummable"


def test_workflow(tmp_path: Path) -> None:
    g = load(written(tmp_path, "flow.json", WORKFLOW))
    assert g.name == "small" and times(g) == [1_000_000_000, 2_500_000_000, 3_000_000_000, 250_000_000]
    assert edges(g) == {("s", "a"), ("s", "b"), ("a", "m"), ("b", "m")}
    by_role = {
        role: sum(int(g.nbytes[t]) for t in range(g.num_tensors) if g.role[t] == role) for role in (INPUT, OUTPUT)
    }
    assert by_role == {INPUT: 9, OUTPUT: 50}
    assert sum(int(g.nbytes[t]) for t in range(g.num_tensors) if g.role[t] == ACTIVATION) == 100


def test_workflow_of_an_older_schema(tmp_path: Path) -> None:
    g = load(written(tmp_path, "flow.json", OLD))
    assert times(g) == [2_000_000_000, 1_000_000_000] and edges(g) == {("a", "b")} and int(g.nbytes[0]) == 7


def changed(data: dict[str, Any], **task: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(data))
    copy["workflow"]["specification"]["tasks"][1].update(task)
    return copy


@pytest.mark.parametrize(
    ("name", "content", "kind", "word"),
    [
        ("a.stg", "x\n", UnreadableFile, "line 1"),
        ("a.stg", "# nothing\n", UnreadableFile, "number of tasks"),
        ("a.stg", STG.replace("3          7          2", "3          7          9"), UnreadableFile, "line 5"),
        ("a.stg", STG.replace("1         20", "2         20"), ImportFailed, "not there|same number"),
        ("a.stg", "2\n0 1 1 1\n1 1 1 0\n", LoadmasterError, "cycle|itself|wait"),
        ("a.txt", DOPPLER.replace("1, 2, 3, 3,", "1, 2, 3, 9,"), ImportFailed, "node 9"),
        ("a.txt", DOPPLER.replace("1, 2, 3, 3,", "1, 2, 3,"), ImportFailed, "4 sources and 3"),
        ("a.txt", DOPPLER.rpartition("70")[0], UnreadableFile, "cut short"),
        ("a.json", {"workflow": {}}, ImportFailed, "tasks"),
        ("a.json", changed(WORKFLOW, parents=["gone"]), ImportFailed, "gone"),
        ("a.json", changed(WORKFLOW, inputFiles=[3]), ImportFailed, "inputFiles"),
        ("a.json", changed(WORKFLOW, id="s"), LoadmasterError, "s"),
    ],
)
def test_wrong_files_say_what(tmp_path: Path, name: str, content: Any, kind: type[LoadmasterError], word: str) -> None:
    with pytest.raises(kind, match=word):
        load(written(tmp_path, name, content))
