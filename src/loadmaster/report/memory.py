"""Where the memory goes: what is alive when a device holds the most, and what brought it there.

At the moment of each device's peak, by role and by module, and the op or transfer that began just then. Bytes add up to
the peak exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadmaster.graph import ROLES
from loadmaster.graph.columns import Ints
from loadmaster.report.lives import Lives, Moments, lives, moments
from loadmaster.report.modules import folded, paths_of
from loadmaster.report.schedule import Schedule

WORKSPACE, RECEIVED = "workspace", "received copy"
MOST_SCOPES = 24  # rows of a table that fit on a screen
MOST_TENSORS = 40  # at a peak; the rest have a row together


@dataclass(frozen=True)
class MemoryPart:
    """Bytes of one module and role that are alive at a peak.

    Attributes:
        scope: module path.
        role: of the tensors, as in the graph.
        tensors: how many.
        nbytes: together.
    """

    scope: str
    role: str
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class AliveTensor:
    """A tensor that is in memory at the peak of a device.

    Attributes:
        name, role, scope, nbytes: of the tensor.
        since_ns: when it came.
        until_ns: None: to the end of the step.
    """

    name: str
    role: str
    scope: str
    nbytes: int
    since_ns: int
    until_ns: int | None


@dataclass(frozen=True)
class Cause:
    """What began when the peak was reached.

    Attributes:
        kind: op, transfer, or the start of the step.
        name, scope: of the op, or of the tensor that is received.
        nbytes: what it brought.
    """

    kind: Literal["op", "transfer", "start"]
    name: str
    scope: str
    nbytes: int


@dataclass(frozen=True)
class Peak:
    """A device at its fullest, the first time; `parts` add up to it exactly.

    Attributes:
        device: its name.
        peak_bytes: what it holds.
        limit_bytes: what it has.
        at_ns: when.
        cause: what began then.
        by_role: most bytes first.
        parts: most bytes first.
        largest: tensors that are there, largest first.
    """

    device: str
    peak_bytes: int
    limit_bytes: int
    at_ns: int
    cause: Cause
    by_role: tuple[tuple[str, int], ...]
    parts: tuple[MemoryPart, ...]
    largest: tuple[AliveTensor, ...]


def peaks(schedule: Schedule) -> tuple[Peak, ...]:
    """For each device, the moment at which it holds most, and what it holds then; bytes add up exactly."""
    when = moments(schedule)
    held = lives(schedule, when)
    paths = paths_of(schedule.problem.graph)
    return tuple(_peak(schedule, when, held, device, paths) for device in range(schedule.num_devices))


def _peak(schedule: Schedule, when: Moments, held: Lives, device: int, paths: list[tuple[str, ...]]) -> Peak:
    mine = np.flatnonzero(held.device == device)
    moment = _fullest(held.begin[mine], held.finish[mine], held.nbytes[mine])
    alive = mine[(held.begin[mine] <= moment) & (moment < held.finish[mine])]
    alive = alive[np.argsort(-held.nbytes[alive], kind="stable")]
    parts = _parts(schedule, held, alive, paths)
    roles = {part.role for part in parts}
    by_role = [(role, sum(part.nbytes for part in parts if part.role == role)) for role in sorted(roles)]
    return Peak(
        schedule.problem.cluster.device_names[device],
        int(held.nbytes[alive].sum()),
        int(schedule.problem.memory_bytes[device]),
        when.ns(moment),
        _cause(schedule, held, alive, moment),
        tuple(sorted(by_role, key=lambda row: -row[1])),
        parts,
        tuple(_alive(schedule, when, held, int(index)) for index in alive[:MOST_TENSORS]),
    )


def _fullest(begin: Ints, finish: Ints, nbytes: Ints) -> int:
    """The first moment at which the most bytes are alive; -1: before anything has begun."""
    instants = np.unique(np.concatenate([[-1], begin]))
    change = np.zeros(len(instants) + 1, np.int64)
    np.add.at(change, np.searchsorted(instants, begin), nbytes)
    np.add.at(change, np.searchsorted(instants, finish), -nbytes)
    return int(instants[np.cumsum(change[:-1]).argmax()])


def _role(schedule: Schedule, held: Lives, index: int) -> str:
    if held.received[index]:
        return RECEIVED
    tensor = int(held.tensor[index])
    return WORKSPACE if tensor < 0 else ROLES[schedule.problem.graph.role[tensor]]


def _parts(schedule: Schedule, held: Lives, alive: Ints, paths: list[tuple[str, ...]]) -> tuple[MemoryPart, ...]:
    where = [paths[kernel] if kernel >= 0 else () for kernel in held.kernel[alive].tolist()]
    labels = folded(where, held.nbytes[alive].tolist(), MOST_SCOPES)
    total: dict[tuple[str, str], list[int]] = {}
    for label, index in zip(labels, alive.tolist(), strict=True):
        entry = total.setdefault((label, _role(schedule, held, index)), [0, 0])
        entry[0] += 1
        entry[1] += int(held.nbytes[index])
    parts = [MemoryPart(scope, role, count, nbytes) for (scope, role), (count, nbytes) in total.items()]
    return tuple(sorted(parts, key=lambda part: (-part.nbytes, part.scope, part.role)))


def _cause(schedule: Schedule, held: Lives, alive: Ints, moment: int) -> Cause:
    """The op or the transfer that brought the most bytes at that moment."""
    new = alive[held.begin[alive] == moment]
    if moment < 0 or not len(new):
        return Cause("start", "what is there before the step", "", int(held.nbytes[new].sum()))
    graph, totals = schedule.problem.graph, dict[tuple[bool, int], int]()
    for index in new.tolist():
        key = bool(held.received[index]), int(held.tensor[index] if held.received[index] else held.kernel[index])
        totals[key] = totals.get(key, 0) + int(held.nbytes[index])
    (sent, index), nbytes = max(totals.items(), key=lambda item: item[1])
    if sent:
        return Cause("transfer", schedule.tensor_label(index), graph.scope[schedule.maker[index]], nbytes)
    return Cause("op", schedule.label(index), graph.scope[index], nbytes)


def _alive(schedule: Schedule, when: Moments, held: Lives, index: int) -> AliveTensor:
    graph = schedule.problem.graph
    tensor, kernel, finish = int(held.tensor[index]), int(held.kernel[index]), int(held.finish[index])
    name = schedule.tensor_label(tensor) if tensor >= 0 else f"workspace of {graph.op_name[kernel]}"
    until = when.ns(finish) if finish < when.rounds * len(when.instant_ns) else None
    since = when.ns(int(held.begin[index]))
    scope = graph.scope[kernel] if kernel >= 0 else ""
    return AliveTensor(name, _role(schedule, held, index), scope, int(held.nbytes[index]), since, until)
