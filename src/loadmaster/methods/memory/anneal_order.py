"""Annealing over orders of one device, with exact differences of its memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.baselines import exact_orders
from loadmaster.baselines.memory_order import flow_of, memory_order
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.methods.annealing.chains import epochs
from loadmaster.methods.annealing.choice import cooled
from loadmaster.methods.memory import order_moves
from loadmaster.plans import Plan
from loadmaster.search import Search


@dataclass(frozen=True)
class AnnealOrder:
    """Annealing over topological orders of one device with exact differences: millions of moves a second.

    Starts from the best simple rule. A thousand moves count as one simulation: a move is judged by the bytes it changes
    and not by a simulation. Acceptance, cooling, its length and random numbers are those of every other annealing.

    Attributes:
        temperature: first temperature, as a share of the peak.
        cold: last temperature.
        window: places that an op goes at most in one move.
    """

    temperature: float = 3e-3
    cold: float = 1e-5
    window: int = 1_000

    def optimize(self, search: Search) -> Plan:
        from loadmaster.baselines.simple import OneDevice

        problem = search.problem
        device = OneDevice().optimize(search).device
        plans = [
            Plan.of(problem, device, positions(order))
            for order in anneal_order(search, self.temperature, self.cold, self.window)
        ]
        for plan in plans[::-1]:  # the one that annealing found first: there may be but one simulation left
            if not search.spent:
                search.score(plan)
        return search.best or plans[-1]


MOVES_PER_SIMULATION = 1_000  # a move looks at a few ops, a simulation at all
CHUNK = 8  # simulations' worth of moves at one temperature, and between two looks at the budget


def anneal_order(search: Search, hot: float, cold: float, window: int) -> list[Ints]:
    """The best order that annealing finds within what is left of the budget, after the best simple one. It cools again
    and again, each time for longer and from the best order so far, whatever the budget is."""
    flow = flow_of(search.problem)
    start = memory_order(search.problem)
    best, profile = start.copy(), np.empty(len(start), np.int64)
    state = search.rng.integers(1, 2**62, 2, dtype=np.uint64)
    for length in epochs():
        order, done = best.copy(), 0
        while done < length and not search.spent and search.simulations_left > 1:
            here = cooled(hot, cold, done / length)
            count = min(CHUNK, length - done, search.simulations_left - 1)
            trial = order.copy()
            peak, _ = order_moves.anneal(flow, order, trial, count * MOVES_PER_SIMULATION, window, here, state)
            if peak < exact_orders.profile(flow, best, profile):
                best = trial
            search.count(count)
            done += count
        if search.spent or search.simulations_left <= 1:
            break
    return [ints(start), ints(best)]
