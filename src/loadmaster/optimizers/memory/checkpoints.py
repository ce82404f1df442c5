"""What others do to fit: checkpoints of a chain, of layers, and the cut of torch's partitioner. To be compared with."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from loadmaster.columns import Bools, Ints
from loadmaster.optimizers.memory.draft import Draft, Drop, draft_of
from loadmaster.optimizers.memory.recompute import Recompute
from loadmaster.plans import Plan
from loadmaster.search import Optimizer, Search

MOST_FLOW = 2**30  # capacities of scipy's maximum flow are 32 bits wide
SIZES = 6  # of the knapsack
_LAYER = re.compile(r"^(.*?\.\d+)(?:\.|$)")


@dataclass(frozen=True)
class SqrtCheckpointing:
    """Chen et al., "Training deep nets with sublinear memory cost" (2016): the forward part is cut into √n segments, of
    which only the ends are kept; each is run again before it is needed backwards.

    Differs from the paper: n counts kernels, and a cut is made where the least bytes cross it nearby.
    """

    inner: Optimizer | None = None

    def optimize(self, search: Search) -> Plan:
        draft = _drafted(search, self.inner)
        turn = turning_point(draft)
        segments = max(1, round(np.sqrt(turn)))
        edges = narrow_cuts(draft, turn, segments)
        return _scored(search, checkpointed(draft, turn, np.searchsorted(edges, np.arange(turn), side="right")))


@dataclass(frozen=True)
class LayerCheckpointing:
    """Each repeated layer of the model keeps its input and is run again before it is needed backwards: what
    `gradient_checkpointing` of Hugging Face does. Layers are the modules numbered outermost, such as h.3; a graph
    without any stays as it is."""

    inner: Optimizer | None = None

    def optimize(self, search: Search) -> Plan:
        draft = _drafted(search, self.inner)
        turn = turning_point(draft)
        layers: dict[str, int] = {}
        segment = np.full(turn, -1)
        for op in range(search.problem.num_ops):
            found = _LAYER.match(search.problem.graph.scope[op])
            if draft.at[op] < turn and found:
                segment[draft.at[op]] = layers.setdefault(found[1], len(layers))
        return _scored(search, checkpointed(draft, turn, segment))


@dataclass(frozen=True)
class MinCut:
    """The cut of torch's default partitioner (AOTAutograd): the fewest bytes from which light ops make again all that
    the backward part reads; matrix products and the like are never run again.

    Differs from torch: the two parts meet where memory is highest; kernels are those of `inner`.
    """

    inner: Optimizer | None = None

    def optimize(self, search: Search) -> Plan:
        draft = _drafted(search, self.inner)
        make_light_again(draft, saved_by_cut(draft, turning_point(draft)))
        return _scored(search, draft.plan_of())


@dataclass(frozen=True)
class ActivationBudget:
    """In the manner of torch's `activation_memory_budget`: the minimum cut, then a knapsack over what it keeps, filled
    by time for bytes: what takes the least time for its bytes is made again as well. Several sizes of the knapsack are
    tried, with copies that are shared and with copies for each reader; the best plan counts."""

    inner: Optimizer | None = None

    def optimize(self, search: Search) -> Plan:
        base = _drafted(search, self.inner)
        turn = turning_point(base)
        saved = saved_by_cut(base, turn)
        items = sorted((t for t in saved if base.able[base.producer[t]]), key=lambda t: base.nbytes[t] / base.op_ns(t))
        for made_again in np.unique(np.linspace(0, len(items), SIZES).astype(int)).tolist():
            for share in (True, False):
                if search.spent:
                    break
                draft = Draft(base.problem, base.plan, base.line)
                make_light_again(draft, saved - set(items[len(items) - made_again :]), heavy=True, share=share)
                search.score(draft.plan_of())
        return search.best if search.best is not None else base.plan


def _drafted(search: Search, inner: Optimizer | None) -> Draft:
    """The plan of `inner`, which is none of the plans to choose from."""
    return draft_of(search.problem, Recompute(inner).inner_plan(search.part(1.0 if inner is None else 0.5)))


def _scored(search: Search, plan: Plan) -> Plan:
    if not search.spent:
        search.score(plan)
    return plan


def turning_point(draft: Draft) -> int:
    """The position where most is held: forward before it, backward after it."""
    return int(draft.memory.max(axis=0).argmax())


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
            if version.job < 0 and version.made < turn and segment[version.made] == number and _can(draft, at):
                later = [use for use in version.uses if use[0] > turn]
                leaves = any(use[0] < turn and segment[use[0]] != number for use in version.uses)
                if later and not leaves:
                    drops.append((at, later))
        _rerun(draft, drops, inside)
    return draft.plan_of()


def _can(draft: Draft, number: int) -> bool:
    version = draft.versions[number]
    return bool(draft.able[draft.producer[version.tensor]]) and draft.may_leave[version.tensor] and not version.inner


def _rerun(draft: Draft, drops: list[Drop], inside: Bools) -> None:
    while drops:
        first = min(at for _, later in drops for at, _ in later)
        tensors = tuple(draft.versions[number].tensor for number, _ in drops)
        closure = draft.closure(tensors, first, inside, False)
        if closure is not None:
            draft.make_again(drops, closure, first)
            return
        drops = drops[:-1]


def saved_by_cut(draft: Draft, turn: int) -> set[int]:
    """Tensors made before the turn of the least bytes together from which light ops can make what is read after it."""
    made = [v for v in draft.versions if v.job < 0 and v.made < turn]
    number = {version.tensor: i for i, version in enumerate(made)}
    source, sink = 2 * len(made), 2 * len(made) + 1
    scale = max(1, sum(draft.nbytes[v.tensor] for v in made) // MOST_FLOW + 1)
    rows: list[tuple[int, int, int]] = []
    for version in made:
        at, maker = number[version.tensor], draft.producer[version.tensor]
        free = draft.able[maker] and not draft.heavy[maker] and version.tensor not in draft.overwritten
        size = MOST_FLOW if version.inner else max(1, draft.nbytes[version.tensor] // scale)
        rows.append((2 * at, 2 * at + 1, size))
        if not free:
            rows.append((source, 2 * at, MOST_FLOW))
        for read in draft.reads[maker] if free else ():
            rows.append((2 * number[read] + 1 if read in number else source, 2 * at, MOST_FLOW))
        if any(where > turn for where, _ in version.uses):
            rows.append((2 * at + 1, sink, MOST_FLOW))
    return {v.tensor for v, cut in zip(made, _cut(rows, source, sink, len(made)), strict=True) if cut}


def _cut(rows: list[tuple[int, int, int]], source: int, sink: int, count: int) -> list[bool]:
    """[tensors] whether the way through it is cut."""
    if not rows:
        return []
    best = {(a, b): size for a, b, size in rows}
    heads, tails = np.array(list(best), np.int32).T
    sizes = np.array(list(best.values()), np.int32)
    net = coo_array((sizes, (heads, tails)), shape=(sink + 1, sink + 1)).tocsr()
    flow = maximum_flow(net, source, sink).flow
    left = net - flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = np.zeros(sink + 1, bool)
    reached[breadth_first_order(left, source, return_predecessors=False)] = True
    return [bool(reached[2 * i] and not reached[2 * i + 1]) for i in range(count)]


def make_light_again(draft: Draft, saved: set[int], heavy: bool = False, share: bool = True) -> None:
    """Makes all that is read after the turn again from what is saved, as late as possible."""
    turn = turning_point(draft)
    allowed = np.array([not any(t in saved for t in makes) for makes in draft.makes]) & draft.able
    if not heavy:
        allowed &= ~draft.heavy
    left = {}
    for number, version in enumerate(draft.versions):
        later = [use for use in version.uses if use[0] > turn]
        if version.made < turn and later and version.tensor not in saved and _can(draft, number):
            left[version.tensor] = (number, later)
    # Copies that are shared are made for their first reader; else what is made from another goes after it.
    order = sorted(left, key=lambda t: min(at for at, _ in left[t][1]) if share else draft.at[draft.producer[t]])
    for tensor in order:
        if tensor in left and not _joined(draft, left, tensor, allowed):
            _apart(draft, left, tensor, allowed, share)


def _joined(draft: Draft, left: dict[int, Drop], tensor: int, allowed: Bools) -> bool:
    """Makes it inside all the kernels that read it, where those are light."""
    number, later = left[tensor]
    places = sorted({at for at, _ in later})
    closures = [draft.closure((tensor,), at, allowed, True) if draft.open[at] else None for at in places]
    if any(closure is None for closure in closures):
        return False
    del left[tensor]
    for at, closure in zip(places, closures, strict=True):
        assert closure is not None
        draft.make_again([(number, [use for use in later if use[0] == at])], closure, at)
    return True


def _apart(draft: Draft, left: dict[int, Drop], tensor: int, allowed: Bools, share: bool) -> None:
    """Makes it once, for all that read it; `share`: and what is made on the way, for all that read that."""
    first = min(at for at, _ in left[tensor][1])
    closure = draft.closure((tensor,), first, allowed, False)
    if closure is None:
        del left[tensor]
        return
    made = [t for op in closure.ops for t in draft.makes[op] if t in left and share]
    targets = [tensor, *(t for t in made if t != tensor and min(at for at, _ in left[t][1]) >= first)]
    whole = draft.closure(tuple(targets), first, allowed, False)
    targets, closure = (targets, whole) if whole is not None else ([tensor], closure)
    draft.make_again([left.pop(t) for t in targets], closure, first)
