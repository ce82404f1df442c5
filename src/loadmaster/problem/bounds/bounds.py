"""Lower bounds: what no plan can beat. Each holds for every placement, order and, when asked, fusion."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from loadmaster.compiled import seconds_compiling
from loadmaster.graph.columns import Bools, Ints, digest, ints, inverse, numbered, rows_of
from loadmaster.problem import CANNOT, Problem, check_problem
from loadmaster.problem.bounds.kernels import Saving, Sharing

if TYPE_CHECKING:
    from loadmaster.problem.bounds.cuts import CutView
    from loadmaster.problem.bounds.levels import Ahead, Behind

# Where no reason is given, chosen by hand.
EFFORT = 150_000_000  # arcs that minimum cuts may look at: about a second
CELLS = 512  # rows and columns of the grid over (earliest start, what must follow)
CROWD_CELLS, CROWD_TURNS = 256, 2  # starts of ancestors that are told apart; times that starts are raised
SENT_CELLS, SENT_TURNS, SENT_EFFORT = 64, 40, 100_000_000  # likewise; ops x dependencies that are looked at
LEAST_SHARED, MOST_SHARED = 64, 40_000  # ops between which it is looked for what must share a device: a second
MOST_TOGETHER = 2_000  # ops of which all that follows from it is looked for
MOST_CROWDED = 12_000  # ops whose ancestors are looked at one by one: a second for so many

_known: WeakKeyDictionary[Problem, dict[tuple[bool, bool, bool, bool], int]] = WeakKeyDictionary()

Fusing = bool | Sharing  # whether plans may fuse, by any kernels or by those that are allowed


class Time:
    """What a bound may take, compiling apart. When it is up, what would raise the bound further is left out."""

    def __init__(self, seconds: float | None = None) -> None:
        self.begun, self.seconds = self._now(), float("inf") if seconds is None else seconds
        self.left_out = False

    @staticmethod
    def _now() -> float:
        return time.perf_counter() - seconds_compiling()

    def is_up(self) -> bool:
        self.left_out = self.left_out or self._now() - self.begun > self.seconds
        return self.left_out

    def effort(self, whole: int) -> int:
        """As much of an effort of about a second as there is time for."""
        share = min(1.0, max(0.0, self.seconds - (self._now() - self.begun)))
        self.left_out = self.left_out or share < 1.0
        return int(whole * share)


def lower_bound(
    problem: Problem,
    *,
    fusing: Fusing = False,
    fitting: bool = False,
    adding: bool = False,
    seconds: float | None = None,
) -> int:
    """Of the problem's objective. `fusing`: over plans that may fuse ops, too; `fitting`: only over plans that fit;
    `adding`: over plans in which ops are recomputed and tensors offloaded, too; `seconds`: about how long it may take,
    where a lower one will do. Of an expanded problem, that of the one it was made from."""
    check_problem(problem, "lower_bound")
    if problem.expansion is not None:
        base = problem.expansion.base
        problem, adding = replace(base, objective=problem.objective, memory_bytes=problem.memory_bytes), True
    if adding:
        fusing = _copying(problem, fusing)
    known, key = _known.setdefault(problem, {}), (bool(fusing), isinstance(fusing, Sharing), fitting, adding)
    if key not in known:
        allowed = Time(seconds)
        # A stay may take a way that is faster than the link between two devices, and copies need no sends.
        judged = replace(problem, send_ns=ints(np.zeros_like(problem.send_ns))) if adding else problem
        parts = _Parts(judged, fusing, fitting and not adding, adding, allowed)
        bound = problem.objective.bound(problem.goal, parts)
        if allowed.left_out:
            return bound
        known[key] = bound
    return known[key]


@dataclass(frozen=True, eq=False)
class _Parts:
    """What objectives put their bounds together from (`objective.Least`)."""

    problem: Problem
    fusing: Fusing
    fitting: bool
    adding: bool = False
    allowed: Time = field(default_factory=Time)

    def step_ns(self) -> int:
        return step_bound(self.problem, fusing=self.fusing, fitting=self.fitting, allowed=self.allowed)

    def peak_bytes(self) -> int:
        effort = self.allowed.effort(EFFORT)
        return peak_bound(self.problem, fusing=self.fusing, adding=self.adding, effort=effort)

    def shared_ns(self) -> int:
        times = _least_times(self.problem, self.fusing)
        work, share = _work(_kinds(self.problem, self.fusing, self.fitting))
        together = np.zeros_like(times)
        np.add.at(together, self.problem.leader, np.where(times == CANNOT, 0, times))
        cannot = np.zeros(times.shape, bool)
        np.logical_or.at(cannot, self.problem.leader, times == CANNOT)
        alone = np.where(cannot, np.iinfo(np.int64).max, together).min(axis=1)
        return max(-(-int(work.sum()) // share), int(alone.max()), self._held_up_ns(times))

    def _held_up_ns(self, times: Ints) -> int:
        """Where devices are busy while they send and receive."""
        if self.adding or not self.problem.goal.held_up.any():
            return 0
        from loadmaster.problem.bounds.held_up import least_load

        return least_load(self.problem, times)

    def work(self, price: Ints) -> int:
        times = _least_times(self.problem, self.fusing)
        cost = np.where(times == CANNOT, np.iinfo(np.int64).max, times * price[None, :])
        return int(cost.min(axis=1).sum())


def step_bound(problem: Problem, *, fusing: Fusing = False, fitting: bool = False, allowed: Time | None = None) -> int:
    """Of the step time: critical path, work shared out among the devices, and both together.

    The path goes by the best kind of device for each op and pays the sends between kinds; ops that one op needs either
    run on its device, one at a time, or are sent, and so for all its ancestors together. Ops that all start late and
    all have much after them must share the time between; so must the ops between two that all others lead to or come
    from.
    """
    from loadmaster.problem.bounds import levels

    graph, kinds, allowed = problem.graph, _kinds(problem, fusing, fitting), allowed or Time()
    work, share = _work(kinds)
    joins = levels.bottlenecks(*graph.dependencies)
    common = (kinds.times, kinds.sends, kinds.column, kinds.count > 1, joins, work, share)
    ahead = (graph.read_start, graph.reads, graph.producer, graph.after_start, graph.after, *common)
    nexts = inverse(graph.after_start, graph.after, problem.num_ops)
    behind = (*graph.readers, graph.makes, graph.make_start, *nexts, *common)
    given = _Given(problem, kinds, ahead, behind, allowed)
    nothing = np.zeros(problem.num_ops, np.int64)
    head, tail = levels.heads(*ahead, nothing), levels.tails(*behind, nothing)
    if problem.num_ops <= MOST_CROWDED:
        head, tail = _sent(given, *_crowded(given, head, tail))
    span = int(levels.least_span(ints(head), ints(tail), kinds.times, work, share, CELLS))
    if not fusing and not allowed.is_up():
        span = _together(given, head, tail, span)
    if fitting and not allowed.is_up():
        span = max(span, _work_in_memory(problem, kinds))
    return span + (_saving(problem, fusing).least_launch_ns if fusing else 0)


class _Given(NamedTuple):
    """What starts are raised by."""

    problem: Problem
    kinds: _Kinds
    ahead: Ahead  # what `levels.heads` is given
    behind: Behind  # what `levels.tails` is given
    allowed: Time


def _crowded(given: _Given, head: Ints, tail: Ints) -> tuple[Ints, Ints]:
    """Starts and what follows, raised by the work of all ancestors and of all descendants of each op."""
    from loadmaster.problem.bounds import levels

    problem, kinds, ahead, behind, allowed = given
    start, before = problem.graph.dependencies
    follow_start, follows = inverse(start, before, problem.num_ops)
    work, share = ahead[-2:]
    able = kinds.times != CANNOT
    least = np.iinfo(np.int64).max
    for _ in range(CROWD_TURNS):
        if allowed.is_up():
            break
        soonest = np.where(able, head, least).min(axis=1)
        head = levels.heads(*ahead, levels.crowd(start, before, soonest, work, share, CROWD_CELLS, True))
        after = np.where(able, tail, least).min(axis=1)
        tail = levels.tails(*behind, levels.crowd(follow_start, follows, after, work, share, CROWD_CELLS, False))
    return head, tail


def _sent(given: _Given, head: Ints, tail: Ints) -> tuple[Ints, Ints]:
    """The same with the time that is lost by sending, over and over while it helps; on equal devices."""
    from loadmaster.problem.bounds import levels

    problem, kinds, ahead, behind, allowed = given
    if len(kinds.count) > 1 or kinds.count[0] < 2:
        return head, tail
    work, later, earlier = ahead[-2], *_ways(problem, kinds)
    rest = (int(kinds.count[0]), SENT_CELLS)
    turns = min(SENT_TURNS, SENT_EFFORT // max(1, problem.num_ops * len(later[1])))
    for _ in range(turns):
        if allowed.is_up():
            break
        before = int(head.sum() + tail.sum())
        known = levels.apart(*later, ints(head[:, 0]), work, *rest, True)
        head = ints(np.maximum(head, levels.heads(*ahead, np.maximum(known, head[:, 0]))))
        known = levels.apart(*earlier, ints(tail[:, 0]), work, *rest, False)
        tail = ints(np.maximum(tail, levels.tails(*behind, np.maximum(known, tail[:, 0]))))
        if int(head.sum() + tail.sum()) == before:
            break
    return head, tail


def _together(given: _Given, head: Ints, tail: Ints, span: int) -> int:
    """The span, raised by which ops must share a device; on equal ones. Small problems are closed in other ways."""
    problem, kinds, ahead, behind, allowed = given
    if len(kinds.count) > 1 or kinds.count[0] < 2 or not LEAST_SHARED <= problem.num_ops <= MOST_SHARED:
        return span
    from loadmaster.problem.bounds import together, turns

    (work, share), (later, earlier) = ahead[-2:], _ways(problem, kinds)
    took, first, last = (ints(np.ascontiguousarray(column[:, 0])) for column in (kinds.times, head, tail))
    known = (later, earlier, ahead, behind, first, last)
    facts = turns.EqualDeviceFacts(took, work, share, int(kinds.count[0]), problem.leader, *known, allowed.is_up)
    if problem.num_ops <= MOST_TOGETHER:
        return together.least_step(facts, span)
    return turns.least_step(facts, span)


def _ways(problem: Problem, kinds: _Kinds) -> tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]:
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


@dataclass(frozen=True, eq=False)
class _Kinds:
    """Devices that no op tells apart, as one kind."""

    times: Ints  # [ops, kinds] the least an op adds to a device's work
    count: Ints  # [kinds] devices
    memory: Ints  # [kinds] bytes of each
    sends: Ints  # [tensors, columns] times of sends
    column: Ints  # [kinds, kinds] the column with the least time from one kind to another, or within it


def _kinds(problem: Problem, fusing: Fusing, fitting: bool) -> _Kinds:
    times = _least_times(problem, fusing)
    limits = problem.memory_bytes if fitting else np.zeros_like(problem.memory_bytes)
    if fitting:
        full = _device_bytes(problem, fusing)[:, None] > problem.memory_bytes[None, :]
        if ((times == CANNOT) | full).all(axis=1).any():  # nothing fits, so no bound can be wrong
            full[:] = False
        times = np.where(full, CANNOT, times)
    kind_of = numbered((digest(times[:, device]), int(limits[device])) for device in range(problem.num_devices))
    first = np.unique(kind_of, return_index=True)[1]
    return _Kinds(
        ints(times[:, first]), ints(np.bincount(kind_of)), ints(problem.memory_bytes[first]), *_sends(problem, kind_of)
    )


def _sends(problem: Problem, kind_of: Ints) -> tuple[Ints, Ints]:
    kinds = int(kind_of.max()) + 1
    sends, column = problem.send_ns, np.zeros((kinds, kinds), np.int64)
    for src, dst in np.ndindex(kinds, kinds):
        pairs = (kind_of == src)[:, None] & (kind_of == dst)[None, :] & ~np.eye(len(kind_of), dtype=bool)
        classes = np.unique(problem.send_class[pairs])
        if len(classes) > 1:
            column[src, dst] = sends.shape[1]
            sends = ints(np.column_stack([sends, problem.send_ns[:, classes].min(axis=1)]))
        elif len(classes):
            column[src, dst] = classes[0]
    return sends, ints(column)


def _least_times(problem: Problem, fusing: Fusing) -> Ints:
    """[ops, devices] the least an op adds to a device's work."""
    return _saving(problem, fusing).least_ns if fusing else problem.op_ns


def _saving(problem: Problem, fusing: Fusing) -> Saving:
    return Saving(problem, fusing if isinstance(fusing, Sharing) else None)


def _work(kinds: _Kinds) -> tuple[Ints, int]:
    """(work, share): any set of ops keeps the devices busy for at least the sum of its work ÷ share.

    For any price of device time that adds up to 1 over all devices, that is so of sum over ops of min over devices of
    price x time: the dual of spreading ops over devices in fractions.
    """
    if len(kinds.count) == 1:
        return ints(kinds.times[:, 0]), int(kinds.count[0])
    from loadmaster.problem.bounds import levels

    price = levels.prices(kinds.times, kinds.count, 4096, 60)
    # Thousandths of a ns, unless the sums would pass what an integer holds.
    scale = 1024 if float(kinds.times.max(axis=1).sum()) < 2**50 else 1
    return levels.cheapest(kinds.times, price, scale), scale


def _work_in_memory(problem: Problem, kinds: _Kinds) -> int:
    """As `_work` over all ops, with a price on memory too: residents that a fast device cannot hold send their ops
    elsewhere."""
    held = _op_residents(problem)
    able = kinds.times != CANNOT
    room = kinds.memory * kinds.count
    if len(kinds.count) < 2 or int(held.sum()) <= int(kinds.memory.min()):
        return 0
    price, rent = _memory_prices(kinds, held)
    cost = np.where(able, kinds.times * price[None, :] + held[:, None] * rent[None, :], np.inf)
    value = float(cost.min(axis=1).sum()) * (1 - 1e-9) - float((room * rent).sum()) * (1 + 1e-9)
    return max(0, int(np.floor(value)))


def _memory_prices(kinds: _Kinds, held: Ints) -> tuple[np.ndarray, np.ndarray]:
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


def _bundles(kinds: _Kinds, held: Ints) -> tuple[np.ndarray, int]:
    """Ops alike in how much faster each kind is and in bytes per time, as one: at most a few hundred bundles."""
    times = kinds.times.astype(np.float64)
    best = np.maximum(1.0, np.where(times < 0, np.inf, times).min(axis=1))
    ratio = np.rint(2 * np.log2(np.maximum(times, 1.0) / best[:, None])).clip(-20, 20)
    ratio[times < 0] = 99
    heft = np.rint(np.log2((held + 1.0) / best)).clip(-16, 48)
    heft[held == 0] = -99
    _, bundle = np.unique(np.column_stack([ratio, heft]), axis=0, return_inverse=True)
    size = int(bundle.max()) + 1
    return (bundle.reshape(-1), size) if size <= 400 else (bundle.reshape(-1) * 400 // size, 400)


def peak_bound(problem: Problem, *, fusing: Fusing = False, adding: bool = False, effort: int = EFFORT) -> int:
    """Of the largest device peak: what one device must hold at once, and what all hold together, shared out evenly.

    Together they hold the residents and, whenever an op starts, what the ops before it have made and others still need:
    no less than a minimum cut through the graph at that op (`adding`: but what is made again need not be held).
    `effort` limits the search for the op with the largest.
    """
    devices = problem.num_devices
    fusing = _copying(problem, fusing) if adding else fusing
    alone = int(_device_bytes(problem, fusing, adding and devices > 1).max())
    memory = Storages(problem, fusing)
    residents, kept = memory.resident_bytes, memory.kept_bytes
    alone = max(alone, -(-(residents + kept) // devices))
    if adding or (fusing and not isinstance(fusing, Sharing)):
        return max(alone, -(-(residents + memory.last_bytes) // devices))
    from loadmaster.problem.bounds.cuts import largest_cut

    # A cut that does not lift the bound over `alone` need not be looked for.
    floor = max(0, alone * devices - residents)
    cut, _ = largest_cut(memory.net, np.arange(problem.num_ops), floor, effort)
    return max(alone, -(-(residents + int(cut)) // devices))


def _copying(problem: Problem, fusing: Fusing) -> Fusing:
    """What plans that add copies may fuse: a tensor that is made again may be inner to a kernel where it was not."""
    return (fusing.copying(problem.graph) or True) if isinstance(fusing, Sharing) else fusing


def cut_order(problem: Problem, *, effort: int = EFFORT) -> Ints:
    """[ops] ops in the order of lowest peak, all on one device, that the search for the largest cut meets."""
    from loadmaster.problem.bounds.cuts import largest_cut

    return ints(largest_cut(Storages(problem).net, np.arange(problem.num_ops), 0, effort)[1])


@dataclass(frozen=True, eq=False)
class Storages:
    """Storages: tensors that own memory, each with all that is written over it in place. `fusing`: those that a kernel
    may hide have no bytes."""

    problem: Problem
    fusing: Fusing = False

    @cached_property
    def _stays(self) -> Bools:
        """[tensors] of a storage, whether it or anything written over it lives to the end."""
        stays = np.zeros(self.problem.graph.num_tensors, bool)
        stays[self.problem.graph.owner[self.problem.stays]] = True
        return stays

    @cached_property
    def resident_bytes(self) -> int:
        """Every resident tensor that is read or updated is on at least one device for the whole step."""
        graph = self.problem.graph
        used = self.problem.updater >= 0
        used[graph.reads] = True
        return int(graph.nbytes[used & self.problem.resident].sum())

    @cached_property
    def kept_bytes(self) -> int:
        """Made by the step and alive at its end."""
        return int(self.problem.graph.nbytes[self._stays & ~self.problem.resident].sum())

    @cached_property
    def _seen(self) -> Bools:
        """[tensors] no kernel hides it."""
        if not self.fusing:
            return np.ones(self.problem.graph.num_tensors, bool)
        return _saving(self.problem, self.fusing).never_inner

    @cached_property
    def appears(self) -> Ints:
        """[ops] bytes that are there when the op starts and were not before."""
        graph, total = self.problem.graph, self.problem.graph.workspace_bytes.copy()
        new = (graph.alias_of < 0) & self._seen
        np.add.at(total, rows_of(graph.make_start), np.where(new[graph.makes], graph.nbytes[graph.makes], 0))
        return ints(total)

    @cached_property
    def last_bytes(self) -> int:
        """Residents apart, what is there when the last of some ops runs: what it reads and makes, no less than the
        least that one of them does, and all that they made and that lives to the end. Some: those of the most bytes,
        however many. So it is whatever runs again and in whatever order."""
        problem, graph = self.problem, self.problem.graph
        read, made = graph.owner[graph.reads], graph.owner[graph.makes]
        read_stored, made_stored = _stored(problem, self.fusing)
        passing = ~self._stays & ~problem.resident
        some, other = read_stored & passing[read], made_stored & passing[made]
        rows = np.concatenate([rows_of(graph.read_start)[some], rows_of(graph.make_start)[other]])
        needs = _sum_once(rows, np.concatenate([read[some], made[other]]), graph.nbytes, problem.num_ops)
        needs = ints(needs + graph.workspace_bytes)
        lasting = np.flatnonzero(self._stays & ~problem.resident & (graph.producer >= 0))
        lasts = np.zeros(problem.num_ops, np.int64)
        np.add.at(lasts, graph.producer[lasting], graph.nbytes[lasting])
        order = np.argsort(-needs, kind="stable")
        return int((needs[order] + np.cumsum(lasts[order])).max(initial=0))

    @cached_property
    def net(self) -> CutView:
        from loadmaster.problem.bounds.cuts import CutView

        problem, graph = self.problem, self.problem.graph
        storages = np.flatnonzero((graph.producer >= 0) & (graph.alias_of < 0))
        number = np.full(graph.num_tensors, -1, np.int64)
        number[storages] = np.arange(len(storages))
        use_op, use_storage = rows_of(graph.read_start), number[graph.owner[graph.reads]]
        written = np.flatnonzero((graph.alias_of >= 0) & (graph.producer >= 0))
        use_op = np.concatenate([use_op, graph.producer[written]])
        use_storage = np.concatenate([use_storage, number[graph.owner[written]]])
        key = np.unique((use_op * len(storages) + use_storage)[use_storage >= 0])
        use_op, use_storage = key // max(1, len(storages)), key % max(1, len(storages))
        use_start = np.zeros(problem.num_ops + 1, np.int64)
        np.cumsum(np.bincount(use_op, minlength=problem.num_ops), out=use_start[1:])
        wait_start, waits = graph.dependencies
        user_start, users = inverse(ints(use_start), ints(use_storage), len(storages))
        follow_start, follows = inverse(wait_start, waits, problem.num_ops)
        return CutView(
            wait_start,
            waits,
            follow_start,
            follows,
            ints(storages),
            graph.producer[storages],
            ints(np.where(self._seen[storages], graph.nbytes[storages], 0)),
            self._stays[storages],
            user_start,
            users,
            self.appears,
        )


def _device_bytes(problem: Problem, fusing: Fusing, elsewhere: bool = False) -> Ints:
    """[ops] bytes on the device of each op at once, whatever the plan: when it starts, and at the end of the step.

    There are the residents that its colocation group updates or, where nobody updates them, reads; and what it reads,
    makes and needs while it runs, or what the group makes that lives to the end. `elsewhere`: residents may live on
    another device than those that read or update them, and are there while an op needs them.
    """
    graph, ops = problem.graph, problem.num_ops
    group = problem.leader
    reader, maker = rows_of(graph.read_start), rows_of(graph.make_start)
    root_read, root_made = graph.owner[graph.reads], graph.owner[graph.makes]
    fixed = problem.resident & (problem.updater < 0) & (not elsewhere)
    updated = problem.resident & (problem.updater >= 0) & (not elsewhere)
    home = _sum_once(
        np.concatenate([group[reader[fixed[graph.reads]]], group[problem.updater[updated]]]),
        np.concatenate([graph.reads[fixed[graph.reads]], np.flatnonzero(updated)]),
        graph.nbytes,
        ops,
    )
    read_stored, made_stored = _stored(problem, fusing)
    reads = (read_stored | problem.resident[root_read]) & ~fixed[root_read]
    makes = (made_stored | problem.resident[root_made]) & ~fixed[root_made]
    rows = np.concatenate([reader[reads], maker[makes]])
    roots = np.concatenate([root_read[reads], root_made[makes]])
    # An updated resident of the op's own group is in `home` already.
    apart = ~updated[roots] | (group[rows] != group[problem.updater[roots]])
    running = _sum_once(rows[apart], roots[apart], graph.nbytes, ops) + graph.workspace_bytes
    kept = problem.stays[graph.makes] & ~problem.resident[root_made]
    ending = _sum_once(group[maker[kept]], root_made[kept], graph.nbytes, ops)
    return ints(home[group] + np.maximum(running, ending[group]))


def _stored(problem: Problem, fusing: Fusing) -> tuple[Bools, Bools]:
    """[reads], [makes] of the graph: what lies in memory there, whatever the kernel."""
    if fusing:
        saving = _saving(problem, fusing)
        return saving.read_stored, saving.made_stored
    return np.ones(len(problem.graph.reads), bool), np.ones(len(problem.graph.makes), bool)


def _sum_once(rows: Ints, tensors: Ints, nbytes: Ints, size: int) -> Ints:
    """[rows] bytes of the tensors of each row, each counted once."""
    key = np.unique(rows * len(nbytes) + tensors)
    total = np.zeros(size, np.int64)
    np.add.at(total, key // max(1, len(nbytes)), nbytes[key % max(1, len(nbytes))])
    return ints(total)


def _op_residents(problem: Problem) -> Ints:
    """[ops] bytes of residents, each given to one op that must run where it lies: its updater, else its first
    reader."""
    graph = problem.graph
    start, readers = graph.readers
    read = np.diff(start) > 0
    holder = problem.updater.copy()
    fixed = problem.resident & (holder < 0) & read
    holder[fixed] = readers[start[:-1][fixed]]
    mine = problem.resident & (holder >= 0)
    total = np.zeros(problem.num_ops, np.int64)
    np.add.at(total, holder[mine], graph.nbytes[mine])
    return ints(total)
