"""Remedies: whether a step fits, and the smallest set of changes that makes it fit, each found by planning for it.

Changes that leave the result as it is come first, then those that change how weights are updated, then types, then the
batch, then the hardware; within each, by the time of a step. Where no one change is enough, two are tried, then three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from loadmaster.baselines.fusion.greedy import sharing_of
from loadmaster.cluster import Cluster
from loadmaster.cluster.growing import has_host, with_host, with_more
from loadmaster.cost import price
from loadmaster.graph import INPUT, STATE, Graph
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem
from loadmaster.problem.bounds.peak import peak_bound
from loadmaster.search import Budget, Result, solve

SMALLEST_8_BIT = 4096  # elements: smaller states stay as they are, as in bitsandbytes (min_8bit_size)
BLOCK = 256  # elements that share a scale of four bytes there
MOST_CHANGES = 3  # together: sets of four are more than anybody tries
# Kinds of changes that take each other's place.
APART = ({"host", "away"}, {"away", "again"}, {"host", "devices"}, {"away", "devices"})
AGAIN, AWAY = "recompute:offload=no", "recompute:again=no"
PLAIN = "auto:recompute=no,offload=no"  # what runs again or goes away is a change that is told

Load = Callable[[Mapping[str, Any]], Graph]


@dataclass(frozen=True)
class Remedy:
    """One or more changes that together make it fit.

    Attributes:
        what: in words.
        command: options that bring it about.
        step_ns: of the plan found with it.
        peak_bytes: on the fullest device that is no host.
        cost: how much each part gives up, least first.
    """

    what: str
    command: str
    step_ns: int
    peak_bytes: int
    cost: tuple[int, ...]


@dataclass(frozen=True)
class FitVerdict:
    """Whether a step fits as it is, and what would help, cheapest first.

    Attributes:
        fits: as it is.
        need_bytes: of the best plan found, on the device that is shortest of memory.
        have_bytes: memory of that device.
        step_ns: of the best plan found.
        how: what plans it so that it fits.
        changes: that make it fit, cheapest first; empty where it fits.
    """

    fits: bool
    need_bytes: int
    have_bytes: int
    step_ns: int
    how: str
    changes: tuple[Remedy, ...]


@dataclass(frozen=True)
class _Setup:
    cluster: Cluster
    capture: Mapping[str, Any]
    small_states: bool = False
    method: str = PLAIN


@dataclass(frozen=True)
class _Candidate:
    what: str
    command: str
    cost: int
    kind: str  # two of a kind are not combined
    change: Callable[[_Setup], _Setup]


def verdict(load: Load, cluster: Cluster, capture: Mapping[str, Any], *, budget: Budget, seed: int = 0) -> FitVerdict:
    """`answer`, with all changes at once, cheapest first."""
    found, changes = answer(load, cluster, capture, budget=budget, seed=seed)
    return replace(found, changes=tuple(sorted(changes, key=lambda change: (change.cost, change.step_ns))))


def answer(
    load: Load, cluster: Cluster, capture: Mapping[str, Any], *, budget: Budget, seed: int = 0
) -> tuple[FitVerdict, Iterator[Remedy]]:
    """Whether it fits on the cluster as it is, from two plans; and what would help, as it is found, cheapest first.
    `load` captures the model with other settings: `optimizer`, `dtype`, `batch`; where it cannot, those changes are
    left out."""
    trial = _SetupPlans(load, budget, seed)
    setup = _Setup(cluster, capture)
    found = trial.best(setup)
    short = int((found.timeline.peak_bytes - found.problem.memory_bytes).argmax())
    told = FitVerdict(
        found.fits,
        int(found.timeline.peak_bytes[short]),
        int(found.problem.memory_bytes[short]),
        found.timeline.step_ns,
        f"--objective {found.problem.objective.name}",
        (),
    )
    return told, iter(()) if found.fits else _helpful(trial, setup)


def eight_bit_states(graph: Graph) -> Graph:
    """The same step with the optimizer's states in one byte an element and a scale for each block."""
    state = (graph.role == STATE) & (graph.nbytes > 0)
    size = np.array([np.prod(shape or (0,)) for shape in graph.shape], np.int64)
    small = state & (size >= SMALLEST_8_BIT) & (graph.nbytes > size)
    packed = np.where(small, size + -(-size // BLOCK) * 4, graph.nbytes)
    return replace(graph, nbytes=ints(np.minimum(packed, graph.nbytes)))


def hopeless(problem: Problem) -> bool:
    """Whether it is proved that no plan fits that makes nothing again."""
    return peak_bound(problem, fusing=sharing_of(problem)) > int(problem.memory_bytes.max())


class _SetupPlans:
    """Plans for setups; a graph is captured once for each of its settings."""

    def __init__(self, load: Load, budget: Budget, seed: int) -> None:
        self.load, self.budget, self.seed = load, budget, seed
        self.graphs: dict[tuple[tuple[str, Any], ...], Graph] = {}

    def graph(self, capture: Mapping[str, Any]) -> Graph:
        key = tuple(sorted(capture.items()))
        if key not in self.graphs:
            self.graphs[key] = self.load(capture)
        return self.graphs[key]

    def problem(self, setup: _Setup, objective: str = "step-time") -> Problem:
        graph = self.graph(setup.capture)
        return price(eight_bit_states(graph) if setup.small_states else graph, setup.cluster, objective=objective)

    def best(self, setup: _Setup) -> Result:
        """The fastest plan found if it fits, else the one of least memory."""
        fast = solve(self.problem(setup), setup.method, self.budget, self.seed)
        if fast.fits:
            return fast
        small = solve(self.problem(setup, "peak-memory"), setup.method, self.budget, self.seed)
        return min(small, fast, key=lambda result: result.timeline.over_bytes)

    def fitting(self, setup: _Setup) -> Result | None:
        adds = setup.method != PLAIN  # what runs again or goes away is not in the bound
        if not adds and hopeless(self.problem(setup)):
            return None
        found = self.best(setup)
        return found if found.fits else None


def _helpful(trial: _SetupPlans, setup: _Setup) -> Iterator[Remedy]:
    """The fewest changes after which a plan was found that fits, cheapest first; of a kind, the first that helps."""
    remedies = list(_remedies(trial, setup))
    for count in range(1, MOST_CHANGES + 1):
        helped = False
        done: set[tuple[str, ...]] = set()
        for some in sorted(combinations(remedies, count), key=lambda some: sorted(one.cost for one in some)[::-1]):
            kinds = tuple(remedy.kind for remedy in some)
            if len(set(kinds)) < count or kinds in done or any(pair <= set(kinds) for pair in APART):
                continue
            changed = setup
            for remedy in some:
                changed = remedy.change(changed)
            if (found := trial.fitting(changed)) is not None:
                done.add(kinds)
                helped = True
                yield _told(some, found)
        if helped:
            return


def _told(some: tuple[_Candidate, ...], found: Result) -> Remedy:
    what = " and ".join(remedy.what for remedy in some)
    command = " ".join(remedy.command for remedy in some) + found.problem.objective.option
    kinds = [device.kind for device in found.problem.cluster.devices]
    hosts = np.array([kind.startswith("cpu") for kind in kinds])  # a host has room: what counts is beside it
    share = np.where(hosts & ~hosts.all(), -1.0, found.timeline.peak_bytes / found.problem.memory_bytes)
    peak = int(found.timeline.peak_bytes[int(share.argmax())])
    return Remedy(what, command, found.timeline.step_ns, peak, tuple(sorted(remedy.cost for remedy in some)))


def _remedies(trial: _SetupPlans, setup: _Setup) -> Iterator[_Candidate]:
    """What there is to try, the cheapest first; of a kind, the mildest first."""
    graph = trial.graph(setup.capture)
    training = any(kind.startswith("optim.") for kind in graph.kind)
    yield from _of_plans(setup)
    if training and bool((graph.role == STATE).any()):
        yield _Candidate("8-bit optimizer states", "(bitsandbytes.optim.Adam8bit)", 3, "states", _small_states)
    if "optimizer" in setup.capture:
        if training and setup.capture["optimizer"] not in ("sgd", "none"):
            yield _Candidate("SGD without momentum", "--optimizer sgd", 4, "states", _captured(optimizer="sgd"))
        if setup.capture.get("dtype") in (None, "float32", "float64"):
            yield _Candidate("bfloat16", "--dtype bfloat16", 5, "type", _captured(dtype="bfloat16"))
        for batch in _halves(rows_of_inputs(graph)):
            what = f"a smaller batch of {batch}"
            yield _Candidate(what, f"--batch {batch}", 6, "batch", _captured(batch=batch))
    for count in (1, 3):
        on, command = with_more(setup.cluster, count)
        what = f"{count} more device{'s' if count > 1 else ''} like '{on.devices[0].kind}'"
        yield _Candidate(what, command, 7, "devices", lambda s, on=on: replace(s, cluster=on))  # type: ignore[misc]


def _of_plans(setup: _Setup) -> Iterator[_Candidate]:
    """What a plan can do by itself: run ops again, or keep tensors on the host for a while."""
    on, command = (setup.cluster, "") if has_host(setup.cluster) else with_host(setup.cluster)
    if command:
        yield _Candidate("a host that computes a part", command, 1, "host", lambda s: replace(s, cluster=on))
    what, away = "tensors in host memory while no op needs them", f"{command} --method {AWAY}".strip()
    yield _Candidate(what, away, 1, "away", lambda s: replace(s, cluster=on, method=AWAY))
    yield _Candidate("some ops run again", f"--method {AGAIN}", 2, "again", lambda s: replace(s, method=AGAIN))


def _small_states(setup: _Setup) -> _Setup:
    return replace(setup, small_states=True)


def _captured(**settings: Any) -> Callable[[_Setup], _Setup]:
    return lambda setup: replace(setup, capture={**setup.capture, **settings})


def rows_of_inputs(graph: Graph) -> int:
    """The batch: the first dimension that most inputs share."""
    first = [int(shape[0]) for shape, role in zip(graph.shape, graph.role, strict=True) if role == INPUT and shape]
    return max(set(first), key=first.count) if first else 1


def _halves(number: int) -> list[int]:
    return [number >> times for times in range(1, number.bit_length())]
