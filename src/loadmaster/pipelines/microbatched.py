"""Pipelines of microbatches: where to cut the model, which device takes which stage, and in what order.

Every candidate is a graph of actions that the one simulator judges. The hand-made schedules are tried with stages of
equal length and with balanced ones; then `eager` schedules, which hold more and more; then the cuts of the best few are
moved while that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from loadmaster.baselines.pipeline.replicas import replicated_splits
from loadmaster.baselines.pipeline.split import merged_slots
from loadmaster.baselines.simple import Ready
from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes.groups import mirrored_position, scope_slots
from loadmaster.pipelines.cuts import Rehearsals, StageLine
from loadmaster.pipelines.edges import balanced_edges, crossing_of, gradients_of, work_of
from loadmaster.pipelines.judging import Judge, Pipeline, StageCut
from loadmaster.pipelines.rehearsal import Slots
from loadmaster.pipelines.schedules import Orders
from loadmaster.pipelines.slots import slots_of
from loadmaster.pipelines.stages import UPDATE, phases_of
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.bounds import Among, lower_bound
from loadmaster.search import Budget, Result, Score, Search, as_budget, solve

MOST_SLOTS = 512  # on a line of ops; with more, neighbours with little work are one
MOST_ACTIONS = 200_000  # stages x microbatches x kinds of pass: every one is an op to simulate
CHUNKS = 2  # stages of each device in an interleaved schedule
KEPT = 3  # candidates whose cuts are moved
REHEARSALS = 100_000  # at most
REHEARSALS_EACH = 1_000  # for each simulation of the budget
MOST_REHEARSED = 40_000_000  # actions in all, some seconds; with more than the usual simulations, more
USUAL = 60  # simulations
JUDGED = 6  # lines of rehearsals that the simulator judges, on each layout
FAR = 1.3  # times the best: a layout of ops on a line that is worse than that is left out


@dataclass(frozen=True, eq=False)
class PipelineResult:
    """The best pipeline as an ordinary result, and all hand-made ones for comparison, best first.

    Attributes:
        base: the step of one microbatch.
        coupled: ops that look at several samples at once.
    """

    result: Result
    best: Pipeline
    base: Problem
    others: tuple[Pipeline, ...]
    microbatches: int
    coupled: tuple[str, ...]


def plan_pipeline(
    problem: Problem,
    microbatches: int,
    budget: Budget | float | None = None,
    seed: int = 0,
    *,
    replicate: bool = False,
) -> PipelineResult:
    """Plans a batch as a pipeline of microbatches: where to cut, which device takes which stage, and in what order.

    Args:
        problem: the step of one microbatch; the answer is for all of them and one update.
        microbatches: of the batch.
        budget, seed: of the search; each pipeline that the simulator judges counts as a simulation.
        replicate: stages may be there several times over, up to data parallelism, where there is one stage.

    Raises:
        InvalidSetting: no or far too many microbatches, or fewer places to cut than devices.
    """
    if microbatches < 1 or microbatches * problem.num_devices * 4 > MOST_ACTIONS:
        what = f"{microbatches} microbatches on {problem.num_devices} devices"
        raise InvalidSetting(what, "microbatches", "give a whole number of at least 1, and not thousands")
    planner = _Planner(problem, microbatches, as_budget(budget), seed)
    places = max(int(slot.max()) + 1 for slot in planner.layouts)
    if places < problem.num_devices:
        what = f"'{problem.graph.name}' has {places} places to cut it, for {problem.num_devices} devices"
        raise InvalidSetting(what, "microbatches", "give fewer devices")
    both_ways = list(planner.bidirectional()) if replicate else []
    made = sorted([*planner.by_hand(), *both_ways], key=lambda pipeline: pipeline.score)
    several = list(planner.replicated()) if replicate else []
    own = sorted([*planner.eager(made), *several, *made], key=lambda pipeline: pipeline.score)
    own = sorted([*own, *planner.rehearsed(own)], key=lambda pipeline: pipeline.score)
    best = planner.judge.remembering(planner.improve(own[:KEPT]))
    result = solve(best.problem, Ready(best.plan), Budget(None, 1), seed)
    spent = planner.search
    result = replace(
        result,
        method=f"{best.schedule}",
        lower_bound=bound_of(problem, microbatches, replicate=replicate),
        among=Among("none"),
        simulations=spent.simulations,
        seconds=spent.seconds,
    )
    return PipelineResult(result, best, problem, tuple(made), microbatches, coupled_ops(problem))


def bound_of(problem: Problem, microbatches: int, *, replicate: bool = False) -> int:
    """What the busiest device must do for all microbatches, however work is shared out: passes, adding gradients up and
    the update. Replicas add fewer gradients up, so that with them the last two are left out."""
    update = (phases_of(problem) == UPDATE)[:, None]
    once = np.where(problem.op_ns == CANNOT, CANNOT, problem.op_ns + _adding_ns(problem, microbatches))
    every = np.where(problem.op_ns == CANNOT, CANNOT, problem.op_ns * microbatches)
    all_of_it = replace(problem, op_ns=ints(np.where(update, 0 if replicate else once, every)))
    return lower_bound(all_of_it.with_objective("throughput"))


def _adding_ns(problem: Problem, microbatches: int) -> Ints:
    """[ops, devices] of updates: two read and one written for each microbatch but the first."""
    graph, total = problem.graph, np.zeros(problem.num_ops, np.int64)
    reader, made = rows_of(graph.read_start), graph.is_made[graph.reads]
    np.add.at(total, reader[made], graph.nbytes[graph.reads[made]])
    total[phases_of(problem) != UPDATE] = 0
    each = [3e9 * (microbatches - 1) / rate * total * (1 - 1e-9) for rate in problem.bytes_per_s.tolist()]
    return ints(np.floor(np.stack(each, axis=1)))  # whole numbers would not hold the product; no more than it is


def coupled_ops(problem: Problem) -> tuple[str, ...]:
    """Ops whose result for a sample depends on the others of its batch: a microbatch changes what they compute."""
    names = ("batch_norm", "batchnorm", "BatchNormalization")
    graph = problem.graph
    return tuple(graph.op_name[op] for op in range(problem.num_ops) if any(n in graph.kind[op] for n in names))


class _Planner:
    def __init__(self, problem: Problem, microbatches: int, budget: Budget, seed: int) -> None:
        self.problem, self.count, self.budget = problem, microbatches, budget
        self.search = Search(problem, budget, seed)
        self.judge = Judge(problem, microbatches, self.search)
        self.phase, self.trains = self.judge.phase, self.judge.trains
        self.layouts = self._layouts()

    # Candidates

    def by_hand(self) -> Iterator[Pipeline]:
        """The hand-made schedules on stages of equal length and on balanced ones."""
        devices = self.problem.num_devices
        first = [self.judge("1f1b", cut) for cut in self.cuts(devices)]
        near = _near([pipeline.score for pipeline in first])
        kept = [pipeline for pipeline, close in zip(first, near, strict=True) if close]
        self.layouts = list({id(pipeline.cut.slot): pipeline.cut.slot for pipeline in kept}.values())
        for pipeline, close in zip(first, near, strict=True):
            if pipeline.cut.name == "equal" or close:
                yield pipeline
                yield self.judge("gpipe", pipeline.cut)
                if self.trains:
                    yield self.judge("zb-h1", pipeline.cut)
        if self.count % devices == 0 and devices > 1 and self.trains:
            for cut in self.cuts(CHUNKS * devices):
                yield self.judge("interleaved", cut)

    def eager(self, made: Sequence[Pipeline]) -> Iterator[Pipeline]:
        """Schedules that take what is ready, on the best cuts so far, holding more and more microbatches."""
        cuts = list({id(pipeline.cut): pipeline.cut for pipeline in made}.values())[:KEPT]
        for cut in cuts:
            for times in (1.0, 1.5, 2.0, float(self.count)):
                if not self.search.spent:
                    most = tuple(
                        max(1, min(self.count, round(times * (cut.stages - stage)))) for stage in range(cut.stages)
                    )
                    yield self.judge("eager", cut, most)

    def rehearsed(self, made: Sequence[Pipeline]) -> Iterator[Pipeline]:
        """What rehearsals find from the cuts so far and from others, judged in the order that was rehearsed."""
        for slot in self.layouts:
            slots = slots_of(self.problem, slot, self.phase)
            starts = [*self._lines(slot), *_lines_of(made, slot)]
            for _ in range(2):
                rehearsals = Rehearsals(slots, self.count, self.search.seed, lambda: self.search.spent)
                number = self._rehearsals(slots)
                judged = []
                for line in rehearsals.best(starts, number, JUDGED) if number else ():
                    if not self.search.spent:
                        judged.append(self._judge_line(slot, line, rehearsals))
                        yield judged[-1]
                if not judged or min(judged, key=lambda pipeline: pipeline.score).score.over_bytes == 0:
                    break
                slots = _tighter(slots, judged)

    def _judge_line(self, slot: Ints, line: StageLine, rehearsals: Rehearsals) -> Pipeline:
        cut = StageCut(slot, line.edges, tuple((device,) for device in line.device), "searched")
        orders: Orders = [[] for _ in range(self.problem.num_devices)]
        for action in rehearsals.actions(line):
            orders[line.device[action.stage]].append(action)
        return self.judge("eager", cut, line.most, orders)

    def _rehearsals(self, slots: Slots) -> int:
        """How many: as the budget of simulations says, and not so many that they take longer than these."""
        actions = 6 * len(slots.memory) * self.count
        given = self.budget.simulations or 4 * USUAL
        most = max(MOST_REHEARSED, MOST_REHEARSED * given // USUAL)
        return min(most // actions, REHEARSALS, REHEARSALS_EACH * given)

    def _lines(self, slot: Ints) -> Iterator[StageLine]:
        """One to three stages on each device, there or there and back, from every device on."""
        count, work, crossing = int(slot.max()) + 1, self._work(slot), crossing_of(self.problem, slot)
        for order in self._turned():
            back = order[::-1]
            for line in (order, order * 2, order + back, order + back + order):
                if len(line) > count:
                    continue
                edges = balanced_edges(work, line, crossing)
                ahead = [-(-(len(line) - stage) * len(order) // len(line)) for stage in range(len(line))]
                yield StageLine(edges, line, tuple(min(self.count, most) for most in ahead))
                yield StageLine(edges, line, (self.count,) * len(line))

    def _turned(self) -> list[tuple[int, ...]]:
        """Orders of the devices: unlike ones from fast to slow, begun at each."""
        first, *others = self._orders()
        if not others:
            return [first]
        by_speed = others[0]
        return [first, *(by_speed[turn:] + by_speed[:turn] for turn in range(len(by_speed)))]

    def replicated(self) -> Iterator[Pipeline]:
        """Fewer stages than devices, each several times over: the best split for each number of stages."""
        slot, devices = self.layouts[0], self.problem.num_devices
        if not self.trains or self.problem.device_kind.any():
            return
        link = min(self.problem.cluster.links.values(), key=lambda link: link.bytes_per_s or float("inf"))
        most = min(devices, self.count)
        found = replicated_splits(
            self._work(slot)[:, 0] * self.count, gradients_of(self.problem, slot), devices, most, link
        )
        for way in found:
            ends = np.cumsum(way.replicas).tolist()
            places = tuple(tuple(range(end - r, end)) for end, r in zip(ends, way.replicas, strict=True))
            cut = StageCut(slot, way.edges, places, "replicated")
            for times in (1.0, 2.0):
                held = tuple(max(1, min(self.count, round(times * (cut.stages - s)))) for s in range(cut.stages))
                if not self.search.spent:
                    yield self.judge("eager", cut, held)

    def bidirectional(self) -> Iterator[Pipeline]:
        """Every stage twice, on devices at equal distances from the two ends: half of the microbatches go the other way
        (Chimera, Li and Hoefler, 2021; DualPipe, DeepSeek-AI, 2024). A device holds one microbatch more than the first
        of 1F1B, and twice the weights."""
        slot, devices = self.layouts[0], self.problem.num_devices
        alike = self.trains and not self.problem.device_kind.any()
        if not alike or devices % 2 or self.count < 2 or int(slot.max()) + 1 < devices:
            return
        edges = balanced_edges(self._work(slot), tuple(range(devices)), crossing_of(self.problem, slot))
        places = tuple((stage, devices - 1 - stage) for stage in range(devices))
        cut = StageCut(slot, edges, places, "bidirectional")
        yield self.judge("eager", cut, tuple(min(self.count, devices - stage) for stage in range(devices)))

    def _work(self, slot: Ints) -> Ints:
        return work_of(self.problem, slot, self.phase, self.count)

    def cuts(self, stages: int) -> Iterator[StageCut]:
        """Equal ones on the first layout, balanced ones on each; unlike devices in several orders."""
        devices = self.problem.num_devices
        for number, slot in enumerate(self.layouts):
            count = int(slot.max()) + 1
            if count < stages:
                continue
            if not number:
                edges = tuple(count * stage // stages for stage in range(1, stages))
                yield StageCut(slot, edges, tuple((stage % devices,) for stage in range(stages)), "equal")
            for order in self._orders():
                line = tuple(order[stage % devices] for stage in range(stages))
                edges = balanced_edges(self._work(slot), line, crossing_of(self.problem, slot))
                yield StageCut(slot, edges, tuple((d,) for d in line), "balanced")

    def _layouts(self) -> list[Ints]:
        """[ops] slots: by module where modules are known, and by place in the forward pass."""
        slots = [mirrored_position(self.problem)]
        if any(self.problem.graph.scope):
            slots.insert(0, scope_slots(self.problem))
        return [merged_slots(slot, self.problem.best_ns + 1, MOST_SLOTS) for slot in slots]

    def _orders(self) -> list[tuple[int, ...]]:
        """Devices as they are, and the fast ones first or last where they are unlike."""
        speed = np.where(self.problem.op_ns == CANNOT, 0, self.problem.op_ns).sum(axis=0)
        given = range(self.problem.num_devices)
        orders = [tuple(given), tuple(np.argsort(speed, kind="stable").tolist())]
        orders.append(orders[1][::-1])
        return list(dict.fromkeys(orders)) if len(set(speed.tolist())) > 1 else [tuple(given)]

    # Moving cuts

    def improve(self, kept: Sequence[Pipeline]) -> Pipeline:
        """The best after moving edges between stages, by large steps first, while that helps."""
        best = kept[0]
        for start in kept:
            here = start
            step = max(1, int(start.cut.slot.max()) // 16)
            while step and not self.search.spent:
                better = self._moved(here, step)
                if better is None:
                    step //= 2
                else:
                    here = better
            best = min(best, here, key=lambda pipeline: pipeline.score)
        return best

    def _moved(self, here: Pipeline, step: int) -> Pipeline | None:
        edges, last = here.cut.edges, int(here.cut.slot.max())
        for number in range(len(edges)):
            for change in (-step, step):
                moved = (*edges[:number], edges[number] + change, *edges[number + 1 :])
                if self.search.spent or any(a >= b for a, b in pairwise((0, *moved, last + 1))):
                    continue
                tried = self.judge(here.schedule, replace(here.cut, edges=moved, name="searched"), here.most)
                if tried.score < here.score:
                    return tried
        return None


def _lines_of(made: Sequence[Pipeline], slot: Ints) -> Iterator[StageLine]:
    """Those of the best pipelines so far that are cut from the same slots."""
    for pipeline in [one for one in made if one.cut.slot is slot and not one.cut.replicated][:KEPT]:
        device = tuple(places[0] for places in pipeline.cut.device)
        ahead = tuple(len(device) - stage for stage in range(len(device)))
        yield StageLine(pipeline.cut.edges, device, pipeline.most or ahead)


def _tighter(slots: Slots, judged: Sequence[Pipeline]) -> Slots:
    """With as much less memory as the simulator found missing."""
    nearest = min(judged, key=lambda pipeline: pipeline.score)
    limit = slots.memory
    return slots._replace(memory=ints(limit - np.maximum(nearest.peak_bytes[: len(limit)] - limit, 0)))


def _near(scores: Sequence[Score]) -> list[bool]:
    """Which are near the quickest, or near the best that fits: a cut that does not fit under one schedule may under
    another."""
    quickest, best = min(score.value for score in scores), min(scores)
    fits = [score.over_bytes <= best.over_bytes and score.value <= FAR * best.value for score in scores]
    return [close or score.value <= FAR * quickest for close, score in zip(fits, scores, strict=True)]
