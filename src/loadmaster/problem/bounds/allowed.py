"""The time that a bound may take."""

from __future__ import annotations

import time

from loadmaster.compiled import seconds_compiling


class Time:
    """What a bound may take, compiling apart. When it is up, what would raise the bound further is left out."""

    def __init__(self, seconds: float | None = None) -> None:
        self.begun, self.seconds = self._now(), float("inf") if seconds is None else seconds
        self.left_out = False

    @staticmethod
    def _now() -> float:
        return time.perf_counter() - seconds_compiling()

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self._now() - self.begun

    def is_up(self, more: float = 0.0) -> bool:
        """Whether it is, or would be in so many seconds more; remembered, so that once something was left out nobody
        takes the bound for the best there is."""
        self.left_out = self.left_out or self.spent + more > self.seconds
        return self.left_out

    def effort(self, whole: int) -> int:
        """As much of an effort of about a second as there is time for."""
        share = min(1.0, max(0.0, self.seconds - self.spent))
        self.left_out = self.left_out or share < 1.0
        return int(whole * share)
