"""Plan: the decisions, and check, which names the first rule a plan breaks.

Methods make plans with `Plan.of` and need not check them: `solve` does, and so does whatever reads one from a file. A
plan that passes `check` can be simulated and run; the compiled simulator itself trusts what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.graph.columns import Ints, from_pairs, given_ints, ints, positions, rows_of
from loadmaster.plans.additions import Additions
from loadmaster.plans.expansion import STAY, whole
from loadmaster.problem import CANNOT, Problem, check_problem

MOST_RANK = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Plan:
    """Which ops are one kernel, which device runs it, and in what order. Decisions only, no times: `simulate` has
    those.

    The columns are about the ops of a Problem, by number. `rank` is a priority, not a time: a device that is free takes
    the ready op of lowest rank (rule 3 of the simulator), so any ranks give a valid schedule. The digests tie a plan to
    its graph and cluster; `check` refuses it for others. A plan may add ops to the graph: those that run again, and
    stays on another device (rule 15). Its columns are then about the ops of the expanded graph (`expansion.whole`).

    >>> from loadmaster import GraphBuilder, price
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(3)]
    >>> problem = price(g.build(), "2xp100-pcie")
    >>> plan = Plan.of(problem, device=[0, 1, 0], rank=[1, 0, 0])
    >>> plan.device.tolist(), plan.fuses, plan.num_kernels
    ([0, 1, 0], False, 3)

    Attributes:
        graph_digest, cluster_digest: of what it was made for, as `Graph.digest` and `Cluster.digest`.
        kernel: [ops] number of its kernel, which is that of the kernel's lowest op; equal = fused (rule 12).
        device: [ops] index into the devices of the cluster.
        rank: [ops] in [0, 2^31): a free device takes the ready op of lowest rank; ties by op index.
        send_rank: [tensors, devices] order of the sends of a tensor to a device on its channel, -1 where not given:
            then sends go by the ranks of those that wait for them (rule 4).
        added: what is recomputed, what is offloaded; None: nothing.
    """

    graph_digest: str
    cluster_digest: str
    kernel: Ints  # [ops]
    device: Ints  # [ops]
    rank: Ints  # [ops]
    send_rank: Ints | None = None  # [tensors, devices]
    added: Additions | None = None

    @staticmethod
    def of(
        problem: Problem,
        device: Sequence[int] | Ints,
        rank: Sequence[int] | Ints | None = None,
        kernel: Sequence[int] | Ints | None = None,
    ) -> Plan:
        """A plan for the problem; by default nothing is fused and ops go in program order.

        Args:
            problem: gives the digests, and what it adds where it is an expanded one.
            device: one for each op of the problem.
            rank: priorities, lowest first.
            kernel: for each op the lowest op of its kernel; itself where it is alone.
        """
        check_problem(problem, "Plan.of")
        program = np.arange(problem.num_ops)
        return Plan(
            problem.source.digest,
            problem.cluster.digest,
            ints(program) if kernel is None else given_ints(kernel, "Plan.of: kernel"),
            given_ints(device, "Plan.of: device"),
            ints(program) if rank is None else given_ints(rank, "Plan.of: rank"),
            added=problem.added,
        )

    @property
    def fuses(self) -> bool:
        """Whether any kernel has more than one op."""
        return bool((self.kernel != np.arange(len(self.kernel))).any())

    @property
    def num_kernels(self) -> int:
        """Launches of a step, an op alone counted as one."""
        return len(np.unique(self.kernel))

    def with_rank(self, rank: Ints) -> Plan:
        """The same places and kernels in another order; an order of sends is dropped with the old one."""
        return replace(self, rank=ints(rank), send_rank=None)

    def __repr__(self) -> str:
        used = len(np.unique(self.device))
        fused = f" in {self.num_kernels:,} kernels" if self.fuses else ""
        added = "" if self.added is None else f", {self.added.num_again:,} again, {self.added.num_stays:,} offloaded"
        where = f"on {used} device{'s' if used > 1 else ''}"
        return f"Plan({len(self.device):,} ops{fused}{added} {where}, {self.graph_digest})"


def check(plan: Plan, problem: Problem) -> None:
    """Raises InvalidPlan with the first rule that the plan breaks, in the names of ops and devices. Returns nothing
    where all is well.

    >>> from loadmaster import GraphBuilder, price
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(name, "task", [], [], time_ns=100, colocate="pair") for name in ("a", "b")]
    >>> problem = price(g.build(), "2xp100-pcie")
    >>> check(Plan.of(problem, [0, 1]), problem)
    Traceback (most recent call last):
        ...
    loadmaster.errors.InvalidPlan: ops 'b' and 'a' must share a device
      where: colocation group 0
      fix:   place the whole group together

    Raises:
        InvalidPlan: in this order: another graph or cluster, additions that would change what is computed, columns of
            the wrong length, a device that is none or on which an op cannot run, ranks out of range, kernels that lie
            on two devices or wait for themselves, colocated ops apart.
        InvalidSetting: the arguments are no plan and no problem.
    """
    check_kinds(plan, problem, "check(plan, problem)")
    check_belongs(plan, problem)
    problem = whole(problem, plan)  # refuses additions that would change what is computed
    _check_shape(plan, problem)
    _check_devices(plan, problem)
    _check_ranks(plan, problem)
    _check_kernels(plan, problem)
    _check_colocation(plan, problem)


def check_kinds(plan: object, problem: object, where: str) -> None:
    """Tells what to do where something else than a plan and a problem was given."""
    check_problem(problem, where)
    if not isinstance(plan, Plan):
        fix = "give a Plan: solve(problem).plan, or load_plan(file)"
        raise InvalidSetting.instead_of("plan", plan, where, fix)


def check_belongs(plan: Plan, problem: Problem) -> None:
    """Refuses a plan made for another graph or cluster."""
    for kind, name, mine, theirs in (
        ("graph", problem.source.name, problem.source.digest, plan.graph_digest),
        ("cluster", problem.cluster.name, problem.cluster.digest, plan.cluster_digest),
    ):
        if mine != theirs:
            what = f"the plan was made for another {kind}: digest {theirs}, but '{name}' has {mine}"
            raise InvalidPlan(what, f"{kind} '{name}'", f"plan again, or give the {kind} the plan was made for")


def _check_shape(plan: Plan, problem: Problem) -> None:
    for column in ("kernel", "device", "rank"):
        if getattr(plan, column).shape != (problem.num_ops,):
            what = f"'{column}' has {len(getattr(plan, column))} entries for {problem.num_ops} ops"
            raise InvalidPlan(what, "views are folded away and have none", "give one entry per op")
    expected = (problem.graph.num_tensors, problem.num_devices)
    if plan.send_rank is not None and plan.send_rank.shape != expected:
        raise InvalidPlan(
            f"'send_rank' has shape {plan.send_rank.shape}", "", f"it must be {expected}: tensors, devices"
        )


def _check_devices(plan: Plan, problem: Problem) -> None:
    count = problem.num_devices
    off = (plan.device < 0) | (plan.device >= count)
    names = f"{0} to {count - 1} ({', '.join(problem.cluster.device_names)})"
    if off.any():
        op = int(off.argmax())
        what = f"op '{problem.graph.op_name[op]}' is placed on device {plan.device[op]}"
        raise InvalidPlan(
            what, f"op {op} of {problem.num_ops}; {off.sum()} ops are placed off the cluster", f"use {names}"
        )
    cannot = problem.op_ns[np.arange(problem.num_ops), plan.device] == CANNOT
    if cannot.any():
        op = int(cannot.argmax())
        device = problem.cluster.device_names[plan.device[op]]
        runs = [problem.cluster.device_names[d] for d in np.flatnonzero(problem.op_ns[op] != CANNOT)]
        what = f"op '{problem.graph.op_name[op]}' cannot run on '{device}'"
        raise InvalidPlan(what, f"op {op} of {problem.num_ops}", f"use {', '.join(runs) or 'another cluster'}")


def _check_ranks(plan: Plan, problem: Problem) -> None:
    off = (plan.rank < 0) | (plan.rank > MOST_RANK)
    if off.any():
        op = int(off.argmax())
        what = f"op '{problem.graph.op_name[op]}' has rank {plan.rank[op]}"
        raise InvalidPlan(what, f"op {op} of {problem.num_ops}", f"ranks are 0 to {MOST_RANK}")
    if plan.send_rank is not None and ((plan.send_rank < -1) | (plan.send_rank > MOST_RANK)).any():
        raise InvalidPlan("a send has a rank out of range", "send_rank", f"use 0 to {MOST_RANK}, or -1 for none")


def check_kernel_numbers(kernel: Ints, problem: Problem) -> None:
    """Refuses a kernel whose number is not that of its lowest op."""
    if kernel.shape != (problem.num_ops,):
        raise InvalidPlan(f"'kernel' has shape {kernel.shape}", "", f"give one entry for each of {problem.num_ops} ops")
    bad = (kernel < 0) | (kernel > np.arange(problem.num_ops))
    bad[~bad] = kernel[kernel[~bad]] != kernel[~bad]
    if bad.any():
        op = int(bad.argmax())
        what = f"op '{problem.graph.op_name[op]}' is in kernel {kernel[op]}"
        raise InvalidPlan(what, f"op {op} of {problem.num_ops}", "a kernel's number is that of its lowest op")


def _check_kernels(plan: Plan, problem: Problem) -> None:
    kernel = plan.kernel
    check_kernel_numbers(kernel, problem)
    apart = plan.device != plan.device[kernel]
    if apart.any():
        op = int(apart.argmax())
        pair = f"'{problem.graph.op_name[op]}' and '{problem.graph.op_name[kernel[op]]}'"
        raise InvalidPlan(f"ops {pair} are one kernel on two devices", f"op {op}", "a kernel runs on one device")
    if plan.fuses:
        _check_stays(plan, problem)
        kernel_order(problem, kernel)  # refuses a kernel that is not convex


def _check_stays(plan: Plan, problem: Problem) -> None:
    if plan.added is None or not plan.added.num_stays:
        return
    sizes = np.bincount(plan.kernel, minlength=problem.num_ops)[plan.kernel]
    fused = np.array([kind == STAY for kind in problem.graph.kind]) & (sizes > 1)
    if fused.any():
        op = int(fused.argmax())
        raise InvalidPlan(
            f"'{problem.graph.op_name[op]}' is fused with others", f"op {op}", "a stay is no kernel's part"
        )


def kernel_order(problem: Problem, kernel: Ints) -> Ints:
    """[kernels] the lowest op of each, in an order in which every kernel comes after those it waits for.

    Raises InvalidPlan for one that would wait for itself: a path leaves it and comes back, so it is not convex. Convex
    kernels can still wait for each other in a circle, which is refused here, too.
    """
    graph = problem.graph
    heads = np.flatnonzero(kernel == np.arange(problem.num_ops))
    member_of = np.searchsorted(heads, kernel)
    start, before = graph.dependencies
    rows, values = member_of[rows_of(start)], member_of[before]
    apart = rows != values
    start, before = from_pairs(rows[apart], values[apart], len(heads))
    from loadmaster.graph.order import topological_order  # compiled: listing the zoo needs none of that

    order = topological_order(start, before, ints(np.arange(len(heads))))
    if len(order) < len(heads):
        stuck = int(heads[_on_a_cycle(start, before, np.setdiff1d(np.arange(len(heads)), order))])
        members = [graph.op_name[op] for op in np.flatnonzero(kernel == stuck)[:4]]
        what = f"the kernel of {', '.join(repr(name) for name in members)} would wait for itself"
        raise InvalidPlan(what, f"kernel {stuck}", "fuse only ops with no path that leaves the kernel and comes back")
    return ints(heads[order])


def _on_a_cycle(start: Ints, before: Ints, stuck: Ints) -> int:
    """A kernel that waits for itself, of several fused ones on the way the lowest; not one that only waits for it."""
    left, seen, here = set(stuck.tolist()), [], int(stuck[0])
    while here not in seen:
        seen.append(here)
        here = next(int(b) for b in before[start[here] : start[here + 1]] if int(b) in left)
    return min(seen[seen.index(here) :])


def _check_colocation(plan: Plan, problem: Problem) -> None:
    group = problem.graph.colocate
    members = np.flatnonzero(group >= 0)
    if not len(members):
        return
    low = np.full(int(group.max()) + 1, problem.num_devices)
    np.minimum.at(low, group[members], plan.device[members])
    apart = plan.device[members] != low[group[members]]
    if apart.any():
        op = int(members[apart.argmax()])
        mates = members[(group[members] == group[op]) & (plan.device[members] == low[group[op]])]
        pair = f"'{problem.graph.op_name[op]}' and '{problem.graph.op_name[mates[0]]}'"
        raise InvalidPlan(
            f"ops {pair} must share a device", f"colocation group {group[op]}", "place the whole group together"
        )


def without_additions(problem: Problem, plan: Plan) -> Plan:
    """The plan of the graph's own ops; each its own kernel where kernels hold together only by what was added."""
    expanded = whole(problem, plan)
    if expanded.expansion is None:
        return plan
    base, own = expanded.expansion.base, expanded.expansion.place[: expanded.expansion.base.num_ops]
    _, first, which = np.unique(plan.kernel[own], return_index=True, return_inverse=True)
    rank = positions(np.lexsort((np.arange(len(own)), plan.rank[own])))
    bare = Plan.of(base, plan.device[own], rank, ints(first[which]))
    try:
        check(bare, base)
    except InvalidPlan:
        return Plan.of(base, plan.device[own], rank)
    return bare
