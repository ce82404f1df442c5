"""What a pipeline takes: its actions as a graph that the one simulator judges, under any schedule.

A cut and a schedule go in; stages become actions (`stages`), actions of all microbatches a graph with each device's
order in it (`microbatches`), and its timeline is the pipeline's, bubbles and all. Each judged candidate counts as a
simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.graph import PIPELINE
from loadmaster.graph.columns import Ints, ints
from loadmaster.pipelines import schedules
from loadmaster.pipelines.microbatches import Action, Replicas, parse_action, repeated
from loadmaster.pipelines.pipelined import Pipelined
from loadmaster.pipelines.schedules import Orders
from loadmaster.pipelines.stages import UPDATE, Staged, in_stages, phases_of, settle_stages
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from loadmaster.simulator import simulate


@dataclass(frozen=True)
class StageCut:
    """Where stages begin, in slots, and on which device each replica of each is.

    Attributes:
        edges: [stages - 1] first slot of each stage but the first.
        device: [stages] the devices of its replicas.
        name: "equal", "balanced", "bidirectional", "replicated" or "searched".
    """

    slot: Ints  # [ops]
    edges: tuple[int, ...]  # [stages - 1]
    device: tuple[tuple[int, ...], ...]  # [stages]
    name: str

    @property
    def stages(self) -> int:
        return len(self.device)

    @property
    def replicated(self) -> bool:
        return any(len(places) > 1 for places in self.device)

    def device_of(self, action: Action) -> int:
        """A replica takes the microbatches that its number leaves over."""
        places = self.device[action.stage]
        return places[action.microbatch % len(places)]

    def stage_of(self) -> Ints:
        return ints(np.searchsorted(np.array(self.edges), self.slot, side="right"))


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A candidate, judged.

    Attributes:
        schedule: gpipe, 1f1b, interleaved, zb-h1 or eager.
        most: microbatches that each stage of an eager schedule may hold.
        problem: of the actions.
        bubble: share of the devices' time in which they stand idle.
    """

    schedule: str
    cut: StageCut
    most: tuple[int, ...]
    orders: Orders  # [devices]
    problem: Problem
    plan: Plan
    score: Score
    bubble: float
    peak_bytes: Ints  # [devices]

    @property
    def name(self) -> str:
        return f"{self.schedule}, {self.cut.name}"


class Judge:
    """Simulates pipelines of so many microbatches of one problem; every one counts as a simulation of the search."""

    def __init__(self, problem: Problem, microbatches: int, search: Search) -> None:
        self.problem, self.count, self.search = problem, microbatches, search
        self.phase = phases_of(problem)
        self.staged: dict[tuple[bytes, bool], Staged] = {}

    @property
    def trains(self) -> bool:
        return bool((self.phase == UPDATE).any())

    def __call__(
        self, schedule: str, cut: StageCut, most: tuple[int, ...] = (), given: Orders | None = None
    ) -> Pipeline:
        """`given`: the orders of devices, in place of those by the rules of the schedule."""
        split = schedule in ("zb-h1", "eager") and self.trains
        staged = self._staged(cut, split)
        orders = schedules.existing(given or self._orders_of(schedule, cut, staged, most), staged)
        orders = orders if given else _by_device(orders, cut, self.problem.num_devices)
        graph = repeated(staged, self.count, orders, self._replicas(cut))
        problem = price(graph, self.problem.cluster, objective=self.problem.objective)
        device = [cut.device_of(parse_action(name)) for name in problem.graph.op_name]
        plan = Plan.of(problem, device)
        line = simulate(problem, plan)
        self.search.count(1)
        busy = line.busy_ns[: problem.num_devices].sum()
        used = len({device for places in cut.device for device in places})
        bubble = 1 - float(busy) / max(1, line.step_ns * used)
        return Pipeline(schedule, cut, most, orders, problem, plan, Score.of(problem, line), bubble, line.peak_bytes)

    def _orders_of(self, schedule: str, cut: StageCut, staged: Staged, most: tuple[int, ...]) -> Orders:
        if schedule == "gpipe":
            return schedules.gpipe(cut.stages, self.count)
        if schedule == "1f1b":
            return schedules.one_f_one_b(cut.stages, self.count)
        if schedule == "zb-h1":
            return schedules.zb_h1(cut.stages, self.count)
        if schedule == "interleaved":
            return schedules.interleaved(self.problem.num_devices, cut.stages // self.problem.num_devices, self.count)
        return schedules.eager(schedules.ActionTimes.of(staged, cut.device), self.count, most)

    def _replicas(self, cut: StageCut) -> Replicas:
        """The ring of each stage: its replicas in their order, as fast as the slowest link between neighbours."""
        links: list[Link | None] = []
        for places in cut.device:
            ring = [
                self.problem.cluster.links[a, b]
                for a, b in zip(places, (*places[1:], places[0]), strict=True)
                if a != b
            ]
            links.append(min(ring, key=lambda link: link.bytes_per_s or float("inf"), default=None))
        return Replicas(tuple(len(places) for places in cut.device), tuple(links))

    def _staged(self, cut: StageCut, split: bool) -> Staged:
        stage = settle_stages(self.problem, cut.stage_of(), self.phase)
        key = (stage.tobytes(), split)
        if key not in self.staged:
            self.staged[key] = in_stages(self.problem, stage, self.phase, split_backward=split)
        return self.staged[key]

    def remembering(self, best: Pipeline) -> Pipeline:
        """The same, whose graph says how it was made."""
        stage, source = settle_stages(self.problem, best.cut.stage_of(), self.phase), self.problem.source
        apart = best.schedule in ("zb-h1", "eager") and self.trains
        made = Pipelined(self.count, source.digest, tuple(stage.tolist()), apart, best.cut.replicated)
        graph = replace(best.problem.source, captured={**source.captured, PIPELINE: made.to_json()})
        problem = price(graph, self.problem.cluster, objective=self.problem.objective)
        return replace(best, problem=problem)


def _by_device(orders: Orders, cut: StageCut, devices: int) -> Orders:
    """The orders of stages, or of devices, on the devices that the cut gives them."""
    found: Orders = [[] for _ in range(devices)]
    for order in orders:
        if order:
            found[cut.device_of(order[0])] = order
    return found
