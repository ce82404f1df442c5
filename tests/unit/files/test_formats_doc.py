"""The examples of docs/formats.md load, belong together and are what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from loadmaster.cost import price
from loadmaster.files import load_cluster, load_graph, load_plan, save_addresses, save_plan
from loadmaster.plans import check
from loadmaster.problem import Problem
from loadmaster.report.explain import replayed
from loadmaster.simulator import simulate
from loadmaster.simulator.arenas import assign_addresses

DOC = Path(__file__).parents[3] / "docs/formats.md"


@pytest.fixture
def examples(tmp_path: Path) -> dict[str, Path]:
    """Each example in a file of its own, by its kind."""
    paths = {}
    for text in re.findall(r"```json\n(.*?\n)```", DOC.read_text(), re.DOTALL):
        kind = json.loads(text)["schema"].removeprefix("loadmaster.").removesuffix("/1")
        paths[kind] = tmp_path / f"{kind}.json"
        paths[kind].write_text(text)
    return paths


@pytest.fixture
def problem(examples: dict[str, Path]) -> Problem:
    return price(load_graph(examples["graph"]), load_cluster(examples["cluster"]))


def test_there_is_one_example_of_each(examples: dict[str, Path]) -> None:
    assert set(examples) == {"graph", "cluster", "plan", "addresses"}


def test_the_examples_are_the_worked_example(examples: dict[str, Path], problem: Problem) -> None:
    """Of the simulator's rules: 74 ns, and peaks of 150 and 140 bytes."""
    plan = load_plan(examples["plan"])
    check(plan, problem)
    timeline = simulate(problem, plan)
    assert timeline.step_ns == 74 and list(timeline.peak_bytes) == [150, 140]


def test_the_plan_is_as_written(examples: dict[str, Path], problem: Problem, tmp_path: Path) -> None:
    given: dict[str, Any] = json.loads(examples["plan"].read_text())
    extra = {key: given[key] for key in given.keys() - {"schema", "graph", "cluster", "counts", "ops", "sends"}}
    extra = {key: extra[key] for key in given if key in extra}
    save_plan(load_plan(examples["plan"]), problem, tmp_path / "again.json", extra)
    assert (tmp_path / "again.json").read_text() == examples["plan"].read_text()


def test_the_addresses_are_as_written(examples: dict[str, Path], problem: Problem, tmp_path: Path) -> None:
    plan = load_plan(examples["plan"])
    arenas = assign_addresses(problem, plan, simulate(problem, plan))
    save_addresses(arenas, plan, problem, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == examples["addresses"].read_text()


def test_a_result_is_saved_with_the_keys_of_the_example(
    examples: dict[str, Path], problem: Problem, tmp_path: Path
) -> None:
    """Numbers of its search apart, what `Result.save` writes is the example."""
    result = replayed(problem, load_plan(examples["plan"]), "expert")
    result.save(tmp_path / "saved.json")
    given, saved = (json.loads(path.read_text()) for path in (examples["plan"], tmp_path / "saved.json"))
    assert list(saved) == [key for key in given if key != "asked"]  # nothing was typed for it
    measured = {"seconds", "gap", "lower_bound"}
    assert list(saved["result"]) == list(given["result"])
    assert {k: v for k, v in saved["result"].items() if k not in measured} == {
        k: v for k, v in given["result"].items() if k not in measured
    }
    assert round(saved["result"]["gap"], 2) == given["result"]["gap"]
