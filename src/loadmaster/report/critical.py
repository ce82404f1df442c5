"""The critical path: the chain of ops and transfers, without a gap, that makes the step as long as it is.

Found afterwards by walking back from the last op to end, each time to what it waited for: the maker of what it read,
the op before it on its device, the transfer before it on its wire, or the host. There is always one such chain, since a
device never idles while it has a ready op (rule 3 of the simulator); its pieces add up to the step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from loadmaster.report.modules import folded, paths_of
from loadmaster.report.schedule import Schedule

Why = Literal["start", "data", "order", "device", "link", "host"]
MOST_SCOPES = 24  # rows of a table that fit on a screen


@dataclass(frozen=True)
class Piece:
    """One op or transfer of the path. It begins when the piece before it ends.

    `why` says what held it until then: data (it needed what the piece before made or brought), order (it must come
    after it), device or link (it was ready, but the piece before it held its device or its wire), host (it had not been
    asked for: the host was busy until then, and the path starts with it).

    Attributes:
        kind: op or transfer.
        index: kernel, or send.
        name: of the kernel, or of the tensor that is sent.
        scope: module path of the kernel, or of what made the tensor.
        where: device, or "from > to".
        start_ns, end_ns: in the step.
    """

    kind: Literal["op", "transfer"]
    index: int
    name: str
    scope: str
    where: str
    start_ns: int
    end_ns: int
    why: Why

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class ScopeShare:
    """What one module has on the path.

    Attributes:
        scope: module path.
        ops, compute_ns: its ops on the path, and what they take.
        transfers, transfer_ns: the same of transfers of what it makes.
    """

    scope: str
    ops: int
    compute_ns: int
    transfers: int
    transfer_ns: int


@dataclass(frozen=True)
class CriticalPath:
    """Pieces from 0 to the end of the step; their lengths add up to it exactly.

    Attributes:
        pieces: ops and transfers, in order of time.
        by_scope: most time first.
        compute_ns, transfer_ns: of the pieces of either kind.
        queue_ns: of both, pieces that the next one did not need: they only held its device or its wire.
        host_ns: before the first piece: the host asking for kernels, one after another.
    """

    pieces: tuple[Piece, ...]
    by_scope: tuple[ScopeShare, ...]
    compute_ns: int
    transfer_ns: int
    queue_ns: int
    host_ns: int = 0

    @property
    def length_ns(self) -> int:
        return self.compute_ns + self.transfer_ns + self.host_ns


def critical_path(schedule: Schedule) -> CriticalPath:
    """Walks back from the last op to end, each time to what it waited for."""
    last = np.flatnonzero(schedule.end_ns == schedule.step_ns)
    here: tuple[str, int] | None = ("op", int(last[schedule.turn[last].argmax()]))
    pieces: list[Piece] = []
    while here is not None:
        kind, index = here
        why, earlier = _op_blocker(schedule, index) if kind == "op" else _send_blocker(schedule, index)
        pieces.append(_op_piece(schedule, index, why) if kind == "op" else _send_piece(schedule, index, why))
        here = earlier
    return _summed(schedule, tuple(reversed(pieces)))


def _op_blocker(schedule: Schedule, kernel: int) -> tuple[Why, tuple[str, int] | None]:
    """Why a kernel started when it did, and the op or send that ended then. Data comes before queues."""
    graph, start = schedule.problem.graph, schedule.start_ns[kernel]
    part = slice(int(graph.read_start[kernel]), int(graph.read_start[kernel + 1]))
    sends, tensors = schedule.read_send[part], graph.reads[part]
    arrived = sends[sends >= 0]
    arrived = arrived[schedule.timeline.send_end_ns[arrived] == start]
    if len(arrived):
        return "data", ("transfer", int(arrived[0]))
    makers = graph.producer[tensors[sends < 0]]
    for why, ops in (("data", makers[makers >= 0]), ("order", graph.after_of(kernel))):
        ended = ops[schedule.end_ns[ops] == start]
        if len(ended):
            return ("data" if why == "data" else "order"), ("op", int(ended[0]))
    before = int(schedule.previous[kernel])
    if before >= 0 and schedule.end_ns[before] == start:
        return "device", ("op", before)
    return ("host" if start else "start"), None


def _send_blocker(schedule: Schedule, send: int) -> tuple[Why, tuple[str, int] | None]:
    start, tensor = schedule.timeline.send_start_ns[send], schedule.send_tensor[send]
    producer = int(schedule.problem.graph.producer[tensor])
    if producer >= 0 and schedule.end_ns[producer] == start:
        return "data", ("op", producer)
    before = int(schedule.previous_send[send])
    if before >= 0 and schedule.timeline.send_end_ns[before] == start:
        return "link", ("transfer", before)
    return "start", None


def _op_piece(schedule: Schedule, kernel: int, why: Why) -> Piece:
    graph, names = schedule.problem.graph, schedule.problem.cluster.device_names
    where = names[schedule.device[kernel]]
    start, end = int(schedule.start_ns[kernel]), int(schedule.end_ns[kernel])
    return Piece("op", kernel, schedule.label(kernel), graph.scope[kernel], where, start, end, why)


def _send_piece(schedule: Schedule, send: int, why: Why) -> Piece:
    line, names = schedule.timeline, schedule.problem.cluster.device_names
    tensor = int(schedule.send_tensor[send])
    where = f"{names[line.send_src[send]]} > {names[line.send_dst[send]]}"
    scope = schedule.problem.graph.scope[schedule.maker[tensor]]
    start, end = int(line.send_start_ns[send]), int(line.send_end_ns[send])
    return Piece("transfer", send, schedule.tensor_label(tensor), scope, where, start, end, why)


def _summed(schedule: Schedule, pieces: tuple[Piece, ...]) -> CriticalPath:
    spent = {kind: sum(piece.length_ns for piece in pieces if piece.kind == kind) for kind in ("op", "transfer")}
    queued = sum(held.length_ns for held, held_up in pairwise(pieces) if held_up.why in ("device", "link"))
    return CriticalPath(pieces, _by_scope(schedule, pieces), spent["op"], spent["transfer"], queued, pieces[0].start_ns)


def _by_scope(schedule: Schedule, pieces: tuple[Piece, ...]) -> tuple[ScopeShare, ...]:
    paths = paths_of(schedule.problem.graph)
    kernels = [
        piece.index if piece.kind == "op" else int(schedule.maker[schedule.send_tensor[piece.index]])
        for piece in pieces
    ]
    labels = folded([paths[kernel] for kernel in kernels], [piece.length_ns for piece in pieces], MOST_SCOPES)
    counts: dict[str, Counter[str]] = {label: Counter() for label in labels}
    for label, piece in zip(labels, pieces, strict=True):
        counts[label].update({f"{piece.kind}s": 1, piece.kind: piece.length_ns})
    shares = [
        ScopeShare(label, count["ops"], count["op"], count["transfers"], count["transfer"])
        for label, count in counts.items()
    ]
    return tuple(sorted(shares, key=lambda share: -(share.compute_ns + share.transfer_ns)))
