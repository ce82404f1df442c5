"""Bound on the peak: what one device must hold at once, and what all hold together.

The larger of two: for each op, what must lie on its own device when it starts or when the step ends (`holding`); and
for all devices together, residents and the largest minimum cut (`cuts`), shared out evenly.
"""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import Problem
from loadmaster.problem.bounds.among import Work
from loadmaster.problem.bounds.holding import Storages, device_bytes
from loadmaster.problem.bounds.kernels import Fusing, Sharing, copying

EFFORT = 150_000_000  # arcs that minimum cuts may look at: about a second
ARC_NS = 6.7  # what work counts for one


def peak_bound(problem: Problem, *, fusing: Fusing = False, adding: bool = False, allowed: Work | None = None) -> int:
    """Of the largest device peak: what one device must hold at once, and what all hold together, shared out evenly.

    Together they hold the residents and, whenever an op starts, what the ops before it have made and others still need:
    no less than a minimum cut through the graph at that op (`adding`: but what is made again need not be held).
    `allowed`, and EFFORT, limit the search for the op with the largest.
    """
    allowed = allowed or Work()
    devices = problem.num_devices
    fusing = copying(problem, fusing) if adding else fusing
    alone = int(device_bytes(problem, fusing, adding and devices > 1).max())
    memory = Storages(problem, fusing)
    residents, kept = memory.resident_bytes, memory.kept_bytes
    alone = max(alone, -(-(residents + kept) // devices))
    if adding or (fusing and not isinstance(fusing, Sharing)):
        return max(alone, -(-(residents + memory.last_bytes) // devices))
    from loadmaster.problem.bounds.cuts import largest_cut

    # A cut that does not lift the bound over `alone` need not be looked for.
    floor = max(0, alone * devices - residents)
    effort = int(min(EFFORT, allowed.left_ns / ARC_NS))
    cut, _, left = largest_cut(memory.net, np.arange(problem.num_ops), floor, effort)
    allowed.add(ARC_NS * (effort - left))
    allowed.left_out = allowed.left_out or bool(left <= 0)
    return max(alone, -(-(residents + int(cut)) // devices))


def cut_order(problem: Problem, *, effort: int = EFFORT) -> Ints:
    """[ops] ops in the order of lowest peak, all on one device, that the search for the largest cut meets."""
    from loadmaster.problem.bounds.cuts import largest_cut

    return ints(largest_cut(Storages(problem).net, np.arange(problem.num_ops), 0, effort)[1])
