"""The problem as a model of CP-SAT: variables for devices, starts and sends, and what must hold between them.

Every timeline of the simulator that fits is a solution, so what CP-SAT proves of the model holds of all plans. An op is
an optional interval on each device (no overlap), a send one on its channel, memory a cumulative resource where it may
run out. Times are divided by what divides all of them, which makes domains smaller.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from loadmaster.graph.columns import Ints, ints, positions, rows_of
from loadmaster.methods.exact.branching.branch_and_bound import may_be_full
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds.holding import Storages
from loadmaster.simulator import Timeline


class CpModel:
    """The problem in CP-SAT's terms: every timeline of the simulator that fits is a solution of it."""

    def __init__(self, library: Any, problem: Problem, plan: Plan, line: Timeline, least: int) -> None:
        self.problem, self.model = problem, library.CpModel()
        self.graph, self.devices = problem.graph, range(problem.num_devices)
        self.line, self.plan, self.least = line, plan, least
        self.by_order = problem.objective.of_memory and problem.num_devices == 1
        # On one device only the order decides the peak, so there every op takes one unit of time.
        times = np.ones_like(problem.op_ns) if self.by_order else problem.op_ns
        self.scale = 1 if self.by_order else _common(times, problem.send_ns)
        self.unit = 1 if problem.objective.of_memory else self.scale
        self.times, self.sends = times // self.scale, problem.send_ns // self.scale
        self.counts_memory = may_be_full(problem) or problem.objective.of_memory
        self.horizon = self._horizon()
        self._place()
        self._schedule()
        self._send()
        self._order()
        self._remember()
        self._aim()

    def _horizon(self) -> int:
        """No better plan is longer, where the step counts and the plan at hand fits; else all one after the other."""
        goal = self.problem.goal
        if goal.step_price and self.line.over_bytes == 0:
            return -(-(self.problem.value(self.line) // goal.step_price) // self.scale)
        moving = self.sends.max(axis=1, initial=0).sum() * (self.problem.num_devices - 1)
        return int(self.times.max(axis=1).sum() + moving)

    def _place(self) -> None:
        """One device for each colocation group."""
        able = self.problem.able
        self.on: list[list[Any]] = []  # [ops][devices]
        known: dict[int, list[Any]] = {}
        for op, group in enumerate(self.problem.leader.tolist()):
            if group not in known:
                choice = (
                    self.model.new_bool_var("") if able[op, d] else self.model.new_constant(0) for d in self.devices
                )
                known[group] = list(choice)
                self.model.add_exactly_one(known[group])
                for d in np.flatnonzero(able[op]).tolist():  # constants are one variable, of which one hint is allowed
                    self.model.add_hint(known[group][d], int(self.plan.device[op]) == d)
            self.on.append(known[group])

    def _schedule(self) -> None:
        """Start and end of every op; a device runs one at a time."""
        self.start = [self.model.new_int_var(0, self.horizon, "") for _ in range(self.problem.num_ops)]
        self.end = [self.model.new_int_var(0, self.horizon, "") for _ in range(self.problem.num_ops)]
        self.running: list[list[Any]] = [[] for _ in self.devices]
        turn = np.argsort(np.argsort(self.line.turn, kind="stable"), kind="stable")
        for op in range(self.problem.num_ops):
            for d in self.devices:
                span = (self.start[op], int(max(0, self.times[op, d])), self.end[op], self.on[op][d])
                self.running[d].append(self.model.new_optional_interval_var(*span, ""))
            begin, end = (turn[op], turn[op] + 1) if self.by_order else (self.line.start_ns[op], self.line.end_ns[op])
            self.model.add_hint(self.start[op], int(begin) // self.scale)
            self.model.add_hint(self.end[op], int(end) // self.scale)
        for d in self.devices:
            self.model.add_no_overlap([span for op, span in enumerate(self.running[d]) if self.times[op, d] > 0])

    def _send(self) -> None:
        """A tensor goes once to each other device that reads it, over one channel, after it is made."""
        problem, graph = self.problem, self.graph
        home = problem.maker
        self.sent: dict[tuple[int, int], Any] = {}  # (tensor, destination): start
        self.sending: dict[
            tuple[int, int, int], tuple[Any, Any]
        ] = {}  # (tensor, source, destination): (whether, interval)
        channels: dict[int, list[Any]] = {}
        begun = zip(self.line.send_tensor, self.line.send_dst, self.line.send_start_ns, strict=True)
        hint = {(int(tensor), int(dst)): int(ns) for tensor, dst, ns in begun}
        for tensor in np.unique(graph.reads).tolist():
            if home[tensor] < 0 or len(self.devices) == 1 or not (self.counts_memory or self.sends[tensor].any()):
                continue
            readers = [op for op in graph.readers_of(tensor).tolist() if self.on[op] is not self.on[home[tensor]]]
            for dst in self.devices if readers else ():
                begin = self.model.new_int_var(0, self.horizon, "")
                self.sent[tensor, dst] = begin
                self.model.add_hint(begin, hint.get((tensor, dst), 0) // self.scale)
                for src in self.devices:
                    if src != dst:
                        span = self._transfer(tensor, int(home[tensor]), src, dst, begin, readers)
                        channels.setdefault(int(problem.cluster.channel[src, dst]), []).append(span)
        for spans in channels.values() if problem.cluster.contention else ():
            self.model.add_no_overlap(spans)

    def _transfer(self, tensor: int, home: int, src: int, dst: int, begin: Any, readers: list[int]) -> Any:
        model, made = self.model, self.graph.is_made[tensor]
        time = int(self.sends[tensor, self.problem.send_class[src, dst]])
        used = model.new_bool_var("")
        model.add_implication(used, self.on[home][src])
        for op in readers:
            model.add_bool_or([used, self.on[home][src].negated(), self.on[op][dst].negated()])
            model.add(self.start[op] >= begin + time).only_enforce_if([used, self.on[op][dst]])
        model.add_bool_or([used.negated(), *(self.on[op][dst] for op in readers)])
        if made:
            model.add(begin >= self.end[home]).only_enforce_if(used)
        apart = self.plan.device[home] == src and any(self.plan.device[op] == dst for op in readers)
        model.add_hint(used, bool(apart))
        span = model.new_optional_fixed_size_interval_var(begin, time, used, "")
        self.sending[tensor, src, dst] = used, span
        return span

    def _order(self) -> None:
        start, before = self.graph.dependencies
        for op, earlier in zip(rows_of(start).tolist(), before.tolist(), strict=True):
            self.model.add(self.start[op] >= self.end[earlier])

    def _remember(self) -> None:
        """Memory, where it is the goal or could run out. What is written in place counts only on one device."""
        problem, graph = self.problem, self.graph
        total = int(graph.nbytes.sum() + graph.workspace_bytes.sum()) * problem.num_devices
        self.peak = self.model.new_int_var(0, total, "")
        for d in self.devices if self.counts_memory else ():
            blocks = [*self._residents(d), *self._workspaces(d), *self._made(d), *self._copies(d)]
            must_fit = not problem.objective.of_memory or self.line.over_bytes == 0
            held = self.model.new_int_var(0, min(total, int(problem.memory_bytes[d])) if must_fit else total, "")
            self.model.add(self.peak >= held)
            self.model.add_cumulative([span for span, _ in blocks], [size for _, size in blocks], held)

    def _residents(self, d: int) -> list[tuple[Any, int]]:
        problem, graph = self.problem, self.graph
        blocks = []
        for tensor in np.flatnonzero(problem.resident & (graph.nbytes > 0)).tolist():
            readers = graph.readers_of(tensor).tolist()
            ops = [int(problem.updater[tensor])] if problem.is_updated[tensor] else readers
            if ops:
                there = self.model.new_bool_var("")
                self.model.add_bool_or([there.negated(), *(self.on[op][d] for op in ops)])
                for op in ops:
                    self.model.add_implication(self.on[op][d], there)
                whole = self.model.new_optional_fixed_size_interval_var(0, self.horizon, there, "")
                blocks.append((whole, int(graph.nbytes[tensor])))
        return blocks

    def _workspaces(self, d: int) -> list[tuple[Any, int]]:
        size = self.graph.workspace_bytes
        return [(self.running[d][op], int(size[op])) for op in np.flatnonzero(size).tolist()]

    def _made(self, d: int) -> list[tuple[Any, int]]:
        """A made tensor at home: from the start of its op until its readers there and its sends have ended."""
        net = Storages(self.problem).net
        blocks = []
        for storage, tensor in enumerate(net.tensor.tolist()):
            if net.nbytes[storage] == 0:
                continue
            maker, here = int(net.maker[storage]), self.on[int(net.maker[storage])][d]
            until = self.model.new_int_var(0, self.horizon, "")
            self.model.add(until >= self.end[maker])
            if net.stays[storage] if len(self.devices) == 1 else self.problem.stays[tensor]:
                self.model.add(until == self.horizon)
            # In place, on several devices, only readers of the tensor itself are sure to need it here.
            one = len(self.devices) == 1
            users = (
                net.users[net.user_start[storage] : net.user_start[storage + 1]]
                if one
                else self.graph.readers_of(tensor)
            )
            for op in users.tolist():
                self.model.add(until >= self.end[op]).only_enforce_if([here, self.on[op][d]])
            for dst in self.devices:
                if (tensor, d, dst) in self.sending:
                    used, _ = self.sending[tensor, d, dst]
                    time = int(self.sends[tensor, self.problem.send_class[d, dst]])
                    self.model.add(until >= self.sent[tensor, dst] + time).only_enforce_if(used)
            life = self.model.new_int_var(0, self.horizon, "")
            span = self.model.new_optional_interval_var(self.start[maker], life, until, here, "")
            blocks.append((span, int(net.nbytes[storage])))
        return blocks

    def _copies(self, d: int) -> list[tuple[Any, int]]:
        """A received copy: from the start of its transfer until its readers there have ended."""
        blocks = []
        for (tensor, _, dst), (used, _) in self.sending.items():
            if dst == d and self.graph.nbytes[tensor]:
                until, life = (self.model.new_int_var(0, self.horizon, "") for _ in range(2))
                for op in self.graph.readers_of(tensor).tolist():
                    self.model.add(until >= self.end[op]).only_enforce_if([used, self.on[op][d]])
                span = self.model.new_optional_interval_var(self.sent[tensor, d], life, until, used, "")
                blocks.append((span, int(self.graph.nbytes[tensor])))
        return blocks

    def _aim(self) -> None:
        if self.problem.objective.of_memory:
            self.model.add(self.peak >= self.least)
            self.model.add_hint(self.peak, int(self.line.peak_bytes.max()))
            self.model.minimize(self.peak)
            return
        goal = self.problem.goal
        least = 0 if len(goal.busy_price) else -(-self.least // self.scale)
        step = self.model.new_int_var(min(self.horizon, least), self.horizon, "")
        self.model.add_max_equality(step, self.end)
        busy = (
            price * max(0, int(self.times[op, d])) * self.on[op][d]
            for d, price in enumerate(goal.busy_price.tolist())
            for op in range(self.problem.num_ops)
        )
        self.model.minimize(sum(busy, goal.step_price * step))

    def plans(self, solver: Any) -> list[Plan]:
        """The placement and order of the solution, with sends in the solution's order and in that of their readers."""
        device = [next(d for d in self.devices if solver.value(self.on[op][d])) for op in range(self.problem.num_ops)]
        start = np.array([solver.value(begin) for begin in self.start])
        plan = Plan.of(self.problem, device, positions(np.argsort(start, kind="stable")))
        order = sorted(self.sent, key=lambda send: (solver.value(self.sent[send]), send))
        send_rank = np.full((self.graph.num_tensors, len(self.devices)), -1, np.int64)
        for turn, (tensor, dst) in enumerate(order):
            send_rank[tensor, dst] = turn
        return [plan, replace(plan, send_rank=ints(send_rank))]


def _common(times: Ints, sends: Ints) -> int:
    """The largest number that divides every time."""
    values = np.unique(np.concatenate([times[times > 0].reshape(-1), sends.reshape(-1)]))
    return max(1, gcd(*values.tolist())) if len(values) else 1
