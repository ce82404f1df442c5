"""Inlining: a light op is computed again in each kernel that reads what it makes, instead of being written and read.

As PyTorch's Inductor does with pointwise ops whose results nothing else needs: the bytes between kernels become those
that the op reads, and what it reads is held instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmaster.baselines.fusion.greedy import GreedyFusion
from loadmaster.baselines.fusion.spaces import ways_of
from loadmaster.graph.kinds import POINTWISE, draws
from loadmaster.methods.memory.changes import make_again
from loadmaster.methods.memory.closures import Closure, closure_of
from loadmaster.methods.memory.draft import Draft, draft_of
from loadmaster.methods.memory.drafted import plan_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Method, Search

# Tensors that an op and all that is made again for it read: Inductor stores what reads more and has several readers.
MOST_READS = 4


@dataclass(frozen=True)
class Inline:
    """Plans with `inner`, then computes light ops again in each kernel that reads them, where that saves time and takes
    no more memory.

    Attributes:
        inner: plans the kernels first.
    """

    inner: Method = field(default_factory=GreedyFusion)

    def optimize(self, search: Search) -> Plan:
        with search.keeping(0.7) as part:
            plan = self.inner.optimize(part)
        plan = search.best if search.best is not None and search.best_score < search.score(plan) else plan
        if not search.spent and search.simulations_left > 1 and plan.added is None:
            search.score(inlined(search.problem, plan, search))
        return search.best if search.best is not None else plan


def inlined(problem: Problem, plan: Plan, search: Search | None = None) -> Plan:
    """The plan with what is light made again where it is read, as long as that takes no more time or memory."""
    draft = draft_of(problem, plan, search)
    inline_light(draft)
    return plan_of(draft)


def inline_light(draft: Draft) -> None:
    graph = draft.problem.graph
    light = (ways_of(graph) == POINTWISE) & ~np.array([draws(kind) for kind in graph.kind], bool)
    for number in range(len(draft.versions)):
        version = draft.versions[number]
        maker = draft.producer[version.tensor]
        if light[maker] and draft.able[maker] and not version.inner:
            _inline(draft, number)


def _inline(draft: Draft, number: int) -> None:
    """Makes a version again in all other kernels that read it, or leaves it."""
    version = draft.versions[number]
    tensor, peak = version.tensor, draft.memory.max()
    later = [use for use in version.uses if use[0] != version.made]
    if not later or draft.lasting[tensor] or tensor in draft.overwritten:
        return
    places = sorted({at for at, _ in later})
    closures = [_closure(draft, tensor, at, later) for at in places]
    bytes_per_s = int(draft.problem.bytes_per_s[draft.device[draft.producer[tensor]]])
    written_ns = draft.nbytes[tensor] * 1e9 / bytes_per_s
    if any(c is None for c in closures) or sum(c.cost_ns for c in closures if c is not None) > written_ns:
        return
    undo = []
    for at, closure in zip(places, closures, strict=True):
        assert closure is not None
        undo.append(make_again(draft, [(number, [use for use in later if use[0] == at])], closure, at))
    if draft.memory.max() > peak:
        for back in reversed(undo):
            back()


def _closure(draft: Draft, tensor: int, at: int, later: list[tuple[int, int]]) -> Closure | None:
    plain = all(reader < len(draft.at) for where, reader in later if where == at)
    if not draft.open[at] or not plain:
        return None
    closure = closure_of(draft, (tensor,), at, ~draft.heavy, True)
    if closure is None:
        return None
    made = {t for op in closure.ops for t in draft.makes[op]}
    return closure if len({t for op in closure.ops for t in draft.reads[op]} - made) <= MOST_READS else None
