"""Planning for serving: from a config.json and a cluster to a placement that a chosen runtime can take.

In one call what the rest of this room does step by step: capture, price, search within what the target can say, and
judge what other tools would do with the same model by the same simulator. `op_by_op` says what placing whole modules
costs against a plan that need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.cost import CostModel
from loadmaster.graph.columns import Ints, ints
from loadmaster.search import Budget, solve
from loadmaster.serving.exports import HOST_LAYERS_FIRST, ExportTarget
from loadmaster.serving.overheads import as_run, is_host
from loadmaster.serving.placing import Placement, evaluate, place, value_of
from loadmaster.serving.quantizing import Precision, quantized
from loadmaster.serving.requests import Goal, Requests
from loadmaster.serving.rules import all_rules, gpus_of, layers_of
from loadmaster.serving.services import Service, cache_bytes, service_of
from loadmaster.serving.untying import untied

TINY = 2**20  # bytes below which a module goes where its neighbour is
MODEL_ERROR = 0.05  # plans nearer than this the model does not tell apart (docs/fidelity.md)


@dataclass(frozen=True, eq=False)
class ServingResult:
    """Our placement beside what other tools would do, all judged by the simulator.

    Attributes:
        name: of the model.
        service: what was placed, priced.
        best: our placement.
        rules: those of other tools, by name.
        target: the runtime that it is for; None: any.
    """

    name: str
    service: Service
    best: Placement
    rules: dict[str, Placement]
    target: ExportTarget | None = None

    @property
    def basis(self) -> str:
        """Where the times come from."""
        rates = "times are modelled with the rates of the cluster"
        if self.target is None or self.target.overheads is None:
            return rates
        return f"{rates} and what the runtime of '{self.target.name}' was measured to add"


def service_for(
    path: str | Path,
    cluster: Cluster,
    requests: Requests,
    *,
    goal: Goal = "latency",
    precision: Precision = "bfloat16",
    cost: CostModel | None = None,
    target: ExportTarget | None = None,
) -> tuple[Any, Service]:
    """(model without memory, what there is to place); as the target, if any, has it and can say it.

    Args:
        path: a folder with a config.json.
        cluster: to serve on.
        requests: that phases are captured for.
        goal: what is to be small: latency, first-token, per-token or throughput.
        precision: of the weights.
        cost: the cost model; the roofline by default.
        target: the runtime, whose overheads and limits then hold.
    """
    from loadmaster.serving.phases import serve

    served = serve(path, requests, captured_in(precision))
    return served, priced(served, cluster, goal=goal, precision=precision, cost=cost, target=target)


def captured_in(precision: str) -> str:
    """The type of what is computed with weights of that precision."""
    return "bfloat16" if precision in ("int8", "int4") else precision


def priced(
    served: Any,
    cluster: Cluster,
    *,
    goal: Goal = "latency",
    precision: str = "bfloat16",
    cost: CostModel | None = None,
    target: ExportTarget | None = None,
) -> Service:
    """What there is to place of a captured model; experts and times as the target, if any, has them."""
    requests = served.requests
    graphs = [(phase.name, quantized(phase.graph, precision), phase.times) for phase in served.phases]
    slower = as_run(cluster, target.overheads if target else None)
    experts = target.experts if target else None
    if (
        target is not None
        and target.contiguous
        and (len([d for d in cluster.devices if not is_host(d)]) > 1 or target.host_first)
    ):
        graphs = [(name, untied(graph), times) for name, graph, times in graphs]
    name = target.name if target else None
    return service_of(
        graphs, slower, requests, goal=goal, blocks=served.blocks, cost=cost, experts=experts, runtime=name
    )


def plan_serving(
    served: Any, service: Service, target: ExportTarget | None, *, seconds: float = 5.0, seed: int = 0
) -> ServingResult:
    """The best placement that the target can take, and the rules of others for comparison.

    Args:
        served, service: as `service_for` gives them.
        target: the runtime; None: any.
        seconds, seed: of the search.

    Returns:
        ServingResult: also where nothing fits: `placing.check_fits` raises DoesNotFit then.
    """
    found = all_rules(served.model, service)
    placed = evaluate(service, *(np.stack([pair[i] for pair in found.values()]) for i in (0, 1)))
    rules = dict(zip(found, placed, strict=True))
    starts = [pair for pair in found.values() if target is None or takes(service, target, *pair)]
    if target is not None and target.contiguous:
        best = _best_stages(service, target, starts)
    elif target is not None and target.one_way:
        ways = (_one_way(service, starts, stream, seconds / 2, seed) for stream in (True, False))
        best = min(ways, key=_rank)
    elif target is not None and target.one_gpu:
        best = _best_of_one_gpu(service, starts, seconds, seed)
    else:
        if target is None and service.host is not None and service.has_experts:
            staged = _best_stages(service, HOST_LAYERS_FIRST, starts)  # experts of the first layers on the host
            starts = [*starts, (staged.compute, staged.home)]
        stream, on_host = (True, True) if target is None else (target.stream, target.compute_on_host)
        best = place(service, seconds=seconds, seed=seed, starts=starts, stream=stream, compute_on_host=on_host)
    if target is None or not target.contiguous:
        tidy = tidied(service, best)
        best = tidy if target is None or takes(service, target, tidy.compute, tidy.home) else best
    return ServingResult(served.name, service, best, rules, target)


def simplest(result: ServingResult) -> tuple[str, float] | None:
    """(rule, share that it is slower) of the rule with the fewest cuts that the model cannot tell from our placement,
    and that the target can take; None where ours is as simple."""
    service, best, target = result.service, result.best, result.target
    near = {
        name: rule
        for name, rule in result.rules.items()
        if rule.fits and rule.value <= best.value * (1 + MODEL_ERROR) and _cuts(rule) < _cuts(best)
        if target is None or takes(service, target, rule.compute, rule.home)
    }
    if not near or not best.fits:
        return None
    name = min(near, key=lambda one: (_cuts(near[one]), near[one].value))
    return name, near[name].value / best.value - 1


def _cuts(placement: Placement) -> int:
    """Places where neighbours have another fate."""
    return int(((np.diff(placement.compute) != 0) | (np.diff(placement.home) != 0)).sum())


def tidied(service: Service, best: Placement) -> Placement:
    """The placement with no tiny module alone between two others, where that is as good."""
    compute, home = np.array(best.compute), np.array(best.home)
    held = service.weight_bytes + cache_bytes(service)
    for unit in np.flatnonzero(held < TINY).tolist():
        beside = unit + 1 if unit + 1 < len(held) else unit - 1
        if beside >= 0 and service.together[unit] == unit:
            compute[unit], home[unit] = compute[beside], home[beside]
    [found] = evaluate(service, compute[None], home[None])
    return found if (found.over_bytes, found.value) <= (best.over_bytes, best.value * 1.001) else best


def op_by_op(service: Service, best: Placement) -> float:
    """The goal's value if each phase were planned op by op and for itself, by list schedulers; never above ours."""
    steps = []
    for phase, ours in zip(service.phases, best.step_ns, strict=True):
        tried = [solve(phase.problem, method, Budget(None, 1), 0) for method in ("heft", "etf")]
        steps.append(min([ours, *(result.timeline.step_ns for result in tried if result.fits)]))
    return min(best.value, value_of(service, ints(steps), best.compute, best.home))


def _best_of_one_gpu(service: Service, starts: Sequence[tuple[Ints, Ints]], seconds: float, seed: int) -> Placement:
    """Each GPU with the host beside it; the best of them."""
    gpus = gpus_of(service)
    found = []
    for gpu in gpus:
        others = [other for other in gpus if other not in (gpu, service.host)]
        own = [start for start in starts if not np.isin(start[0], others).any()]
        share = seconds / len(gpus)
        found.append(place(service, seconds=share, seed=seed, starts=own, stream=False, without=others))
    return min(found, key=_rank)


def _one_way(
    service: Service, starts: Sequence[tuple[Ints, Ints]], stream: bool, seconds: float, seed: int
) -> Placement:
    """All modules in host memory streamed, or all computed there: a device map can say one of the two."""
    host = service.host
    if stream:
        own = [pair for pair in starts if not (pair[0] == host).any() or host == gpus_of(service)[0]]
    else:
        own = [pair for pair in starts if np.array_equal(*pair)]
    return place(
        service, seconds=seconds, seed=seed, starts=own, stream=stream, compute_on_host=not stream, follow=True
    )


def takes(service: Service, target: ExportTarget, compute: Ints, home: Ints) -> bool:
    """Whether the target can say this placement."""
    streamed, on_host = compute != home, compute == service.host
    alone = service.cluster.num_devices == 1
    if (streamed.any() and not target.stream) or (on_host.any() and not target.compute_on_host and not alone):
        return False
    if target.one_way and streamed.any():
        return not on_host.any() and len(set(compute[streamed].tolist())) == 1
    if target.one_gpu:
        return len(set(compute.tolist()) - {service.host}) <= 1
    if not target.contiguous:
        return True
    layers = compute[layers_of(service)]
    return int((np.diff(layers) != 0).sum()) + 1 == len(set(layers.tolist()))


def _best_stages(service: Service, target: ExportTarget, starts: Sequence[tuple[Ints, Ints]]) -> Placement:
    """Stages of neighbouring layers: every border of two stages moved while that helps, from several cuts."""
    devices = [d for d in range(service.cluster.num_devices) if target.compute_on_host or d != service.host] or [0]
    if target.host_first and service.host is not None:
        devices = [service.host, *[d for d in devices if d != service.host]]
    layers = layers_of(service)
    cuts = {_cut_of(service, layers, devices, compute) for compute, _ in starts}
    work = sum(phase.times * phase.unit_ns[layers].sum(axis=0) for phase in service.phases)
    speed = 1 / np.maximum(np.asarray(work)[devices], 1)
    memory = service.cluster.memory_bytes[devices].astype(float)
    for weight in (speed, memory, np.ones(len(devices)), speed * memory, *np.eye(len(devices))):
        cuts.add(tuple(np.round(np.cumsum(weight / weight.sum()) * len(layers)).astype(int)[:-1].tolist()))
    known = sorted(cut for cut in cuts if cut is not None)
    stacked = _Stages(service, layers, devices, service.host if target.host_first else None)
    best, cut = stacked.descended(known, 0)
    if service.host not in devices or not service.has_experts:
        return best
    most = len(layers)
    for step in (-(-most // 4), -(-most // 16), 1):  # of so many layers the experts alone are computed on the host
        tried = sorted({min(most, _away(service, best) + by * step) for by in range(-4, 5)} - {_away(service, best)})
        for away in (away for away in tried if away >= 0):
            better, moved = stacked.descended([*known, cut], away)
            if _rank(better) < _rank(best):
                best, cut = better, moved
    return best


def _rank(placement: Placement) -> tuple[int, float]:
    return placement.over_bytes, placement.value


def _away(service: Service, placement: Placement) -> int:
    """Layers whose experts are apart from them."""
    return len(set(service.within[placement.compute != placement.compute[service.within]].tolist()))


@dataclass(frozen=True, eq=False)
class _Stages:
    """Stages of neighbouring layers on devices in order.

    Attributes:
        service: what there is to place.
        layers: units that are layers.
        devices: of the stages.
        first: device of what comes before the first layer; None: that of the first stage.
    """

    service: Service
    layers: list[int]
    devices: list[int]
    first: int | None

    def descended(self, cuts: Sequence[tuple[int, ...]], away: int) -> tuple[Placement, tuple[int, ...]]:
        """From the best of the cuts down to one that no moved border improves."""
        best, cut = min(self.scored(cuts, away), key=lambda one: _rank(one[0]))
        step = max(1, len(self.layers) // 4)
        while step:
            around = self.scored(_around(cut, step, len(self.layers)), away)
            better, moved = min(around, key=lambda one: _rank(one[0]))
            if _rank(better) < _rank(best):
                best, cut = better, moved
            else:
                step //= 2
        return best, cut

    def scored(self, cuts: Sequence[tuple[int, ...]], away: int) -> list[tuple[Placement, tuple[int, ...]]]:
        service = self.service
        table = np.stack([self.staged(cut) for cut in cuts])[:, service.together[service.within]]
        experts = service.within != np.arange(len(service.names))
        table[:, experts & np.isin(service.within, self.layers[:away])] = service.host or 0
        return list(zip(evaluate(service, table, table), cuts, strict=True))

    def staged(self, cut: tuple[int, ...]) -> Ints:
        """What comes before the first layer goes with it, what comes after the last with that."""
        stage = np.searchsorted(np.array(cut), np.arange(len(self.layers)), side="right")
        compute = np.full(len(self.service.names), self.devices[stage[-1]], np.int64)
        compute[: self.layers[0]] = self.devices[stage[0]] if self.first is None else self.first
        compute[self.layers] = np.array(self.devices)[stage]
        return ints(compute)


def _around(cut: tuple[int, ...], step: int, layers: int) -> list[tuple[int, ...]]:
    """Cuts with one border, or a run of borders, moved by so many layers."""
    found = {cut}
    for low in range(len(cut)):
        for high in range(low + 1, len(cut) + 1):
            for by in (-step, step):
                moved = [c + by if low <= i < high else c for i, c in enumerate(cut)]
                found.add(tuple(np.clip(np.maximum.accumulate(moved), 0, layers).tolist()))
    return sorted(found)


def _cut_of(service: Service, layers: list[int], devices: list[int], compute: Ints) -> tuple[int, ...] | None:
    """Where the stages end, for a placement in the order of the devices; None for another."""
    order = [devices.index(d) if d in devices else -1 for d in compute[layers].tolist()]
    if order != sorted(order) or -1 in order:
        return None
    return tuple(sum(o <= i for o in order) for i in range(len(devices) - 1))


def sweep(
    path: str | Path,
    cluster: Cluster,
    requests: Requests,
    contexts: Sequence[int],
    target: ExportTarget | None,
    **settings: Any,
) -> list[tuple[int, ServingResult]]:
    """A plan for each length of prompt."""
    seconds = settings.pop("seconds", 2.0)
    found = []
    for context in contexts:
        served, service = service_for(path, cluster, replace(requests, prompt=context), target=target, **settings)
        found.append((context, plan_serving(served, service, target, seconds=seconds)))
    return found
