"""How long a call takes on a device: the device's own time, warm and with cold caches, and the host's time to ask.

On CUDA the calls are queued behind a kernel that sleeps, so that the host is far ahead and the time between two events
is the device's alone; what the host needs to queue them is measured by its own clock meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

ROUNDS = 5  # the fewest that quartiles say something of; a spread above STABLE asks for up to MOST_ROUNDS
MOST_ROUNDS = 15  # what is still spread then is so by itself
STABLE = 0.05  # share of the median between the quartiles
ROUND_NS = 400_000  # a round repeats a short call until it has taken about this long: clocks are off by less than 1 us
COLD_BYTES = 128 * 2**20  # more than the last cache of any device there is


@dataclass(frozen=True)
class Timing:
    """Of one call. `low_ns` and `high_ns` are quartiles of `hot_ns`.

    Attributes:
        hot_ns: the median where its operands were just used.
        cold_ns: the median where they were not.
        host_ns: what the host needs to ask for it; 0 where the host is the device.
        workspace_bytes: allocated beside its results while it runs.
        stable: the quartiles lie within a twentieth of the median.
    """

    hot_ns: int
    low_ns: int
    high_ns: int
    cold_ns: int
    host_ns: int
    workspace_bytes: int
    stable: bool


class DeviceClock:
    """Times calls on one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.is_cuda = device.startswith("cuda")
        self.cold = torch.empty(COLD_BYTES, dtype=torch.uint8, device=device)
        self.sleep_per_ns = self._sleep_rate() if self.is_cuda else 0.0
        self.empty_ns = 0
        if self.is_cuda:
            one = torch.ones(1, device=device)
            self.empty_ns = round(self._cold_ns(one.zero_))

    def time(self, call: Callable[[], Any]) -> Timing:
        """Runs the call in rounds until the quartiles are close, or enough time has gone into it; then once more with
        cold caches."""
        call()
        self.wait()
        once = self._once(call)
        calls = max(1, min(10, round(ROUND_NS / max(once, 1))))
        rounds: list[float] = []
        hosts: list[float] = []
        while len(rounds) < MOST_ROUNDS:
            hot, host = self._round(call, calls)
            rounds.append(hot)
            hosts.append(host)
            if len(rounds) >= ROUNDS and (_spread(rounds) <= STABLE or sum(rounds) * calls > 2e8):
                break
        low, middle, high = statistics.quantiles(rounds, n=4)
        return Timing(
            round(middle),
            round(low),
            round(high),
            round(max(self._cold_ns(call) - self.empty_ns, 0)),
            round(statistics.median(hosts)) if self.is_cuda else 0,
            self._workspace(call),
            _spread(rounds) <= STABLE,
        )

    def wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def _once(self, call: Callable[[], Any]) -> float:
        self.wait()
        start = time.perf_counter_ns()
        call()
        self.wait()
        return time.perf_counter_ns() - start

    def _round(self, call: Callable[[], Any], calls: int) -> tuple[float, float]:
        """Device and host time of one call, the mean over several in a row."""
        if not self.is_cuda:
            start = time.perf_counter_ns()
            for _ in range(calls):
                call()
            return (time.perf_counter_ns() - start) / calls, 0.0
        first, last = _event(), _event()
        last.record()
        _sleep(round(self.sleep_per_ns * (50_000 + 40_000 * calls)))
        first.record()
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        host = (time.perf_counter_ns() - start) / calls
        last.record()
        self.wait()
        return float(first.elapsed_time(last)) * 1e6 / calls, host

    def _cold_ns(self, call: Callable[[], Any]) -> float:
        """One call after the caches were filled with something else; on CUDA, with what two events take."""
        if not self.is_cuda:
            times = []
            for _ in range(3):
                self.cold.fill_(1)
                times.append(self._once(call))
            return statistics.median(times)
        pairs = [(_event(), _event()) for _ in range(3)]
        for pair in pairs:  # an event is made when it is first recorded
            pair[0].record()
            pair[1].record()
        _sleep(round(self.sleep_per_ns * 700_000))
        for first, last in pairs:
            self.cold.zero_()
            first.record()
            call()
            last.record()
        self.wait()
        return statistics.median(float(first.elapsed_time(last)) * 1e6 for first, last in pairs)

    def _workspace(self, call: Callable[[], Any]) -> int:
        if not self.is_cuda:
            return 0
        torch.cuda.reset_peak_memory_stats(self.device)
        result = call()
        kept = torch.cuda.memory_allocated(self.device)
        del result
        return max(0, torch.cuda.max_memory_allocated(self.device) - kept)

    def _sleep_rate(self) -> float:
        """Cycles of `torch.cuda._sleep` in a nanosecond."""
        first, last = _event(), _event()
        _sleep(1000)
        torch.cuda.synchronize(self.device)
        first.record()
        _sleep(10_000_000)
        last.record()
        torch.cuda.synchronize(self.device)
        return 10.0 / float(first.elapsed_time(last))


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _sleep(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 1.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / max(middle, 1.0)
