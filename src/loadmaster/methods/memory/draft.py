"""Draft: a plan as kernels in a row, from which tensors are dropped and made again, or sent away and back.

Where everything is in a row, memory is a sum of spans: a tensor is there from the kernel that makes it to the last that
reads it. That is what the simulator finds on one device, and close to it on several; it judges what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.baselines.fusion.spaces import fusable, spaces_of, ways_of
from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.graph.kinds import HEAVY, SCATTERING, work_of
from loadmaster.methods.memory.passing import passing
from loadmaster.passes import inner_tensors
from loadmaster.plans import Plan
from loadmaster.plans.additions import may_stay, reads_again, repeatable, statistics, updated_by
from loadmaster.problem import Problem
from loadmaster.search import Search
from loadmaster.simulator import Timeline, simulate

if TYPE_CHECKING:
    from loadmaster.methods.memory.trips import Trip


@dataclass
class Version:
    """A tensor as one op makes it: the original, or a copy.

    Attributes:
        made: position.
        job: that makes it, -1: the op of the graph.
        uses: (position, reader: an op, or num_ops + job)
        inner: it stays in the registers of a kernel.
        cost_ns: of all that runs again for it.
    """

    tensor: int
    made: int
    job: int = -1
    uses: list[tuple[int, int]] = field(default_factory=list)
    inner: bool = False
    cost_ns: int = 0

    def last(self) -> int:
        return max((at for at, _ in self.uses), default=self.made)


@dataclass
class Job:
    """An added op, just before the kernel at a position; joined: part of that kernel. A stay has no op.

    Attributes:
        stay: version that goes away.
        given: tensor that lives on a host and comes from there, or is written over one that does and goes back.
        trigger: position after which it comes back.
        makes: versions.
        left: of what goes back updated: position at which it has.
    """

    op: int
    at: int
    joined: bool = False
    stay: int = -1
    given: int = -1
    trigger: int = -1
    makes: tuple[int, ...] = ()
    left: int = -1


Drop = tuple[int, list[tuple[int, int]]]  # a version, and those of its uses that read another instead


class Draft:
    """Kernels in the order in which a plan runs them, and what is added to it.

    A position is a kernel's place in the row. `memory` has the bytes of every device at every position and is kept up
    by `hold` as versions of tensors come, go and live longer or shorter; `versions` and `jobs` are what there is to
    change. What it cannot know, because kernels of several devices run side by side, the simulator says afterwards.
    """

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
        aliases = np.flatnonzero(graph.is_alias)
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
        self.updates = updated_by(graph)
        self.given: dict[int, list[tuple[int, int]]] = {}  # there before the step -> who reads it, as in a version
        self.lodged: set[int] = set()  # of those, what lives on a host: versions of it come from there
        self.versions: list[Version] = []
        self.of: dict[int, list[int]] = {}  # tensor -> versions
        self.source: dict[tuple[int, int], int] = {}  # (reader, tensor) -> version
        self.jobs: list[Job] = []
        self.hosts: dict[int, int] = {}  # job of a stay -> its device
        self.extra_ns = 0
        self.trips: dict[int, Trip] = {}  # job of a stay -> its two transfers
        # Whether all that travels is moved to when links carry it whenever there is more of it, or is taken to come as
        # it would have when it was decided; and how many times its own way before it is needed it may set out at most.
        self.follows, self.lead = False, inf
        # Position -> jobs that run there one after the other, before its kernel; of those there, the device and the
        # bytes that are not there at once.
        self.chains: dict[int, list[range]] = {}
        self._passed: dict[int, tuple[int, int]] = {}
        self.changed: set[int] = set()  # positions of chains whose copies are read by others than before
        self._kernel_costs(at)
        self._originals()
        self._held = self._curve()

    @property
    def memory(self) -> Ints:
        """[devices, positions] bytes at most from when the position before has ended until it has ended itself."""
        for at in self.changed:
            device, before = self._passed.pop(at, (0, 0))
            self._held[device, at] += before
            if self.chains.get(at):
                device, now = passing(self, at)
                self._passed[at] = device, now
                self._held[device, at] -= now
        self.changed.clear()
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
        launch = problem.launches[rows, self.plan.device]
        self.launch: list[int] = launch.tolist()
        self.kernel_launch = np.zeros(len(self.heads), np.int64)
        np.maximum.at(self.kernel_launch, place, launch)
        self.traffic: list[int] = problem.traffic_bytes.tolist()
        self.kernel_compute = np.bincount(place, self.compute, len(self.heads))
        saved = np.zeros(problem.num_ops)
        graph = problem.graph
        np.add.at(saved, rows_of(graph.read_start), np.where(self.inner[graph.reads], problem.read_bytes, 0))
        np.add.at(saved, rows_of(graph.make_start), np.where(self.inner[graph.makes], graph.nbytes[graph.makes], 0))
        moved = np.maximum(problem.traffic_bytes - saved, 0)
        self.kernel_traffic = np.bincount(place, moved, len(self.heads))
        own_ns = np.maximum(self.compute, moved * 1e9 / problem.bytes_per_s[self.plan.device])
        self.kernel_fixed = np.bincount(place, np.maximum(self.fixed, -own_ns), len(self.heads))

    def _originals(self) -> None:
        graph = self.problem.graph
        for tensor in np.flatnonzero(graph.is_made).tolist():
            self.add(Version(tensor, self.at[self.producer[tensor]], inner=bool(self.inner[tensor])))
        for op, tensor in zip(rows_of(graph.read_start).tolist(), graph.reads.tolist(), strict=True):
            if self.producer[tensor] >= 0:
                self.use(self.of[tensor][0], self.at[op], op)
            else:
                self.given.setdefault(tensor, []).append((self.at[op], op))

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

    def add(self, version: Version) -> int:
        """Takes in a version that is made; its number."""
        self.versions.append(version)
        self.of.setdefault(version.tensor, []).append(len(self.versions) - 1)
        return len(self.versions) - 1

    def use(self, number: int, at: int, reader: int) -> None:
        """Lets a reader at a position read that version, and no other of its tensor."""
        version = self.versions[number]
        version.uses.append((at, reader))
        self.source[reader, version.tensor] = number
        self.note(version)

    def note(self, *versions: Version) -> None:
        """Others than before read them."""
        self.changed.update(version.made for version in versions if version.job >= 0)

    def home(self, version: Version) -> int:
        return self.home_of(version.tensor)

    def home_of(self, tensor: int) -> int:
        """The device that makes it; of what is there before the step, that of its first reader."""
        maker = self.producer[tensor]
        return self.device[maker if maker >= 0 else self.given[tensor][0][1]]

    def hold(self, version: Version, first: int, last: int, sign: int) -> None:
        """Adds to (or takes from) the memory its bytes from one position to another."""
        if not version.inner:
            self.hold_bytes(self.home(version), first, last, sign * self.nbytes[version.tensor])

    def hold_bytes(self, device: int, first: int, last: int, nbytes: int) -> None:
        """Adds bytes to the memory of a device from one position to another, both included."""
        if first <= last:
            self._held[device, first : last + 1] += nbytes

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


def _rows(start: Ints, values: Ints) -> list[list[int]]:
    flat, edges = values.tolist(), start.tolist()
    return [flat[edges[i] : edges[i + 1]] for i in range(len(edges) - 1)]


def draft_of(problem: Problem, plan: Plan, search: Search | None = None) -> Draft:
    """The plan as it is simulated; a search of the problem, where one is given, counts that."""
    return Draft(problem, plan, simulate(problem, plan) if search is None else search.timeline(plan))


def heavy(problem: Problem) -> Bools:
    """[ops] which are products, convolutions and the like, that a kernel has one of."""
    return np.array([work_of(kind) == HEAVY for kind in problem.graph.kind])
