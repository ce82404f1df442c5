"""Plans for a placement that is already chosen: in which order each device takes its ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from loadmaster.columns import Ints, ints
from loadmaster.optimizers.list_schedulers import critical_rank
from loadmaster.plan import Plan
from loadmaster.search import WORST, Score, Search
from loadmaster.simulate import first_come

Order = Literal["best", "fifo", "program", "critical"]


def ordered(search: Search, device: Ints, order: Order = "best") -> Plan:
    """The placement under that order; "best": whichever of the three simulates best, as far as the budget goes."""
    plans = _orders(search, device, order)
    if order != "best":
        return next(plans)
    return best_of(search, plans)[0]


def best_of(search: Search, plans: Iterator[Plan]) -> tuple[Plan, Score]:
    """The best of the plans that the budget still simulates; the first one where it simulates none."""
    best, best_score = None, WORST
    for plan in plans:
        if search.room == 0:
            best = best or plan
            break
        score = search.score(plan)
        if best is None or score < best_score:
            best, best_score = plan, score
    assert best is not None, "there is at least one plan to choose from"
    return best, best_score


def _orders(search: Search, device: Ints, order: Order) -> Iterator[Plan]:
    problem = search.problem
    if order in ("best", "critical"):
        yield Plan.of(problem, device, critical_rank(problem, ints(device)))
    if order in ("best", "program"):
        yield Plan.of(problem, device)
    if order in ("best", "fifo"):
        yield first_come(problem, ints(device))


def depth_first_rank(sizes: Ints, start: Ints, before: Ints) -> Ints:
    """[ops] ranks of a depth-first walk from the last ops to what they wait for, the largest branch first.

    In the manner of XLA's depth-first memory schedule: `sizes` are the bytes each op makes, (start, before) what it waits for.
    """
    total = sizes.astype(np.float64).copy()
    shared = np.bincount(before, minlength=len(sizes)).astype(np.float64)
    weight = np.zeros(len(sizes))
    for op in range(len(sizes)):
        parts = before[start[op] : start[op + 1]]
        total[op] += (total[parts] / np.maximum(1.0, shared[parts])).sum()
        weight[op] = total[op]
    rank = np.full(len(sizes), -1, np.int64)
    turn = 0
    for root in np.flatnonzero(shared == 0)[np.argsort(-weight[shared == 0], kind="stable")].tolist():
        stack = [root]
        while stack:
            op = stack[-1]
            waits = [int(b) for b in before[start[op] : start[op + 1]] if rank[b] < 0]
            if rank[op] < 0 and not waits:
                rank[op], turn = turn, turn + 1
            if rank[op] >= 0:
                stack.pop()
            else:
                stack.append(max(waits, key=lambda b: (weight[b], -b)))
    return ints(rank)
