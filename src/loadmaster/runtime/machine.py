"""measure_machine: the devices of this machine and the links between them, as an ordinary Cluster.

Arithmetic is the best rate that square products of several sizes reach in each dtype, traffic that of adding two long
tensors, launch the time of a kernel that does nothing, dispatch the host's time to ask for it.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import torch

from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.cost import Learned, fit
from loadmaster.cost.features import OpFacts
from loadmaster.cost.hosting import plain_ns
from loadmaster.graph.columns import ints
from loadmaster.runtime.quiet import Reference
from loadmaster.runtime.timing import DeviceClock

DTYPES = ("float32", "bfloat16", "float16", "float64")
# From where the launch decides to where the rate does.
SIZES = {"cuda": (512, 2048, 8192), "cpu": (128, 512, 1024)}  # rows of square products
LENGTHS = {"cuda": (2**12, 2**16, 2**20, 2**24, 2**27), "cpu": (2**10, 2**14, 2**18, 2**22, 2**24)}
SMALL, LARGE = 4 * 2**10, 64 * 2**20  # bytes sent, for latency and for bandwidth
SHARED = 1.5  # two transfers at once that take this much longer than one share a wire
Sample = tuple[OpFacts, int]  # and ns
SLOWEST_NS = 4e8  # a larger product is left out when a smaller one took this long in all


@dataclass(frozen=True)
class Machine:
    """What was measured: a cluster to plan for, and by kind of device the network scaled to it, which prices ops that
    nobody has timed.

    Attributes:
        cluster: devices and links of this machine.
        learned: by kind of device.
        reference_ns: by kind of device, the largest reference while it was measured (`quiet`).
        quietest_ns: by kind of device, the quietest reference known.
        seconds: that measuring took.
    """

    cluster: Cluster
    learned: dict[str, Learned]
    reference_ns: dict[str, int]
    quietest_ns: dict[str, int]
    seconds: float


def torch_names() -> list[str]:
    """The devices of this machine as torch calls them: GPUs first, then the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [*(f"cuda:{number}" for number in range(count)), "cpu"]


def identity() -> list[str]:
    """What a measurement is valid for: hardware and versions."""
    parts = [torch_version(), f"{os.cpu_count()} cores", f"{torch.get_num_threads()} threads", processor()]
    return parts + [kind_of(name) for name in torch_names()]


def torch_version() -> str:
    """As files of measurements keep it."""
    return f"torch {torch.__version__}"


def processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def kind_of(name: str) -> str:
    """The kind of a device, by which measured costs go."""
    if not name.startswith("cuda"):
        return "cpu"
    return str(torch.cuda.get_device_name(name)).lower().replace(" ", "-")


def measure_machine(
    say: Callable[[str], None] = lambda text: None, quietest_ns: Mapping[str, int] | None = None
) -> Machine:
    """Takes some seconds a device; nothing else should run meanwhile. `quietest_ns`: references of earlier times."""
    start, names = time.monotonic(), torch_names()
    devices, learned, dispatch = [], {}, 0
    beside, quietest = dict[str, int](), dict(quietest_ns or {})
    for name in names:
        say(f"measuring {name}")
        kind = kind_of(name)
        reference = Reference(name, quietest.get(kind, 0))
        before = reference.look()
        device, scaled, host_ns = _device(name)
        beside[kind] = max(before, reference.look(), beside.get(kind, 0))
        quietest[kind] = reference.quietest_ns
        devices.append(device)
        learned[kind] = scaled
        dispatch = max(dispatch, host_ns)
    say("measuring links")
    links, channel = _links(names)
    asked = {mode: plain_ns(mode, dispatch) for mode in ("eager", "planned", "compiled")} | {"graphs": 0}
    host: dict[str, Any] = {"mode": "planned", "dispatch_ns": asked} if dispatch else {}
    cluster = Cluster("here", tuple(devices), links, channel, basis="measured", **host)
    return Machine(cluster, learned, beside, quietest, time.monotonic() - start)


def at_this_moment(cluster: Cluster, bare_ns: int | None = None) -> Cluster:
    """With the host as fast as it is now, by a bare call: where others use it too, that changes from hour to hour."""
    known = cluster.dispatch_ns.get("planned", 0)
    if not known:
        return cluster
    if bare_ns is None:
        one = torch.ones(1, device=torch_names()[0])
        bare_ns = DeviceClock(torch_names()[0]).time(lambda: one.add_(1.0)).host_ns
    faster = {mode: plain_ns(mode, bare_ns) / plain_ns(mode, known) for mode in cluster.dispatch_ns}
    asked = {mode: round(ns * faster[mode]) for mode, ns in cluster.dispatch_ns.items()}
    return replace(cluster, dispatch_ns=asked)


def _device(name: str) -> tuple[Device, Learned, int]:
    clock, where = DeviceClock(name), "cuda" if name.startswith("cuda") else "cpu"
    one = torch.ones(1, device=name)
    empty = clock.time(lambda: one.add_(1.0))
    samples: list[Sample] = []
    rates = {dtype: rate for dtype in DTYPES if (rate := _arithmetic(clock, dtype, SIZES[where], samples))}
    traffic = _traffic(clock, LENGTHS[where], samples)
    rates["default"] = rates.pop("float32")
    device = Device(name, kind_of(name), _memory(name), rates, traffic, empty.hot_ns)
    return device, fit(samples, device), empty.host_ns


def _arithmetic(clock: DeviceClock, dtype: str, sizes: tuple[int, ...], samples: list[Sample]) -> float:
    """The best rate of products in that dtype, 0 where the device has none."""
    best, kind = 0.0, getattr(torch, dtype)
    for size in sizes:
        try:
            a = torch.ones(size, size, dtype=kind, device=clock.device)
            taken = max(1, clock.time(partial(torch.mm, a, a)).hot_ns)
        except RuntimeError:
            return best
        flops = 2 * size**3
        best = max(best, flops / taken * 1e9)
        samples.append((_of_two("aten.mm.default", dtype, flops, a.nbytes), taken))
        if taken * 8 > SLOWEST_NS:
            break
    return best


def _of_two(kind: str, dtype: str, flops: int, nbytes: int) -> OpFacts:
    """A call that reads two tensors of one size and makes a third."""
    return OpFacts(kind, dtype, flops, 3 * nbytes, nbytes, nbytes, nbytes, 2, "")


def _traffic(clock: DeviceClock, lengths: tuple[int, ...], samples: list[Sample]) -> float:
    best = 0.0
    for length in lengths:
        a, b, out = (torch.ones(length, device=clock.device) for _ in range(3))
        taken = max(1, clock.time(partial(torch.add, a, b, out=out)).hot_ns)
        samples.append((_of_two("aten.add.Tensor", "float32", length, a.nbytes), taken))
        if length == lengths[-1]:  # the shorter ones stay in a cache
            best = 3 * a.nbytes / taken * 1e9
        reduced = max(1, clock.time(partial(torch.sum, a)).hot_ns)
        samples.append((OpFacts("aten.sum.default", "float32", length, a.nbytes, a.nbytes, 0, 4, 1, ""), reduced))
    return best


def _memory(name: str) -> int:
    """What a step may use now."""
    if name.startswith("cuda"):
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(name)[0])
    try:
        with open("/proc/meminfo") as file:
            free = next(line for line in file if line.startswith("MemAvailable"))
        return int(free.split()[1]) * 1024
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _links(names: list[str]) -> tuple[dict[tuple[int, int], Link], Any]:
    """Every ordered pair alone, then pairs that might share a wire at once."""
    pairs = list(permutations(range(len(names)), 2))
    links, taken = {}, {}
    for pair in pairs:
        small, large = (_send_ns([(names[pair[0]], names[pair[1]])], size) for size in (SMALL, LARGE))
        links[pair] = Link(LARGE / max(1.0, large - small) * 1e9, round(small))
        taken[pair] = large
    channel = np.full((len(names), len(names)), -1, np.int64)
    for number, pair in enumerate(pairs):
        channel[pair] = number
    for first in pairs:
        for second in pairs:
            meet = first < second and channel[first] != channel[second] and set(first) & set(second)
            if meet and _share(names, first, second, max(taken[first], taken[second])):
                channel[channel == channel[second]] = channel[first]
    return links, dense_channels(ints(channel))


def _share(names: list[str], first: tuple[int, int], second: tuple[int, int], alone: float) -> bool:
    both = _send_ns([(names[src], names[dst]) for src, dst in (first, second)], LARGE)
    return both > SHARED * alone


def _send_ns(ways: list[tuple[str, str]], size: int) -> float:
    """The time until all have arrived; each on a stream of its own."""
    moves = []
    for src, dst in ways:
        here, there = (
            torch.empty(size, dtype=torch.uint8, device=end, pin_memory=end == "cpu" and torch.cuda.is_available())
            for end in (src, dst)
        )
        stream: Any = torch.cuda.Stream(device=src if src != "cpu" else dst)  # type: ignore[no-untyped-call]
        moves.append((here, there, stream))
    times = []
    for _ in range(6):
        _wait()
        start = time.perf_counter_ns()
        for here, there, stream in moves:
            with torch.cuda.stream(stream):
                there.copy_(here, non_blocking=True)
        _wait()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times[1:])


def _wait() -> None:
    for number in range(torch.cuda.device_count()):
        torch.cuda.synchronize(number)
