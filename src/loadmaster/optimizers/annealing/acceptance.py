# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Compiled: whether a change that makes things worse is kept."""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.optimizers.annealing.xorshift import unit


@compiled(_nrt=False)
def slack_of(temperature, state):
    """By which share of its value a plan may be worse and still be kept. A plan worse by a share d is kept with chance
    exp(-d ÷ temperature), the rule of Metropolis; drawn first, it says when a run need not be finished."""
    return -np.log(unit(state)) * temperature
