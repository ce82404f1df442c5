"""Why the step is not faster: which bound binds, and what would help, measured by planning for it.

Bounds of this plan (work, longest chain, busiest wire, fullest device) say what holds it; changed hardware is searched
for a short while from the plan itself, beside a control, the same search on the same hardware, so that what searching
alone gains is not put down to the change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.order import longest_path_to
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.report.groups import Group, can_run, groups_of
from loadmaster.report.hardware import with_links, with_memory, with_twin
from loadmaster.report.occupancy import wire_loads
from loadmaster.report.schedule import Schedule
from loadmaster.report.trials import Move, Trials, affordable
from loadmaster.search import Budget, Score, solve
from loadmaster.simulator import Scores

BoundName = Literal["work", "critical path", "link", "memory"]
STARTS = ("heft", "expert")
MANY_OPS = 50_000  # from here on, one quick method in place of two
MOST_GROUPS = 60  # each is simulated on every device: some hundred simulations
WORTH = 0.01  # a gain under this share is none


@dataclass(frozen=True)
class StepLimit:
    """Something no plan passes (work, critical path, memory), or not this placement (link).

    Attributes:
        name: work, critical path, link or memory.
        value: ns; of memory, bytes on the fullest device.
        limit: what it is held against: the step in ns; of memory, the bytes the device has.
    """

    name: BoundName
    value: int
    limit: int


@dataclass(frozen=True)
class WhatIf:
    """The best of a quick search on changed hardware, which begins with the plan itself.

    Attributes:
        change: of the hardware, in words.
        step_ns: of the best plan found with it.
        peak_bytes: largest of any device.
        over_bytes: over the memory of the devices.
        gain: of the objective against the plan, ns or bytes; positive is better.
        how: the plan that did it.
    """

    change: str
    step_ns: int
    peak_bytes: int
    over_bytes: int
    gain: int
    how: str


@dataclass(frozen=True)
class WhyNotFaster:
    """What holds the step up: the bound that binds, and what other hardware or searching on would gain.

    Attributes:
        bounds: of the plan as it is.
        binds: the one that is nearest.
        without_transfers_ns: the same plan over links that take no time.
        control: the same search on the same hardware: what searching alone gains.
        helps: changes of the hardware, each planned for.
    """

    bounds: tuple[StepLimit, ...]
    binds: BoundName
    without_transfers_ns: int
    control: WhatIf
    helps: tuple[WhatIf, ...]


def why_not_faster(schedule: Schedule, seconds: float = 3.0) -> tuple[WhyNotFaster, Plan | None]:
    """The second is the plan of `control`, where that is better than the one under study."""
    problem = schedule.problem
    busiest = int(np.bincount(schedule.device, schedule.end_ns - schedule.start_ns, schedule.num_devices).argmax())
    twin = problem.cluster.devices[busiest].kind
    changes: tuple[tuple[str, Callable[[Problem], Problem]], ...] = (
        ("nothing changed, searched as long", lambda same: same),
        (f"one more device ({twin})", lambda base: with_twin(base, busiest)),
        ("links twice as fast", lambda base: with_links(base, 2.0)),
        ("10 % more memory", lambda base: with_memory(base, 1.1)),
    )
    tried = [_what_if(schedule, name, change(problem), seconds / len(changes)) for name, change in changes]
    rows = [row for row, _ in tried]
    free = Trials.of(schedule)
    step = int(_on(free, with_links(problem, None)).score(schedule.device, [[]]).step_ns[0])
    found = bounds(schedule)
    why = WhyNotFaster(found, _binding(schedule, found, rows), step, rows[0], tuple(rows[1:]))
    was = Score(schedule.timeline.over_bytes, rows[0].gain + tried[0][1].score.value)
    return why, _as_plan(schedule, tried[0][1]) if tried[0][1].score < was else None


def _as_plan(schedule: Schedule, found: _Found) -> Plan:
    """What the trials found, for the whole problem: kernels stay as they are."""
    send_rank = np.full((schedule.whole.graph.num_tensors, schedule.num_devices), -1, np.int64)
    send_rank[schedule.tensors] = found.trials.send_rank.reshape(-1, schedule.num_devices)
    return replace(
        schedule.plan,
        device=ints(found.place[schedule.kernel_of]),
        rank=ints(found.trials.rank[schedule.kernel_of]),
        send_rank=ints(send_rank),
    )


def bounds(schedule: Schedule) -> tuple[StepLimit, ...]:
    """With the kernels as they are: shared-out work, longest chain, busiest wire of this placement, fullest device."""
    problem, step = schedule.problem, schedule.step_ns
    start, before = problem.graph.dependencies
    chain = int(longest_path_to(start, before, problem.best_ns).max())
    wires = wire_loads(schedule)
    full = _fullest(schedule)
    return (
        StepLimit("work", _shared_work(problem), step),
        StepLimit("critical path", chain, step),
        StepLimit("link", wires[0].busy_ns if wires else 0, step),
        StepLimit("memory", int(schedule.timeline.peak_bytes[full]), int(problem.memory_bytes[full])),
    )


def _fullest(schedule: Schedule) -> int:
    return int((schedule.timeline.peak_bytes / np.maximum(schedule.problem.memory_bytes, 1)).argmax())


def _shared_work(problem: Problem) -> int:
    """For any shares that add up to 1, no step is shorter than the sum over ops of the least share * time."""
    times = np.where(problem.op_ns == CANNOT, np.inf, problem.op_ns.astype(np.float64))
    total = np.where(np.isfinite(times), times, 0.0).sum(axis=0)
    speed = 1.0 / np.maximum(total, 1.0)
    even = np.full(problem.num_devices, 1.0 / problem.num_devices)
    best = max(float((times * share).min(axis=1).sum()) for share in (even, speed / speed.sum()))
    return int(np.floor(best * (1 - 1e-9)))


def _binding(schedule: Schedule, found: Sequence[StepLimit], rows: Sequence[WhatIf]) -> BoundName:
    """The largest of the times; memory when that is the objective, is passed, or more of it makes plans faster."""
    memory_gain = rows[3].gain - rows[0].gain
    value = schedule.problem.value(schedule.timeline)
    if schedule.problem.objective.of_memory or schedule.timeline.over_bytes or memory_gain > WORTH * value:
        return "memory"
    return max(found[:3], key=lambda bound: bound.value).name


def _what_if(schedule: Schedule, name: str, problem: Problem, seconds: float) -> tuple[WhatIf, _Found]:
    """Starts with the plan and with quick methods, then moves groups while that helps."""
    plan = _on(Trials.of(schedule), problem)
    best = _searched(plan, schedule.device, seconds / 2, "the same plan")
    for method in STARTS if problem.num_ops < MANY_OPS else STARTS[:1]:
        result = solve(problem, method, Budget(seconds, 1))
        other = Schedule.of(problem, result.plan, result.timeline)
        if Score(result.timeline.over_bytes, result.value) < best.score:
            best = _searched(Trials.of(other), other.device, seconds / 2, f"a new plan by {method}")
    peak, was = int(best.scores.peak_bytes[0].max()), schedule.problem.value(schedule.timeline)
    step, over = int(best.scores.step_ns[0]), best.score.over_bytes
    return WhatIf(name, step, peak, over, was - best.score.value, best.how), best


def _on(trials: Trials, problem: Problem) -> Trials:
    """The same order on other hardware; devices that are new are sent to in the order of their readers."""
    table = trials.send_rank.reshape(-1, trials.problem.num_devices)
    wider = np.full((len(table), problem.num_devices), -1, np.int64)
    wider[:, : table.shape[1]] = table
    return Trials(problem, trials.rank, ints(wider.reshape(-1)))


@dataclass(frozen=True, eq=False)
class _Found:
    trials: Trials
    place: Ints  # [kernels]
    scores: Scores
    score: Score
    how: str


def _searched(trials: Trials, place: Ints, seconds: float, how: str) -> _Found:
    """Moves groups, several at once where that is better still, until nothing helps or the trials are used up."""
    problem, left = trials.problem, affordable(trials.problem, seconds)
    scores = trials.score(place, [[]])
    best, moved = _best(problem, scores)[1], 0
    while left > 0:
        moves = _moves(problem, place, left)
        if not moves:
            break
        first = trials.score(place, [[move] for move in moves])
        chosen = _prefixes(problem, moves, first, best)
        left -= len(moves) + len(chosen)
        if not chosen:
            break
        trial = trials.score(place, chosen)
        at, score = _best(problem, trial)
        place = place.copy()
        for kernels, device in chosen[at]:
            place[kernels] = device
        best, moved = score, moved + len(chosen[at])
    groups = f", {moved} group{'s' if moved > 1 else ''} moved" if moved else ""
    return _Found(trials, place, trials.score(place, [[]]), best, how + groups)


def _best(problem: Problem, scores: Scores) -> tuple[int, Score]:
    value = scores.objective(problem)
    at = int(np.lexsort((value, scores.over_bytes))[0])
    return at, Score(int(scores.over_bytes[at]), int(value[at]))


def _moves(problem: Problem, place: Ints, most: int) -> list[Move]:
    """One group to one device, groups with most work and emptiest devices first."""
    time_ns = problem.op_ns[np.arange(problem.num_ops), place]
    load = np.bincount(place, time_ns, problem.num_devices)
    groups: list[Group] = groups_of(problem, place, ints(time_ns), MOST_GROUPS)
    heavy = sorted(groups, key=lambda group: -int(time_ns[group.kernels].sum()))
    targets = np.argsort(load, kind="stable").tolist()
    pairs = [(group, device) for device in targets for group in heavy if device != group.device]
    return [(group.kernels, device) for group, device in pairs[:most] if can_run(problem, group, device)]


def _prefixes(problem: Problem, moves: list[Move], scores: Scores, best: Score) -> list[list[Move]]:
    """The moves that help, best first: the first one, the first two, four, … of them; each group once."""
    value = scores.objective(problem)
    order = np.lexsort((value, scores.over_bytes)).tolist()
    helpful = [row for row in order if Score(int(scores.over_bytes[row]), int(value[row])) < best]
    once: dict[int, Move] = {}
    for row in helpful:
        once.setdefault(int(moves[row][0][0]), moves[row])
    kept = list(once.values())
    sizes = sorted({min(2**power, len(kept)) for power in range(len(kept).bit_length() + 1)} - {0})
    return [kept[:size] for size in sizes]
