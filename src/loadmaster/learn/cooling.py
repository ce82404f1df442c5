"""Cooling: how far a policy that learns on one graph has come from even choices to sure ones.

By the clock that is the share of the time that is gone. Where simulations are counted it depends on how many there were
and not on how many there will be, so that what a method does with some of them is the beginning of what it does with
more, and more are never worse.
"""

from __future__ import annotations

from loadmaster.search import Search

# Simulations until choices are half way from even to sure. With 256, 512 and 1,024 of them rnn takes 91.0, 91.6 and
# 88.7 ms on RNNLM and 135.7, 134.9 and 129.4 on Inception-V3 (two K80 beside a CPU, 2,000 simulations, seed 0), hdp
# 86.8, 91.1, 85.8 and 135.8, 135.0, 131.6; by the share of the budget, as it was, 90.0, 129.7, 88.1 and 135.3.
HALF_WAY = 1_024


class Cooling:
    """From where a search stands when it is made."""

    def __init__(self, search: Search) -> None:
        self.search, self.begun, self.first = search, search.progress, search.simulations

    @property
    def share(self) -> float:
        """0 at first, 1 at the end of the time; by simulations it comes ever nearer to 1."""
        if self.search.counts_simulations:
            used = self.search.simulations - self.first
            return used / (used + HALF_WAY)
        return (self.search.progress - self.begun) / max(1e-9, 1 - self.begun)
