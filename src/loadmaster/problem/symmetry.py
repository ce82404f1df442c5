"""Symmetry: devices that can change names without any plan costing more or less.

Branch and bound looks at one of such plans only; before two plans are compared op by op, one is renamed.
"""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Bools
from loadmaster.problem.problem import Problem


def alike_devices(problem: Problem) -> Bools:
    """[devices, devices] swapping the two leaves all times, links, wires and limits as they are."""
    devices = problem.num_devices
    alike = np.zeros((devices, devices), bool)
    for one in range(devices):
        for two in range(one + 1, devices):
            alike[one, two] = alike[two, one] = _swappable(problem, one, two)
    return alike


def _swappable(problem: Problem, one: int, two: int) -> bool:
    swap = np.arange(problem.num_devices)
    swap[[one, two]] = two, one
    apart = ~np.eye(problem.num_devices, dtype=bool)
    channel = problem.cluster.channel
    wires = np.unique(np.column_stack([channel[apart], channel[np.ix_(swap, swap)][apart]]), axis=0)
    renamed = len(np.unique(wires[:, 0])) == len(wires)  # and so the other way: swapping twice changes nothing
    return bool(
        problem.device_kind[one] == problem.device_kind[two]
        and (problem.send_class[apart] == problem.send_class[np.ix_(swap, swap)][apart]).all()
        and renamed
    )
