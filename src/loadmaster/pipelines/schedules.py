"""Schedules of pipelines: in which order each device takes the actions of its stages.

GPipe (Huang et al., 2019), 1F1B (Narayanan et al., 2019; PipeDream-Flush), interleaved 1F1B (Narayanan et al., 2021)
and ZB-H1 (Qi et al., 2023) by their rules; `eager`, which takes what is ready and holds as much as it is told it may.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.pipelines.microbatches import Action
from loadmaster.pipelines.stages import BACKWARD, FORWARD, UPDATE, WEIGHT, Staged

Orders = list[list[Action]]  # [devices]


def gpipe(stages: int, microbatches: int) -> Orders:
    """All forward passes, then all backward passes."""
    every = range(microbatches)
    return [[*(Action(FORWARD, s, m) for m in every), *(Action(BACKWARD, s, m) for m in every)] for s in range(stages)]


def one_f_one_b(stages: int, microbatches: int) -> Orders:
    """As many forward passes as there are stages ahead, then one backward and one forward pass in turn."""
    return [list(_turns(s, min(stages - s, microbatches), microbatches)) for s in range(stages)]


def _turns(stage: int, ahead: int, microbatches: int) -> Iterator[Action]:
    yield from (Action(FORWARD, stage, m) for m in range(ahead))
    for m in range(microbatches):
        yield Action(BACKWARD, stage, m)
        if m + ahead < microbatches:
            yield Action(FORWARD, stage, m + ahead)


def zb_h1(stages: int, microbatches: int) -> Orders:
    """1F1B in which a stage puts the gradients of its weights off, by as many backward passes as its number: they fill
    the end, and no stage holds more than the first one does."""
    orders: Orders = []
    for stage, order in enumerate(one_f_one_b(stages, microbatches)):
        put_off: list[Action] = []
        for action in order:
            put_off.append(action)
            if action.phase == BACKWARD and action.microbatch >= stage:
                put_off.append(Action(WEIGHT, stage, action.microbatch - stage))
        late = range(max(0, microbatches - stage), microbatches)
        orders.append([*put_off, *(Action(WEIGHT, stage, m) for m in late)])
    return orders


def interleaved(devices: int, chunks: int, microbatches: int) -> Orders:
    """1F1B over more stages than devices: device d has stages d, d + devices, …; microbatches go in rounds of as many
    as there are devices, which must divide their number."""
    total, orders = microbatches * chunks, []
    for device in range(devices):
        ahead = min((devices - device - 1) * 2 + (chunks - 1) * devices, total)

        def turn(k: int, phase: int, device: int = device) -> Action:
            chunk = k // devices % chunks
            chunk = chunk if phase == FORWARD else chunks - 1 - chunk
            return Action(phase, chunk * devices + device, k // (devices * chunks) * devices + k % devices)

        order = [turn(k, FORWARD) for k in range(ahead)]
        for k in range(total):
            if k + ahead < total:
                order.append(turn(k + ahead, FORWARD))
            order.append(turn(k, BACKWARD))
        orders.append(order)
    return orders


def existing(orders: Orders, staged: Staged) -> Orders:
    """Without actions that have nothing to do: the first stage has only gradients of weights."""
    there = set(zip(staged.phase.tolist(), staged.stage.tolist(), strict=True))
    return [[action for action in order if (action.phase, action.stage) in there] for order in orders]


@dataclass(frozen=True, eq=False)
class ActionTimes:
    """What `eager` needs of a staged microbatch: times, and what each action waits for.

    Attributes:
        time_ns: [actions] on its device.
        waits: [actions] (action, ns on the way)
        device: [stages] the devices of its replicas.
    """

    time_ns: Ints  # [actions]
    waits: tuple[tuple[tuple[int, int], ...], ...]  # [actions]
    staged: Staged
    device: tuple[tuple[int, ...], ...]  # [stages]

    @classmethod
    def of(cls, staged: Staged, device: tuple[tuple[int, ...], ...]) -> ActionTimes:
        problem, graph = staged.problem, staged.problem.graph
        where = [device[stage][0] for stage in staged.stage.tolist()]
        reader, maker = rows_of(graph.read_start), graph.producer[graph.reads]
        way: dict[tuple[int, int], int] = {}
        for action, before, tensor in zip(reader.tolist(), maker.tolist(), graph.reads.tolist(), strict=True):
            if before < 0 or staged.phase[action] == UPDATE:
                continue
            apart = device[staged.stage[action]] != device[staged.stage[before]]
            kind = problem.send_class[where[before], where[action]]
            ns = int(problem.send_ns[tensor, kind]) if apart else 0
            way[action, before] = way.get((action, before), 0) + ns
        waits = [[(b, ns) for (a, b), ns in way.items() if a == action] for action in range(graph.num_ops)]
        times = problem.op_ns[np.arange(graph.num_ops), where]
        return cls(ints(times), tuple(tuple(row) for row in waits), staged, device)


def eager(line: ActionTimes, microbatches: int, most: Sequence[int]) -> Orders:
    """Each device takes what is ready: backward passes first, then forward passes while its stage holds fewer than
    `most` microbatches, then gradients of weights."""
    return _Eager(line, microbatches, most).run()


Task = tuple[int, int]  # action, replica


class _Eager:
    def __init__(self, line: ActionTimes, microbatches: int, most: Sequence[int]) -> None:
        staged = line.staged
        self.line, self.count, self.most = line, microbatches, most
        self.phase, self.stage = staged.phase.tolist(), staged.stage.tolist()
        actions = [a for a in range(len(self.phase)) if self.phase[a] != UPDATE]
        self.replicas = [len(line.device[stage]) for stage in self.stage]
        self.last_phase = {s: max(self.phase[a] for a in actions if self.stage[a] == s) for s in set(self.stage)}
        self.left = {(a, m): len(line.waits[a]) for a in actions for m in range(microbatches)}
        self.readers: dict[int, list[tuple[int, int]]] = {a: [] for a in actions}
        for a in actions:
            for before, ns in line.waits[a]:
                self.readers[before].append((a, ns))
        self.ready_ns = {key: 0 for key, left in self.left.items() if not left}
        self.tasks = [(a, k) for a in actions for k in range(self.replicas[a])]
        self.next = {task: task[1] for task in self.tasks}  # microbatches go in order
        self.held = {(self.stage[a], k): 0 for a, k in self.tasks}

    def run(self) -> Orders:
        devices = max(max(places) for places in self.line.device) + 1
        orders: Orders = [[] for _ in range(devices)]
        free = [(0, d) for d in range(devices)]
        by_device: list[list[Task]] = [[] for _ in range(devices)]
        for a, k in self.tasks:
            by_device[self.line.device[self.stage[a]][k]].append((a, k))
        parked: list[int] = []  # they wait for what other devices do
        while free:
            now, device = heapq.heappop(free)
            chosen = self._choose(by_device[device], now)
            if chosen is None:
                later = [at for task in by_device[device] if (at := self._able(task)) is not None]
                if later:
                    heapq.heappush(free, (min(later), device))
                else:
                    parked.append(device)
                continue
            orders[device].append(Action(self.phase[chosen[0]], self.stage[chosen[0]], self.next[chosen]))
            end = self._take(chosen, now)
            for waiting in (device, *parked):
                heapq.heappush(free, (end, waiting))
            parked.clear()
        return orders

    def _able(self, task: Task) -> int | None:
        """When its next microbatch is ready; None: it is not known yet, or there is no room for it."""
        action, replica = task
        microbatch, stage = self.next[task], self.stage[action]
        if microbatch >= self.count or self.left[action, microbatch]:
            return None
        if self.phase[action] == FORWARD and self.held[stage, replica] >= self.most[stage]:
            return None
        return self.ready_ns[action, microbatch]

    def _choose(self, tasks: list[Task], now: int) -> Task | None:
        urgency = {BACKWARD: 0, FORWARD: 1, WEIGHT: 2}
        ready = [task for task in tasks if (at := self._able(task)) is not None and at <= now]
        return min(
            ready, key=lambda task: (urgency[self.phase[task[0]]], self.next[task], -self.stage[task[0]]), default=None
        )

    def _take(self, task: Task, now: int) -> int:
        action, replica = task
        microbatch, phase, stage = self.next[task], self.phase[action], self.stage[action]
        end = now + int(self.line.time_ns[action])
        self.next[task] += self.replicas[action]
        self.held[stage, replica] += (phase == FORWARD) - (phase == self.last_phase[stage])
        for reader, ns in self.readers[action]:
            key = (reader, microbatch)
            self.left[key] -= 1
            self.ready_ns[key] = max(self.ready_ns.get(key, 0), end + ns)
        return end
