"""Bottleneck: what the step is made of, along its critical path, with the evidence for every sentence.

Computing, sending, waiting for a device or a link that is taken, or the host: what takes most of the path is named,
with the module that holds most of it and what the other devices do meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from loadmaster.report.critical import CriticalPath, Piece
from loadmaster.report.modules import NO_SCOPE, folded, paths_of
from loadmaster.report.occupancy import WireLoad
from loadmaster.report.schedule import Schedule
from loadmaster.report.units import percent, time_text

if TYPE_CHECKING:
    from loadmaster.report.whatif import WhatIf

EvidenceKind = Literal["", "op", "send", "device", "wire", "peak"]
MODULES = 12  # of which the one with most of the path is named
WORTH = 0.02  # a share under this is not told


@dataclass(frozen=True)
class Sentence:
    """A sentence and what it is about.

    Attributes:
        text: in words.
        kind: of what it points to: kernels, sends, devices, links or a device's peak; "": nothing.
        indexes: their numbers.
    """

    text: str
    kind: EvidenceKind = ""
    indexes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bottleneck:
    """What takes most of the critical path.

    Attributes:
        name: computing, transfers, queues or launches; for an objective of memory: memory.
        share: of the step.
        sentences: with their evidence, the main one first.
    """

    name: str
    share: float
    sentences: tuple[Sentence, ...]


def bottleneck(schedule: Schedule, path: CriticalPath, wires: tuple[WireLoad, ...]) -> Bottleneck:
    """Of the step time."""
    step = max(1, schedule.step_ns)
    queued = [before for before, after in pairwise(path.pieces) if after.why in ("device", "link")]
    sends = [piece for piece in path.pieces if piece.kind == "transfer"]
    parts = {"computing": path.compute_ns / step, "transfers": path.transfer_ns / step, "launches": path.host_ns / step}
    name = max(parts, key=lambda part: parts[part])
    lines = [_heaviest(schedule, path), *_idle(schedule, path)]
    if sends:
        lines.append(_transfers(path, sends, wires, step))
    if name == "transfers":
        lines.insert(0, lines.pop())
    if path.queue_ns > WORTH * step:
        what = f"For {percent(path.queue_ns, step)} of the critical path, ready work waits for a busy device or link."
        lines.append(Sentence(what, "op", tuple(piece.index for piece in queued if piece.kind == "op")))
    return Bottleneck(name, parts[name], tuple(lines))


def with_hardware(found: Bottleneck, ifs: Sequence[WhatIf], step_ns: int) -> Bottleneck:
    """The same, and which change of the hardware would gain most."""
    best = max(ifs, key=lambda row: row.gain, default=None)
    if best is None or best.gain <= WORTH * max(1, step_ns):
        return found
    said = Sentence(f"With {best.change}, this plan would take {time_text(best.step_ns)}.")
    return replace(found, sentences=(*found.sentences, said))


def _heaviest(schedule: Schedule, path: CriticalPath) -> Sentence:
    """The module with most computing on the path."""
    ops = [piece for piece in path.pieces if piece.kind == "op"]
    paths = paths_of(schedule.problem.graph)
    labels = folded([paths[piece.index] for piece in ops], [piece.length_ns for piece in ops], MODULES)
    total: dict[str, int] = {}
    for label, piece in zip(labels, ops, strict=True):
        total[label] = total.get(label, 0) + piece.length_ns
    heavy = max(total, key=lambda label: total[label])
    mine = [piece for label, piece in zip(labels, ops, strict=True) if label == heavy]
    mine.sort(key=lambda piece: -piece.length_ns)
    where = sorted({piece.where for piece in mine})
    on = where[0] if len(where) == 1 else f"{len(where)} devices"
    share = percent(path.compute_ns, schedule.step_ns)
    many = f"{len(mine):,} op{'s' if len(mine) > 1 else ''}"
    text = f"Computing is {share} of the critical path"
    if heavy != NO_SCOPE or len(mine) < len(ops):
        text += f"; '{heavy}' on {on} is {percent(total[heavy], schedule.step_ns)} ({many})"
    return Sentence(f"{text}.", "op", tuple(piece.index for piece in mine))


def _idle(schedule: Schedule, path: CriticalPath) -> list[Sentence]:
    """What devices do while others work on the path."""
    if schedule.num_devices < 2:
        return []
    busy = np.bincount(schedule.device, schedule.end_ns - schedule.start_ns, schedule.num_devices)
    idle = schedule.step_ns - busy
    names = schedule.problem.cluster.device_names
    lazy = int(idle.argmax())
    mean = percent(float(idle.sum()), schedule.step_ns * schedule.num_devices)
    text = f"Devices are idle {mean} of the step, most of all {names[lazy]}: {time_text(int(idle[lazy]))}."
    return [Sentence(text, "device", (lazy,))]


def _transfers(path: CriticalPath, sends: list[Piece], wires: tuple[WireLoad, ...], step: int) -> Sentence:
    busiest = wires[0]
    busy = f"the busiest link, {busiest.name}, is busy for {percent(busiest.busy_ns, step)} of the step"
    text = f"Transfers are {percent(path.transfer_ns, step)} of the critical path; {busy}."
    return Sentence(text, "send", tuple(piece.index for piece in sends))
