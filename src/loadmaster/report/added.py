"""What a plan adds to the graph: ops that run again, tensors that wait on a host or live there, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.plans.additions import homes, returns
from loadmaster.search import Result


@dataclass(frozen=True)
class Added:
    """Bytes are of the tensors that need not be held meanwhile.

    Attributes:
        ops_again: ops that run again.
        inside: how many of these run in kernels of others.
        again_ns: what kernels take that hold nothing else.
        again_bytes: of what is made again.
        stays, stay_bytes: tensors that wait on another device.
        homes, home_bytes: weights, states and inputs that live elsewhere and come for those that read them.
        visit_bytes: of these, what comes in a step.
        return_bytes: of these, what goes back, updated.
    """

    ops_again: int
    inside: int
    again_ns: int
    again_bytes: int
    stays: int
    stay_bytes: int
    homes: int = 0
    home_bytes: int = 0
    visit_bytes: int = 0
    return_bytes: int = 0


NOTHING = Added(0, 0, 0, 0, 0, 0)


def added_of(result: Result) -> Added:
    """What the plan runs again and offloads, what that costs and what it spares."""
    expansion, plan = result.problem.expansion, result.plan
    if expansion is None or plan.added is None:
        return NOTHING
    again = np.isin(expansion.addition, np.flatnonzero(plan.added.op >= 0))
    heads = np.unique(plan.kernel)
    alone = np.ones(len(plan.kernel), bool)
    np.logical_and.at(alone, plan.kernel, again)
    kernels = heads[alone[heads]]
    line, nbytes = result.timeline, expansion.base.graph.nbytes
    source, read = plan.added.source, plan.added.read
    of_again = np.unique(read[(plan.added.op[source] >= 0) & (plan.added.reader < expansion.base.num_ops)])
    home, back = homes(expansion.base.graph, plan.added), returns(expansion.base.graph, plan.added)
    waits = (plan.added.tensor >= 0) & (home < 0)
    return Added(
        ops_again=plan.added.num_again,
        inside=int((again & ~alone[plan.kernel]).sum()),
        again_ns=int((line.end_ns - line.start_ns)[kernels].sum()),
        again_bytes=int(nbytes[of_again].sum()),
        stays=int(waits.sum()),
        stay_bytes=int(nbytes[plan.added.tensor[waits]].sum()),
        homes=len(np.unique(home[home >= 0])),
        home_bytes=int(nbytes[np.unique(home[home >= 0])].sum()),
        visit_bytes=int(nbytes[home[(home >= 0) & ~back]].sum()),
        return_bytes=int(nbytes[home[back]].sum()),
    )
