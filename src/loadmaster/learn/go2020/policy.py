"""How GO draws plans from its network, what they stand for and what they are rewarded with.

A draw changes all decisions or a part of those that stand: a window of the program or a neighbourhood. The part is cut
into units whose groups go together; a unit's chances are those of its groups' mean scores. So one policy acts at every
grain, and what a draw is worth is due to few decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.fusion.greedy import Merges, refuse
from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.go2020.input import Floats, GoInput, group_majority
from loadmaster.learn.go2020.network import MIDDLE, GoBatch, GoOutputs
from loadmaster.papers.decoding import critical_ranks, device_of_groups, levels_of, ranks_with_levels
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Search

OFF = -1  # unit of a group that a draw leaves as it is
UNFIT = 1.0  # what a plan that does not fit loses at once; more by how many bytes it is over


@dataclass(frozen=True, eq=False)
class Decided:
    """Decisions on one problem: devices and levels of groups, fusion priorities of ops (none: nothing is fused).

    Attributes:
        fusion: [ops] or []
    """

    device: Ints  # [groups]
    level: Ints  # [groups]
    fusion: Ints  # [ops]
    # [ops] or []: ops stay where this has them, in groups whose device is that of most of the group here.
    base: Ints = field(default_factory=lambda: ints([]))
    # [ops] or []: the order itself, where levels only say about how far it is from the critical path's.
    rank: Ints = field(default_factory=lambda: ints([]))


@dataclass(frozen=True, eq=False)
class Stand:
    """The decisions a draw starts from, and the scores of the network there.

    Attributes:
        fusion: [ops, LEVELS] or no rows.
    """

    decided: Decided
    place: Floats  # [groups, devices]
    level: Floats  # [groups, LEVELS]
    fusion: Floats  # [ops, LEVELS]


@dataclass(frozen=True, eq=False)
class DrawnPart:
    """One kind of decision of several draws: what was decided, and which of it was drawn together by what chance.

    Attributes:
        unit: [samples, groups or ops] OFF where nothing was drawn.
        chance: [samples][units] log-probability of what was drawn.
    """

    made: Ints  # [samples, groups or ops]
    unit: Ints  # [samples, groups or ops]
    chance: list[NDArray[np.float64]]  # [samples]


@dataclass(frozen=True, eq=False)
class Draws:
    """Several draws for one problem.

    Attributes:
        whole: [samples] all groups were drawn.
        base: [ops] or [], of what stood.
    """

    device: DrawnPart
    level: DrawnPart
    fusion: DrawnPart
    whole: NDArray[np.bool_]  # [samples]
    base: Ints  # [ops]

    def decided(self) -> list[Decided]:
        rows = zip(self.device.made, self.level.made, self.fusion.made, strict=True)
        return [Decided(ints(device), ints(level), ints(fusion), self.base) for device, level, fusion in rows]


@dataclass(frozen=True)
class Drawing:
    """How to draw.

    Attributes:
        whole: share of draws that decide all groups anew.
        uniform: chance of a decision that asks nobody.
    """

    samples: int = 16
    whole: float = 0.25
    uniform: float = 0.1
    tasks: tuple[str, ...] = ("placement", "schedule")


def draw_changes(one: GoInput, stand: Stand, how: Drawing, rng: np.random.Generator, tries: int = 8) -> Draws:
    """Draws that differ from what stands and from each other, as far as a few times as many draws have them."""
    kept: list[tuple[Draws, int]] = []
    seen = {decided_key(stand.decided)}
    for turn in range(tries):
        draws = draw_plans(one, stand, how, rng)
        for row, decided in enumerate(draws.decided()):
            if len(kept) < how.samples and (decided_key(decided) not in seen or turn == tries - 1):
                seen.add(decided_key(decided))
                kept.append((draws, row))
        if len(kept) == how.samples:
            break

    def part(name: str) -> DrawnPart:
        rows = [(getattr(draws, name), row) for draws, row in kept]
        made, unit = (np.stack([getattr(each, column)[row] for each, row in rows]) for column in ("made", "unit"))
        return DrawnPart(ints(made), ints(unit), [each.chance[row] for each, row in rows])

    whole = np.array([draws.whole[row] for draws, row in kept])
    return Draws(part("device"), part("level"), part("fusion"), whole, stand.decided.base)


def decided_key(decided: Decided) -> bytes:
    columns = (decided.base, decided.device, decided.level, decided.fusion, decided.rank)
    return b"".join(column.tobytes() for column in columns)


def draw_plans(one: GoInput, stand: Stand, how: Drawing, rng: np.random.Generator) -> Draws:
    whole = rng.random(how.samples) < how.whole
    order = np.argsort(one.mirror, kind="stable")
    choices = [_tasks_of_draw(how.tasks, bool(all_of_it), rng) for all_of_it in whole]
    base = stand.decided

    def part(task: str, scores: Floats, made: Ints, spare: float) -> DrawnPart:
        units = _fusion_units if task == "fusion" else draw_units
        rows = [
            units(one, order, bool(all_of_it), rng) if task in chosen else np.full(len(made), OFF)
            for chosen, all_of_it in zip(choices, whole, strict=True)
        ]
        return _draw(np.stack(rows), scores, made, spare, rng)

    return Draws(
        part("placement", stand.place, base.device, how.uniform),
        part("schedule", stand.level, base.level, how.uniform / 2),
        part("fusion", stand.fusion, base.fusion, how.uniform),
        whole,
        base.base,
    )


def _tasks_of_draw(tasks: tuple[str, ...], whole: bool, rng: np.random.Generator) -> tuple[str, ...]:
    """What a draw changes: everything, or most often one kind of decision, devices twice as often as the others."""
    if whole or len(tasks) == 1 or rng.random() < 0.1:
        return tasks
    weight = np.array([2.0 if task == "placement" else 1.0 for task in tasks])
    return (tasks[int(rng.choice(len(tasks), p=weight / weight.sum()))],)


def _draw(unit: Ints, scores: Floats, base: Ints, spare: float, rng: np.random.Generator) -> DrawnPart:
    made, chances = np.repeat(base[None], len(unit), axis=0), []
    for row, units in enumerate(unit):
        picks, chance = _pick(units, scores, spare, rng)
        drawn = units != OFF
        made[row, drawn] = picks[units[drawn]]
        chances.append(chance)
    return DrawnPart(ints(made), ints(unit), chances)


def draw_units(one: GoInput, order: Ints, whole: bool, rng: np.random.Generator) -> Ints:
    """[groups] which unit each group is drawn in."""
    groups = one.num_groups
    units = np.full(groups, OFF, np.int64)
    if whole:
        count = int(2.0 ** rng.uniform(1, np.log2(max(2, groups))))
        units[order] = np.arange(groups) * count // groups
        return units
    size = int(2.0 ** rng.uniform(0, np.log2(max(2, groups // 3))))
    kind = rng.random()
    if kind < 0.35:
        members = _window(order, size, rng)
    elif kind < 0.6:
        members = _window(np.arange(groups), size, rng)
    elif kind < 0.9:
        members = _neighbourhood(one, min(size, 64), rng)
    else:
        members = rng.choice(groups, min(groups, size, 16), replace=False)
    pieces = min(len(members), int(rng.choice([1, 1, 1, 2, 4, len(members)])))
    units[members] = np.arange(len(members)) * pieces // len(members)
    return units


def _fusion_units(one: GoInput, order: Ints, whole: bool, rng: np.random.Generator) -> Ints:
    """[ops] which unit each op is drawn in: ops of one kind and about one place in the program go together."""
    ops = len(one.single)
    units = np.full(ops, OFF, np.int64)
    size = ops if whole else int(2.0 ** rng.uniform(2, np.log2(max(5, ops))))
    members = _window(np.arange(ops), size, rng)
    pieces = int(2.0 ** rng.uniform(0, np.log2(max(2, len(members)))))
    place = np.arange(len(members)) * pieces // max(1, len(members))
    kinds = one.kind[members] if rng.random() < 0.7 else np.zeros(len(members), np.int64)
    _, units[members] = np.unique(place * (int(one.kind.max(initial=0)) + 1) + kinds, return_inverse=True)
    return units


def _window(order: Ints, size: int, rng: np.random.Generator) -> Ints:
    first = int(rng.integers(max(1, len(order) - size + 1)))
    return order[first : first + size]


def _neighbourhood(one: GoInput, size: int, rng: np.random.Generator) -> Ints:
    """Groups joined to a random one by few edges, grown edge by edge."""
    start, ends = one.neighbours
    members = {int(rng.integers(one.num_groups)): None}
    border = list(members)
    while border and len(members) < size:
        here = border.pop(int(rng.integers(len(border))))
        for other in ends[start[here] : start[here + 1]].tolist():
            if other not in members and len(members) < size:
                members[other] = None
                border.append(other)
    return np.array(sorted(members), np.int64)


def _pick(units: Ints, scores: Floats, spare: float, rng: np.random.Generator) -> tuple[Ints, NDArray[np.float64]]:
    """[units] what each unit takes, and the log-probability of that."""
    drawn = np.flatnonzero(units != OFF)
    count = int(units.max(initial=OFF)) + 1
    total = np.zeros((count, scores.shape[1]))
    np.add.at(total, units[drawn], scores[drawn])
    mean = total / np.maximum(1, np.bincount(units[drawn], minlength=count))[:, None]
    weight = np.exp(mean - mean.max(axis=1, keepdims=True, initial=-np.inf)) if count else mean
    chance = weight / weight.sum(axis=1, keepdims=True)
    legal = mean > -15
    legal[~legal.any(axis=1)] = True
    chance = (1 - spare) * chance + spare * legal / np.maximum(1, legal.sum(axis=1, keepdims=True))
    edges = np.cumsum(chance, axis=1)
    picks = (rng.random((count, 1)) * edges[:, -1:] > edges).sum(axis=1)
    return ints(picks), np.log(np.maximum(1e-9, chance[np.arange(count), picks]))


def moved_ranks(problem: Problem, label: Ints, placed: Ints, level: Ints) -> Ints:
    """[samples, ops] the critical-path order under each placement, moved by the levels of groups."""
    ranks = critical_ranks(problem, placed)
    moved = (level != MIDDLE).any(axis=1)
    if not moved.any():
        return ranks
    shifted = ranks.copy()
    shifted[moved] = ranks_with_levels(ints(ranks[moved]), level[moved][:, label])
    return ints(shifted)


def place_ops(problem: Problem, label: Ints, many: Sequence[Decided]) -> Ints:
    """[samples, ops] where each op runs."""
    placed = device_of_groups(problem, label, ints(np.stack([one.device for one in many]))).copy()
    for row, one in enumerate(many):
        if len(one.base):
            stays = (group_majority(problem, label, one.base) == one.device)[label]
            placed[row] = legal(problem, ints(np.where(stays, one.base, placed[row])))
    return ints(placed)


@dataclass(frozen=True)
class Fixed:
    """What is not decided: the devices of a plan that stands, its order too, or first come, first served.

    Attributes:
        plan: whose devices stay.
        keeps_order: its order stays, too.
        fifo: first come, first served.
    """

    plan: Plan | None = None
    keeps_order: bool = False
    fifo: bool = False


NOTHING = Fixed()


def score_decided(search: Search, label: Ints, many: Sequence[Decided], given: Fixed = NOTHING) -> tuple[Ints, Ints]:
    """(over_bytes, value) of decisions, WORST past the budget."""
    if given.fifo:
        plans = (plan_of(search.problem, label, one, given) for one in many[: search.simulations_left])
        scores = [search.score(search.first_come(plan.device, plan.kernel)) for plan in plans]
        scores += [WORST] * (len(many) - len(scores))
        return ints([score.over_bytes for score in scores]), ints([score.value for score in scores])
    placed, ranks = _places_and_ranks(search.problem, label, many, given)
    if not len(many[0].fusion):
        return search.score_many(placed, ranks)
    priority, merges = np.stack([np.where(one.fusion > 0, one.fusion, -1) for one in many]), Merges.of(search.problem)
    search.fusing = merges.sharing
    return search.score_fused(placed, ranks, merges.kernels(placed, priority))


def _places_and_ranks(problem: Problem, label: Ints, many: Sequence[Decided], given: Fixed) -> tuple[Ints, Ints]:
    if given.plan is None:
        placed = place_ops(problem, label, many)
    else:
        placed = ints(np.repeat(given.plan.device[None], len(many), axis=0))
    if given.plan is not None and given.keeps_order:
        return placed, ints(np.repeat(given.plan.rank[None], len(many), axis=0))
    ranks = moved_ranks(problem, label, placed, ints(np.stack([one.level for one in many]))).copy()
    for row, one in enumerate(many):
        if len(one.rank):
            ranks[row] = one.rank
    return placed, ints(ranks)


def plan_of(problem: Problem, label: Ints, decided: Decided, given: Fixed = NOTHING) -> Plan:
    """The plan that decisions stand for; of one that goes first come, first served, the order is not decided here."""
    [placed], [rank] = _places_and_ranks(problem, label, [decided], given)
    return fused(problem, placed, rank, decided.fusion) if len(decided.fusion) else Plan.of(problem, placed, rank)


def fused(problem: Problem, device: Ints, rank: Ints, fusion: Ints) -> Plan:
    """The plan with merges tried from the highest priority down; at priority 0 an op joins no reader."""
    return refuse(problem, Plan.of(problem, device, rank), np.where(fusion > 0, fusion, -1))


def decided_of(problem: Problem, label: Ints, plan: Plan, fusion: Ints) -> Decided:
    """A plan as decisions: exactly, op by op, and as far as groups can say it."""
    level = levels_of(critical_rank(problem, plan.device), plan.rank)
    weight = problem.best_ns + 1.0
    levels = ints(np.round(np.bincount(label, level * weight) / np.bincount(label, weight)))
    device = group_majority(problem, label, plan.device)
    return Decided(device, levels, fusion, plan.device, plan.rank)


def rewards(over_bytes: Ints, value: Ints, unit: float, all_bytes: float) -> NDArray[np.float64]:
    """[samples] minus the root of the step time in units; a plan that does not fit loses more, by its bytes over."""
    root = -np.sqrt(np.minimum(value.astype(np.float64), 1e4 * unit) / unit)
    over = np.minimum(1.0, over_bytes / max(1.0, all_bytes))
    return np.asarray(root - np.where(over_bytes > 0, UNFIT + 4 * over, 0.0))


def advantages(reward: NDArray[np.float64], whole: NDArray[np.bool_], standing: float) -> NDArray[np.float64]:
    """[samples] against what stood before the draw; where all was drawn anew, against the others of its kind."""
    base = np.where(whole, reward[whole].mean() if whole.any() else standing, standing)
    # A floor under the deviation: where all samples end alike, their order is noise.
    return np.asarray(np.clip((reward - base) / (reward.std() + 1e-3), -3, 3))


def stand_of(outputs: GoOutputs, batch: GoBatch, row: int, one: GoInput, decided: Decided | None = None) -> Stand:
    """The scores of one problem of a batch, with the decisions that stand; by default the likeliest."""
    place = outputs.place[row, : one.num_groups, : one.num_devices].detach().cpu().numpy()
    level = outputs.level[row, : one.num_groups].detach().cpu().numpy()
    first = sum(batch.num_ops[:row])
    fusion = outputs.fusion[first : first + batch.num_ops[row]].detach().cpu().numpy()
    likeliest = Decided(*(ints(scores.argmax(axis=1)) for scores in (place, level, fusion)))
    return Stand(decided or likeliest, place, level, fusion)


def middle_levels(count: int) -> Ints:
    return ints(np.full(count, MIDDLE))
