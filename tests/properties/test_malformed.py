"""Any file of ours, however damaged, loads or raises an error of ours: never anything else, and never for long."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from loadmaster.cost import price
from loadmaster.errors import LoadmasterError
from loadmaster.files import cluster_from_json, graph_from_json, load_cluster, load_graph, load_plan, plan_to_json
from loadmaster.plans import Plan, check
from tests.fuzz import mutated, spoiled
from tests.unit.files.samples import CLUSTER, GRAPH, changed, op

PROBLEM = price(graph_from_json(changed(GRAPH, op(1, time_ns=5))), cluster_from_json(CLUSTER))
PLAN = json.loads(json.dumps(plan_to_json(Plan.of(PROBLEM, [1, 1, 0]), PROBLEM)))
PLAN["sends"] = [{"tensor": 0, "to": 2, "rank": 1}]
FORMATS: dict[str, tuple[dict[str, Any], Callable[[Path], Any]]] = {
    "graph": (GRAPH, load_graph),
    "cluster": (CLUSTER, load_cluster),
    "plan": (PLAN, load_plan),
}
every_format = pytest.mark.parametrize("kind", FORMATS)


def outcome(kind: str, path: Path, raw: bytes) -> Any:
    """What the file holds, or None where an error of ours says why not."""
    path.write_bytes(raw)
    try:
        return FORMATS[kind][1](path)
    except LoadmasterError as error:
        assert error.what
        return None


@every_format
def test_structure_damaged(kind: str, tmp_path: Path) -> None:
    rng = random.Random(kind)
    for _ in range(400):
        found = outcome(kind, tmp_path / "a.json", json.dumps(mutated(FORMATS[kind][0], rng)).encode())
        if kind == "plan" and found is not None:
            with suppress(LoadmasterError):
                check(found, PROBLEM)


@every_format
@pytest.mark.parametrize("packed", [False, True])
def test_bytes_damaged_and_cut_short(kind: str, packed: bool, tmp_path: Path) -> None:
    rng, raw = random.Random(kind), json.dumps(FORMATS[kind][0]).encode()
    path = tmp_path / f"a.json{'.gz' if packed else ''}"
    raw = gzip.compress(raw) if packed else raw
    for _ in range(150):
        outcome(kind, path, spoiled(raw, rng))
    for tenth in range(11):
        assert (outcome(kind, path, raw[: len(raw) * tenth // 10]) is not None) == (tenth == 10)


@every_format
@pytest.mark.parametrize("depth", [10, 200, 800, 950, 1000, 5000, 100_000])
def test_nested_anywhere(kind: str, depth: int, tmp_path: Path) -> None:
    for key, value in FORMATS[kind][0].items():
        row = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}
        inside = [{key: [{**row, part: "NEST"}]} for part in row]
        for change in ({key: "NEST"}, *inside):
            text = json.dumps({**FORMATS[kind][0], **change})
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                nested = text.replace('"NEST"', opening * depth + "1" + closing * depth)
                outcome(kind, tmp_path / "a.json", nested.encode())
