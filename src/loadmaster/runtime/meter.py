"""What a process has allocated on a device: now, and at most during a step.

On CUDA torch's allocator counts. A CPU has no such counter: what is resident are the storages that are known, and a
step's peak is taken from the allocations that torch's profiler sees.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor


class Meter(Protocol):
    """Allocated bytes of one device."""

    def resident(self, known: Iterable[Any]) -> int:
        """Bytes allocated now. `known`: tensors, for a device that does not count."""
        ...

    def begin(self, known: Iterable[Any], besides: int) -> None:
        """`besides`: bytes that are resident and not among `known`, for a device that does not count."""
        ...

    def end(self) -> int:
        """Most bytes allocated since `begin`; 0 where that is not known."""
        ...

    def total_bytes(self) -> int:
        """Of the device; 0 where any amount may be given."""
        ...

    def reserve_bytes(self) -> int:
        """Taken on the device outside torch's allocator."""
        ...

    def reserve_text(self) -> str: ...


def meter_of(device: torch.device) -> Meter:
    return CudaMeter(device) if device.type == "cuda" else CpuMeter()


class CudaMeter:
    """By torch's caching allocator. `begin` resets its peak."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.warm = device, False

    def resident(self, known: Iterable[Any]) -> int:
        if not self.warm:
            self._make_workspaces()
        return int(torch.cuda.memory_allocated(self.device))

    def _make_workspaces(self) -> None:
        """Libraries allocate their workspaces at their first product: they are resident from then on."""
        for dtype in (torch.float32, torch.bfloat16):
            one = torch.ones(64, 64, device=self.device, dtype=dtype)
            torch.addmm(one[0], one, one)
        self.warm = True

    def begin(self, known: Iterable[Any], besides: int) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def end(self) -> int:
        return int(torch.cuda.max_memory_allocated(self.device))

    def total_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[1])

    def reserve_bytes(self) -> int:
        """CUDA context, code and libraries; of others on the device, too."""
        free, total = torch.cuda.mem_get_info(self.device)
        return int(total - free - torch.cuda.memory_reserved(self.device))

    def reserve_text(self) -> str:
        return f"; {self.reserve_bytes() / 2**20:.0f} MiB of the device are taken outside torch's allocator"


class CpuMeter:
    """By torch's profiler, one step long. It does not see older tensors being freed: that is asked at the end."""

    def __init__(self) -> None:
        self.profile: Any = None
        self.before: list[tuple[Any, int]] = []
        self.besides = 0

    def resident(self, known: Iterable[Any]) -> int:
        return sum(nbytes for _, nbytes in _storages(known).values())

    def begin(self, known: Iterable[Any], besides: int) -> None:
        if torch._C._autograd._profiler_enabled():
            return  # somebody else's: there can be one only
        self.before, self.besides = list(_storages(known).values()), besides
        self.profile = torch.autograd.profiler.profile(profile_memory=True)
        self.profile.__enter__()

    def end(self) -> int:
        if self.profile is None:
            return 0
        self.profile.__exit__(None, None, None)
        events = self.profile.kineto_results.events()
        changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
        self.profile = None  # only now: events belong to it
        now = top = self.besides + sum(nbytes for tensor, nbytes in self.before if tensor() is not None)
        for _, nbytes in changes:
            now += nbytes
            top = max(top, now)
        return top

    def total_bytes(self) -> int:
        return 0

    def reserve_bytes(self) -> int:
        return 0

    def reserve_text(self) -> str:
        return ""


def _storages(known: Iterable[Any]) -> dict[int, tuple[Any, int]]:
    """A weak reference to a tensor and the bytes of each storage on the CPU."""
    found = dict[int, tuple[Any, int]]()
    for value in known:
        if isinstance(value, Tensor) and value.device.type == "cpu":
            storage = value.untyped_storage()
            found[storage._cdata] = weakref.ref(value), storage.nbytes()
    return found
