"""Known: what is remembered of a plan, small enough to keep many; as bytes and back.

Of an op, no name and no size: what it looks like in its surroundings (`likeness`), its device, its place in the order,
its time. What comes from a file is checked before it is used: an entry may be torn, or anybody's.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InvalidPlan
from loadmaster.files.packing import most_unpacked
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.methods.experience.likeness import LEVELS, Sight
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem

MOST_BYTES = 2**28  # of an entry once unpacked: some 5 million ops


@dataclass(frozen=True, eq=False)
class Known:
    """Of each op what it looks like, where it ran, when, and for how long.

    Attributes:
        place: [ops] in the order in which the plan starts them.
        work: [ops] ns where it ran.
        speed: [devices] of the ops that all of them can run, the fastest 1.
    """

    sight: Sight
    device: Ints  # [ops]
    place: Ints  # [ops]
    work: Ints  # [ops]
    speed: NDArray[np.float64]  # [devices]

    @staticmethod
    def of(problem: Problem, plan: Plan, scopes: bool = True) -> Known:
        own = np.arange(problem.num_ops)
        place = positions(np.lexsort((own, plan.rank)))
        work = ints(problem.op_ns[own, plan.device])
        return Known(Sight.of(problem.graph, scopes), plan.device, place, work, speeds(problem))

    def to_bytes(self) -> bytes:
        """Compressed columns; the classes as a dictionary and numbers into it, since most of them repeat."""
        columns: dict[str, NDArray[Any]] = {
            "module": self.sight.module.astype(np.uint32),
            "pattern": self.sight.pattern.astype(np.uint32),
            "device": self.device.astype(np.uint16),
            "place": self.place.astype(np.uint32),
            "work": self.work,
            "speed": self.speed.astype("<f8"),
        }
        for level, row in enumerate(self.sight.classes):
            classes, number = np.unique(row, return_inverse=True)
            columns[f"class{level}"], columns[f"number{level}"] = classes, number.astype(np.uint32)
        names = json.dumps({name: column.dtype.str for name, column in columns.items()})
        sizes = np.array([len(column) for column in columns.values()], "<u4").tobytes()
        packed = zlib.compress(b"".join(column.tobytes() for column in columns.values()), 6)
        return names.encode() + b"\n" + sizes + packed

    def to_text(self) -> str:
        """For a JSON file."""
        return base64.b64encode(self.to_bytes()).decode()

    @staticmethod
    def from_text(text: object, where: str) -> Known:
        try:
            return Known.from_bytes(base64.b64decode(str(text), validate=True), where)
        except binascii.Error as error:
            raise InvalidPlan("what it remembers of its plan is torn", where, "plan again") from error

    @staticmethod
    def from_bytes(data: bytes, where: str) -> Known:
        try:
            columns = _columns(data)
            classes = [columns[f"class{level}"][columns[f"number{level}"]] for level in range(LEVELS)]
            sight = Sight(np.array(classes, np.uint32), ints(columns["module"]), ints(columns["pattern"]))
            numbers = (ints(columns["device"]), ints(columns["place"]), ints(columns["work"]))
            known = Known(sight, *numbers, columns["speed"].astype(np.float64))
            _check(known)
        except (KeyError, ValueError, IndexError, TypeError, AttributeError, zlib.error) as error:
            what = f"what it remembers of a plan cannot be read ({error})"
            raise InvalidPlan(what, where, "plan again, or give a plan file that this version wrote") from error
        return known


def speeds(problem: Problem) -> NDArray[np.float64]:
    """[devices] how fast each runs the ops that all of them can, the fastest 1."""
    everywhere = (problem.op_ns != CANNOT).all(axis=1)
    total = problem.op_ns[everywhere].sum(axis=0) if everywhere.any() else np.ones(problem.num_devices)
    rate: NDArray[np.float64] = 1.0 / np.maximum(1, total)
    shares: NDArray[np.float64] = rate / rate.max()
    return shares


def _columns(data: bytes) -> dict[str, NDArray[Any]]:
    head, _, rest = data.partition(b"\n")
    kinds = {str(name): np.dtype(str(kind)) for name, kind in json.loads(head).items()}
    if len(rest) < 4 * len(kinds) or any(kind.hasobject for kind in kinds.values()):
        raise ValueError("it is torn")
    sizes = np.frombuffer(rest[: 4 * len(kinds)], "<u4").tolist()
    lengths = [size * kind.itemsize for size, kind in zip(sizes, kinds.values(), strict=True)]
    if sum(lengths) > min(MOST_BYTES, most_unpacked(len(rest))):
        raise ValueError("it unpacks to more than any plan needs")
    raw = zlib.decompressobj().decompress(rest[4 * len(kinds) :], sum(lengths) + 1)
    if len(raw) != sum(lengths):
        raise ValueError("it is torn")
    ends = np.cumsum([0, *lengths]).tolist()
    parts = zip(kinds.items(), ends[:-1], ends[1:], strict=True)
    return {name: np.frombuffer(raw[begin:end], kind) for (name, kind), begin, end in parts}


def _check(known: Known) -> None:
    """No index leaves its column, whatever the bytes say."""
    ops, devices = known.sight.classes.shape[1], len(known.speed)
    for column in (known.sight.module, known.device, known.place, known.work):
        if column.shape != (ops,):
            raise ValueError("its columns differ in length")
    for column, size in ((known.sight.module, len(known.sight.pattern)), (known.device, devices), (known.place, ops)):
        if len(column) and not (column.min() >= 0 and column.max() < size):
            raise ValueError("a number in it is out of range")
    if not ops or not devices or not (np.isfinite(known.speed) & (known.speed > 0)).all():
        raise ValueError("it describes no plan")
    if (known.work < 0).any():
        raise ValueError("a number in it is negative")
