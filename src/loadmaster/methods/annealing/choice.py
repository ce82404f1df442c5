"""Compiled: which kind of move is tried next, and whether what makes a plan worse is kept.

Kinds that paid of late are tried more often.
In the manner of a bandit: each kind, about any op or an aimed one, with or without new ranks, has a chance by hand,
times what it gained for the simulations it took of late against the average of all, within bounds so that none dies
out.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Floats, Whole
from loadmaster.methods.annealing.state import ARMS, CRITICAL, SHIFT, WAYS
from loadmaster.search.xorshift import RandomState, unit

# Chosen together on the zoo by step time at equal simulations; none of them matters much alone.
FADE = 0.9998  # of what is known of a kind of move, kept after each one: about the last five thousand count
TRIAL = 8.0  # whole runs of every kind that are taken to have gone as the average did
LEAST, MOST = 0.05, 6.0  # times its given chance that a kind of move has at least and at most


@compiled(_nrt=False)
def fade(spent: Floats, gained: Floats, moves: Whole) -> None:
    kept = FADE**moves
    for arm in range(ARMS):
        spent[arm] *= kept
        gained[arm] *= kept


@compiled(_nrt=False)
def choose(weights: Floats, follow: float, aim: float, spent: Floats, gained: Floats, chances: Floats) -> float:
    """Writes chances of every way of every kind: as given, times how much it gained of late for what it cost, against
    the average of all; returns their sum."""
    gains, runs, total = 1.0, TRIAL, 0.0
    for arm in range(ARMS):
        gains, runs = gains + gained[arm], runs + spent[arm]
    rate = gains / runs
    for arm in range(ARMS):
        kind, aimed, anew = arm // WAYS, arm % 2, arm % WAYS // 2
        chance = weights[kind] * (aim if aimed else 1.0 - aim)
        if kind == CRITICAL:
            chance = 0.0 if aimed or anew else weights[kind]
        elif kind < SHIFT:
            chance *= follow if anew else 1.0 - follow
        elif anew:
            chance = 0.0
        paid = (gained[arm] + TRIAL * rate) / (spent[arm] + TRIAL) / rate
        chances[arm] = chance * min(MOST, max(LEAST, paid))
        total += chances[arm]
    return total


@compiled(_nrt=False)
def slack_of(temperature: float, state: RandomState) -> float:
    """By which share of its value a plan may be worse and still be kept. A plan worse by a share d is kept with chance
    exp(-d ÷ temperature), the rule of Metropolis; drawn first, it says when a run need not be finished."""
    return -np.log(unit(state)) * temperature  # type: ignore[no-any-return]


@compiled(_nrt=False)
def cooled(hot: float, cold: float, share: float) -> float:
    """The temperature after a share of the cooling: geometric, from hot at 0 to cold at 1."""
    return hot * (cold / hot) ** share  # type: ignore[no-any-return]
