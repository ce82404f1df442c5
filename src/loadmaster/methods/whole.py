"""Whole modules: another method's search, held to plans that keep every module or block on one device.

Module paths become colocation groups (`graph.modules.bind`), under which any method plans; or, with `stages`, a line of
neighbouring layers is cut, as pipelines of inference servers have it. `runtime.placing` and `serving.exports` take such
plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.modules import Granularity, bind, units_of
from loadmaster.methods.default.auto import placement
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Method, Search


@dataclass(frozen=True)
class WholeModules:
    """Binds the ops of each module together and lets `inner` plan under that from the start.

    Runtimes that place modules can take such a plan; rounding a plan op by op afterwards loses what it gained. A graph
    that knows no modules is planned op by op. `stages`: neighbouring layers only, devices in the order of the cluster
    and without its host, as pipelines have it; then borders are moved while that helps, and `inner` is not asked.

    Attributes:
        granularity: what stays whole: module or block.
        inner: plans under that.
        stages: neighbouring layers only, as pipelines have it; `inner` is not asked then.
    """

    granularity: Granularity = "block"
    inner: Method = field(default_factory=placement)
    stages: bool = False

    def optimize(self, search: Search) -> Plan:
        bound = bound_problem(search.problem, self.granularity)
        part = search.part(1.0, bound)
        plan = _staged(part, self.granularity) if self.stages else self.inner.optimize(part)
        best = plan if part.best is None else part.best
        own = Plan.of(search.problem, best.device, best.rank, best.kernel)
        return replace(own, send_rank=best.send_rank)


def bound_problem(problem: Problem, granularity: Granularity) -> Problem:
    """The same problem in which ops of one module must share a device."""
    if not any(problem.graph.scope):
        return problem
    return replace(problem, graph=bind(problem.graph, granularity))


def _staged(search: Search, granularity: Granularity) -> Plan:
    """From several first cuts, each border of two stages moved while that helps, by fewer and fewer layers."""
    problem = search.problem
    position, layers = _positions(problem, granularity)
    devices = [d for d, device in enumerate(problem.cluster.devices) if not device.kind.startswith("cpu")] or [0]
    speed = 1 / np.maximum(problem.op_ns[:, devices].clip(0).sum(axis=0), 1)
    memory = problem.memory_bytes[devices].astype(float)
    weights = (speed, memory, np.ones(len(devices)), *np.eye(len(devices)))
    cuts = {tuple(np.round(np.cumsum(w / w.sum()) * layers).astype(int)[:-1].tolist()) for w in weights}

    def placed(cut: tuple[int, ...]) -> Ints:
        return legal(problem, ints(np.array(devices)[np.searchsorted(cut, position, side="right")]))

    def best_of(tried: set[tuple[int, ...]]) -> tuple[tuple[int, int], tuple[int, ...]]:
        rows = sorted(tried)
        over, value = search.score_many(np.stack([placed(cut) for cut in rows]))
        first = int(np.lexsort((value, over))[0])
        return (int(over[first]), int(value[first])), rows[first]

    score, cut = best_of(cuts)
    step = max(1, layers // 4)
    while step and not search.spent and cut:
        better, moved = best_of(_moved(cut, step, layers))
        score, cut, step = (better, moved, step) if better < score else (score, cut, step // 2)
    return Plan.of(problem, placed(cut))


def _moved(cut: tuple[int, ...], step: int, layers: int) -> set[tuple[int, ...]]:
    found = set()
    for low in range(len(cut)):
        for by in (-step, step):
            tried = [c + by if i == low else c for i, c in enumerate(cut)]
            found.add(tuple(np.clip(np.maximum.accumulate(tried), 0, layers).tolist()))
    return found or {cut}


def _positions(problem: Problem, granularity: Granularity) -> tuple[Ints, int]:
    """([ops] the layer each goes with, layers): of the longest list of layers. What comes before its first goes with
    that, what comes after its last with the last; ops that are bound together share the first one's."""
    graph = problem.graph
    units = units_of(graph, granularity)
    lists: dict[str, list[int]] = {}
    for unit, name in enumerate(units.names):
        path, _, number = name.rpartition(".")
        if number.isdecimal():
            lists.setdefault(path, []).append(unit)
    layers = max(lists.values(), key=len, default=list(range(len(units.names))))
    rank = np.searchsorted(layers, np.arange(len(units.names)), side="right") - 1
    place = np.maximum(rank, 0)[units.of_op]
    for group in np.unique(graph.colocate[graph.is_colocated]):
        members = graph.colocate == group
        place[members] = place[members].min()
    return ints(place), len(layers)
