"""From what a policy says of groups to plans: devices and ranks of ops, legal and ready to be simulated.

Policies score groups; the simulator wants ops. Devices go from group to member, repaired where an op cannot run there,
ranks follow the critical path under the placement, and a level of a policy moves an op forward or back from that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import Problem

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
LEVELS = 20  # of priority; the middle one leaves an op where the critical-path order has it
REACH = 0.25  # of the step: how far the last level moves an op


def device_of_groups(problem: Problem, label: Ints, group_device: NDArray[np.integer]) -> Ints:
    """[samples, ops] where each op runs when its group is placed so; [ops] for one sample."""
    rows = np.atleast_2d(group_device)[:, label]
    placed = np.stack([legal(problem, ints(row)) for row in rows])
    return ints(placed if np.ndim(group_device) > 1 else placed[0])


def critical_ranks(problem: Problem, device: Ints) -> Ints:
    """[samples, ops] ranks by the longest way to the end under each placement, sends included."""
    return ints(np.stack([critical_rank(problem, ints(row)) for row in device]))


def ranks_with_levels(rank: Ints, level: NDArray[np.integer], levels: int = LEVELS) -> Ints:
    """[samples, ops] the ranks with each op moved forward or back by its level; the middle level: not at all."""
    count = rank.shape[1]
    middle = levels // 2
    shift = (level - middle) / max(1, middle)
    moved = rank + REACH * count * np.sign(shift) * shift**2
    order = np.lexsort((rank, moved), axis=1)
    result = np.empty_like(rank)
    np.put_along_axis(result, order, np.broadcast_to(np.arange(count), rank.shape), axis=1)
    return ints(result)
