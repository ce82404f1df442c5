"""Bound on the step time: critical path, work shared out among the devices, and both together.

In stages, each with what the last found out: heads and tails of a path that pays sends (`levels`), raised by the work
of all that leads to an op or follows it (`crowds`), and then, on equal devices and without fusion, by what must share a
device if the step is to be shorter (`turns`, for small problems `together`). Memory limits, where plans must fit, add a
price on bytes. Later stages are skipped where the problem is large (`MOST_CROWDED`, `MOST_TOGETHER`) or time is up:
what is left is still a bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from loadmaster.graph.columns import Ints, ints, inverse, rows_of
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.bounds import crowds, levels
from loadmaster.problem.bounds.among import Work
from loadmaster.problem.bounds.kernels import Fusing, saving_of
from loadmaster.problem.bounds.kinds import Kinds, kinds_of, work_of

CELLS = 512  # rows and columns of the grid over (earliest start, what must follow)
CROWD_CELLS, CROWD_TURNS = 256, 2  # starts of ancestors that are told apart; times that starts are raised
SENT_CELLS, SENT_TURNS, SENT_EFFORT = 64, 40, 100_000_000  # likewise; ops x dependencies that are looked at
# What work counts, in ns of a quiet core: a word of ancestors, an op x dependency, an op or read of a path, a cell of
# a grid, a bundle of a linear program; measured on 1,000 to 10,300 ops.
CROWD_NS, SENT_NS, PATH_NS, CELL_NS, BUNDLE_NS = 3.0, 2.7, 20.0, 1.5, 10_000.0
LEAST_SHARED, MOST_SHARED = 64, 40_000  # ops between which it is looked for what must share a device: a second
MOST_TOGETHER = 2_000  # ops of which all that follows from it is looked for
BUNDLES = 400  # of similar ops, at most
MOST_CROWDED = 12_000  # ops whose ancestors are looked at one by one: a second for so many


def step_bound(
    problem: Problem,
    *,
    fusing: Fusing = False,
    fitting: bool = False,
    adding: bool = False,
    allowed: Work | None = None,
) -> int:
    """Of the step time: critical path, work shared out among the devices, and both together.

    The path goes by the best kind of device for each op and pays the sends between kinds; ops that one op needs either
    run on its device, one at a time, or are sent, and so for all its ancestors together. Ops that all start late and
    all have much after them must share the time between; so must the ops between two that all others lead to or come
    from. `adding`: ops may run again, so that what shares a device with what it reads need not.
    """
    graph, kinds, allowed = problem.graph, kinds_of(problem, fusing, fitting), allowed or Work()
    work, share = work_of(kinds)
    joins = levels.bottlenecks(*graph.dependencies)
    common = (kinds.times, kinds.sends, kinds.column, kinds.count > 1, joins, work, share)
    ahead, behind = levels.ways_of(graph, *common)
    given = _Given(problem, kinds, ahead, behind, allowed)
    nothing = ints(np.zeros(problem.num_ops))
    head, tail = levels.soonest(ahead, nothing), levels.soonest(behind, nothing)
    allowed.add(2 * given.path_ns)
    if problem.num_ops <= MOST_CROWDED:
        head, tail = _sent(given, *_crowded(given, head, tail))
    span = crowds.least_span(head, tail, kinds.times, work, share, CELLS)
    allowed.add(CELL_NS * CELLS**2)
    if not fusing and not adding and not allowed.is_up():
        span = _together(given, head, tail, span)
    if fitting and not allowed.is_up():
        span = max(span, _work_in_memory(problem, kinds))
        allowed.add(BUNDLE_NS * min(problem.num_ops, BUNDLES) * (len(kinds.count) > 1))
    return span + (saving_of(problem, fusing).least_launch_ns if fusing else 0)


class _Given(NamedTuple):
    """What starts are raised by."""

    problem: Problem
    kinds: Kinds
    ahead: levels.Ways
    behind: levels.Ways
    allowed: Work

    @property
    def path_ns(self) -> float:
        """Of one walk along the program."""
        graph = self.problem.graph
        return PATH_NS * (graph.num_ops + len(graph.reads)) * len(self.kinds.count) ** 2


def _crowded(given: _Given, head: Ints, tail: Ints) -> tuple[Ints, Ints]:
    """Starts and what follows, raised by the work of all ancestors and of all descendants of each op."""
    problem, kinds, ahead, behind, allowed = given
    start, before = problem.graph.dependencies
    follow_start, follows = inverse(start, before, problem.num_ops)
    work, share = ahead.work, ahead.share
    able = kinds.times != CANNOT
    least, words = np.iinfo(np.int64).max, problem.num_ops // 64 + CROWD_CELLS
    turn_ns = CROWD_NS * (problem.num_ops + len(before)) * words + given.path_ns
    for forward in (True, False) * CROWD_TURNS:
        if allowed.is_up(turn_ns):
            break
        allowed.add(turn_ns)
        if forward:
            soonest = np.where(able, head, least).min(axis=1)
            head = levels.soonest(ahead, crowds.crowd(start, before, ints(soonest), work, share, CROWD_CELLS, True))
        else:
            after = np.where(able, tail, least).min(axis=1)
            known = crowds.crowd(follow_start, follows, ints(after), work, share, CROWD_CELLS, False)
            tail = levels.soonest(behind, known)
    return head, tail


def _sent(given: _Given, head: Ints, tail: Ints) -> tuple[Ints, Ints]:
    """The same with the time that is lost by sending, over and over while it helps; on equal devices."""
    problem, kinds, ahead, behind, allowed = given
    if len(kinds.count) > 1 or kinds.count[0] < 2:
        return head, tail
    work, later, earlier = ahead.work, *_ways(problem, kinds)
    rest = (int(kinds.count[0]), SENT_CELLS)
    effort = max(1, problem.num_ops * len(later[1]))
    turns, turn_ns = min(SENT_TURNS, SENT_EFFORT // effort), 2 * (SENT_NS * effort + given.path_ns)
    for _ in range(turns):
        if allowed.is_up(turn_ns):
            break
        allowed.add(turn_ns)
        before = int(head.sum() + tail.sum())
        known = crowds.apart(*later, ints(head[:, 0]), work, *rest, True)
        head = ints(np.maximum(head, levels.soonest(ahead, ints(np.maximum(known, head[:, 0])))))
        known = crowds.apart(*earlier, ints(tail[:, 0]), work, *rest, False)
        tail = ints(np.maximum(tail, levels.soonest(behind, ints(np.maximum(known, tail[:, 0])))))
        if int(head.sum() + tail.sum()) == before:
            break
    return head, tail


def _together(given: _Given, head: Ints, tail: Ints, span: int) -> int:
    """The span, raised by which ops must share a device; on equal ones. Small problems are closed in other ways."""
    problem, kinds, ahead, behind, allowed = given
    if len(kinds.count) > 1 or kinds.count[0] < 2 or not LEAST_SHARED <= problem.num_ops <= MOST_SHARED:
        return span
    from loadmaster.problem.bounds import together, turns

    later, earlier = _ways(problem, kinds)
    took, first, last = (ints(np.ascontiguousarray(column[:, 0])) for column in (kinds.times, head, tail))
    known = (later, earlier, ahead, behind, first, last)
    facts = turns.EqualDeviceFacts(
        took, ahead.work, ahead.share, int(kinds.count[0]), problem.leader, *known, allowed, given.path_ns
    )
    if problem.num_ops <= MOST_TOGETHER:
        return together.least_step(facts, span)
    return turns.least_step(facts, span)


def _ways(problem: Problem, kinds: Kinds) -> tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]:
    """(start, ops, ns) of what follows each op, and of what comes before it, with the time that sending from one to the
    other takes: of several tensors the longest, 0 where nothing is read."""
    graph, ops = problem.graph, problem.num_ops
    maker = graph.producer[graph.reads]
    made = maker >= 0
    first = np.concatenate([maker[made], graph.after])
    then = np.concatenate([rows_of(graph.read_start)[made], rows_of(graph.after_start)])
    took = np.concatenate([kinds.sends[graph.reads[made], kinds.column[0, 0]], np.zeros(len(graph.after), np.int64)])
    order = np.lexsort((took, then, first))
    first, then, took = first[order], then[order], took[order]
    last = np.append((first[1:] != first[:-1]) | (then[1:] != then[:-1]), True)[: len(first)]
    first, then, took = first[last], then[last], took[last]
    back = np.lexsort((first, then))
    return (_starts(first, ops), ints(then), ints(took)), (_starts(then, ops), ints(first[back]), ints(took[back]))


def _starts(rows: np.ndarray, count: int) -> Ints:
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=start[1:])
    return ints(start)


def _work_in_memory(problem: Problem, kinds: Kinds) -> int:
    """As `work_of` over all ops, with a price on memory too: residents that a fast device cannot hold send their ops
    elsewhere."""
    if len(kinds.count) < 2:
        return 0
    from loadmaster.problem.bounds.holding import op_residents

    held, room = op_residents(problem), kinds.memory * kinds.count
    if int(held.sum()) <= int(kinds.memory.min()):
        return 0
    able = kinds.times != CANNOT
    price, rent = _memory_prices(kinds, held)
    cost = np.where(able, kinds.times * price[None, :] + held[:, None] * rent[None, :], np.inf)
    value = float(cost.min(axis=1).sum()) * (1 - 1e-9) - float((room * rent).sum()) * (1 + 1e-9)
    return max(0, int(np.floor(value)))


def _memory_prices(kinds: Kinds, held: Ints) -> tuple[np.ndarray, np.ndarray]:
    """Prices of device time and of memory from the linear program over bundles of similar ops; any prices give a
    bound."""
    from scipy.optimize import linprog

    bundle, size = _bundles(kinds, held)
    count = len(kinds.count)
    times = np.zeros((size, count))
    np.add.at(times, bundle, np.where(kinds.times == CANNOT, 0, kinds.times).astype(np.float64))
    cannot = np.zeros((size, count), bool)
    np.logical_or.at(cannot, bundle, kinds.times == CANNOT)
    nbytes = np.bincount(bundle, weights=held, minlength=size)
    unit_ns, unit_bytes = max(1.0, times.max()), max(1.0, float(nbytes.max()))
    rows = np.zeros((2 * count, size * count + 1))
    for kind in range(count):
        rows[kind, kind : size * count : count] = times[:, kind] / unit_ns
        rows[kind, -1] = -kinds.count[kind]
        rows[count + kind, kind : size * count : count] = nbytes / unit_bytes
    limit = np.concatenate([np.zeros(count), kinds.memory * kinds.count / unit_bytes])
    each = np.kron(np.eye(size), np.ones(count))
    goal = np.append(np.zeros(size * count), 1.0)
    reach = [(0.0, 0.0 if no else 1.0) for no in cannot.reshape(-1)] + [(0.0, None)]
    answer: Any = linprog(
        goal, rows, limit, np.hstack([each, np.zeros((size, 1))]), np.ones(size), reach, method="highs"
    )
    if not answer.success:
        return np.full(count, 1.0 / kinds.count.sum()), np.zeros(count)
    dual = np.maximum(-answer.ineqlin.marginals, 0.0)
    scale = max(1e-12, float((dual[:count] * kinds.count).sum()))
    return dual[:count] / scale, dual[count:] / scale * (unit_ns / unit_bytes)


def _bundles(kinds: Kinds, held: Ints) -> tuple[np.ndarray, int]:
    """Ops alike in how much faster each kind is and in bytes per time, as one."""
    times = kinds.times.astype(np.float64)
    best = np.maximum(1.0, np.where(times < 0, np.inf, times).min(axis=1))
    ratio = np.minimum(np.rint(2 * np.log2(np.maximum(times, 1.0) / best[:, None])), 20)
    ratio[times < 0] = 99
    heft = np.rint(np.log2((held + 1.0) / best)).clip(-16, 48)
    heft[held == 0] = -99
    _, bundle = np.unique(np.column_stack([ratio, heft]), axis=0, return_inverse=True)
    size = int(bundle.max()) + 1
    return (bundle.reshape(-1), size) if size <= BUNDLES else (bundle.reshape(-1) * BUNDLES // size, BUNDLES)
