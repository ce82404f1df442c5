"""One order of all that a plan does: kernels and sends, each after what it waits for.

An executor that goes through this list never waits for something further down. That is what keeps a step of one
process correct when it issues work in this order, and several processes free of deadlock when each does its own part
of it (see `processes`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from loadmaster.plans import Plan
from loadmaster.plans.expansion import STAY
from loadmaster.problem import Problem

if TYPE_CHECKING:
    from loadmaster.simulator import Timeline


class Launch(NamedTuple):
    """One kernel: its ops in program order. With `Send` it is what a schedule is a list of."""

    ops: tuple[int, ...]
    device: int


class Send(NamedTuple):
    """A tensor to a device that reads it, once in a step (rule 4 of the simulator).

    Attributes:
        tensor: its number in the planned graph.
        src, dst: devices.
    """

    tensor: int
    src: int
    dst: int


Event = Launch | Send


def landings(problem: Problem, events: Sequence[Event]) -> frozenset[Send]:
    """Sends that bring what was written over a tensor back to where it lives, when nothing there reads what it was
    before any more: they can be copied over it straight away."""
    graph, returns, last = problem.graph, dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    for number, event in enumerate(events):
        if isinstance(event, Send):
            last[int(graph.owner[event.tensor]), event.src] = number
            continue
        for op in event.ops:
            read = [int(tensor) for tensor in graph.reads_of(op)]
            root = int(graph.owner[read[0]]) if read else -1
            if graph.kind[op] == STAY and not graph.is_made[root] and read[0] != root:
                returns[read[0], event.device] = root
            else:
                last.update({(int(graph.owner[tensor]), event.device): number for tensor in read})
    return frozenset(
        event
        for number, event in enumerate(events)
        if isinstance(event, Send)
        and (event.tensor, event.dst) in returns
        and number > last.get((returns[event.tensor, event.dst], event.dst), -1)
    )


def schedule(problem: Problem, plan: Plan, timeline: Timeline | None = None) -> list[Event]:
    """Every kernel and every send in one order that obeys the plan.

    With a timeline the order on each device and on each channel is the simulated one. Without, kernels go by rank as
    far as what they wait for allows (of a settled plan that is the simulated order too), and sends by `send_rank`
    where that can be kept; else each goes once its tensor is made.
    """
    work = _Work.of(problem, plan)
    if timeline is not None:
        priority = work.simulated_priority(timeline)
        return work.events(work.ordered(priority, work.chains(priority, problem.cluster.channel.tolist())))
    order = work.ordered(work.rank_priority(), ())
    if plan.send_rank is None:
        return work.events(order)
    place = {node: (index,) for index, node in enumerate(order)}
    launches = {node: place[node] for node in range(len(work.launches))}
    chains = work.chains({**launches, **work.send_priority(plan, place)}, None)
    kept = work.ordered(place, chains)
    return work.events(kept if len(kept) == len(order) else order)


def host_last(problem: Problem, plan: Plan, events: Sequence[Event], host: set[int]) -> list[Event]:
    """The same order on every device and channel, with calls of the host itself put off while there is anything to ask
    of another device: asking takes no time, and the host's own work would keep the others waiting for it. A stay is no
    work, unless it brings something home, for which the host must wait until that has come."""
    work = _Work.of(problem, plan)
    graph = problem.graph
    stays = {n for n, launch in enumerate(work.launches) if graph.kind[launch.ops[0]] == STAY}
    brief = {n for n in stays if len(graph.readers_of(int(graph.makes_of(work.launches[n].ops[0])[0])))}
    node = {event: number for number, event in enumerate([*work.launches, *work.sends])}
    place = {
        node[event]: (int(isinstance(event, Launch) and event.device in host and node[event] not in brief), at)
        for at, event in enumerate(events)
    }
    timed = {number: (at,) for number, (_, at) in place.items() if number not in stays}
    return work.events(work.ordered(place, work.chains(timed, problem.cluster.channel.tolist())))


def _neighbours(nodes: Iterable[int], group: Callable[[int], object]) -> list[tuple[int, int]]:
    """Those next to each other within each group, in the order given."""
    rows: dict[object, list[int]] = defaultdict(list)
    for node in nodes:
        rows[group(node)].append(node)
    return [pair for row in rows.values() for pair in pairwise(row)]


@dataclass
class _Work:
    """Kernels and sends as the nodes of one graph: kernels first, then sends."""

    launches: list[Launch]
    sends: list[Send]
    tie: list[int]  # [kernels] the lower goes first among equal ranks
    rank: list[int]  # [kernels]
    waits: list[set[int]] = field(default_factory=list)  # [nodes]

    @classmethod
    def of(cls, problem: Problem, plan: Plan) -> _Work:
        members: dict[int, list[int]] = defaultdict(list)
        for op, kernel in enumerate(plan.kernel.tolist()):
            members[kernel].append(op)
        launches = [Launch(tuple(ops), int(plan.device[ops[0]])) for ops in members.values()]
        rank = [int(plan.rank[list(launch.ops)].min()) for launch in launches]
        tie = [min(int(problem.tie[op]) for op in launch.ops) for launch in launches]
        work = cls(launches, [], tie, rank)
        work._connect(problem, plan)
        return work

    def _connect(self, problem: Problem, plan: Plan) -> None:
        graph = problem.graph
        unit = {op: node for node, launch in enumerate(self.launches) for op in launch.ops}
        self.waits = [set() for _ in self.launches]
        sent: dict[tuple[int, int], int] = {}
        for op in range(problem.num_ops):
            node, here = unit[op], int(plan.device[op])
            for tensor in graph.reads_of(op).tolist():
                maker = int(problem.updater[tensor] if problem.resident[tensor] else graph.producer[tensor])
                made = -1 if problem.resident[tensor] else unit[maker]
                if maker < 0 or plan.device[maker] == here:
                    self.waits[node].add(made)
                    continue
                key = (tensor, here)
                if key not in sent:
                    sent[key] = len(self.waits)
                    self.sends.append(Send(tensor, int(plan.device[maker]), here))
                    self.waits.append({made})
                self.waits[node].add(sent[key])
            self.waits[node].update(unit[earlier] for earlier in graph.after_of(op).tolist())
        for node, before in enumerate(self.waits):
            before -= {-1, node}

    def rank_priority(self) -> Mapping[int, tuple[int, ...]]:
        """Kernels by rank; a send goes as soon as it can."""
        kernels = {node: (1, self.rank[node], self.tie[node]) for node in range(len(self.launches))}
        return {**kernels, **{node: (0, node) for node in range(len(self.launches), len(self.waits))}}

    def send_priority(self, plan: Plan, place: Mapping[int, tuple[int, ...]]) -> Mapping[int, tuple[int, ...]]:
        """Sends by `send_rank`, those without one after those with."""
        assert plan.send_rank is not None
        found = {}
        for node, send in enumerate(self.sends, len(self.launches)):
            rank = int(plan.send_rank[send.tensor, send.dst])
            found[node] = (0, rank, *place[node]) if rank >= 0 else (1, *place[node])
        return found

    def simulated_priority(self, timeline: Timeline) -> Mapping[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for node, launch in enumerate(self.launches):
            found[node] = (int(timeline.start_ns[launch.ops[0]]), 1, int(timeline.turn[launch.ops[0]]))
        keys = zip(timeline.send_tensor.tolist(), timeline.send_dst.tolist(), strict=True)
        number = {key: index for index, key in enumerate(keys)}
        for node, send in enumerate(self.sends, len(self.launches)):
            index = number[send.tensor, send.dst]
            found[node] = (int(timeline.send_start_ns[index]), 0, index)
        return found

    def chains(
        self, priority: Mapping[int, tuple[int, ...]], channel: Sequence[Sequence[int]] | None
    ) -> list[tuple[int, int]]:
        """Which kernel or send must come right after which: on its device, or on its channel (None: one a pair)."""

        def lane(node: int) -> object:
            if node < len(self.launches):
                return self.launches[node].device
            _, src, dst = self.sends[node - len(self.launches)]
            return (src, dst) if channel is None else ("channel", channel[src][dst])

        by_order = sorted(priority, key=lambda node: priority[node])
        return _neighbours(by_order, lane)

    def ordered(self, priority: Mapping[int, tuple[int, ...]], chains: Iterable[tuple[int, int]]) -> list[int]:
        """Nodes by priority as far as waits and chains allow; shorter than all of them if those run in a circle."""
        waits = [set(before) for before in self.waits]
        for before, after in chains:
            waits[after].add(before)
        followers: list[list[int]] = [[] for _ in waits]
        for node, before_it in enumerate(waits):
            for earlier in before_it:
                followers[earlier].append(node)
        left = [len(before_it) for before_it in waits]
        ready = [(priority[node], node) for node, count in enumerate(left) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, node = heapq.heappop(ready)
            order.append(node)
            for follower in followers[node]:
                left[follower] -= 1
                if not left[follower]:
                    heapq.heappush(ready, (priority[follower], follower))
        return order

    def events(self, order: Sequence[int]) -> list[Event]:
        assert len(order) == len(self.waits)
        count = len(self.launches)
        return [self.launches[node] if node < count else self.sends[node - count] for node in order]
