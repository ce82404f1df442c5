"""The simulator's judge: the 15 rules read aloud, slowly, and with no code of the simulator's own.

It scans everything that waits in every round, keeps its state in dicts and sets, and works out memory only
afterwards, from when things were recorded to begin and end. Also the brute-force optimum of tiny problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import permutations, product
from math import ceil, inf
from typing import Any

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import ints, ragged
from loadmaster.plans import Plan
from loadmaster.plans.additions import Additions
from loadmaster.problem import CANNOT, Problem

NS_PER_S = 10**9


@dataclass(frozen=True)
class Judged:
    """What the rules say of one plan."""

    step_ns: int
    start: list[int]  # [ops]
    end: list[int]  # [ops]
    sends: list[tuple[int, int, int, int, int]]  # (tensor, src, dst, start, end), sorted
    peak: list[int]  # [devices]
    over_bytes: int
    resident: list[int]  # [devices] bytes there before anything starts
    busy: list[int]  # [devices] ns in which it computes
    carried: dict[int, int]  # ns for which each channel carries something
    cluster: Cluster
    rounds: list[tuple[int, list[int]]]  # per round its instant and the bytes on each device after its starts

    def curve(self, device: int) -> list[tuple[int, int]]:
        """(ns, bytes) of the device: what it holds before the step, then each round that changes it."""
        points = [(0, self.resident[device])]
        for instant, held in self.rounds:
            if held[device] != points[-1][1]:
                points.append((instant, held[device]))
        return points

    def score(self, objective: object) -> tuple[int, int]:
        """(over_bytes, value) by the objective of that name."""
        values = {"step-time": self._step, "peak-memory": self._peak, "energy": self._energy}
        values["throughput"] = self._busiest
        return self.over_bytes, values[str(objective)]()

    def _step(self) -> int:
        return self.step_ns

    def _peak(self) -> int:
        return max(self.peak)

    def _busiest(self) -> int:
        """Of the devices and channels, with transfers for a device that does not overlap."""
        loads = list(self.carried.values())
        for number, device in enumerate(self.cluster.devices):
            loads.append(self.busy[number] + (0 if device.overlap else self.shipping(number)))
        return max(loads)

    def shipping(self, device: int) -> int:
        """What it receives, and for each tensor that it sends the longest of the transfers."""
        received = sum(end - start for _, _, dst, start, end in self.sends if dst == device)
        sent: dict[int, int] = {}
        for tensor, src, _, start, end in self.sends:
            if src == device:
                sent[tensor] = max(sent.get(tensor, 0), end - start)
        return received + sum(sent.values())

    def _energy(self) -> int:
        """Picojoules: a watt is a thousand of them in a nanosecond."""
        drawn = Fraction(0)
        for device, busy in zip(self.cluster.devices, self.busy, strict=True):
            drawn += 1000 * Fraction(device.watts or 0) * busy
            drawn += 1000 * Fraction(device.idle_watts or 0) * (self.step_ns - busy)
        assert drawn.denominator == 1, "tests give watts in thousandths"
        return int(drawn)


@dataclass
class Kernel:
    """One or more ops that run as one (rule 12)."""

    lowest: int
    members: list[int]
    device: int
    rank: int
    time_ns: int = 0
    dispatch_ns: int = 0
    workspace: int = 0
    reads: set[int] = field(default_factory=set)  # from outside
    makes: set[int] = field(default_factory=set)  # inner tensors left out
    after: set[int] = field(default_factory=set)  # kernels, by their lowest op


@dataclass(frozen=True)
class Span:
    """When something ran: the number of its first round and of the round in which it had ended."""

    begin: int
    finish: int
    start_ns: int
    end_ns: int


Send = tuple[int, int]  # (tensor, destination)


def judge(problem: Problem, plan: Plan) -> Judged:
    """Runs the plan by the rules."""
    world = World(problem, plan)
    run = Run(world)
    run.play()
    rounds = [(instant, world.bytes_held(number, run)) for number, instant in enumerate(run.instants)]
    peak = [max(held[device] for _, held in rounds) for device in range(world.num_devices)]
    ran = {op: run.kernels[kernel.lowest] for kernel in world.kernels.values() for op in kernel.members}
    return Judged(
        step_ns=max(span.end_ns for span in ran.values()),
        start=[ran[op].start_ns for op in range(problem.num_ops)],
        end=[ran[op].end_ns for op in range(problem.num_ops)],
        sends=sorted((t, world.home[t], dst, span.start_ns, span.end_ns) for (t, dst), span in run.sends.items()),
        peak=peak,
        over_bytes=sum(max(0, most - limit) for most, limit in zip(peak, world.facts.limits, strict=True)),
        resident=world.bytes_resident(),
        busy=world.busy(run),
        carried=world.carried(run),
        cluster=problem.cluster,
        rounds=rounds,
    )


class Facts:
    """The problem as lists and sets: what does not depend on the plan is the same for all that are judged in a row."""

    def __init__(self, problem: Problem) -> None:
        graph, ops = problem.graph, range(problem.num_ops)
        self.hosted = len(problem.dispatch_ns) > 0
        self.tensors = range(graph.num_tensors)
        self.nbytes: list[int] = graph.nbytes.tolist()
        self.producer: list[int] = graph.producer.tolist()
        self.alias_of: list[int] = graph.alias_of.tolist()
        self.kept = {t for t in self.tensors if int(graph.role[t]) != ACTIVATION}
        self.inplace = {t for t in self.tensors if self.alias_of[t] >= 0 and self.producer[t] >= 0}
        self.reads = [set(graph.reads_of(op).tolist()) for op in ops]
        self.makes = [set(graph.makes_of(op).tolist()) for op in ops]
        self.after = [set(graph.after_of(op).tolist()) for op in ops]
        self.reading = [{op for op in ops if t in self.reads[op]} for t in self.tensors]
        self.workspace: list[int] = graph.workspace_bytes.tolist()
        self.dispatch_ns: list[int] = problem.dispatch_ns.tolist()
        self.tie: list[int] = problem.tie.tolist()
        self.channel: list[list[int]] = problem.cluster.channel.tolist()
        self.limits: list[int] = problem.memory_bytes.tolist()
        self.kernel_ns: dict[tuple[int, tuple[int, ...], frozenset[int]], int] = {}  # by device, members, inner tensors
        self.send_ns: dict[tuple[int, int, int], int] = {}  # by tensor, source, destination


@lru_cache(maxsize=1)
def facts_of(problem: Problem) -> Facts:
    return Facts(problem)


class World:
    """The problem and the plan as dicts and sets."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan, self.facts = problem, plan, facts_of(problem)
        self.num_devices = problem.cluster.num_devices
        self.hosted, self.tensors, self.nbytes = self.facts.hosted, self.facts.tensors, self.facts.nbytes
        self.producer, self.alias_of, self.inplace = self.facts.producer, self.facts.alias_of, self.facts.inplace
        self.kernel_of: list[int] = plan.kernel.tolist()
        self.inner = self._find_inner()
        self.kernels = self._find_kernels()
        self.home = self._find_homes()
        self.readers = {t: self._find_readers(t) for t in self.tensors}
        self.sends = {
            (t, self.kernels[reader].device)
            for t in self.home
            for reader in self.readers[t]
            if self.kernels[reader].device != self.home[t]
        }

    def _find_inner(self) -> set[int]:
        """Rule 12: made in a kernel and read only there; not kept, and no part of an update in place."""
        overwritten = {self.alias_of[t] for t in self.inplace}
        inner = set()
        for tensor in set(self.tensors) - self.inplace - overwritten - self.facts.kept:
            readers = {self.kernel_of[op] for op in self.facts.reading[tensor]}
            if self.producer[tensor] >= 0 and readers == {self.kernel_of[self.producer[tensor]]}:
                inner.add(tensor)
        return inner

    def _find_readers(self, tensor: int) -> set[int]:
        """Kernels that read it from outside, by their lowest op."""
        return {self.kernel_of[op] for op in self.facts.reading[tensor]} - {self._made_by(tensor)}

    def _find_kernels(self) -> dict[int, Kernel]:
        facts, device, rank = self.facts, self.plan.device.tolist(), self.plan.rank.tolist()
        kernels: dict[int, Kernel] = {}
        for op, lowest in enumerate(self.kernel_of):
            if lowest not in kernels:
                kernels[lowest] = Kernel(lowest, [], device[lowest], rank[lowest])
            kernel = kernels[lowest]
            kernel.members.append(op)
            kernel.rank = min(kernel.rank, rank[op])
            if self.hosted:
                kernel.dispatch_ns = max(kernel.dispatch_ns, facts.dispatch_ns[op])
            kernel.workspace += facts.workspace[op]
            kernel.makes |= facts.makes[op] - self.inner
            kernel.reads |= {t for t in facts.reads[op] if self._made_by(t) != lowest}
            kernel.after |= {self.kernel_of[earlier] for earlier in facts.after[op]} - {lowest}
        inner = frozenset(self.inner)
        for kernel in kernels.values():
            key = kernel.device, tuple(kernel.members), inner
            if key not in facts.kernel_ns:
                facts.kernel_ns[key] = self._time_of(kernel)
            kernel.time_ns = facts.kernel_ns[key]
        return kernels

    def _made_by(self, tensor: int) -> int:
        return self.kernel_of[self.producer[tensor]] if self.producer[tensor] >= 0 else -1

    def _time_of(self, kernel: Kernel) -> int:
        problem, device = self.problem, kernel.device
        compute = sum(int(problem.compute_ns[op, device]) for op in kernel.members)
        traffic = {op: self._traffic_of(op) for op in kernel.members}
        fixed = 0
        for op, moved in traffic.items():
            adds = max(int(problem.compute_ns[op, device]), self._moving_ns(moved, device))
            fixed += max(int(problem.fixed_ns[op, device]), -adds)
        moving = self._moving_ns(sum(traffic.values()), device)
        launch = max(min(int(problem.launch_ns[device]), int(problem.op_ns[op, device])) for op in kernel.members)
        return launch + max(0, max(compute, moving) + fixed)

    def _moving_ns(self, nbytes: int, device: int) -> int:
        return ceil(Fraction(nbytes * NS_PER_S, int(self.problem.bytes_per_s[device])))

    def _traffic_of(self, op: int) -> int:
        problem, graph = self.problem, self.problem.graph
        moved = int(problem.traffic_bytes[op])
        for at in range(int(graph.read_start[op]), int(graph.read_start[op + 1])):
            if int(graph.reads[at]) in self.inner:
                moved -= int(problem.read_bytes[at])
        moved -= sum(self.nbytes[t] for t in map(int, graph.makes_of(op)) if t in self.inner)
        return max(0, moved)

    def _find_homes(self) -> dict[int, int]:
        """The device a tensor is sent from: of its maker; of an updated weight, of its updater (rule 7), or where it
        stays (rule 15): what updates it there overwrites what came from a stay."""
        home = {t: self._device_of(self.producer[t]) for t in self.tensors if self.producer[t] >= 0}
        for tensor in self.inplace:
            root = self.alias_of[tensor]
            if self.producer[root] < 0:
                home[root] = home[tensor]
        return home

    def _device_of(self, op: int) -> int:
        return self.kernels[self.kernel_of[op]].device

    def kernel_order(self, kernel: Kernel) -> tuple[int, int]:
        """Rule 3; in a coarser problem an op counts as the lowest op it was made of (rule 12)."""
        return kernel.rank, min(self.facts.tie[op] for op in kernel.members)

    def send_ns(self, send: Send) -> int:
        """Rule 4."""
        tensor, dst = send
        key = tensor, self.home[tensor], dst
        if key not in self.facts.send_ns:
            self.facts.send_ns[key] = self._sending_ns(*key)
        return self.facts.send_ns[key]

    def _sending_ns(self, tensor: int, src: int, dst: int) -> int:
        link = self.problem.cluster.links[src, dst]
        if link.bytes_per_s is None:
            return int(link.latency_ns)
        return int(link.latency_ns) + ceil(self.nbytes[tensor] * NS_PER_S / Fraction(link.bytes_per_s))

    def channel(self, send: Send) -> int:
        return self.facts.channel[self.home[send[0]]][send[1]]

    def send_order(self, send: Send) -> tuple[int, int, int]:
        """Rule 4: the plan's own rank where it gives one, else that of the most urgent reader there."""
        tensor, dst = send
        given = -1 if self.plan.send_rank is None else int(self.plan.send_rank[tensor, dst])
        readers = [self.kernels[reader] for reader in self.readers[tensor]]
        urgent = min(reader.rank for reader in readers if reader.device == dst)
        return (given if given >= 0 else urgent), tensor, dst

    def busy(self, run: Run) -> list[int]:
        busy = [0] * self.num_devices
        for lowest, span in run.kernels.items():
            busy[self.kernels[lowest].device] += span.end_ns - span.start_ns
        return busy

    def carried(self, run: Run) -> dict[int, int]:
        carried: dict[int, int] = {}
        for send, span in run.sends.items():
            carried[self.channel(send)] = carried.get(self.channel(send), 0) + span.end_ns - span.start_ns
        return carried

    def bytes_resident(self) -> list[int]:
        held = [0] * self.num_devices
        for tensor in self.tensors:
            for device, nbytes, _, _ in self._resident(tensor) if self.producer[tensor] < 0 else []:
                held[device] += nbytes
        return held

    def bytes_held(self, number: int, run: Run) -> list[int]:
        """[devices] bytes alive once everything that starts in that round has started (rules 7 to 9)."""
        held = [0] * self.num_devices
        for device, nbytes, begin, finish in self._holdings(run):
            if begin <= number < finish:
                held[device] += nbytes
        return held

    def _holdings(self, run: Run) -> list[tuple[int, int, int, float]]:
        if not run.holdings:
            for kernel in self.kernels.values():
                span = run.kernels[kernel.lowest]
                run.holdings.append((kernel.device, kernel.workspace, span.begin, span.finish))
            for tensor in self.tensors:
                if tensor not in self.inner:
                    run.holdings += self._resident(tensor) if self.producer[tensor] < 0 else self._made(tensor, run)
            for tensor, dst in self.sends:
                life = self._last_use(tensor, dst, run)
                run.holdings.append((dst, self.nbytes[tensor], run.sends[tensor, dst].begin, life))
        return run.holdings

    def _resident(self, tensor: int) -> list[tuple[int, int, int, float]]:
        if tensor in self.home:
            places = {self.home[tensor]}
        else:
            places = {self.kernels[reader].device for reader in self.readers[tensor]}
        return [(device, self.nbytes[tensor], 0, inf) for device in places]

    def _made(self, tensor: int, run: Run) -> list[tuple[int, int, int, float]]:
        if tensor in self.inplace:
            return []
        device, begin = self.home[tensor], run.kernels[self._made_by(tensor)].begin
        return [(device, self.nbytes[tensor], begin, self._last_use(tensor, device, run))]

    def _last_use(self, tensor: int, device: int, run: Run) -> float:
        """The round in which its bytes on that device are freed."""
        uses: list[float] = [
            run.kernels[reader].finish for reader in self.readers[tensor] if self.kernels[reader].device == device
        ]
        if self.home.get(tensor) == device and self.producer[tensor] >= 0:
            uses.append(run.kernels[self._made_by(tensor)].finish)
            uses += [span.finish for (sent, _), span in run.sends.items() if sent == tensor]
            if tensor in self.facts.kept:
                uses.append(inf)
        for update in self.inplace:
            if self.alias_of[update] == tensor and self.home[update] == device:
                uses.append(self._last_use(update, device, run))
        return max(uses)


class Run:
    """One step, round by round (rule 11)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.instants: list[int] = []  # [rounds]
        self.kernels: dict[int, Span] = {}  # filled when it begins
        self.sends: dict[Send, Span] = {}
        self.running_kernels: dict[int, Span] = {}
        self.running_sends: dict[Send, Span] = {}
        self.ended_kernels: set[int] = set()
        self.ended_sends: set[Send] = set()
        self.holdings: list[tuple[int, int, int, float]] = []
        self.asking: tuple[int, int] | None = None  # kernel that the host asks for, and until when (rule 14)
        self.asked: list[int] = []  # kernels, in order

    def play(self) -> None:
        now, number = 0, 0
        while True:
            self.instants.append(now)
            self._end(now, number)
            self._start_sends(now, number)
            self._start_kernels(now, number)
            self._ask(now)
            running = [*self.running_kernels.values(), *self.running_sends.values()]
            ends = [span.end_ns for span in running] + ([self.asking[1]] if self.asking else [])
            if not ends:
                break
            now, number = min(ends), number + 1
        stuck = set(self.world.kernels) - self.ended_kernels
        assert not stuck, f"ops {sorted(stuck)} never became ready"

    def _ask(self, now: int) -> None:
        """Rule 14: the host takes up the kernel of lowest rank of which all it depends on has been asked for."""
        world = self.world
        if not world.hosted or self.asking is not None:
            return
        may = [k for k in world.kernels.values() if k.lowest not in self.asked and self._may_ask(k)]
        if may:
            first = min(may, key=world.kernel_order)
            self.asking = first.lowest, now + first.dispatch_ns

    def _may_ask(self, kernel: Kernel) -> bool:
        before = kernel.after | {self.world._made_by(t) for t in kernel.reads} - {-1}
        return before <= set(self.asked)

    def _end(self, now: int, number: int) -> None:
        if self.asking is not None and self.asking[1] == now:
            self.asked.append(self.asking[0])
            self.asking = None
        for kernel, span in list(self.running_kernels.items()):
            if span.end_ns == now:
                del self.running_kernels[kernel]
                self.kernels[kernel] = Span(span.begin, number, span.start_ns, now)
                self.ended_kernels.add(kernel)
        for send, span in list(self.running_sends.items()):
            if span.end_ns == now:
                del self.running_sends[send]
                self.sends[send] = Span(span.begin, number, span.start_ns, now)
                self.ended_sends.add(send)

    def _start_sends(self, now: int, number: int) -> None:
        world = self.world
        busy = {world.channel(send) for send in self.running_sends}
        waiting = {send for send in world.sends if send not in self.sends and self._is_made(send[0])}
        for send in sorted(waiting, key=world.send_order):
            if world.channel(send) not in busy or not world.problem.cluster.contention:
                self.sends[send] = self.running_sends[send] = Span(number, -1, now, now + world.send_ns(send))
                busy.add(world.channel(send))

    def _start_kernels(self, now: int, number: int) -> None:
        world = self.world
        busy = {world.kernels[kernel].device for kernel in self.running_kernels}
        waiting = [kernel for kernel in world.kernels.values() if kernel.lowest not in self.kernels]
        if world.hosted:  # rule 14: a device starts what it was asked for first
            of_device = [
                [k for k in waiting if k.device == d and k.lowest in self.asked] for d in range(world.num_devices)
            ]
            waiting = [min(queue, key=lambda k: self.asked.index(k.lowest)) for queue in of_device if queue]
        for kernel in sorted(filter(self._is_ready, waiting), key=world.kernel_order):
            if kernel.device not in busy:
                span = Span(number, -1, now, now + kernel.time_ns)
                self.kernels[kernel.lowest] = self.running_kernels[kernel.lowest] = span
                busy.add(kernel.device)

    def _is_made(self, tensor: int) -> bool:
        maker = self.world._made_by(tensor)
        return maker < 0 or maker in self.ended_kernels

    def _is_ready(self, kernel: Kernel) -> bool:
        return kernel.after <= self.ended_kernels and all(self._is_there(t, kernel.device) for t in kernel.reads)

    def _is_there(self, tensor: int, device: int) -> bool:
        if self.world.home.get(tensor, device) == device:
            return self._is_made(tensor)
        return (tensor, device) in self.ended_sends


def brute_force(problem: Problem, objective: object) -> tuple[int, int]:
    """The best (over_bytes, objective) of all placements and all orders of ops and of sends, nothing fused."""
    count = problem.num_ops
    assert count <= 5, "brute force is for tiny problems"
    best = (2**62, 2**62)
    for device in product(range(problem.num_devices), repeat=count):
        if is_allowed(problem, device):
            sends = sorted(World(problem, Plan.of(problem, device)).sends)
            for rank in permutations(range(count)):
                for plan in _send_orders(problem, Plan.of(problem, device, rank), sends):
                    best = min(best, judge(problem, plan).score(objective))
    return best


def _send_orders(problem: Problem, plan: Plan, sends: list[Send]) -> Iterator[Plan]:
    """The plan with its sends in the order of their readers, and in every order that is one of its own."""
    yield plan
    assert len(sends) <= 6, "brute force is for few sends"
    for order in permutations(sends) if len(sends) > 1 else ():
        send_rank = np.full((problem.graph.num_tensors, problem.num_devices), -1, np.int64)
        for turn, send in enumerate(order):
            send_rank[send] = turn
        yield replace(plan, send_rank=ints(send_rank))


def is_allowed(problem: Problem, device: tuple[int, ...]) -> bool:
    """Every op can run where it is, and colocation groups are together."""
    group = [int(group) for group in problem.graph.colocate]
    runs = all(problem.op_ns[op, place] != CANNOT for op, place in enumerate(device))
    places = {(group[op], place) for op, place in enumerate(device) if group[op] >= 0}
    return runs and len(places) == len({group for group, _ in places})


def expand_slowly(problem: Problem, added: Additions) -> Problem:
    """Rule 15 read aloud: the problem with what is added, node by node. Its ops may stand in another order than those
    of `expand`; names tell which is which."""
    graph, count = problem.graph, problem.num_ops
    nodes = _nodes(graph, added)
    order: list[int] = []

    def emit(number: int, waiting: tuple[int, ...] = ()) -> None:
        assert number not in waiting, "it waits for itself"
        node = nodes[number]
        makers = {maker for maker, other in enumerate(nodes) for name in node.reads if name in other.makes}
        for before in sorted(makers | node.after):
            if before not in order:
                emit(before, (*waiting, number))
        if number not in order:
            order.append(number)

    for op in range(count):
        emit(op)
    for number, tensor in enumerate(added.tensor.tolist(), count):
        if tensor >= 0 and _updates_an_input(graph, tensor):
            emit(number)  # brought home for the next step
    assert len(order) == len(nodes), "an addition is needed by nobody"
    return _assembled(problem, [nodes[number] for number in order], [order.index(n) for n in range(len(nodes))])


@dataclass
class Node:
    """An op of an expanded graph: whose columns it has, what it reads and makes by name, what it follows."""

    name: str
    op: int  # -1: a stay
    reads: dict[str, int]  # name -> which read of the base graph, -1 for a stay
    makes: dict[str, int]  # name -> tensor of the base graph
    after: set[int]


def _nodes(graph: Graph, added: Additions) -> list[Node]:
    nodes = []
    for op in range(graph.num_ops):
        spans = range(int(graph.read_start[op]), int(graph.read_start[op + 1]))
        reads = {graph.tensor_name[graph.reads[at]]: at for at in spans}
        makes = {graph.tensor_name[t]: int(t) for t in graph.makes_of(op)}
        nodes.append(Node(graph.op_name[op], op, reads, makes, {int(a) for a in graph.after_of(op)}))
    seen: dict[str, int] = {}
    for op, tensor in zip(added.op.tolist(), added.tensor.tolist(), strict=True):
        stem = f"{graph.op_name[op]}.again" if op >= 0 else f"{graph.tensor_name[tensor]}.stay"
        seen[stem] = seen.get(stem, 0) + 1
        name = stem if seen[stem] == 1 else f"{stem}{seen[stem]}"
        suffix = name.split(".")[-1]
        left = _statistics(graph, op) if op >= 0 else set()
        made = {n: t for n, t in nodes[op].makes.items()} if op >= 0 else {graph.tensor_name[tensor]: tensor}
        made = {n: t for n, t in made.items() if t not in left}
        reads = dict(nodes[op].reads) if op >= 0 else {graph.tensor_name[tensor]: -1}
        reads = {n: at for n, at in reads.items() if at < 0 or graph.owner[graph.reads[at]] not in left}
        nodes.append(Node(name, op, reads, {f"{n}.{suffix}": t for n, t in made.items()}, set()))
    for number, (op, trigger) in enumerate(zip(added.op.tolist(), added.after.tolist(), strict=True), graph.num_ops):
        if op >= 0:
            nodes[number].after |= nodes[op].after
            for later in range(graph.num_ops):
                if op in graph.after_of(later) and any(graph.alias_of[t] >= 0 for t in graph.makes_of(later)):
                    nodes[later].after.add(number)
        nodes[number].after |= {trigger} - {-1}
    for number, tensor in enumerate(added.tensor.tolist(), graph.num_ops):
        if tensor >= 0 and _updates_an_input(graph, tensor):  # it overwrites what the stays read
            stays = {i for i, other in enumerate(added.tensor.tolist(), graph.num_ops) if other == graph.owner[tensor]}
            nodes[number].after |= stays
    for reader, tensor, source in zip(added.reader.tolist(), added.read.tolist(), added.source.tolist(), strict=True):
        copy = next(name for name, of in nodes[graph.num_ops + source].makes.items() if of == tensor)
        reads = nodes[reader].reads
        nodes[reader].reads = {copy if n == graph.tensor_name[tensor] else n: at for n, at in reads.items()}
    return nodes


def _updates_an_input(graph: Graph, tensor: int) -> bool:
    return bool(graph.producer[tensor] >= 0 and graph.producer[graph.owner[tensor]] < 0)


def _statistics(graph: Graph, op: int) -> set[int]:
    """What a batch norm overwrites of what was there before the step, before and after."""
    over = [int(t) for t in graph.makes_of(op) if graph.alias_of[t] >= 0 and graph.producer[graph.owner[t]] < 0]
    return {tensor for t in over for tensor in (t, int(graph.owner[t]))} if "batch_norm" in graph.kind[op] else set()


def _assembled(problem: Problem, nodes: list[Node], place: list[int]) -> Problem:
    graph = problem.graph
    names, base = list(graph.tensor_name), list(range(graph.num_tensors))
    for node in (nodes[at] for at in place):  # copies are tensors in the order in which the plan lists what it adds
        for name, tensor in node.makes.items():
            if name not in names:
                names.append(name)
                base.append(tensor)
    number = {name: at for at, name in enumerate(names)}
    maker = {name: at for at, node in enumerate(nodes) for name in node.makes}
    alias = [int(graph.alias_of[t]) for t in range(graph.num_tensors)] + [-1] * (len(names) - graph.num_tensors)
    role = [*graph.role.tolist(), *[ACTIVATION] * (len(names) - graph.num_tensors)]
    group = {node.name: -1 if node.op < 0 else int(graph.colocate[node.op]) for node in nodes}
    for node in nodes:
        if node.op >= 0:
            continue
        (made, tensor), read = next(iter(node.makes.items())), next(iter(node.reads))
        alias[number[made]] = number[read]
        root = int(graph.owner[tensor])
        if graph.producer[root] < 0:  # it lives on one device, that of all its stays
            group[node.name] = 10**6 + root
        if _updates_an_input(graph, tensor):  # home again, where it lives to the end; what came away from home does not
            alias[number[made]], role[number[made]] = root, role[tensor]
            role[tensor] = ACTIVATION
            writer = next(other for other in nodes if graph.tensor_name[tensor] in other.makes)
            copies = {name for other in nodes if other.op < 0 for name, of in other.makes.items() if of == root}
            alias[tensor] = number[next(name for name in writer.reads if name in copies)]

    def column(of: Any, stay: int) -> Any:
        return ints([of[node.op].tolist() if node.op >= 0 else (0 * of[0] + stay).tolist() for node in nodes])

    def words(of: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(of[node.op] if node.op >= 0 else "stay" for node in nodes)

    reads = [[number[name] for name in node.reads] for node in nodes]
    sizes = [int(problem.read_bytes[at]) if at >= 0 else 0 for node in nodes for at in node.reads.values()]
    expanded = replace(
        graph,
        op_name=tuple(node.name for node in nodes),
        kind=words(graph.kind),
        dtype=words(graph.dtype),
        scope=words(graph.scope),
        source=words(graph.source),
        flops=column(graph.flops, 1),
        bytes_moved=column(graph.bytes_moved, 0),
        workspace_bytes=column(graph.workspace_bytes, 0),
        colocate=ints([group[node.name] for node in nodes]),
        time_ns=ints(np.zeros((len(nodes), 0))),
        **dict(zip(("after_start", "after"), ragged([sorted(place[a] for a in n.after) for n in nodes]), strict=True)),
        **dict(zip(("make_start", "makes"), ragged([[number[t] for t in n.makes] for n in nodes]), strict=True)),
        **dict(zip(("read_start", "reads"), ragged(reads), strict=True)),
        tensor_name=tuple(names),
        producer=ints([maker.get(name, -1) for name in names]),
        nbytes=ints(graph.nbytes[base]),
        role=ints(role),
        alias_of=ints(alias),
        shape=tuple(graph.shape[t] for t in base),
        tensor_dtype=tuple(graph.tensor_dtype[t] for t in base),
    )
    asked = problem.dispatch_ns
    return replace(
        problem,
        graph=expanded,
        tie=ints(np.arange(len(nodes))),
        op_ns=column(problem.op_ns, 0),
        compute_ns=column(problem.compute_ns, 0) if problem.compute_ns.size else problem.compute_ns,
        fixed_ns=column(problem.fixed_ns, 0) if problem.fixed_ns.size else problem.fixed_ns,
        traffic_bytes=column(problem.traffic_bytes, 0),
        read_bytes=ints(sizes),
        send_ns=ints(problem.send_ns[base]),
        dispatch_ns=asked if not len(asked) else column(asked, 0),
    )
