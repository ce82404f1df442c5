"""Draft: a plan as kernels in a row, from which tensors are dropped and made again, or sent away and back.

Where everything is in a row, memory is a sum of spans: a tensor is there from the kernel that makes it to the last that
reads it. That is what the simulator finds on one device, and close to it on several; it judges what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from loadmaster.graph.columns import Bools, Ints, ints, positions, rows_of
from loadmaster.graph.kinds import SCATTERING
from loadmaster.optimizers.fusion.greedy import MOST_MEMBERS, heavy
from loadmaster.optimizers.fusion.spaces import fits, fusable, spaces_of, ways_of
from loadmaster.optimizers.memory.passing import in_turn, passing
from loadmaster.passes import inner_tensors
from loadmaster.plans import Plan
from loadmaster.plans.additions import Additions, may_stay, reads_again, repeatable, statistics
from loadmaster.plans.expansion import expand
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline, simulate

# Where no reason is given, chosen by hand.
MOST_AGAIN = 400  # ops that run again for one tensor
MOST_DEPTH = 200  # of them one after the other


@dataclass
class Version:
    """A tensor as one op makes it: the original, or a copy."""

    tensor: int
    made: int  # position
    job: int = -1  # that makes it, -1: the op of the graph
    uses: list[tuple[int, int]] = field(default_factory=list)  # (position, reader: an op, or num_ops + job)
    inner: bool = False  # it stays in the registers of a kernel
    cost_ns: int = 0  # of all that runs again for it

    def last(self) -> int:
        return max((at for at, _ in self.uses), default=self.made)


@dataclass
class Job:
    """An added op, just before the kernel at a position; joined: part of that kernel. A stay has no op."""

    op: int
    at: int
    joined: bool = False
    stay: int = -1  # version that goes away
    trigger: int = -1  # position after which it comes back
    makes: tuple[int, ...] = ()  # versions


class Trip(NamedTuple):
    """A tensor to a host and back: when it can leave, when it must be back, and what either way takes."""

    since_ns: int
    out_ns: int
    due_ns: int
    back_ns: int


def out_ends(trips: Sequence[Trip]) -> list[int]:
    """[trips] when each has left, one after the other as they are made."""
    ends, free = [0] * len(trips), 0
    for i in sorted(range(len(trips)), key=lambda i: trips[i].since_ns):
        free = ends[i] = max(free, trips[i].since_ns) + trips[i].out_ns
    return ends


def back_starts(trips: Sequence[Trip]) -> list[int]:
    """[trips] when each must set out at the latest, so that all are back in time."""
    starts, free = [0] * len(trips), 1 << 62
    for i in sorted(range(len(trips)), key=lambda i: -trips[i].due_ns):
        free = starts[i] = min(free, trips[i].due_ns) - trips[i].back_ns
    return starts


Drop = tuple[int, list[tuple[int, int]]]  # a version, and those of its uses that read another instead


class Closure(NamedTuple):
    """What it takes to have a tensor at a position: ops that run there, versions that are kept until then."""

    ops: tuple[int, ...]
    keeps: tuple[int, ...]  # versions
    joined: bool
    cost_ns: int


class Draft:
    """Kernels in the order in which a plan runs them, and what is added to it."""

    def __init__(self, problem: Problem, plan: Plan, line: Timeline) -> None:
        graph = problem.graph
        self.problem, self.plan, self.line = problem, plan, line
        heads = np.unique(plan.kernel)
        order = heads[np.lexsort((heads, line.turn[heads], line.start_ns[heads]))]
        at = np.empty(problem.num_ops, np.int64)
        at[order] = np.arange(len(order))
        self.heads = order
        self.at: list[int] = at[plan.kernel].tolist()  # [ops] position of its kernel
        self.device: list[int] = plan.device.tolist()
        self.start_ns = line.start_ns[order]
        self.end_ns = line.end_ns[order]
        self.able = repeatable(graph)
        self.lasting = problem.stays
        self.may_leave = may_stay(graph)
        self.free, self.heavy = fusable(graph), heavy(problem)
        self.members = np.bincount(at[plan.kernel], minlength=len(order))
        self.open = np.ones(len(order), bool)  # light kernels, which ops that run again may join
        np.logical_and.at(self.open, at[plan.kernel], self.free)
        self.scatters, self.loops = ways_of(graph) == SCATTERING, spaces_of(graph)
        self.points, self.rows = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
        np.maximum.at(self.points, at[plan.kernel], self.loops.points)
        np.maximum.at(self.rows, at[plan.kernel], self.loops.rows)
        self.inner = inner_tensors(problem, plan.kernel)
        aliases = np.flatnonzero(graph.alias_of >= 0)
        self.overwritten = {*aliases.tolist(), *graph.alias_of[aliases].tolist()}
        self.owner: list[int] = graph.owner.tolist()
        self.producer: list[int] = graph.producer.tolist()
        self.nbytes: list[int] = graph.nbytes.tolist()
        self.workspace: list[int] = graph.workspace_bytes.tolist()
        which, place = reads_again(graph, ints(np.arange(graph.num_ops)))
        read_start = np.searchsorted(which, np.arange(graph.num_ops + 1))
        self.reads: list[list[int]] = _rows(read_start, graph.reads[place])  # [ops] when they run again
        self.read_bytes: list[list[int]] = _rows(read_start, problem.read_bytes[place])
        left = statistics(graph)
        self.makes = [[t for t in made if not left[t]] for made in _rows(graph.make_start, graph.makes)]  # likewise
        self.updated_at = self._updates()
        self.versions: list[Version] = []
        self.of: dict[int, list[int]] = {}  # tensor -> versions
        self.source: dict[tuple[int, int], int] = {}  # (reader, tensor) -> version
        self.jobs: list[Job] = []
        self.hosts: dict[int, int] = {}  # job of a stay -> its device
        self.extra_ns = 0
        self.trips: dict[int, Trip] = {}  # job of a stay -> its two transfers
        self.chains: dict[
            int, list[range]
        ] = {}  # position -> jobs that run there one after the other, before its kernel
        self._passed: dict[
            int, tuple[int, int]
        ] = {}  # position -> device, bytes of chains there that are not there at once
        self._changed: set[int] = set()  # positions of chains whose copies are read by others than before
        self._kernel_costs(at)
        self._originals()
        self._held = self._curve()

    @property
    def memory(self) -> Ints:
        """[devices, positions] bytes at most from when the position before has ended until it has ended itself."""
        for at in self._changed:
            device, before = self._passed.pop(at, (0, 0))
            self._held[device, at] += before
            if self.chains.get(at):
                device, now = passing(self, at)
                self._passed[at] = device, now
                self._held[device, at] -= now
        self._changed.clear()
        return self._held

    # The plan as it was

    def _updates(self) -> dict[int, int]:
        """Resident tensor -> position of the first kernel that overwrites it."""
        updater = self.problem.updater
        return {int(t): self.at[int(updater[t])] for t in np.flatnonzero(updater >= 0)}

    def _kernel_costs(self, at: Ints) -> None:
        problem, place = self.problem, at[self.plan.kernel]
        rows = np.arange(problem.num_ops)
        self.compute: list[int] = problem.compute_ns[rows, self.plan.device].tolist()
        self.fixed: list[int] = problem.fixed_ns[rows, self.plan.device].tolist()
        self.traffic: list[int] = problem.traffic_bytes.tolist()
        self.kernel_compute = np.bincount(place, self.compute, len(self.heads))
        self.kernel_fixed = np.bincount(place, self.fixed, len(self.heads))
        saved = np.zeros(problem.num_ops)
        graph = problem.graph
        np.add.at(saved, rows_of(graph.read_start), np.where(self.inner[graph.reads], problem.read_bytes, 0))
        np.add.at(saved, rows_of(graph.make_start), np.where(self.inner[graph.makes], graph.nbytes[graph.makes], 0))
        self.kernel_traffic = np.bincount(place, np.maximum(problem.traffic_bytes - saved, 0), len(self.heads))

    def _originals(self) -> None:
        graph = self.problem.graph
        for tensor in np.flatnonzero(graph.producer >= 0).tolist():
            self._add(Version(tensor, self.at[self.producer[tensor]], inner=bool(self.inner[tensor])))
        for op, tensor in zip(rows_of(graph.read_start).tolist(), graph.reads.tolist(), strict=True):
            if self.producer[tensor] >= 0:
                self._use(self.of[tensor][0], self.at[op], op)

    def _curve(self) -> Ints:
        """[devices, positions] bytes, residents and workspace included."""
        problem, graph = self.problem, self.problem.graph
        self.begins = np.bincount(self.at, graph.workspace_bytes, len(self.heads)).astype(np.int64)  # with the kernel
        memory = np.zeros((problem.num_devices, len(self.heads) + 1), np.int64)
        last: dict[int, int] = {}  # a tensor that is overwritten lives as long as what is written over it
        for version in self.versions:
            root = self.owner[version.tensor]
            end = len(self.heads) - 1 if problem.stays[version.tensor] else version.last()
            last[root] = max(last.get(root, 0), end)
        for version in self.versions:
            tensor = version.tensor
            if self.owner[tensor] == tensor and not version.inner:
                made = self.device[self.producer[tensor]]
                self._span(memory[made], version.made, last[tensor], self.nbytes[tensor])
                self.begins[version.made] += self.nbytes[tensor]
                for device in {self.device[reader] for _, reader in version.uses} - {made}:
                    there = max(at for at, reader in version.uses if self.device[reader] == device)
                    self._span(memory[device], version.made, there, self.nbytes[tensor])
        for op in np.flatnonzero(graph.workspace_bytes).tolist():
            self._span(memory[self.device[op]], self.at[op], self.at[op], int(graph.workspace_bytes[op]))
        memory = np.cumsum(memory, axis=1)[:, :-1]
        # Residents, and what sends make different: so much that the peaks are those that were simulated.
        memory += (self.line.peak_bytes - memory.max(axis=1))[:, None]
        return memory

    @staticmethod
    def _span(row: Ints, first: int, last: int, nbytes: int) -> None:
        row[first] += nbytes
        row[last + 1] -= nbytes

    # Versions

    def _add(self, version: Version) -> int:
        self.versions.append(version)
        self.of.setdefault(version.tensor, []).append(len(self.versions) - 1)
        return len(self.versions) - 1

    def _use(self, number: int, at: int, reader: int) -> None:
        version = self.versions[number]
        version.uses.append((at, reader))
        self.source[reader, version.tensor] = number
        self._note(version)

    def _note(self, *versions: Version) -> None:
        """Others than before read them."""
        self._changed.update(version.made for version in versions if version.job >= 0)

    def home(self, version: Version) -> int:
        return self.device[self.producer[version.tensor]]

    def hold(self, version: Version, first: int, last: int, sign: int) -> None:
        """Adds to (or takes from) the memory its bytes from one position to another."""
        if not version.inner and first <= last:
            self._held[self.home(version), first : last + 1] += sign * self.nbytes[version.tensor]

    def droppable(self, number: int, at: int) -> bool:
        """It is there at a position at which nobody needs it, or a kernel that can make it itself."""
        version = self.versions[number]
        if version.inner or not self.may_leave[version.tensor] or version.made >= at:
            return False
        if any(self.reader_device(reader) != self.home(version) for _, reader in version.uses):
            return False
        if version.last() < at:
            return False
        return bool(self.open[at]) or (version.last() > at and all(where != at for where, _ in version.uses))

    def reader_device(self, reader: int) -> int:
        ops = len(self.at)
        return self.device[reader] if reader < ops else self.device[self._op_of(self.jobs[reader - ops])]

    def _op_of(self, job: Job) -> int:
        return job.op if job.op >= 0 else self.producer[self.versions[job.stay].tensor]

    def op_ns(self, tensor: int) -> int:
        """What its maker takes alone."""
        op = self.producer[tensor]
        return max(1, int(self.problem.op_ns[op, self.device[op]]))

    # What it takes to have a tensor again

    def there(self, tensor: int, at: int) -> int:
        """A version that is in memory at a position, or -1."""
        for number in reversed(self.of[tensor]):
            version = self.versions[number]
            if self.lasting[tensor] and version.job < 0 and version.made < at:
                return number  # what lives to the end is there
            if version.made <= at <= version.last() and not version.inner and (version.made < at or version.job >= 0):
                return number
        return -1

    def latest(self, tensor: int, at: int) -> int:
        """The last version made before a position that could be kept until then, or -1."""
        found = [n for n in self.of[tensor] if self.versions[n].made < at and not self.versions[n].inner]
        return max(found, key=lambda n: self.versions[n].made, default=-1)

    def closure(
        self, tensors: tuple[int, ...], at: int, allowed: Bools, join: bool, gone: Container[int] = ()
    ) -> Closure | None:
        """How to have tensors again at a position, or None; `join`: inside the kernel that is there. What they are made
        from is made again too by ops that are allowed to ([ops]); else it is kept, where it can be. `gone`: tensors
        that count as not there, as they are to be dropped."""
        ops: list[int] = []
        keeps: list[int] = []
        seen: set[int] = set()
        waiting: list[int] = []  # ops that are looked at, each for one that reads what it makes

        def need(wanted: int, first: bool) -> bool:
            if wanted in seen:
                return True
            seen.add(wanted)
            maker = self.producer[wanted]
            if maker < 0:
                return self.updated_at.get(wanted, 1 << 60) >= at
            if wanted in self.overwritten:
                return False
            if not first and wanted not in gone and self.there(wanted, at) >= 0:
                return True
            again = bool(self.able[maker]) and len(ops) < MOST_AGAIN and len(waiting) < MOST_DEPTH
            # What only lives inside a kernel cannot be kept; to keep a tensor on is else a way to have it.
            kept = -1 if first else self.latest(wanted, at)
            run = again and (first or kept < 0 or bool(allowed[maker]))
            if run and join and not self._may_join(maker, at):
                return False
            if run:
                waiting.append(maker)
                if maker not in ops_set and not all(need(read, False) for read in self.reads[maker]):
                    return False
                waiting.pop()
                if maker not in ops_set:
                    ops_set.add(maker)
                    ops.append(maker)
                return True
            if kept < 0 or self.home(self.versions[kept]) != home:
                return False
            keeps.append(kept)
            return True

        home = self.device[self.producer[tensors[0]]]
        if join and self.device[int(self.heads[at])] != home:
            return None
        ops_set: set[int] = set()
        if not all(need(tensor, True) for tensor in tensors):
            return None
        if any(self.device[op] != home for op in ops) or (join and self.members[at] + len(ops) > MOST_MEMBERS):
            return None
        found = Closure(tuple(sorted(ops)), tuple(keeps), join, 0)
        cost = self._joined_ns(ops, at, tensors[0]) if join else self._apart_ns(found, {*tensors})
        return found._replace(cost_ns=cost)

    def _may_join(self, op: int, at: int) -> bool:
        """Whether the kernel at the position may make what the op makes, for what it reads itself."""
        loop = (self.loops.points[op], self.loops.rows[op], self.loops.apart[op])
        return bool(self.free[op] and not self.scatters[op] and fits(*loop, self.points[at], self.rows[at]))

    def _apart_ns(self, closure: Closure, wanted: set[int]) -> int:
        """Of kernels of their own: members of one kernel run in one again."""
        vanish, groups = self._vanishing(closure, wanted), dict[int, list[int]]()
        for op in closure.ops:
            groups.setdefault(self.at[op], []).append(op)
        return sum(self._time(group, vanish, 0.0, 0.0, 0.0) for group in groups.values())

    def _moved(self, ops: Iterable[int], vanish: set[int]) -> int:
        total = 0
        for op in ops:
            moved = self.traffic[op] - sum(self.nbytes[t] for t in self.makes[op] if t in vanish)
            pairs = zip(self.reads[op], self.read_bytes[op], strict=True)
            total += max(0, moved - sum(size for t, size in pairs if t in vanish))
        return total

    def _time(self, ops: list[int], vanish: set[int], compute: float, traffic: float, fixed: float) -> int:
        device = self.device[ops[0]]
        compute += sum(self.compute[op] for op in ops)
        fixed += sum(self.fixed[op] for op in ops)
        moving = (traffic + self._moved(ops, vanish)) * 1e9 / int(self.problem.bytes_per_s[device])
        return int(max(0.0, int(self.problem.launch_ns[device]) + max(compute, moving) + fixed))

    def _joined_ns(self, ops: list[int], at: int, tensor: int) -> int:
        """What the kernel at the position takes more when the ops are part of it."""
        device = self.device[ops[0]]
        was = (self.kernel_compute[at], self.kernel_traffic[at], self.kernel_fixed[at])
        vanish = {t for op in ops for t in self.makes[op]}
        rate, launch = int(self.problem.bytes_per_s[device]), int(self.problem.launch_ns[device])
        before = launch + max(was[0], was[1] * 1e9 / rate) + was[2]
        return int(self._time(ops, vanish, was[0], was[1] - self.nbytes[tensor], was[2]) - before)

    # Changes, each with the way back

    def make_again(self, drops: Sequence[Drop], closure: Closure, at: int) -> Callable[[], None]:
        """Lets those that read versions later read copies instead, made at a position."""
        undo: list[Callable[[], None]] = []
        tensors = [self.versions[number].tensor for number, _ in drops]
        made = self._run_again(closure, {*tensors}, at, undo)
        for tensor, (number, later) in zip(tensors, drops, strict=True):
            undo.append(self._redirect(number, made[tensor], later))
            self.versions[made[tensor]].cost_ns = closure.cost_ns
        self._charge(closure, tensors[0], at, undo)
        return lambda: _all(undo)

    def reuse(self, number: int, other: int, later: list[tuple[int, int]]) -> Callable[[], None]:
        """Lets later readers read another version that is there anyway, or nearly."""
        return self._redirect(number, other, later)

    def _run_again(self, closure: Closure, wanted: set[int], at: int, undo: list[Callable[[], None]]) -> dict[int, int]:
        """Tensor -> its new version, of all that the closure makes."""
        fresh: dict[int, int] = {}
        vanish, jobs = self._vanishing(closure, wanted), range(len(self.jobs), len(self.jobs) + len(closure.ops))
        if not closure.joined:
            self.chains.setdefault(at, []).append(jobs)
            undo.append(partial(self._unchain, at))
        for op in closure.ops:
            job = len(self.jobs)
            self.jobs.append(Job(op, at, closure.joined))
            made = [self._add(Version(t, at, job, inner=t in vanish)) for t in self.makes[op]]
            self.jobs[job].makes = tuple(made)
            for copy in made:
                self.hold(self.versions[copy], at, at, 1)
                self._note(self.versions[copy])
            undo.append(partial(self._forget, made))
            for tensor in self.reads[op]:
                if self.producer[tensor] >= 0:
                    source = fresh[tensor] if tensor in fresh else self._nearest(tensor, at)
                    undo.append(self._read(source, at, len(self.at) + job))
            fresh.update(zip(self.makes[op], made, strict=True))
        return fresh

    def _unchain(self, at: int) -> None:
        self.chains[at].pop()
        self._changed.add(at)

    def _vanishing(self, closure: Closure, wanted: set[int]) -> set[int]:
        """What stays inside the kernels that run again: all that joins another kernel; else what one alone reads."""
        made = {t for op in closure.ops for t in self.makes[op]}
        if closure.joined:
            return made
        readers: dict[int, set[int]] = {}
        for op in closure.ops:
            for tensor in self.reads[op]:
                readers.setdefault(tensor, set()).add(self.at[op])
        return {t for t in made - wanted if readers.get(t) == {self.at[self.producer[t]]}}

    def _nearest(self, tensor: int, at: int) -> int:
        """The version a copy at a position reads: one that is there, or the last that can be kept until then."""
        found = self.there(tensor, at)
        return found if found >= 0 else self.latest(tensor, at)

    def _forget(self, made: list[int]) -> None:
        for copy in reversed(made):
            version = self.versions[copy]
            self.hold(version, version.made, version.made, -1)
            self.of[version.tensor].pop()
            self.versions.pop()
        self.jobs.pop()

    def _read(self, number: int, at: int, reader: int) -> Callable[[], None]:
        version = self.versions[number]
        held = not self.lasting[version.tensor]
        self.hold(version, version.last() + 1, at if held else -1, 1)
        self._use(number, at, reader)

        def back() -> None:
            version.uses.remove((at, reader))
            self._note(version)
            del self.source[reader, version.tensor]
            self.hold(version, version.last() + 1, at if held else -1, -1)

        return back

    def _redirect(self, number: int, other: int, later: list[tuple[int, int]]) -> Callable[[], None]:
        old, new = self.versions[number], self.versions[other]
        old_last, new_last = old.last(), new.last()
        for use in later:
            old.uses.remove(use)
            new.uses.append(use)
            self.source[use[1], old.tensor] = other
        self.hold(old, old.last() + 1, old_last, -1)
        self.hold(new, new_last + 1, new.last(), 1)
        self._note(old, new)

        def back() -> None:
            moved, stayed = new.last(), old.last()
            for use in later:
                new.uses.remove(use)
                old.uses.append(use)
                self.source[use[1], old.tensor] = number
            self.hold(new, new.last() + 1, moved, -1)
            self.hold(old, stayed + 1, old.last(), 1)
            self._note(old, new)

        return back

    def _charge(self, closure: Closure, wanted: int, at: int, undo: list[Callable[[], None]]) -> None:
        self.extra_ns += closure.cost_ns
        joined = list(closure.ops) if closure.joined else []
        moved = self._moved(joined, {t for op in joined for t in self.makes[op]})
        compute, fixed = sum(self.compute[op] for op in joined), sum(self.fixed[op] for op in joined)
        traffic = moved - self.nbytes[wanted] if joined else 0
        columns = ((self.kernel_compute, compute), (self.kernel_traffic, traffic), (self.kernel_fixed, fixed))

        def apply(sign: int) -> None:
            for column, amount in columns:
                column[at] += sign * amount
            self.members[at] += sign * len(joined)

        apply(1)

        def back() -> None:
            self.extra_ns -= closure.cost_ns
            apply(-1)

        undo.append(back)

    def send_away(
        self, number: int, later: list[tuple[int, int]], host: int, trip: Trip, gone: int, back: int
    ) -> Callable[[], None]:
        """Lets a version stay on another device, gone from one position on and back at another."""
        version, job = self.versions[number], len(self.jobs)
        old_last = version.last()
        self.jobs.append(Job(-1, back, stay=number, trigger=max(back - 1, version.made)))
        copy = Version(version.tensor, back, job)
        for use in later:
            version.uses.remove(use)
            copy.uses.append(use)
        made = self._add(copy)
        for _, reader in later:
            self.source[reader, version.tensor] = made
        self.source[len(self.at) + job, version.tensor] = number
        self.trips[job] = trip
        self.hosts[job] = host
        kept = max(version.last(), gone)
        self.hold(version, kept + 1, old_last, -1)
        self.hold(copy, back, copy.last(), 1)

        def undo() -> None:
            self.hold(copy, back, copy.last(), -1)
            self.hold(version, kept + 1, old_last, 1)
            for use in later:
                version.uses.append(use)
                self.source[use[1], version.tensor] = number
            del self.source[len(self.at) + job, version.tensor], self.trips[job]
            self.of[version.tensor].pop()
            self.versions.pop()
            self.jobs.pop()

        return undo

    # The plan that comes of it

    def plan_of(self) -> Plan:
        """The plan with what was added; of the same order and kernels."""
        if not self.jobs:
            return self.plan
        self._time_returns()
        ops, jobs = len(self.at), self.jobs
        redirected = [
            (reader, tensor, self.versions[version].job)
            for (reader, tensor), version in sorted(self.source.items())
            if self.versions[version].job >= 0
        ]
        used = self._used(redirected)
        number = {job: i for i, job in enumerate(sorted(used))}
        rows = [self._row(jobs[job]) for job in sorted(used)]
        named = [
            (reader if reader < ops else ops + number[reader - ops], tensor, number[job])
            for reader, tensor, job in redirected
            if reader < ops or reader - ops in used
        ]
        if not rows:
            return self.plan
        added = Additions(*(ints(column) for column in (*zip(*rows, strict=True), *zip(*named, strict=True))))
        return self._columns(added, sorted(used))

    def _used(self, redirected: list[tuple[int, int, int]]) -> set[int]:
        """Jobs that somebody reads, in the end an op of the graph."""
        ops = len(self.at)
        used: set[int] = set()
        waiting = [job for reader, _, job in redirected if reader < ops]
        reads: dict[int, list[int]] = {}
        for reader, _, job in redirected:
            reads.setdefault(reader, []).append(job)
        while waiting:
            job = waiting.pop()
            if job not in used:
                used.add(job)
                waiting += reads.get(ops + job, [])
        return used

    def _row(self, job: Job) -> tuple[int, int, int]:
        if job.stay >= 0:
            return -1, self.versions[job.stay].tensor, self._last_op(job.trigger)
        return job.op, -1, self._before(job) if self.problem.num_devices > 1 and not job.joined else -1

    def _time_returns(self) -> None:
        """Each stay ends as late as it can, now that all are known."""
        stays = list(self.trips)
        for job, start in zip(stays, back_starts([self.trips[job] for job in stays]), strict=True):
            position = int(np.searchsorted(self.end_ns, start, side="right")) - 1
            own = self.jobs[job]
            own.trigger = max(min(position, own.at - 1), self.versions[own.stay].made)

    def _last_op(self, position: int) -> int:
        return int(self.heads[position])

    def _before(self, job: Job) -> int:
        """The kernel that runs there just before: without it, an idle device would make the copy too early."""
        for position in range(job.at - 1, max(-1, job.at - 40), -1):
            if self.device[int(self.heads[position])] == self.device[job.op]:
                return int(self.heads[position]) if self.at[job.op] <= position else -1
        return -1

    def _columns(self, added: Additions, used: list[int]) -> Plan:
        problem, ops = expand(self.problem, added), len(self.at)
        assert problem.expansion is not None
        place = problem.expansion.place
        count = problem.num_ops
        device, rank, kernel = (np.zeros(count, np.int64) for _ in range(3))
        width = len(self.jobs) + 2
        nodes = place[:ops]
        device[nodes] = self.plan.device
        rank[nodes] = np.array(self.at) * width + width - 1
        label = np.array(self.at)  # [nodes] kernels as labels
        labels = list(label)
        groups: dict[tuple[int, int], int] = {}
        turns = [job for at in sorted(self.chains) for jobs in in_turn(self, at) for job in jobs]
        turn = {job: number for number, job in enumerate(turns, 1)}
        for i, number in enumerate(used):
            job, node = self.jobs[number], int(place[ops + i])
            if job.stay >= 0:
                device[node] = self.hosts[number]
                label_of = len(self.heads) + len(groups)
                groups[-1, i] = label_of
            else:
                device[node] = self.device[job.op]
                key = (job.at, self.at[job.op])
                label_of = job.at if job.joined else groups.setdefault(key, len(self.heads) + len(groups))
            labels.append(label_of)
            rank[node] = job.at * width + (width - 1 if job.joined else turn.get(number, 0))
        by_place = np.empty(count, np.int64)
        by_place[place] = labels
        first = np.full(int(by_place.max()) + 1, count)
        np.minimum.at(first, by_place, np.arange(count))
        kernel = first[by_place]
        return Plan.of(problem, device, positions(np.argsort(rank, kind="stable")), kernel)


def _rows(start: Ints, values: Ints) -> list[list[int]]:
    flat, edges = values.tolist(), start.tolist()
    return [flat[edges[i] : edges[i + 1]] for i in range(len(edges) - 1)]


def _all(undo: list[Callable[[], None]]) -> None:
    for step in reversed(undo):
        step()


def draft_of(problem: Problem, plan: Plan) -> Draft:
    return Draft(problem, plan, simulate(problem, plan))
