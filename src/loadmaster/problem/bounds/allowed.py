"""The work that a bound may do, counted in steps of its loops and not by a clock: a bound is the same at any load."""

from __future__ import annotations


class Work:
    """What a bound has done and may do, in nanoseconds of one quiet core by what its loops look at. When it is up, what
    would raise the bound further is left out: a bound with less work is where one with more came by."""

    def __init__(self, seconds: float | None = None) -> None:
        self.most_ns, self.done_ns = float("inf") if seconds is None else seconds * 1e9, 0.0
        self.left_out = False

    def add(self, ns: float) -> None:
        """So much was done."""
        self.done_ns += ns

    def is_up(self, more_ns: float = 0.0) -> bool:
        """Whether it is, or would be after so much more; remembered, so that once something was left out nobody takes
        the bound for the best there is."""
        self.left_out = self.left_out or self.done_ns + more_ns >= self.most_ns
        return self.left_out

    @property
    def left_ns(self) -> float:
        """What is left of it."""
        return 0.0 if self.left_out else max(0.0, self.most_ns - self.done_ns)
