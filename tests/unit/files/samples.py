"""One graph and one cluster as JSON, and ways to change them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

ENDINGS = (".json", ".json.gz", ".json.xz")
Data = dict[str, Any]

# x ─▶ mul ─▶ h ─▶ view ─▶ v ─▶ add ─▶ y, then step writes w in place
GRAPH: Data = {
    "schema": "loadmaster.graph/1",
    "name": "small",
    "ops": [
        {
            "name": "step",
            "kind": "sgd",
            "flops": 10,
            "inputs": ["w"],
            "outputs": ["w2"],
            "colocate": "w",
            "after": ["mul"],
        },
        {
            "name": "add",
            "kind": "add",
            "flops": 100,
            "inputs": [2, "b"],
            "outputs": ["y"],
            "bytes_moved": 7,
            "time_ns": [5, None],
        },
        {"name": "view", "kind": "view", "flops": 0, "inputs": ["h"], "outputs": [2]},
        {
            "name": "mul",
            "kind": "mul",
            "flops": 2000,
            "inputs": [0, "w", 0],
            "outputs": ["h"],
            "scope": "layer.0",
            "source": "model.py:3",
            "dtype": "float16",
            "workspace_bytes": 64,
            "colocate": "w",
            "time_ns": 9,
        },
    ],
    "tensors": [
        {"id": 0, "bytes": 400, "role": "input", "shape": [10, 10], "dtype": "float32", "alias_of": None},
        {"id": "w", "bytes": 800, "role": "weight"},
        {"id": "b", "bytes": 8, "role": "weight", "dtype": "float64"},
        {"id": "h", "bytes": 400, "role": "activation"},
        {"id": 2, "bytes": 100_000, "role": "activation", "alias_of": "h", "shape": []},
        {"id": "y", "bytes": 400, "role": "output"},
        {"id": "w2", "bytes": 800, "role": "weight", "alias_of": "w"},
    ],
}
CLUSTER: Data = {
    "schema": "loadmaster.cluster/1",
    "name": "three",
    "devices": [
        {"name": "a", "kind": "gpu", "memory_bytes": 1000, "flops_per_s": 1e9, "bytes_per_s": 1e9, "launch_ns": 3},
        {
            "name": "b", "kind": "gpu", "memory_bytes": 2000, "flops_per_s": {"default": 1e9, "float16": 2e9},
            "bytes_per_s": 1e9, "launch_ns": 0,
        },
        {"name": "c", "kind": "cpu", "memory_bytes": 3000, "flops_per_s": 10, "bytes_per_s": 10, "launch_ns": 0},
    ],
    "links": [
        {"from": "a", "to": "b", "bytes_per_s": 1e9, "latency_ns": 5, "channel": 7},
        {"from": "b", "to": "a", "bytes_per_s": None, "latency_ns": 0, "channel": "wire"},
    ],
    "default_link": {"bytes_per_s": 1e6, "latency_ns": 50},
}  # fmt: skip


def changed(data: Data, change: Callable[[Data], object]) -> Data:
    copied = copy.deepcopy(data)
    change(copied)
    return copied


def same(one: Any, other: Any) -> bool:
    """Every field of two dataclasses equal."""
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    return all(
        np.array_equal(a, b) and np.shape(a) == np.shape(b) if isinstance(a, np.ndarray) else a == b for a, b in pairs
    )


def op(number: int, **fields: Any) -> Callable[[Data], object]:
    return lambda graph: graph["ops"][number].update(fields)


def tensor(number: int, **fields: Any) -> Callable[[Data], object]:
    return lambda graph: graph["tensors"][number].update(fields)


def without(part: str, number: int, key: str) -> Callable[[Data], object]:
    return lambda data: data[part][number].pop(key)
