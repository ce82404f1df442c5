"""Placements that GO chooses from, made by rules without a simulation, and what can be said of each in numbers.

List schedules, cuts and splits, each placement once. A summary of each (work, sends, longest path and bytes against the
ideal and the best of all) is what the choice is made from, beside the pooled graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.cuts import cut_stacks
from loadmaster.baselines.lists import ranks
from loadmaster.baselines.lists.schedulers import Cpop, Etf, Heft
from loadmaster.baselines.pipeline import split
from loadmaster.baselines.simple import OneDevice, legal
from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.learn.examples import canonical
from loadmaster.papers.features import PAIRS_WIDTH, SIZES, Features
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Budget, Method, Search

Floats = NDArray[np.float32]
# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
MOST_FOR_ALL = 20_000  # ops; beyond, the rules that look at all ready ops at once are left out
PER_RULE = 3  # splits of each layout and goal
LISTS: dict[str, Method] = {
    "heft": Heft(),
    "heft without contention": Heft(contention=False),
    "m-heft": Heft(memory=True),
    "cpop": Cpop(),
}
READY_LISTS: dict[str, Method] = {
    "etf": Etf(),
    "m-etf": Etf(memory=True),
    "m-sct": Etf(memory=True, favourite=True),
}
CUTS = {"count": 0, "made": 1, "load": 3, "held": 4, "time": 5}  # of the shares in Features.pairs
FOLDS: tuple[split.Fold, ...] = ("scope", "mirror", "program")
GOALS = ("load", "total")
SLOTS = (
    "one-device",
    *LISTS,
    *READY_LISTS,
    *(f"cut by {name}" for name in CUTS),
    *(f"stacks by {name}" for name in ("time", "count")),
    *(f"split {fold} {goal} {turn}" for fold in FOLDS for goal in GOALS for turn in range(PER_RULE)),
)
CLASSES = 3  # list schedulers, cuts, splits: what each says of a pair is a column
SUMMARY_WIDTH = 16


@dataclass(frozen=True, eq=False)
class Candidates:
    """Placements, each by another rule.

    Attributes:
        slot: [candidates] place in SLOTS.
        device: [candidates, ops] equal devices named in the canonical order.
    """

    slot: Ints  # [candidates]
    device: NDArray[np.uint8]  # [candidates, ops]
    summary: Floats  # [candidates, SUMMARY_WIDTH]

    def __len__(self) -> int:
        return len(self.slot)


def candidates_of(problem: Problem, features: Features) -> Candidates:
    """All of them, each placement once, under the first rule that gives it."""
    found: dict[bytes, tuple[int, Ints]] = {}
    for name, device in _placements(problem, features):
        renamed = canonical(problem, features, device)
        found.setdefault(renamed.tobytes(), (SLOTS.index(name), renamed))
    devices = ints(np.stack([device for _, device in found.values()]))
    slot = ints([slot for slot, _ in found.values()])
    return Candidates(slot, devices.astype(np.uint8), summaries(problem, features, devices))


def class_of(slot: Ints) -> Ints:
    """[candidates] list schedulers (and one device), cuts, splits."""
    cuts = 1 + len(LISTS) + len(READY_LISTS)
    return ints((slot >= cuts).astype(int) + (slot >= cuts + len(CUTS) + 2))


def _placements(problem: Problem, features: Features) -> Iterator[tuple[str, Ints]]:
    search = Search(problem, Budget(None, 1))
    yield "one-device", OneDevice().optimize(search).device
    few = problem.num_ops <= MOST_FOR_ALL
    for name, rule in {**LISTS, **(READY_LISTS if few else {})}.items():
        yield name, rule.optimize(search).device
    pairs = features.pairs.reshape(problem.num_ops, problem.num_devices, PAIRS_WIDTH)
    for name, share in CUTS.items():
        yield f"cut by {name}", legal(problem, ints(pairs[:, :, 3 + 2 * share].argmax(axis=1)))
    if any(problem.graph.scope):
        yield "stacks by time", cut_stacks(problem, problem.best_ns + 1.0)
        yield "stacks by count", cut_stacks(problem, np.ones(problem.num_ops))
    yield from _splits(problem, few)


def _splits(problem: Problem, few: bool) -> Iterator[tuple[str, Ints]]:
    """Contiguous splits of each layout, least load first, and least total for most devices first."""
    for fold in FOLDS:
        if (fold == "scope" and not any(problem.graph.scope)) or (fold == "program" and not few):
            continue
        [slot] = split._folds(problem, fold)
        for goal, made in (
            ("load", split.least_loads(problem, slot)),
            ("total", split.least_totals(problem, slot)[::-1] if few else []),
        ):
            for turn, (_, device) in enumerate(made[:PER_RULE]):
                yield f"split {fold} {goal} {turn}", device


def summaries(problem: Problem, features: Features, devices: Ints) -> Floats:
    """[candidates, SUMMARY_WIDTH] work, sends, longest path and bytes of each, against the ideal and the best one."""
    ideal = _ideal_ns(problem)
    saved = _size(features, 5)
    rows = [_measured(problem, device, saved, ideal) for device in devices]
    measured = np.array(rows)  # path, load, channel, sends, work, used, fullest, over, crossing
    logs = np.log2(np.maximum(measured[:, :5], 2.0**-8))
    bound = logs[:, :3].max(axis=1)
    both = np.log2(measured[:, 0] + measured[:, 1] + measured[:, 2])
    against = [column - column.min() for column in (bound, both, logs[:, 0], logs[:, 1])]
    devices_log = np.full(len(rows), np.log2(problem.num_devices) / 3)
    columns = [*against, bound, both, *logs.T, *measured[:, 5:].T, devices_log]
    return np.asarray(np.clip(np.stack(columns, axis=1), -8, 8), np.float32)


BOUND, OVER = 0, 13  # columns of a summary: how far above the least bound of all, in powers of two; bytes over, guessed


def _size(features: Features, column: int) -> NDArray[np.float64]:
    assert column < SIZES
    return np.asarray(np.exp2(features.ops[:, 2 * column].astype(np.float64) * 16) - 1)


def _ideal_ns(problem: Problem) -> float:
    """The larger of an equal share of all work and the longest path, sends for nothing."""
    graph = problem.graph
    columns = (graph.read_start, graph.reads, graph.producer, graph.after_start, graph.after)
    path = ranks.upward(*columns, problem.best_ns, np.zeros(graph.num_tensors, np.int64)).max(initial=1)
    return float(max(1, path, problem.best_ns.sum() / problem.num_devices))


def _measured(problem: Problem, device: Ints, saved: NDArray[np.float64], ideal: float) -> list[float]:
    graph, devices = problem.graph, problem.num_devices
    times = problem.op_ns[np.arange(problem.num_ops), device]
    load = np.bincount(device, np.where(times == CANNOT, 0, times), devices)
    path = path_under(problem, device).max(initial=1)
    reader, maker = rows_of(graph.read_start), problem.maker[graph.reads]
    crosses = (maker >= 0) & (device[np.maximum(maker, 0)] != device[reader])
    sent = np.unique(graph.reads[crosses] * devices + device[reader[crosses]])
    tensor, target = sent // devices, sent % devices
    source = device[problem.maker[tensor]]
    send_ns = np.maximum(problem.send_ns[tensor, problem.send_class[source, target]], 0)
    channel = np.bincount(np.maximum(problem.cluster.channel[source, target], 0), send_ns, 1)
    full = _held(problem, device, saved, sent) / np.maximum(1, problem.memory_bytes)
    times_of = (path, load.max(), channel.max(), send_ns.sum(), load.sum() / devices)
    return [
        *(float(time) / ideal for time in times_of),
        float((load > 0).mean()),
        float(min(4.0, full.max()) / 2),
        float(np.minimum(4.0, np.maximum(full - 1, 0).sum())),
        float(crosses.mean()) if len(crosses) else 0.0,
    ]


def _held(problem: Problem, device: Ints, saved: NDArray[np.float64], sent: Ints) -> NDArray[np.float64]:
    """[devices] bytes of what is saved for later, of resident tensors and of all that is received: about the peak."""
    graph, devices = problem.graph, problem.num_devices
    nbytes = graph.own_bytes
    there = problem.resident[graph.reads]
    resident = graph.reads[there] * devices + device[rows_of(graph.read_start)[there]]
    copies = np.unique(np.concatenate([resident, sent]))
    held = np.bincount(device, saved, devices) + np.bincount(copies % devices, nbytes[copies // devices], devices)
    return np.asarray(held, np.float64)


def path_under(problem: Problem, device: Ints) -> Ints:
    """[ops] the longest way from the start of the op to the end of the step under a placement, sends included."""
    graph = problem.graph
    times = ints(problem.op_ns[np.arange(problem.num_ops), device])
    columns = (graph.read_start, graph.reads, graph.producer, graph.after_start, graph.after)
    return ints(ranks.upward_placed(*columns, times, problem.send_ns, problem.send_class, device))
