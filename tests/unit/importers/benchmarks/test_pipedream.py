"""PipeDream's profiles: the example of docs/formats.md, and files that are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidGraph, UnreadableFile
from loadmaster.graph import ROLES
from loadmaster.importers import load
from loadmaster.search import Budget, solve

DOC = Path(__file__).parents[4] / "docs/formats.md"


def example() -> str:
    text = re.search(r"```text\n(node1 -- .*?\n)```", DOC.read_text(), re.DOTALL)
    assert text is not None
    return text[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "small" / "graph.txt"
    found.parent.mkdir()
    found.write_text(example())
    return found


def test_the_example(path: Path) -> None:
    graph = load(f"pipedream:{path}")
    assert graph.name == "small" and graph.num_ops == 6
    times = dict(zip(graph.op_name, graph.time_ns[:, 0].tolist(), strict=True))
    assert times["node2"] == 3_000_000 and times["node2 backward"] == 5_000_000
    sizes = dict(zip(graph.tensor_name, graph.nbytes.tolist(), strict=True))
    assert sizes["node3:out"] == 4096 + 256, "a list of sizes is added up"
    assert sizes["node4:grad of node3"] == sizes["node3:out"]
    assert sizes["node2:weight"] == 2048
    assert graph.role[graph.tensor_name.index("node1:out")] == ROLES.index("input"), "a batch, and no layer"


def test_gradients_go_back_the_way_activations_came(path: Path) -> None:
    graph = load(f"pipedream:{path}")
    start, before = graph.dependencies
    names = graph.op_name
    waits = {names[op]: {names[e] for e in before[start[op] : start[op + 1]]} for op in range(graph.num_ops)}
    assert waits["node4"] == {"node2", "node3"}
    assert {"node4 backward", "node2"} <= waits["node2 backward"]
    assert {"node4 backward", "node3"} <= waits["node3 backward"]


def test_layers_keep_their_backward_op(path: Path) -> None:
    problem = price(load(f"pipedream:{path}"), "2xp100-pcie", objective="throughput")
    found = solve(problem, "downsets", Budget(None, 3))
    where = dict(zip(problem.graph.op_name, found.plan.device.tolist(), strict=True))
    assert all(where[f"node{n}"] == where[f"node{n} backward"] for n in range(2, 5))
    assert found.value >= found.lower_bound


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("node9", "'node9' is no layer"),
        ("node9 -- Conv -- forward_compute_time=1.0", "'backward_compute_time' is missing"),
        ("node1 -- a -- forward_compute_time=1", "two layers 'node1'"),
        ("\tnode1 -- node77", "there is no layer 'node77'"),
        ("\tnode1", "joins no two layers"),
        ("\tnode4 -- node1", "ops wait for each other"),
    ],
)
def test_what_is_wrong_is_said(path: Path, line: str, said: str) -> None:
    path.write_text(example() + line + "\n")
    with pytest.raises(InvalidGraph, match=re.escape(said)):
        load(f"pipedream:{path}")


@pytest.mark.parametrize("value", ["fast", "-1", "nan", "[1; x]"])
def test_numbers_that_are_none(path: Path, value: str) -> None:
    path.write_text(example().replace("forward_compute_time=3.0", f"forward_compute_time={value}", 1))
    with pytest.raises(InvalidGraph, match="forward_compute_time"):
        load(f"pipedream:{path}")


def test_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text("\n")
    with pytest.raises(InvalidGraph, match="no layers"):
        load(f"pipedream:{tmp_path / 'graph.txt'}")
    (tmp_path / "graph.txt").write_text(example().splitlines()[0] + "\n")
    with pytest.raises(InvalidGraph, match="inputs alone"):
        load(f"pipedream:{tmp_path / 'graph.txt'}")
    with pytest.raises(UnreadableFile):
        load(f"pipedream:{tmp_path / 'none.txt'}")
