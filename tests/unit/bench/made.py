"""Records and a tiny suite made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from loadmaster.bench.records import RunRecord
from loadmaster.bench.rows import Source, SuiteRow
from loadmaster.bench.suite import Allowance, Suite
from tests.graphs.tiny import chain, diamond, fork, pair

BASE = "base"


def record(graph: str, spec: str, value: int, seed: int = 0, **others: Any) -> RunRecord:
    known = {"bound": 50, "ops": 4, "devices": 2, "simulations": 100, "seconds": 0.5, **others}
    return RunRecord(
        graph, f"digest-{graph}", "pair", "c", "peak-memory", spec, "100 simulations", seed, value=value, **known
    )


def tiny_rows(source: Source, memory_bytes: int = 2**30) -> Iterator[SuiteRow]:
    for make in (chain, diamond, fork):
        graph = make()
        yield SuiteRow(graph.name, graph.digest, partial(lambda same: same, graph), pair(memory_bytes), "step-time")


def tiny_suite(**others: Any) -> Suite:
    settings: dict[str, Any] = {
        "name": "tiny",
        "title": "Three tiny graphs",
        "shape": "improvement",
        "rows": tiny_rows,
        "baseline": "one-device",
        "specs": ("heft", "etf"),
        "allowance": Allowance(simulations=20),
        "baseline_allowance": Allowance(simulations=10),
        "focus": "etf",
        **others,
    }
    return Suite(**settings)
