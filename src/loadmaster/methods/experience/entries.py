"""Entries: a plan as it is kept, a head that says what it is of and then what is known of it; and which are alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.errors import InvalidPlan
from loadmaster.methods.experience.known import Known
from loadmaster.methods.experience.likeness import Sight
from loadmaster.search import Result

MAGIC = b"loadmaster known plan 1\n"
MOST_HEADER = 4096  # bytes that are read to list a plan without reading it
SKETCHED = 64  # smallest hashes kept of a graph's classes: likeness to within about 0.06 (Broder 1997)


@dataclass(frozen=True)
class PlanHead:
    """What the head of a kept plan says.

    Attributes:
        name: of the file, or of the member of a library.
        devices: not said by files of older versions.
        scopes: whether the names of modules are part of what its ops look like.
    """

    name: str
    model: str
    cluster: str
    objective: str
    value: int
    ops: int
    sketch: tuple[int, ...]
    devices: int | None = None
    scopes: bool = True

    @property
    def origin(self) -> str:
        return f"{self.model} on {self.cluster}"


def sketch_of(sight: Sight) -> tuple[int, ...]:
    """The smallest hashes of the classes that occur, at the level of two steps around an op."""
    return tuple(int(name) for name in np.unique(sight.classes[2])[:SKETCHED])


def alike(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The share that two sets of classes have in common, from their smallest hashes."""
    smallest = sorted({*one, *other})[:SKETCHED]
    return len({*smallest} & {*one} & {*other}) / max(1, len(smallest))


def packed(result: Result, scopes: bool = True) -> bytes:
    """An entry of the plan that was found; without `scopes`, for graphs whose modules have other names."""
    problem = result.problem
    known = Known.of(problem, result.plan, scopes)
    head = {
        "model": problem.source.name[:200],
        "cluster": problem.cluster.name[:200],
        "objective": problem.objective.name,
        "value": result.value,
        "ops": problem.num_ops,
        "sketch": sketch_of(known.sight),
        "devices": problem.num_devices,
        "scopes": scopes,
    }
    return MAGIC + json.dumps(head).encode() + b"\n" + known.to_bytes()


def head_of(data: bytes, name: str) -> PlanHead | None:
    """Of the first bytes of an entry; None for what is none of ours."""
    if not data.startswith(MAGIC):
        return None
    try:
        head: Any = json.loads(data[len(MAGIC) :].split(b"\n", 1)[0])
        model, cluster, objective = (str(head[key]) for key in ("model", "cluster", "objective"))
        sketch = tuple(int(number) for number in head["sketch"])
        devices = None if head.get("devices") is None else int(head["devices"])
        numbers = (int(head["value"]), int(head["ops"]), sketch, devices)
        return PlanHead(name, model, cluster, objective, *numbers, bool(head.get("scopes", True)))
    except (ValueError, KeyError, TypeError):
        return None


def known_of(data: bytes, where: str) -> Known:
    """What an entry knows of its plan."""
    end = data.find(b"\n", len(MAGIC))
    if not data.startswith(MAGIC) or end < 0:
        raise InvalidPlan("this is no plan that was kept", where, "remove it")
    return Known.from_bytes(data[end + 1 :], where)
