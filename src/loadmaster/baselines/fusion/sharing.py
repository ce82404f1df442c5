"""What bounds are told about fusion: which ops may share a kernel, where a plan keeps to that."""

from __future__ import annotations

from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.plans import Plan
from loadmaster.plans.expansion import keeps_to
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Sharing


def sharing_of(problem: Problem) -> Sharing:
    """Which ops of the problem searches may fuse."""
    return Merges.of(problem).sharing


def fusing_of(problem: Problem, plan: Plan) -> bool | Sharing:
    """What its bound must hold for: nothing fused, what searches may fuse, or, where it was fused by others, all."""
    if not plan.fuses:
        return False
    base = problem if problem.expansion is None else problem.expansion.base
    sharing = sharing_of(base)
    return sharing if keeps_to(base, plan, sharing) else True
