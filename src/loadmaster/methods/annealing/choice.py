"""Compiled: which kind of move is tried next, and whether what makes a plan worse is kept.

Kinds that paid of late are tried more often.
In the manner of a bandit: the chance of each kind, about any op or an aimed one, with or without new ranks, is what it
gained for the simulations it took of late, against the average of all. None dies out.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Floats, Whole
from loadmaster.methods.annealing.state import ARMS, CRITICAL, SHIFT, WAYS
from loadmaster.search.xorshift import RandomState, unit

FADE = 0.9998  # of what is known of a kind of move, kept after each one: about the last five thousand count
TRIAL = 8.0  # whole runs of every kind that are taken to have gone as the average did
LEAST = 0.05  # of the average chance, that a kind of move has at least


@compiled(_nrt=False)
def fade(spent: Floats, gained: Floats, moves: Whole) -> None:
    kept = FADE**moves
    for arm in range(ARMS):
        spent[arm] *= kept
        gained[arm] *= kept


@compiled(_nrt=False)
def choose(kinds: Bools, aims: bool, spent: Floats, gained: Floats, chances: Floats) -> float:
    """Writes chances of every way of every kind: how much it gained of late for what it cost, against the average of
    all; returns their sum. `kinds`: [KINDS] which may be made at all."""
    gains, runs, total = 1.0, TRIAL, 0.0
    for arm in range(ARMS):
        gains, runs = gains + gained[arm], runs + spent[arm]
    rate = gains / runs
    for arm in range(ARMS):
        kind, aimed, anew = arm // WAYS, arm % 2 == 1, arm % WAYS >= 2
        allowed = kinds[kind] and (aims or not aimed)
        if kind == CRITICAL:
            allowed = allowed and not aimed
        if anew:  # ranks, after ops were placed
            allowed = allowed and kind < SHIFT and kinds[CRITICAL]
        paid = (gained[arm] + TRIAL * rate) / (spent[arm] + TRIAL) / rate
        chances[arm] = max(LEAST, paid) if allowed else 0.0
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
