"""Compiled: whether a change that makes things worse is kept, and how the temperature that decides it falls. Every
search that anneals calls these two."""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.search.xorshift import RandomState, unit


@compiled(_nrt=False)
def slack_of(temperature: float, state: RandomState) -> float:
    """By which share of its value a plan may be worse and still be kept. A plan worse by a share d is kept with chance
    exp(-d ÷ temperature), the rule of Metropolis; drawn first, it says when a run need not be finished."""
    return -np.log(unit(state)) * temperature  # type: ignore[no-any-return]


@compiled(_nrt=False)
def cooled(hot: float, cold: float, share: float) -> float:
    """The temperature after a share of the cooling: geometric, from hot at 0 to cold at 1."""
    return hot * (cold / hot) ** share  # type: ignore[no-any-return]
