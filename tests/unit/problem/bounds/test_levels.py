"""How early ops can start and how much must follow, against walks that try every choice of where ops run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from loadmaster.graph.columns import Bools, Ints, ints, inverse
from loadmaster.problem.bounds import levels
from loadmaster.problem.bounds.levels import FAR, FEW

Way = tuple[int, int]  # (op, tensor)


def test_every_other_op_leads_to_a_bottleneck_or_comes_from_it() -> None:
    rng, seen = np.random.default_rng(3), 0
    for _ in range(200):
        ops = int(rng.integers(1, 7))
        before = [
            sorted({int(one) for one in rng.integers(0, op, rng.integers(0, 3))}) if op else [] for op in range(ops)
        ]
        above = [set[int]() for _ in range(ops)]
        for op in range(ops):
            above[op] = {*before[op], *(further for one in before[op] for further in above[one])}
        wanted = [
            all(other == op or other in above[op] or op in above[other] for other in range(ops)) for op in range(ops)
        ]
        start = ints(np.cumsum([0, *map(len, before)]))
        assert levels.bottlenecks(start, ints([one for row in before for one in row])).tolist() == wanted
        seen += sum(wanted)
    assert seen > 100


def priced(times: np.ndarray, count: np.ndarray, turns: int) -> np.ndarray:
    """Multiplicative weights, a table at a time."""
    price, tried = np.ones(len(count)), list[tuple[float, np.ndarray]]()
    able = np.where(times < 0, np.inf, times)
    for turn in range(turns):
        price = price / (price @ count)
        cost = able * price
        chosen = cost.argmin(axis=1)
        tried.append((float(cost.min(axis=1).sum()), price))
        load = np.bincount(chosen, able[np.arange(len(able)), chosen], len(count)) / count
        if load.max() <= 0:
            break
        price = price * np.exp(0.5 / (1 + turn / 8) * load / load.max())
    return max(tried, key=lambda each: each[0])[1]


def test_prices_are_those_under_which_all_ops_cost_most() -> None:
    rng = np.random.default_rng(5)
    for kinds, turns in product((1, 2, 3), (1, 2, 12)):
        times = rng.integers(1, 90, (9, kinds))
        if kinds > 1:
            times[rng.integers(0, 9, 3), 1] = -1
        count = rng.integers(1, 4, kinds)
        found = levels.prices(ints(times), ints(count), 9, turns)
        assert found == pytest.approx(priced(times, count, turns)) and found @ count == pytest.approx(1)
        # Every third op, where no more than three are looked at.
        assert levels.prices(ints(times), ints(count), 3, turns) == pytest.approx(priced(times[::3], count, turns))
        scale = 1 << int(rng.integers(0, 11))
        least = np.where(times < 0, np.inf, times * found).min(axis=1) * scale
        work = levels.cheapest(ints(times), found, scale)
        assert (work <= least).all() and (work > least - 1 - 1e-6).all()
    idle = levels.prices(ints(np.zeros((4, 2))), ints([1, 3]), 4, 5)
    assert idle == pytest.approx([0.25, 0.25]), "of ops that take no time"


def soonest(known: list[tuple[int, int, int]]) -> int:
    """Of (far, begin, time): over every choice of those that run on the op's own device, one at a time."""
    best = FAR
    for near in product((False, True), repeat=len(known)):
        done = late = 0
        for (_, begin, time), _ in sorted(
            ((each, at) for each, at in zip(known, near, strict=True) if at), key=lambda e: e[0][1]
        ):
            done = min(FAR, max(done, begin) + time)
        late = max((far for (far, _, _), at in zip(known, near, strict=True) if not at), default=0)
        best = min(best, max(done, late))
    return best


def test_the_soonest_over_every_choice_of_what_runs_on_the_same_device() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        count = int(rng.integers(0, 6))
        known = [(int(rng.integers(5, 60)), int(rng.integers(0, 30)), int(rng.integers(0, 25))) for _ in range(count)]
        known = [(far, begin, FAR if rng.random() < 0.1 else time) for far, begin, time in known]
        columns = [np.array([each[part] for each in known] + [0] * (FEW - count)) for part in range(3)]
        assert levels._near_or_far(*columns, count) == soonest(known)


class Step:
    """A random graph of reads and waits with two or three kinds of devices, some ops not on all."""

    def __init__(self, rng: np.random.Generator, kinds: int, ops: int = 7) -> None:
        self.kinds, self.ops = kinds, ops
        self.maker = [int(op) for op in np.sort(rng.integers(0, ops, ops))] + [-1]
        self.reads = [
            [one for one, made in enumerate(self.maker) if made < op and rng.random() < 0.35] for op in range(ops)
        ]
        self.after = [[one for one in range(op) if rng.random() < 0.12] for op in range(ops)]
        self.times = rng.integers(0, 30, (ops, kinds))
        for op in range(ops):
            if kinds > 1 and rng.random() < 0.25:
                self.times[op, rng.integers(kinds)] = -1
        self.sends = rng.integers(1, 25, (len(self.maker), kinds * kinds))
        self.column = rng.permutation(kinds * kinds).reshape(kinds, kinds)
        self.several: Bools = rng.random(kinds) < 0.5
        self.joins: Bools = rng.random(ops) < 0.4
        self.work, self.share = rng.integers(0, 40, ops), int(rng.integers(1, 4))
        self.known = rng.integers(0, 20, ops)

    def before(self, op: int) -> Iterator[Way]:
        return ((self.maker[tensor], tensor) for tensor in self.reads[op] if self.maker[tensor] >= 0)

    def behind(self, op: int) -> Iterator[Way]:
        return (
            (one, t)
            for t, made in enumerate(self.maker)
            if made == op
            for one in range(self.ops)
            if t in self.reads[one]
        )

    def ways(self, *, forward: bool) -> levels.Ways:
        met = [list(self.before(op) if forward else self.behind(op)) for op in range(self.ops)]
        start, others = ragged([[op for op, _ in row] for row in met])
        tensors = ints([tensor for row in met for _, tensor in row])
        after = ragged(self.after)
        waits = after if forward else inverse(*after, self.ops)
        column = ints(self.column if forward else self.column.T)
        tables = (ints(self.times), ints(self.sends), column, self.several, self.joins, ints(self.work))
        return levels.Ways(start, others, tensors, *waits, *tables, self.share, forward)

    def walked(self, *, forward: bool) -> list[list[int]]:
        """[ops, kinds] by trying everything, forwards or backwards."""
        begin, done = np.zeros((self.ops, self.kinds), np.int64), np.zeros((self.ops, self.kinds), np.int64)
        column = self.column if forward else self.column.T
        floor = between = 0
        for op in range(self.ops) if forward else reversed(range(self.ops)):
            waits = self.after[op] if forward else [one for one in range(self.ops) if op in self.after[one]]
            least = max([int(self.known[op]), *(int(done[one].min()) for one in waits)])
            if self.joins[op]:
                least = max(least, floor - (-between // self.share))
            for kind in range(self.kinds):
                met = dict[int, tuple[int, int, int]]()
                start = least
                for other, tensor in self.before(op) if forward else self.behind(op):
                    ways = [each for each in range(self.kinds) if each != kind or self.several[kind]]
                    far = min(
                        [FAR, *(int(done[other, each] + self.sends[tensor, column[each, kind]]) for each in ways)]
                    )
                    start = max(start, min(far, int(done[other, kind])))
                    time = FAR if self.times[other, kind] < 0 else int(self.times[other, kind])
                    met[other] = (max(far, met.get(other, (0, 0, 0))[0]), int(begin[other, kind]), time)
                begin[op, kind] = max(start, soonest(list(met.values())))
                takes = int(self.times[op, kind])
                done[op, kind] = FAR if takes < 0 else min(FAR, begin[op, kind] + takes)
            between += int(self.work[op])
            if self.joins[op]:
                floor, between = int(done[op].min()), 0
        return begin.tolist()  # type: ignore[no-any-return]


def ragged(rows: list[list[int]]) -> tuple[Ints, Ints]:
    return ints(np.cumsum([0, *map(len, rows)])), ints([each for row in rows for each in row])


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_starts_and_what_follows_are_those_of_every_choice(kinds: int) -> None:
    rng = np.random.default_rng(kinds)
    for _ in range(30):
        step = Step(rng, kinds)
        for forward in (True, False):
            found = levels.soonest(step.ways(forward=forward), ints(step.known))
            assert found.tolist() == step.walked(forward=forward)
