"""Delaying: what only makes results that live to the end may wait, where less is held for it than it makes.

So do gradients of large weights in a step of a small batch: what they are made from is smaller than they are.
"""

from __future__ import annotations

import numpy as np

from loadmaster.methods.memory.draft import Draft, Version, draft_of
from loadmaster.plans import Plan
from loadmaster.search import Search


def delayed(search: Search, plan: Plan) -> Plan:
    """The plan with such kernels at its end, in their order; those of one device, in which no time is lost by it."""
    problem = search.problem
    if problem.num_devices > 1 or plan.added is not None or search.spent:
        return plan
    draft = draft_of(problem, plan, search)
    late = _late(draft)
    if not late:
        return plan
    turn = np.arange(len(draft.heads))
    turn[sorted(late)] += len(draft.heads)
    return Plan.of(problem, plan.device, turn[np.array(draft.at)], plan.kernel)


def _late(draft: Draft) -> set[int]:
    """Positions of the kernels that wait: what they make is more than what is then held for them alone."""
    makes: dict[int, list[Version]] = {}
    reads: dict[int, list[Version]] = {}
    for version in draft.versions:
        makes.setdefault(version.made, []).append(version)
        for at in {at for at, _ in version.uses}:
            reads.setdefault(at, []).append(version)
    late = set[int]()
    for at in reversed(range(len(draft.heads))):
        ending = all(_ends(draft, version) for version in makes.get(at, ()) if not version.inner)
        if ending and _made(draft, makes.get(at, [])) > _held(draft, reads.get(at, []), late):
            late.add(at)
    return late


def _ends(draft: Draft, version: Version) -> bool:
    """It lives to the end and nobody reads it."""
    tensor = version.tensor
    return bool(draft.lasting[tensor]) and not version.uses and tensor not in draft.overwritten


def _made(draft: Draft, versions: list[Version]) -> int:
    return sum(draft.nbytes[version.tensor] for version in versions if not version.inner)


def _held(draft: Draft, versions: list[Version], late: set[int]) -> int:
    """Bytes that are kept for a kernel that waits, unless they are kept for another that does."""
    kept = [v for v in versions if not v.inner and not draft.lasting[v.tensor]]
    return sum(draft.nbytes[v.tensor] for v in kept if not any(at in late for at, _ in v.uses))
