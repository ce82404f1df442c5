"""PyTorch Inductor's orders as methods: its functions decide on our problem, our simulator judges."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from loadmaster.baselines.simple import OneDevice
from loadmaster.bench import _inductor
from loadmaster.errors import MissingExtra
from loadmaster.graph.columns import positions
from loadmaster.plans import Plan
from loadmaster.search import Search

NOTE = "peers decide with their own functions on the same graph and costs; our simulator judges every plan"


def door(module: str) -> Any:
    """A module of torch; MissingExtra with the pip command where torch is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra.of("torch", "torch", "comparing with Inductor's orders") from None


@dataclass(frozen=True)
class Inductor:
    """The orders of PyTorch Inductor (`torch._inductor.memory`), on one device.

    "best" is its `reorder_for_peak_memory`: the best of the given order, lpmf, bfs and dfs by its own estimate.
    """

    rule: Literal["best", "lpmf", "bfs", "dfs"] = "best"

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        memory, virtual = door("torch._inductor.memory"), door("torch._inductor.virtualized")
        device = OneDevice().optimize(search).device
        with _deep(20 * problem.num_ops + 1_000):
            order = _inductor.order(problem, self.rule, memory, virtual)
        return Plan.of(problem, device, positions(order))


@contextmanager
def _deep(frames: int) -> Iterator[None]:
    """Inductor walks chains of ops by recursion."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, frames))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
