"""Devices that no op tells apart as one kind, and what work costs on them: what bounds on time start from.

Eight equal GPUs are one kind with a count. `work_of` prices device time so that any set of ops keeps the devices busy
for at least the sum of their work ÷ share: the dual of the linear program that spreads ops over devices in fractions,
found about, by multiplicative weights (`levels.prices`). Any prices give a bound, good ones a high one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Ints, digest, ints, numbered
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.bounds import levels
from loadmaster.problem.bounds.kernels import Fusing, least_times


@dataclass(frozen=True, eq=False)
class Kinds:
    """Devices that no op tells apart, as one kind.

    Attributes:
        times: [ops, kinds] the least an op adds to a device's work.
        count: [kinds] devices.
        memory: [kinds] bytes of each.
        sends: [tensors, columns] times of sends.
        column: [kinds, kinds] the column with the least time from one kind to another, or within it.
    """

    times: Ints  # [ops, kinds]
    count: Ints  # [kinds]
    memory: Ints  # [kinds]
    sends: Ints  # [tensors, columns]
    column: Ints  # [kinds, kinds]


def kinds_of(problem: Problem, fusing: Fusing, fitting: bool) -> Kinds:
    """Of a problem, with the times that fusing leaves at least. `fitting`: what a device cannot hold by itself cannot
    run there, and devices of unlike memory are unlike."""
    times = least_times(problem, fusing)
    limits = problem.memory_bytes if fitting else np.zeros_like(problem.memory_bytes)
    if fitting:
        from loadmaster.problem.bounds.holding import device_bytes

        full = device_bytes(problem, fusing)[:, None] > problem.memory_bytes[None, :]
        if ((times == CANNOT) | full).all(axis=1).any():  # nothing fits, so no bound can be wrong
            full[:] = False
        times = np.where(full, CANNOT, times)
    kind_of = numbered((digest(times[:, device]), int(limits[device])) for device in range(problem.num_devices))
    first = np.unique(kind_of, return_index=True)[1]
    return Kinds(
        ints(times[:, first]), ints(np.bincount(kind_of)), ints(problem.memory_bytes[first]), *_sends(problem, kind_of)
    )


def _sends(problem: Problem, kind_of: Ints) -> tuple[Ints, Ints]:
    kinds = int(kind_of.max()) + 1
    sends, column = problem.send_ns, np.zeros((kinds, kinds), np.int64)
    for src, dst in np.ndindex(kinds, kinds):
        pairs = (kind_of == src)[:, None] & (kind_of == dst)[None, :] & ~np.eye(len(kind_of), dtype=bool)
        classes = np.unique(problem.send_class[pairs])
        if len(classes) > 1:
            column[src, dst] = sends.shape[1]
            sends = ints(np.column_stack([sends, problem.send_ns[:, classes].min(axis=1)]))
        elif len(classes):
            column[src, dst] = classes[0]
    return sends, ints(column)


def work_of(kinds: Kinds) -> tuple[Ints, int]:
    """(work, share): any set of ops keeps the devices busy for at least the sum of its work ÷ share.

    For any price of device time that adds up to 1 over all devices, that is so of sum over ops of min over devices of
    price x time: the dual of spreading ops over devices in fractions.
    """
    if len(kinds.count) == 1:
        return ints(kinds.times[:, 0]), int(kinds.count[0])
    price = levels.prices(kinds.times, kinds.count, 4096, 60)
    # Thousandths of a ns, unless the sums would pass what an integer holds.
    scale = 1024 if float(kinds.times.max(axis=1).sum()) < 2**50 else 1
    return levels.cheapest(kinds.times, price, scale), scale
