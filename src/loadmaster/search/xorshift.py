"""Random numbers of compiled loops: xorshift128+ (Vigna, "Further scramblings of Marsaglia's xorshift generators",
2017), one state of two words for each walker."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Floats, Whole

RandomState: TypeAlias = NDArray[np.uint64]  # [2] of one generator; every draw changes it


def seeded(seed: int) -> RandomState:
    """[2] a state. The other word differs in about half of its bits (the golden ratio, as in splitmix64)."""
    return np.array([seed, seed ^ 0x9E3779B97F4A7C15], np.uint64)


def seeded_by(rng: np.random.Generator) -> RandomState:
    """A state drawn by another generator."""
    return seeded(int(rng.integers(1, 2**62)))


@compiled(inline="always", _nrt=False)
def draw(state: RandomState) -> np.uint64:
    """The next 64 bits."""
    x, y = state[0], state[1]
    state[0] = y
    x ^= x << np.uint64(23)
    x ^= x >> np.uint64(17)
    x ^= y ^ (y >> np.uint64(26))
    state[1] = x
    return x + y  # type: ignore[no-any-return]


# The others are compiled once, not into every caller: that would take several times as long.


@compiled(_nrt=False)
def below(state: RandomState, count: Whole) -> Whole:
    """0 … count-1, all alike."""
    return np.int64((draw(state) >> np.uint64(33)) % np.uint64(count))


@compiled(_nrt=False)
def unit(state: RandomState) -> float:
    """Between 0 and 1, neither included."""
    return (np.float64(draw(state) >> np.uint64(11)) + 0.5) / 9007199254740992.0


@compiled(_nrt=False)
def length(state: RandomState, most: Whole) -> Whole:
    """Log-uniform in 1 … most."""
    return max(1, min(most, np.int64(np.exp(unit(state) * np.log(most + 1.0)))))


@compiled(_nrt=False)
def pick(chances: Floats, total: float, state: RandomState) -> Whole:
    """A row by its chance; the chances add up to `total`."""
    left, row = unit(state) * total, np.int64(0)
    while row < len(chances) - 1 and left >= chances[row]:
        left -= chances[row]
        row += 1
    return row
