"""Lower bounds: what no plan can beat. Each holds for every placement, order and, when asked, fusion."""

from __future__ import annotations

import numpy as np

from loadmaster.columns import Ints, ints, rows_of
from loadmaster.problem import CANNOT, Problem


def lower_bound(problem: Problem, *, fusing: bool = False) -> int:
    """Of the problem's objective. `fusing`: over plans that may fuse ops, too."""
    if problem.objective == "step-time":
        return step_bound(problem, fusing=fusing)
    return peak_bound(problem, fusing=fusing)


def step_bound(problem: Problem, *, fusing: bool = False) -> int:
    """Of the step time: the critical path on the best devices, and the work shared out among all of them."""
    times = _least_times(problem, fusing)
    return max(_path_bound(problem, times, fusing), _work_bound(times), 0)


def _least_times(problem: Problem, fusing: bool) -> Ints:
    """[ops, devices] the least an op adds to a device's work; fusing may save its launch and all its traffic."""
    if not fusing:
        return problem.op_ns
    if (problem.fixed_ns < 0).any():  # a given time under one launch: fusing it takes time off its neighbours
        return ints(np.where(problem.op_ns == CANNOT, CANNOT, 0))
    return ints(np.where(problem.op_ns == CANNOT, CANNOT, problem.compute_ns + problem.fixed_ns))


def _path_bound(problem: Problem, times: Ints, fusing: bool) -> int:
    """The longest chain of ops. A fused kernel hides a chain's launches but not its arithmetic."""
    from loadmaster._order import longest_path_to

    best = np.where(times == CANNOT, np.iinfo(np.int64).max, times).min(axis=1)
    start, before = problem.graph.dependencies
    path = int(longest_path_to(start, before, best).max())
    return path + (int(problem.launch_ns.min()) if fusing and path else 0)


def _work_bound(times: Ints) -> int:
    """No step is shorter than sum over ops of min over devices of share[d] * time[op, d], for any shares that add up to 1.

    That is the dual of spreading ops over devices in fractions; a few steps of multiplicative weights find good shares.
    """
    devices = times.shape[1]
    usable = np.where(times == CANNOT, np.inf, times.astype(np.float64))
    share = np.full(devices, 1.0 / devices)
    best = 0.0
    for _ in range(60 if devices > 1 and not (times == times[:, :1]).all() else 1):
        weighted = usable * share
        chosen = weighted.argmin(axis=1)
        best = max(best, float(weighted[np.arange(len(times)), chosen].sum()))
        load = np.bincount(chosen, weights=usable[np.arange(len(times)), chosen], minlength=devices)
        if load.max() <= 0:
            break
        # A device that draws too much work is priced higher, so that the others look better.
        share = share * np.exp(0.3 * load / load.max())
        share /= share.sum()
    # One part in 10^9 for the rounding of the sums above.
    return int(np.floor(best * (1 - 1e-9)))


def peak_bound(problem: Problem, *, fusing: bool = False) -> int:
    """Of the largest device peak: an op's own working set, and what the residents and a cut through the step leave each device."""
    devices = problem.num_devices
    held = _resident_bytes(problem)
    if fusing:
        return -(-held // devices)
    return max(_working_set(problem), -(-(held + _forced_live(problem)) // devices))


def _resident_bytes(problem: Problem) -> int:
    """Every resident tensor that is read or updated is on at least one device for the whole step."""
    graph = problem.graph
    used = problem.updater >= 0
    used[graph.reads] = True
    return int(graph.nbytes[used & problem.resident].sum())


def _working_set(problem: Problem) -> int:
    """The largest op: what it reads, makes and needs while it runs is on one device at once."""
    graph = problem.graph
    total = graph.workspace_bytes.copy()
    np.add.at(total, rows_of(graph.read_start), _own_bytes(problem)[graph.reads])
    np.add.at(total, rows_of(graph.make_start), _new_bytes(problem)[graph.makes])
    return int(total.max())


def _new_bytes(problem: Problem) -> Ints:
    return ints(np.where(problem.graph.alias_of >= 0, 0, problem.graph.nbytes))


def _own_bytes(problem: Problem) -> Ints:
    """Bytes that a read of the tensor is sure to occupy: one written in place may lie in a base that is read as well."""
    return _new_bytes(problem)


def _forced_live(problem: Problem) -> int:
    """The most bytes of made tensors that must be alive somewhere while some op runs: made before it, needed at or after it.

    Only tensors made by its ancestors and read by itself or its descendants are certain; for speed this looks at each
    op's own reads and makes, and at outputs that live to the end.
    """
    graph = problem.graph
    stays = int(graph.nbytes[problem.stays & (graph.alias_of < 0)].sum())
    total = graph.workspace_bytes.copy()
    made = (graph.producer >= 0) & (graph.alias_of < 0) & ~problem.stays
    np.add.at(total, rows_of(graph.read_start), np.where(made[graph.reads], graph.nbytes[graph.reads], 0))
    np.add.at(total, rows_of(graph.make_start), np.where(made[graph.makes], graph.nbytes[graph.makes], 0))
    return max(int(total.max()), stays)
