"""What a step costs under a plan: Timeline, simulate, simulate_many, settle.

The rules, which every method is judged by:

 1. Time is whole nanoseconds, size whole bytes.
 2. A device runs one kernel at a time and never stops in the middle. A kernel takes its time there, launch included.
 3. An op is ready when every tensor it reads is on its device and every op of its `after` has ended. A free device
    takes the ready op of lowest rank, ties by op index, and never idles while it has one.
 4. A tensor is sent at most once to each other device that reads it, once made and its channel free. A transfer takes
    latency + bytes ÷ bandwidth, rounded up. Waiting sends of a channel go by `send_rank`, else by the lowest rank among
    the readers there; ties by tensor, then destination.
 5. A channel carries one transfer at a time; pairs of devices with the same channel number share a wire. In a cluster
    without contention a channel carries any number at once, and no send ever waits.
 6. Sends overlap with compute.
 7. A weight, state or input that no op updates is on every device that reads it, from start to end. One that is updated
    in place lives on its updater's device; every other device that reads it receives it once a step, from time 0 on.
 8. A made tensor occupies its device from the start of its op until the last reader there and the last send out have
    ended; unread, until its op ends. A received copy, from the start of its transfer until the last reader there has
    ended. Graph outputs live to the end. An output written in place has no bytes of its own and keeps its base alive.
    Workspace lives while its op runs.
 9. The peak of a device is its largest total, taken after every start, round by round. Bytes over the devices' memory,
    summed, are `over_bytes`.
10. Step time is the end of the last op.
11. Within one instant, in rounds: all that ends, ends; then waiting sends start, channels in order; then free devices
    take ready ops, in device order. What has no length ends in the next round of the same instant.
12. A fused kernel is ready when all it reads from outside is there and makes its outputs at its end. Its inner tensors,
    made in it and read only there, take no memory and no traffic; what lives to the end, what is written over in place
    and what is written so is never inner. It takes launch + max(sum of compute, remaining traffic ÷ bandwidth); given
    times add up less a launch for each op but one. What a measured op takes beyond that of its own is added; what it
    takes less is taken off, up to what it computes or still moves. No launch is longer than the op's given time: fusing
    spares an op that takes less than a launch altogether, but nothing of the others, and where all do, the kernel takes
    as long as the longest. Its rank is the lowest of its members', and so is its index in ties. Its workspace is the
    sum of its members'.
13. Views are no ops here: reads of them are reads of their base, and a send costs the base's bytes.
14. Where a cluster has a host (eager execution), one host thread asks for kernels one after another, each in its
    dispatch time (of a fused kernel the longest of its members'): the one of lowest rank, ties by op index, of those
    whose inputs' makers and `after` have all been asked for. A kernel is not ready before it was asked for. A device
    starts kernels in the order in which it was asked, as a stream does: it may idle though a later one is ready.
    Sends do not wait for the host.
15. A plan may add ops, which all rules above then hold for. One that runs an op again takes its time, reads what that
    op reads and makes what it makes once more, for the readers that the plan names; of a batch norm all but its running
    statistics, which it neither reads nor updates. It follows what that op follows, and what overwrites in place after
    that op follows it too, so that it never reads what was overwritten. A stay is an op of no time and no kernel's
    part: it reads a tensor on its device, has no bytes of its own beside that received copy, and sends it to the
    readers that the plan names. What is there before the step lives on the device of its stays, for the whole step;
    stays of one tensor share a device. Where it is updated, the op that does so reads it from a stay and overwrites
    what came; a return, a stay of what was written, then brings that home, after every other stay of the tensor. It
    lives on there, not where it was written. All may be told to follow an op. Ties go by the order of the expanded
    graph: an added op stands just before the first that needs it, a return last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, given_ints, ints
from loadmaster.passes import Coarse, coarsen, fuse
from loadmaster.plans import Plan, check_kinds
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem, check_problem
from loadmaster.simulator import contraction, loop, state
from loadmaster.simulator.given import check_places, given_places, given_rows
from loadmaster.simulator.threads import spread

if TYPE_CHECKING:
    from loadmaster.simulator.state import Layout

NO_LIMIT = np.iinfo(np.int64).max
LITTLE = 4_000  # ops in all candidates: to hand half of them to another thread takes about as long as it saves


@dataclass(frozen=True, eq=False)
class Timeline:
    """The consequences of a plan: when every op and send starts and ends, and what every device holds meanwhile.

    Ops of one kernel share its start and end. `simulate` makes it; `settle` reads the order from it, reports all the
    rest.

    >>> from loadmaster import GraphBuilder, Plan, price, simulate
    >>> g = GraphBuilder("tiny")
    >>> x, y = g.tensor(600), g.tensor(400, "output")
    >>> ops = g.op("a", "task", [], [x], time_ns=100), g.op("b", "task", [x], [y], time_ns=50)
    >>> problem = price(g.build(), "2xp100-pcie")
    >>> line = simulate(problem, Plan.of(problem, [0, 0]))
    >>> line.start_ns.tolist(), line.end_ns.tolist(), line.peak_bytes.tolist()
    ([0, 100], [100, 150], [1000, 0])
    >>> [column.tolist() for column in line.curve(0)]  # 600 bytes from 0 on, 1,000 from 100, 400 at the end
    [[0, 0, 100, 150], [0, 600, 1000, 400]]

    Attributes:
        step_ns: the end of the last op (rule 10).
        start_ns, end_ns: [ops]
        turn: [ops] order of dispatch, equal within a kernel.
        send_tensor, send_src, send_dst: [sends] in order of dispatch: which tensor, from and to which device.
        send_start_ns, send_end_ns: [sends]
        curve_start: [devices + 1] where the curve of each device begins in the next two.
        curve_ns, curve_bytes: [points] device d holds curve_bytes[i] bytes from curve_ns[i] on.
        peak_bytes: [devices] the largest total (rule 9).
        busy_ns: [devices + channels + devices] ns that each device computes, that each channel carries, and that
            transfers take of each device: all that come to it, and what it sends, each tensor once.
        over_bytes: how far peaks pass the limits, summed up; 0: the plan fits.
    """

    step_ns: int
    start_ns: Ints  # [ops]
    end_ns: Ints  # [ops]
    turn: Ints  # [ops]
    send_tensor: Ints  # [sends]
    send_src: Ints
    send_dst: Ints
    send_start_ns: Ints
    send_end_ns: Ints
    curve_start: Ints  # [devices + 1]
    curve_ns: Ints  # [points]
    curve_bytes: Ints
    peak_bytes: Ints  # [devices]
    busy_ns: Ints  # [devices + channels + devices]
    over_bytes: int

    @property
    def num_sends(self) -> int:
        """Transfers between devices in one step."""
        return len(self.send_tensor)

    def curve(self, device: int) -> tuple[Ints, Ints]:
        """(ns, bytes): the memory of the device as steps."""
        part = slice(int(self.curve_start[device]), int(self.curve_start[device + 1]))
        return self.curve_ns[part], self.curve_bytes[part]

    def __repr__(self) -> str:
        peak = int(self.peak_bytes.max(initial=0))
        return f"Timeline(step {self.step_ns:,} ns, {self.num_sends:,} sends, largest peak {peak:,} bytes)"


@dataclass(frozen=True, eq=False)
class Scores:
    """What many plans cost, without their timelines: a row each, in the order of the candidates.

    Attributes:
        step_ns: [candidates] -1: stopped early, because it passed a limit that was given.
        peak_bytes: [candidates, devices]
        busy_ns: [candidates, devices + channels + devices] as in Timeline.
        over_bytes: [candidates] over the memory limits, summed over devices.
    """

    step_ns: Ints  # [candidates]
    peak_bytes: Ints  # [candidates, devices]
    busy_ns: Ints  # [candidates, devices + channels + devices]
    over_bytes: Ints  # [candidates]

    def objective(self, problem: Problem) -> Ints:
        """[candidates] what the problem minimises."""
        return problem.goal.values(self.step_ns, self.peak_bytes, self.busy_ns)


_layouts: WeakKeyDictionary[Problem, Layout] = WeakKeyDictionary()
_facts: WeakKeyDictionary[Problem, contraction.Facts] = WeakKeyDictionary()


def layout(problem: Problem) -> Layout:
    """The problem as the compiled loop wants it, made once."""
    if problem not in _layouts:
        _layouts[problem] = state.layout_of(problem)
    return _layouts[problem]


def contraction_facts(problem: Problem) -> contraction.Facts:
    """What the compiled way to the score of kernels needs, made once."""
    if problem not in _facts:
        _facts[problem] = contraction.facts_of(problem)
    return _facts[problem]


def simulate(problem: Problem, plan: Plan) -> Timeline:
    """Runs one step under the plan and returns its Timeline, exact to the nanosecond by the rules at the head of this
    module.

    The plan is taken to be valid: see `check`. Where the plan adds ops, the timeline is of the expanded graph
    (`whole`). For scores of many plans at once use `simulate_many`, which records nothing and runs in threads.

    >>> from loadmaster import GraphBuilder, Plan, price, simulate
    >>> g = GraphBuilder("tiny")
    >>> t = g.tensor(10**6)
    >>> first, then = g.op("a", "task", [], [t], time_ns=100), g.op("b", "task", [t], [], time_ns=100)
    >>> problem = price(g.build(), "2xp100-pcie")
    >>> simulate(problem, Plan.of(problem, [0, 0])).step_ns
    200
    >>> apart = simulate(problem, Plan.of(problem, [0, 1]))  # a megabyte over PCIe in between
    >>> apart.num_sends, apart.step_ns > 50_000
    (1, True)

    Raises:
        InvalidPlan: the placement has another length than the problem, or names a device that is none. Nothing else is
            looked at.
        InvalidSetting: what was given is no Problem or no Plan.
    """
    check_kinds(plan, problem, "simulate")
    problem = whole(problem, plan)
    check_places(problem, plan.device)
    if not plan.fuses:
        return _record(problem, plan.device, plan.rank, plan.send_rank)
    coarse = coarsen(problem, plan.kernel)
    small = coarse.down(plan)
    return _of_ops(coarse, small.device, small.rank, small.send_rank)


def _of_ops(coarse: Coarse, device: Ints, rank: Ints, send_rank: Ints | None) -> Timeline:
    """The timeline of kernels as that of their ops."""
    line = _record(coarse.problem, device, rank, send_rank)
    return replace(
        line,
        start_ns=coarse.each(line.start_ns),
        end_ns=coarse.each(line.end_ns),
        turn=coarse.each(line.turn),
        send_tensor=ints(coarse.tensors[line.send_tensor]),
    )


def _record(problem: Problem, device: Ints, rank: Ints, send_rank: Ints | None) -> Timeline:
    plain = layout(problem)
    scratch = state.kept_scratch(plain)
    sends = np.empty(0, np.int64) if send_rank is None else np.array(send_rank, np.int64).reshape(-1)
    peak = np.zeros(problem.num_devices, np.int64)
    most = plain.most_sends  # memory that is not written to is not taken
    record = state.make_record(problem.num_ops, most, 2 * (problem.num_ops + most) + problem.num_devices)
    place, order = (np.ascontiguousarray(column, np.int32) for column in (device, rank))
    given = (plain, place, order, sends, scratch, NO_LIMIT, NO_LIMIT, peak)
    step = int(loop.run(*given, True, record))
    return _timeline(problem, device, step, peak, ints(scratch.worked), record)


def _timeline(problem: Problem, device: Ints, step: int, peak: Ints, busy: Ints, record: state.Record) -> Timeline:
    sends, points = (int(count) for count in record.counts)
    curve = np.argsort(record.curve_device[:points], kind="stable")
    lengths = np.bincount(record.curve_device[:points], minlength=problem.num_devices)
    send_key = record.send_key[:sends]
    tensor = send_key // problem.num_devices
    maker = np.where(problem.resident[tensor], problem.updater[tensor], problem.graph.producer[tensor])
    return Timeline(
        step_ns=step,
        start_ns=ints(record.start_ns),
        end_ns=ints(record.end_ns),
        turn=ints(record.turn),
        send_tensor=ints(tensor),
        send_src=ints(device[maker]),
        send_dst=ints(send_key % problem.num_devices),
        send_start_ns=ints(record.send_start_ns[:sends]),
        send_end_ns=ints(record.send_end_ns[:sends]),
        curve_start=ints(np.concatenate([[0], np.cumsum(lengths)])),
        curve_ns=ints(record.curve_ns[:points][curve]),
        curve_bytes=ints(record.curve_bytes[:points][curve]),
        peak_bytes=ints(peak),
        busy_ns=busy,
        over_bytes=int(np.maximum(peak - problem.memory_bytes, 0).sum()),
    )


def simulate_many(
    problem: Problem,
    device: NDArray[np.integer],
    rank: NDArray[np.integer] | None = None,
    kernel: Ints | None = None,
    *,
    most_ns: int = NO_LIMIT,
    most_bytes: int = NO_LIMIT,
    workers: int | None = None,
) -> Scores:
    """Scores many placements on all cores, in as many threads (LOADMASTER_THREADS).

    >>> from loadmaster import GraphBuilder, price
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(3)]
    >>> problem = price(g.build(), "2xp100-pcie")
    >>> simulate_many(problem, np.array([[0, 0, 0], [0, 1, 0]])).step_ns.tolist()
    [300, 200]

    Args:
        problem: candidates are for its own ops; what a plan adds must be in it (`whole`).
        device: [candidates, ops]
        rank: a row for all candidates, or a row each; program order by default.
        kernel: [ops] kernels that all candidates share; each is where its lowest op is.
        most_ns, most_bytes: a candidate that passes them, in time or on one device, is stopped and its step is -1.
        workers: threads, where not as many as there are cores.

    Raises:
        InvalidSetting: placements, ranks or kernels that are no tables of whole numbers of the sizes above.
        InvalidPlan: a placement off the cluster, or of another number of ops; kernels as `fuse` refuses them.
    """
    check_problem(problem, "simulate_many")
    device = given_places(problem, device, "simulate_many")
    rank = np.arange(problem.num_ops) if rank is None else rank
    ranks = given_rows(problem, rank, len(device), "ranks", "simulate_many")
    kernel = None if kernel is None else given_ints(kernel, "simulate_many: kernel")
    if kernel is not None and not np.array_equal(kernel, np.arange(problem.num_ops)):
        coarse = coarsen(problem, kernel)
        device = device[:, coarse.heads]
        ranks = np.stack([coarse.lowest(row) for row in ranks])
        problem = coarse.problem
    places, ranks = np.ascontiguousarray(device, np.int32), np.ascontiguousarray(ranks, np.int32)
    count = len(places)
    step = np.empty(count, np.int64)
    plain = layout(problem)
    peaks, busy = _columns(plain, count)

    def part(low: int, high: int) -> None:
        loop.run_many(plain, places, ranks, low, high, most_ns, most_bytes, step, peaks, busy)

    spread(part, count, workers, little=count * problem.num_ops < LITTLE)
    over = np.maximum(peaks - problem.memory_bytes[None, :], 0).sum(axis=1)
    return Scores(ints(step), ints(peaks), ints(busy), ints(over))


def _columns(plain: Layout, count: int) -> tuple[Ints, Ints]:
    """[candidates, …] for peaks and for busy times, to be filled."""
    return np.zeros((count, plain.devices), np.int64), np.zeros((count, 2 * plain.devices + plain.channels), np.int64)


def simulate_fused(
    problem: Problem,
    device: NDArray[np.integer],
    rank: NDArray[np.integer],
    kernel: NDArray[np.integer],
) -> Scores:
    """Scores plans of which each has kernels of its own, without making a coarser problem for any.

    Args:
        problem: its ops are single ops.
        device: [candidates, ops]; a kernel is where its lowest op is.
        rank, kernel: [candidates, ops], or one row for all.

    Raises:
        InvalidPlan: kernels that wait for themselves, as `fuse` refuses them, or a placement off the cluster.
    """
    check_places(problem, device)
    places, ranks, kernels = (np.ascontiguousarray(np.atleast_2d(given), np.int32) for given in (device, rank, kernel))
    count, plain = len(places), layout(problem)
    facts = contraction_facts(problem)
    step = np.empty(count, np.int64)
    peaks, busy = _columns(plain, count)

    def part(low: int, high: int) -> None:
        space = contraction.make_space(plain)
        given = (places, ranks, kernels, low, high, NO_LIMIT, NO_LIMIT, step, peaks, busy)
        contraction.run_many(plain, facts, *space, *given)

    spread(part, count)
    if (step == contraction.NO_KERNELS).any():
        fuse(problem, ints(kernels[step.argmin() if len(kernels) > 1 else 0]))  # which says what is wrong
    over = np.maximum(peaks - problem.memory_bytes[None, :], 0).sum(axis=1)
    return Scores(ints(step), ints(peaks), ints(busy), ints(over))


def first_come(problem: Problem, device: Ints, kernel: Ints | None = None) -> Plan:
    """The plan in which every device takes ready ops, and every channel sends, in the order they came: a framework's
    ready queue. What methods that choose places only are given as an order."""
    return run_first_come(problem, device, kernel)[0]


def run_first_come(problem: Problem, device: Ints, kernel: Ints | None = None) -> tuple[Plan, Timeline]:
    """That plan, with the timeline that its order is taken from: its own."""
    plan = Plan.of(problem, device, kernel=kernel)
    coarse = coarsen(problem, plan.kernel)
    line = _of_ops(coarse, coarse.first(plan.device), ints([]), None)
    return settle(problem, plan, line), line


def settle(problem: Problem, plan: Plan, timeline: Timeline) -> Plan:
    """The same plan with ranks in the order in which things were dispatched: simulating it gives the same Timeline.

    Of the ranks that a method gave many never come to bear. Settled ones are the order that was, for sends too, so
    that a plan file can be run in that order and a diff of two plans shows what happens otherwise.

    >>> import loadmaster as lm
    >>> g = lm.GraphBuilder("tiny")
    >>> number = g.op("only", "task", [], [], time_ns=100)
    >>> problem = lm.price(g.build(), "2xp100-pcie")
    >>> plan = lm.Plan.of(problem, [1])
    >>> timeline = lm.simulate(problem, plan)
    >>> lm.simulate(problem, lm.settle(problem, plan, timeline)).step_ns == timeline.step_ns
    True
    """
    check_kinds(plan, problem, "settle")
    if not isinstance(timeline, Timeline):
        raise InvalidSetting.instead_of("timeline", timeline, "settle", "give what simulate(problem, plan) returned")
    problem = whole(problem, plan)
    send_rank = np.full((problem.graph.num_tensors, problem.num_devices), -1, np.int64)
    send_rank[timeline.send_tensor, timeline.send_dst] = np.arange(timeline.num_sends)
    return replace(plan, rank=timeline.turn, send_rank=ints(send_rank))
