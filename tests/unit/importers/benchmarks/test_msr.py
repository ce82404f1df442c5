"""MSR's format: the example of docs/formats.md, its load by their definition, and files that are wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidGraph, LoadmasterError
from loadmaster.importers import load
from loadmaster.importers.benchmarks.msr import load_msr, msr_cluster
from loadmaster.planning import default_cluster
from loadmaster.plans import Plan
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate

DOC = Path(__file__).parents[4] / "docs/formats.md"


def example() -> dict[str, Any]:
    """The one of the document."""
    text = re.search(r"```text\n(\{\n  \"maxFPGAs\".*?\n)```", DOC.read_text(), re.DOTALL)
    assert text is not None
    data: dict[str, Any] = json.loads(text[1])
    return data


def load_by_their_definition(data: dict[str, Any], device: dict[int, int]) -> float:
    """Largest load in ms: time, and for accelerators what comes in and, once, what goes out."""
    fpgas = data["maxFPGAs"]
    loads = [0.0] * (fpgas + data["maxCPUs"])
    for node in data["nodes"]:
        on = device[node["id"]]
        loads[on] += node["fpgaLatency"] if on < fpgas else node["cpuLatency"]
    cost = {edge["sourceId"]: edge["cost"] for edge in data["edges"]}
    for source, ns in cost.items():
        there = {device[edge["destId"]] for edge in data["edges"] if edge["sourceId"] == source} - {device[source]}
        for end in (*there, *([device[source]] if there else [])):
            loads[end] += ns if end < fpgas else 0.0
    return max(loads)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "small.json"
    found.write_text(json.dumps(example()))
    return found


def test_the_example(path: Path) -> None:
    graph, cluster = load(f"msr:{path}"), default_cluster(f"msr:{path}", load_msr(path))[0]
    assert graph.digest == load_msr(path).digest and cluster.digest == msr_cluster(path).digest
    assert [device.overlap for device in cluster.devices] == [False, False, True]
    problem = price(graph, cluster, objective="throughput")
    assert problem.num_devices == 3 and problem.graph.kind.count("backward") == 2
    assert problem.op_ns.tolist()[0] == [4_000_000, 4_000_000, 40_000_000]


@pytest.mark.parametrize("seed", range(6))
def test_loads_are_theirs(path: Path, seed: int) -> None:
    data = example()
    problem = price(load_msr(path), msr_cluster(path), objective="throughput")
    number = [int(name.rpartition(" ")[2]) for name in problem.graph.op_name]
    place = np.random.default_rng(seed).integers(0, 3, problem.num_ops)
    place = problem.graph.colocate % 2 if seed == 0 else place
    value = problem.value(simulate(problem, Plan.of(problem, place)))
    their = load_by_their_definition(data, dict(zip(number, place.tolist(), strict=True)))
    assert value == pytest.approx(their * 1e6)


def test_a_plan_of_it(path: Path) -> None:
    problem = price(load_msr(path), msr_cluster(path), objective="throughput")
    found = solve(problem, "downsets", Budget(None, 3))
    assert found.fits and found.value >= found.lower_bound


def _without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda data: data.pop(key)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without("nodes"), "'nodes' is missing"),
        (_without("maxFPGAs"), "'maxFPGAs' is missing"),
        (lambda data: data["nodes"][0].pop("fpgaLatency"), "'fpgaLatency' is missing"),
        (lambda data: data["nodes"][0].update(fpgaLatency=-1), "'fpgaLatency' is -1"),
        (lambda data: data["nodes"][0].update(cpuLatency="fast"), "'cpuLatency' is 'fast'"),
        (lambda data: data["nodes"][0].update(supportedOnFpga=2), "'supportedOnFpga' is 2"),
        (lambda data: data["nodes"][1].update(id=0), "two nodes have the id 0"),
        (lambda data: data["nodes"].clear(), "there are no nodes"),
        (lambda data: data["edges"][0].update(destId=77), "there is no node 77"),
        (lambda data: data["edges"].append({"sourceId": 0, "destId": 2, "cost": 9.0}), "costs 1000000 ns to move"),
        (lambda data: data["edges"].append({"sourceId": 1, "destId": 0, "cost": 0.5}), "ops wait for each other"),
        (lambda data: data.update(maxFPGAs=0, maxCPUs=0), "there is no device"),
        (lambda data: data.update(edges=3), "'edges' is 3"),
    ],
)
def test_what_is_wrong_is_said(path: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    data = example()
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(LoadmasterError, match=re.escape(said)):
        price(load_msr(path), msr_cluster(path))


def test_other_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(InvalidGraph):
        load(f"msr:{tmp_path / 'list.json'}")
