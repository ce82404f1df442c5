"""What others do to fit: checkpoints of a chain, of layers, and the cut of torch's partitioner. To be compared with.

Each plans with `inner` first, then runs parts of the forward pass again before they are needed backwards, by its own
published rule and without looking at a limit. Where the forward pass ends is not said in a graph: two guesses are tried
(`_better`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.methods.memory.changes import make_again
from loadmaster.methods.memory.closures import closure_of
from loadmaster.methods.memory.cutting import can_leave, make_light_again, saved_by_cut, turning_point
from loadmaster.methods.memory.draft import Draft, Drop, draft_of
from loadmaster.methods.memory.drafted import plan_of
from loadmaster.methods.memory.recompute import Recompute
from loadmaster.plans import Plan
from loadmaster.search import Method, Search

_LAYER = re.compile(r"^(.*?\.\d+)(?:\.|$)")


@dataclass(frozen=True)
class SqrtCheckpointing:
    """Chen et al., "Training deep nets with sublinear memory cost" (2016): the forward part is cut into √n segments, of
    which only the ends are kept; each but the last is run again before it is needed backwards, as torch's
    `checkpoint_sequential` does it.

    Differs from the paper: n counts kernels, and a cut is made where the least bytes cross it nearby.

    Attributes:
        inner: plans the kernels first; by default as `recompute` does.
    """

    inner: Method | None = None

    def optimize(self, search: Search) -> Plan:
        return _better(search, self.inner, self._segments)

    @staticmethod
    def _segments(draft: Draft, turn: int) -> Ints:
        edges = narrow_cuts(draft, turn, max(1, round(np.sqrt(turn))))
        segment = np.searchsorted(edges, np.arange(turn), side="right")
        segment[segment == len(edges)] = -1  # what the backward part begins with
        return ints(segment)


@dataclass(frozen=True)
class LayerCheckpointing:
    """Each repeated layer of the model keeps its input and is run again before it is needed backwards: what
    `gradient_checkpointing` of Hugging Face does. Layers are the modules numbered outermost, such as h.3; a graph
    without any stays as it is.

    Attributes:
        inner: plans the kernels first; by default as `recompute` does.
    """

    inner: Method | None = None

    def optimize(self, search: Search) -> Plan:
        return _better(search, self.inner, self._segments)

    @staticmethod
    def _segments(draft: Draft, turn: int) -> Ints:
        layers: dict[str, int] = {}
        segment = np.full(turn, -1)
        for op, scope in enumerate(draft.problem.graph.scope):
            found = _LAYER.match(scope)
            if draft.at[op] < turn and found:
                segment[draft.at[op]] = layers.setdefault(found[1], len(layers))
        return ints(segment)


@dataclass(frozen=True)
class MinCut:
    """The cut of torch's default partitioner (AOTAutograd): the fewest bytes from which light ops make again all that
    the backward part reads; matrix products and the like are never run again.

    Differs from torch: the two parts meet where memory is highest; kernels are those of `inner`.

    Attributes:
        inner: plans the kernels first; by default as `recompute` does.
    """

    inner: Method | None = None

    def optimize(self, search: Search) -> Plan:
        draft = _drafted(search, self.inner)
        make_light_again(draft, saved_by_cut(draft, turning_point(draft)))
        return _scored(search, plan_of(draft))


def _drafted(search: Search, inner: Method | None) -> Draft:
    """The plan of `inner`, which is none of the plans to choose from."""
    return draft_of(search.problem, Recompute(inner).inner_plan(search.part(1.0 if inner is None else 0.5)), search)


def _better(search: Search, inner: Method | None, segments: Callable[[Draft, int], Ints]) -> Plan:
    """Of two plans that of the less time x memory: the forward part ends where most is held, or where the first op is a
    derivative by its name."""
    draft, plans = _drafted(search, inner), list[tuple[float, Plan]]()
    kinds = search.problem.graph.kind
    back = [at for at, kind in zip(draft.at, kinds, strict=True) if "backward" in kind]
    for turn in dict.fromkeys((turning_point(draft), min([turning_point(draft), *back]))):
        fresh = Draft(draft.problem, draft.plan, draft.line)
        plan = checkpointed(fresh, turn, segments(fresh, turn))
        line = search.timeline(plan)
        plans.append((line.step_ns * float(line.peak_bytes.max()), plan))
    return _scored(search, min(plans, key=lambda each: each[0])[1])


def _scored(search: Search, plan: Plan) -> Plan:
    if not search.spent:
        search.score(plan)
    return plan


def narrow_cuts(draft: Draft, turn: int, segments: int) -> Ints:
    """Positions at which the forward part is cut: about equally far apart, where few bytes cross."""
    crossing = np.zeros(turn + 1, np.int64)
    for version in draft.versions:
        ahead = [at for at, _ in version.uses if at < turn]
        if version.made < turn and ahead and not version.inner:
            crossing[version.made + 1] += draft.nbytes[version.tensor]
            crossing[max(ahead) + 1] -= draft.nbytes[version.tensor]
    crossing = np.cumsum(crossing)[:turn]
    half = max(1, turn // segments // 2)
    middles = [turn * i // segments for i in range(1, segments)]
    return np.unique([max(0, m - half) + int(crossing[max(0, m - half) : m + half].argmin()) for m in middles])


def checkpointed(draft: Draft, turn: int, segment: Ints) -> Plan:
    """The plan in which all that a segment makes and the backward part reads is made again, at its first reader there,
    from what crosses into the segment."""
    for number in range(int(segment.max(initial=-1)), -1, -1):
        inside = np.array([at < turn and segment[at] == number for at in draft.at])
        drops = []
        for at, version in enumerate(draft.versions):
            if version.job < 0 and version.made < turn and segment[version.made] == number and can_leave(draft, at):
                later = [use for use in version.uses if use[0] > turn]
                leaves = any(use[0] < turn and segment[use[0]] != number for use in version.uses)
                if later and not leaves:
                    drops.append((at, later))
        _rerun(draft, drops, inside)
    return plan_of(draft)


def _rerun(draft: Draft, drops: list[Drop], inside: Bools) -> None:
    while drops:
        first = min(at for _, later in drops for at, _ in later)
        tensors = tuple(draft.versions[number].tensor for number, _ in drops)
        closure = closure_of(draft, tensors, first, inside, False)
        if closure is not None:
            make_again(draft, drops, closure, first)
            return
        drops = drops[:-1]
