"""What GO's choice among candidates is measured against: the same number of candidates, chosen without learning.

At random, by their lower bounds, the best single rule, all of them, and a fixed order in which each next rule adds most
on training graphs; all as ratios to that order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints
from loadmaster.learn.go2020.candidates import BOUND, OVER, SLOTS
from loadmaster.learn.go2020.examples import BASELINES
from loadmaster.learn.go2020.rollouts import GoExample

SAMPLES = 8  # plans of each graph, as many as validation simulates (`training.SAMPLES`)


def controls(
    valid: Sequence[GoExample], train: Sequence[GoExample]
) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
    """Values [examples] of plain methods, a long run, all candidates and candidates in a fixed order; and, as ratios to
    that order: eight at random, eight by their bound, the best single rule, all."""
    if not valid:
        return {}, {}
    known = [example for example in train if len(example.candidate_value)] or list(valid)
    order = fixed_order(known)
    found = {name: np.array([float(e.plain[i]) for e in valid]) for i, name in enumerate(BASELINES)}
    found["long"] = np.array([float(e.value) for e in valid])
    found["candidates"] = np.array([float(e.candidate_value.min()) for e in valid])
    found["fixed"] = np.array([best_in_order(e, order) for e in valid])
    rng = np.random.default_rng(6)
    tried = {
        "random": np.array([_at_random(e, rng) for e in valid]),
        "by bound": np.array([_by_bound(e) for e in valid]),
        f"{SLOTS[order[0]]} alone": np.array([best_in_order(e, order, 1) for e in valid]),
        "all candidates": found["candidates"],
    }
    return found, {name: float(np.exp(np.log(value / found["fixed"]).mean())) for name, value in tried.items()}


def fixed_order(known: Sequence[GoExample]) -> list[int]:
    """Rules, each next one the one that adds most to the mean of those before."""
    worth = np.full((len(known), len(SLOTS)), np.nan)
    for row, example in enumerate(known):
        worth[row, example.one.candidates.slot] = np.log(example.candidate_value)
    # A rule that gives what another one gave, or nothing, is no loss: it is passed over. A large value stands for it.
    worth = np.where(np.isnan(worth), np.nanmax(worth, axis=1, keepdims=True), worth)
    order: list[int] = []
    best = worth.max(axis=1)
    while len(order) < len(SLOTS):
        gain = np.minimum(best[:, None], worth).mean(axis=0)
        gain[order] = np.inf
        order.append(int(gain.argmin()))
        best = np.minimum(best, worth[:, order[-1]])
    return order


def best_in_order(example: GoExample, order: Sequence[int], most: int = SAMPLES) -> float:
    place = {slot: at for at, slot in enumerate(order)}
    by = np.argsort([place[slot] for slot in example.one.candidates.slot.tolist()])
    return _best(example, by[:most])


def _at_random(example: GoExample, rng: np.random.Generator) -> float:
    return _best(example, rng.permutation(len(example.candidate_value))[:SAMPLES])


def _by_bound(example: GoExample) -> float:
    summary = example.one.candidates.summary
    return _best(example, np.argsort(4 * summary[:, BOUND] + 8 * summary[:, OVER], kind="stable")[:SAMPLES])


def _best(example: GoExample, candidates: Ints) -> float:
    return float(example.candidate_value[candidates].min())
