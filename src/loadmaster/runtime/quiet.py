"""Whether other work slows this machine: two calls that never change, timed beside whatever is measured.

A bare call on one thread shows what its thread waited for a core. A long one on all threads of the device takes longer
than at its quietest where others use another core, the memory or the device. Their product is the reference, one number
that each measured figure keeps: quiet or not is decided against the quietest reference ever seen, also afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

BUSY = 1.3  # times the quietest reference; sharing a core doubles it, clocks that change add a tenth or two
ALONE = 1.1  # wall over processor time of a bare call up to which nobody shares its core
STRETCH_NS = 5_000_000  # of each of the two calls: longer than a time slice, so that a neighbour's is seen
WIDE = {"cuda": 2**22, "cpu": 2**18}  # elements of the long call, enough for all threads
PAUSE_S = 0.3  # between two looks at a busy machine


def was_busy(reference_ns: int, quietest_ns: int) -> bool:
    """Whether a figure was taken under load: `reference_ns` beside it, and the quietest ever seen (0: none was).

    A figure with no reference (0: of a file, or of a profiler) is taken as it is.
    """
    return reference_ns > 0 and (quietest_ns == 0 or reference_ns > BUSY * quietest_ns)


class Reference:
    """The two calls on one device, and the quietest that they were.

    Attributes:
        quietest_ns: over all quiet moments, earlier ones too; 0 while there was none.
    """

    def __init__(self, device: str, quietest_ns: int = 0) -> None:
        self.device, self.quietest_ns = device, quietest_ns
        self._one = torch.ones(1)
        self._long = torch.ones(WIDE["cuda" if device.startswith("cuda") else "cpu"], device=device)

    def look(self) -> int:
        """The reference now, in ns: what the long call takes, times what the bare one waited."""
        wall, own = _stretch(lambda: self._one.add_(1.0))
        long, _ = _stretch(self._on_all_threads)
        waited = max(1.0, wall / own)
        if waited <= ALONE and (self.quietest_ns == 0 or long < self.quietest_ns):
            self.quietest_ns = max(1, round(long))
        return max(1, round(long * waited))

    def is_quiet(self, within_s: float = 0.0) -> bool:
        """Whether the machine is quiet now, or becomes so within that time."""
        until = time.monotonic() + within_s
        while was_busy(self.look(), self.quietest_ns):
            if time.monotonic() >= until:
                return False
            time.sleep(PAUSE_S)
        return True

    def _on_all_threads(self) -> None:
        self._long.mul_(1.0)
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


def _stretch(call: Callable[[], Any]) -> tuple[float, float]:
    """A call on the clock and on its thread's processor, the mean over a stretch: a median would miss a neighbour."""
    call()
    begun, own, calls = time.perf_counter_ns(), time.thread_time_ns(), 0
    while time.perf_counter_ns() - begun < STRETCH_NS:
        call()
        calls += 1
    wall, own = time.perf_counter_ns() - begun, time.thread_time_ns() - own
    return wall / max(1, calls), max(1, own) / max(1, calls)
