"""Refining a plan window by window: short parts of the step are searched one by one, each as if the rest stood still.

A search of the whole takes time in proportion to its ops for every plan it looks at, and needs in proportion to them
many looks. A window costs what its own ops cost, so that a million ops take a million times what one takes.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.methods.annealing import chains
from loadmaster.methods.annealing.state import TOP_RANK
from loadmaster.methods.multilevel.slack import latest_starts
from loadmaster.passes import coarsen
from loadmaster.passes.windows import Window, index_among, some_rows, window
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Score, Search
from loadmaster.simulator import Timeline, cores, simulate

# Ops of a window, whichever is more. Over 160 ops: 0.971 after 4,000 simulations (GNMT, RNNLM, NMT and AmoebaNet, three
# seeds); by the clock 0.967 on GNMT and NMT, 0.997 and 1.002 on layered graphs of 50,000 ops on 16 and 4 devices.
OPS, OPS_PER_DEVICE = 640, 8
BESIDE = 0.5  # times as many on either side, pinned, so that a window begins and ends as the whole does
SPARE = 4  # a window may take one part in so many of the memory that is left
HOT, COLD = 1e-3, 1e-4  # first and last temperature, as shares of the value


class FoundWindow(NamedTuple):
    """What a window came to: its ops that may move, their devices, and the order of their ranks.

    Attributes:
        gain: share of the window's value.
    """

    ops: Ints
    device: NDArray[np.integer]
    rank: NDArray[np.integer]
    gain: float


@dataclass(frozen=True, eq=False)
class WindowScene:
    """A plan, what it does, and what windows need to know of it.

    Attributes:
        order: ops in the order in which they start.
        latest_ns: [ops] latest start that does not make the step longer.
        follower: [ops] what its device runs next, or -1.
    """

    problem: Problem
    plan: Plan
    line: Timeline
    order: Ints
    latest_ns: Ints  # [ops]
    follower: Ints  # [ops]
    spare_bytes: Ints  # [devices]

    @staticmethod
    def of(problem: Problem, plan: Plan, line: Timeline) -> WindowScene:
        spare = np.maximum(0, problem.memory_bytes - line.peak_bytes)
        order = ints(np.argsort(line.turn, kind="stable"))
        latest, follower = latest_starts(problem, plan.device, line)
        return WindowScene(problem, plan, line, order, ints(latest), ints(follower), ints(spare // SPARE))

    def rest_ns(self, ops: Ints) -> Ints:
        """[ops] how long the step goes on after each because of readers, or followers on its device, that are not among
        them; 0 is when the last of them ends."""
        graph, device, step = self.problem.graph, self.plan.device, self.line.step_ns
        made_start, made = some_rows(graph.make_start, graph.makes, ops)
        read_start, reader = some_rows(*graph.readers, made)
        tensor, maker = made[rows_of(read_start)], rows_of(made_start)[rows_of(read_start)]
        out = index_among(ops, reader) < 0
        tensor, maker, reader = tensor[out], maker[out], reader[out]
        here, there = device[ops[maker]], device[reader]
        far, send = np.flatnonzero(here != there), np.zeros(len(reader), np.int64)
        send[far] = self.problem.send_ns[tensor[far], self.problem.send_class[here[far], there[far]]]
        rest = np.zeros(len(ops), np.int64)
        np.maximum.at(rest, maker, step - self.latest_ns[reader] + send)
        follower = self.follower[ops]
        last = np.flatnonzero((follower >= 0) & (index_among(ops, follower) < 0))
        rest[last] = np.maximum(rest[last], step - self.latest_ns[follower[last]])
        return ints(np.maximum(0, rest - (step - self.line.end_ns[ops].max())))


def refine(search: Search, plan: Plan, simulations: int, turn: int) -> Plan:
    """One pass over all windows, every other one at a time; each gets so many simulations of its own. The better of the
    plan that comes of it and the one given."""
    for odd in (False, True):
        if search.spent:
            break
        lows, cost = _lows(search, simulations, turn, odd)
        if len(lows):
            scene = WindowScene.of(search.problem, plan, search.timeline(plan))
            found = _wave(search, scene, lows, cost, simulations, turn)
            plan = _better(search, plan, found)
    return plan


def window_ops(problem: Problem) -> int:
    """How many ops a window has: more devices need more of them to be worth choosing from."""
    return max(OPS, OPS_PER_DEVICE * problem.num_devices)


def _lows(search: Search, simulations: int, turn: int, odd: bool) -> tuple[Ints, float]:
    """Where every other window begins, as far as the budget goes once the plan is looked at, and what one costs in
    simulations of the whole."""
    size, ops = window_ops(search.problem), search.problem.num_ops
    lows = np.arange(-(size // 3) * (turn % 3), ops, size)[1 if odd else 0 :: 2]
    cost = (simulations + 1) * size * (1 + 2 * BESIDE) / ops
    return ints(lows[: int(min(len(lows), (search.simulations_left - 1) // cost))]), cost


def _wave(
    search: Search, scene: WindowScene, lows: Ints, cost: float, simulations: int, turn: int
) -> list[FoundWindow]:
    """What those windows came to. No two of them have ops in common that may move, so that nothing depends on which is
    done first, or where."""
    size, ops = window_ops(scene.problem), scene.problem.num_ops
    known: dict[bytes, FoundWindow] = {}

    def one(low: int) -> FoundWindow | None:
        if search.spent:
            return None
        return _search_window(
            scene, max(0, int(low)), min(ops, int(low) + size), simulations, search.seed + turn, known
        )

    with ThreadPoolExecutor(cores()) as pool:
        found = [one for one in pool.map(one, lows) if one is not None]
    search.count(int(cost * len(found)))
    return [one for one in found if one.gain > 0]


def _search_window(
    scene: WindowScene, low: int, high: int, simulations: int, seed: int, known: dict[bytes, FoundWindow]
) -> FoundWindow:
    """Anneals the ops that start low-th to high-th, with some before and behind them pinned. A window that is the same
    in every number as one that was searched already gets its answer: repeated blocks are planned once."""
    beside, plan = int(BESIDE * (high - low)), scene.plan
    free = scene.order[low:high]
    ops = ints(np.sort(scene.order[max(0, low - beside) : high + beside]))
    loose = np.isin(ops, free, assume_unique=True) & ~_bound(scene.problem, ops)
    part = window(scene.problem, plan.device, ops, ~loose, scene.rest_ns(ops))
    place, rank = _start(part, plan)
    alike = _alike(part, place, rank, loose)
    if alike in known:
        return known[alike]._replace(ops=ints(ops[loose]))
    search = Search(part.problem, Budget(None, simulations), seed)
    line = simulate(part.problem, Plan.of(part.problem, place, rank))
    value = part.problem.value(line)
    start = chains.ChainStart(place, rank, Score(0, value))
    walking = WindowChain(search, part.problem, start, ints(line.peak_bytes + scene.spare_bytes))
    walking.cool(simulations, HOT, COLD)
    best = walking.best
    gain = 1 - int(best.score[3]) / max(1, value) if best.score[2] == 0 else 0.0
    known[alike] = FoundWindow(
        ints(ops[loose]), part.part(best.best_place)[loose], part.part(best.best_rank)[loose], gain
    )
    return known[alike]


class WindowChain(chains.Chains):
    """One chain on a window."""

    def __init__(self, search: Search, problem: Problem, start: chains.ChainStart, limits: Ints) -> None:
        whole = coarsen(problem, ints(np.arange(problem.num_ops)))
        super().__init__(search, whole, [start], mirrored=False)
        self.terrain = self.terrain._replace(limits=limits)


def _bound(problem: Problem, ops: Ints) -> NDArray[np.bool_]:
    """[ops] which of them must stay: what they write over, or an op that they share a device with, is elsewhere."""
    graph = problem.graph
    start, made = some_rows(graph.make_start, graph.makes, ops)
    writes = np.zeros(len(ops), bool)
    writes[rows_of(start)[graph.is_alias[made]]] = True
    return writes | graph.is_colocated[ops]


def _start(part: Window, plan: Plan) -> tuple[Ints, Ints]:
    """Devices and ranks of the window's problem as the plan has them; what stands before comes first, what stands
    behind last."""
    problem, count = part.problem, len(part.ops)
    place = problem.able.argmax(axis=1)
    place[part.first : part.first + count] = plan.device[part.ops]
    rank = np.full(problem.num_ops, count + 1)
    rank[: part.first] = 0
    rank[part.first + np.argsort(plan.rank[part.ops], kind="stable")] = np.arange(1, count + 1)
    return ints(place), ints(rank * (TOP_RANK // (count + 2)))


def _alike(part: Window, place: Ints, rank: Ints, loose: NDArray[np.bool_]) -> bytes:
    """The same for windows that differ in nothing but which ops they are."""
    problem, graph = part.problem, part.problem.graph
    wiring = (graph.read_start, graph.reads, graph.make_start, graph.makes, graph.after_start, graph.after)
    numbers = (problem.op_ns, problem.send_ns, problem.rest_ns, problem.dispatch_ns, graph.nbytes, place, rank, loose)
    state = hashlib.blake2b(digest_size=16)
    for column in (*wiring, *numbers):
        state.update(np.ascontiguousarray(column).data)
    return state.digest()


def _better(search: Search, plan: Plan, found: list[FoundWindow]) -> Plan:
    """The plan with what the windows found, with the half of them that gained most, or as it was: whichever is best.
    What is good for two windows need not be good for both together."""
    ranked = sorted(found, key=lambda one: -one.gain)
    for taken in (ranked, ranked[: len(ranked) // 2]):
        if taken and not search.spent and search.simulations_left:
            other = _with(search.problem, plan, taken)
            before = search.best_score
            if search.score(other) < before:
                return other
    return plan


def _with(problem: Problem, plan: Plan, found: list[FoundWindow]) -> Plan:
    """Ops of a window share the ranks they had, in another order."""
    device, rank = np.array(plan.device), np.array(plan.rank)
    for one in found:
        device[one.ops] = one.device
        rank[one.ops[np.argsort(one.rank, kind="stable")]] = np.sort(rank[one.ops])
    return Plan.of(problem, device, rank)
