"""Devices of a plan as torch sees them, and how a tensor gets from one to another.

Several devices of a plan may be the same torch device: then each still gets its own copy of what it is sent, so that
what one process does on the CPU is what several would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.cluster import Cluster
from loadmaster.errors import InvalidSetting
from loadmaster.problem import Problem


def torch_devices(problem: Problem, given: Sequence[str | torch.device] | None) -> tuple[torch.device, ...]:
    """The torch devices of a plan's devices, in order: those given, else those of this machine."""
    return devices_here(problem.cluster, given)


def devices_here(cluster: Cluster, given: Sequence[str | torch.device] | None) -> tuple[torch.device, ...]:
    """One torch device per device of the cluster: those given; else its GPUs where there are enough, else the CPU."""
    names = cluster.device_names
    if given is not None:
        check_count(given, names)
        return tuple(map(existing, given))
    on_host = [device.kind == "cpu" for device in cluster.devices]
    wanted, there = on_host.count(False), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted > there:
        return (torch.device("cpu"),) * len(names)
    numbers = iter(range(wanted))
    return tuple(torch.device("cpu") if host else torch.device("cuda", next(numbers)) for host in on_host)


def check_count(given: Sequence[str | torch.device], names: Sequence[str]) -> None:
    """InvalidSetting unless there is one for each device of the plan."""
    if len(given) != len(names):
        what = f"{len(given)} torch devices were given for a plan on {len(names)}"
        raise InvalidSetting(what, f"devices={list(map(str, given))}", f"give one for each of {', '.join(names)}")


def existing(name: str | torch.device) -> torch.device:
    """Of this machine; another is refused."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        fix = "use 'cpu', or 'cuda:0' and on where there are GPUs"
        raise InvalidSetting(f"'{name}' is no device here: {reason}", "devices", fix) from None
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides. One that shows less or more than its memory is copied with all of it."""
    shown = tensor.numel() * tensor.element_size()
    if tensor.untyped_storage().nbytes() == shown and torch._debug_has_internal_overlap(tensor) == 0:
        return tensor.clone()
    memory = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return memory.clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class CopyStreams:
    """A stream for each pair of devices of which at least one is a GPU, made when first used."""

    def __init__(self) -> None:
        self._of: dict[tuple[torch.device, torch.device, torch.device], torch.cuda.Stream] = {}

    def stream(self, src: torch.device, dst: torch.device, on: torch.device) -> torch.cuda.Stream:
        key = (src, dst, on)
        if key not in self._of:
            self._of[key] = torch.cuda.Stream(on)  # type: ignore[no-untyped-call]
        return self._of[key]


class CudaSend:
    """One send from or to a GPU, on its own stream beside compute.

    It waits for what was issued before it where the tensor was made, and `arrive` makes the reader wait for it: an
    event each, recorded anew in every step. A buffer is allocated on the stream that fills it, and both ends tell the
    allocator which other stream uses them, so that memory is not handed out again too early.
    """

    def __init__(self, src: torch.device, dst: torch.device, streams: CopyStreams) -> None:
        self.src, self.dst = src, dst
        self.streams = [streams.stream(src, dst, end) for end in (dst, src) if end.type == "cuda"]
        self.lane = self.streams[-1]  # of the source where that is a GPU
        self.made, self.done = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
        self.follows: Sequence[CudaSend] = ()  # sends of what `land` overwrites

    def __call__(self, tensor: Tensor) -> Tensor:
        if self.src.type == "cuda" and tensor.device.type == "cpu":  # a seed: attention on a GPU leaves it on the host
            self.done.record(self.lane)
            return tensor.clone()
        if self.src.type == "cuda":
            self.made.record(torch.cuda.current_stream(self.src))
            for stream in self.streams:
                stream.wait_event(self.made)
            tensor.record_stream(self.lane)
        elif not tensor.is_pinned():
            tensor = _pinned_like(tensor).copy_(tensor)
        copy = self._copy(tensor)
        self.done.record(self.lane)
        return copy

    def land(self, tensor: Tensor, place: Tensor) -> None:
        """Copies over what is there, once that is no longer sent from there."""
        for send in self.follows:
            self.lane.wait_event(send.done)
        self.made.record(torch.cuda.current_stream(self.src))
        self.lane.wait_event(self.made)
        tensor.record_stream(self.lane)
        with torch.cuda.stream(self.lane):
            place.copy_(tensor, non_blocking=place.is_pinned() and place.stride() == tensor.stride())
        self.done.record(self.lane)

    def _copy(self, tensor: Tensor) -> Tensor:
        if self.dst.type == "cpu":
            with torch.cuda.stream(self.lane):
                return _pinned_like(tensor).copy_(tensor, non_blocking=True)
        # A copy between GPUs orders itself with the current streams of both: neither may be a compute stream.
        with torch.cuda.stream(self.streams[0]), torch.cuda.stream(self.lane):
            copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.dst)
            copy.copy_(tensor, non_blocking=True)
        copy.record_stream(torch.cuda.current_stream(self.dst))
        return copy

    def arrive(self) -> None:
        """Before the first reader."""
        if self.dst.type == "cpu":
            self.done.synchronize()
        else:
            torch.cuda.current_stream(self.dst).wait_event(self.done)

    def left(self) -> None:
        """Before the tensor is overwritten where it came from."""
        if self.src.type == "cuda":
            torch.cuda.current_stream(self.src).wait_event(self.done)
        else:
            self.done.synchronize()


def _pinned_like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True)


def moved(tensor: Tensor, device: torch.device) -> Any:
    """The tensor on that device; itself where it is there already."""
    return tensor if tensor.device == device else tensor.to(device, non_blocking=device.type == "cuda")


class Replay:
    """The random state before an op draws, for when it runs again: it then draws the same numbers, and the stream of
    numbers goes on as if it had not."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kept: Any = None
        self.now: Any = None

    def _generator(self) -> Any:
        return (
            torch.cuda.default_generators[self.device.index or 0]
            if self.device.type == "cuda"
            else torch.default_generator
        )

    def keep(self) -> None:
        """Before the op runs for the first time."""
        self.kept = self._generator().get_state()

    def begin(self) -> None:
        """Before it runs again."""
        self.now = self._generator().get_state()
        self._generator().set_state(self.kept)

    def end(self) -> None:
        self._generator().set_state(self.now)
