"""Cluster: the devices a plan may use and the links between them.

Rates are floats, as data sheets have them; `price` turns them into whole nanoseconds once, and no search looks at them
again. What cannot be is refused when a cluster is made, so that no method has to ask. A cluster is a value: all ways to
change one (`with_memory`, `with_mode`) return another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from loadmaster.errors import InvalidCluster, InvalidSetting, UnknownName
from loadmaster.graph.columns import Ints, digest, ints
from loadmaster.graph.graph import MOST_DEVICES, MOST_NS

GIB = 2**30
MODES = ("eager", "planned", "compiled", "graphs")
MOST_MEMORY_BYTES = 2**50  # of a device: far above any, and low enough that sums stay inside int64


@dataclass(frozen=True)
class Device:
    """One device: its memory, its rates, and what a kernel costs before it does anything.

    >>> Device("gpu:0", "a100", 80 * GIB, {"default": 19.5e12, "bfloat16": 312e12}, 2.0e12, 4_000).rate("bfloat16")
    312000000000000.0

    Attributes:
        name: unique in its cluster; plans and reports show it.
        kind: which devices are alike: measured times go by it, and "cpu" is a host, on which tensors can
            wait.
        memory_bytes: the limit that plans are to keep.
        flops_per_s: one rate, or one per dtype with a "default".
        bytes_per_s: of its own memory.
        launch_ns: what every kernel takes before it does anything (rule 2 of the simulator); a fused one once (rule
            12).
        price_per_hour: in whatever currency; for reports only.
        watts: while it computes; for reports, and where energy is the objective.
        idle_watts: while it does not; None: nothing.
        overlap: it computes while it sends and receives; looked at where throughput is the objective.
    """

    name: str
    kind: str
    memory_bytes: int
    flops_per_s: float | Mapping[str, float]
    bytes_per_s: float
    launch_ns: int = 0
    price_per_hour: float | None = None
    watts: float | None = None
    idle_watts: float | None = None
    overlap: bool = True

    def rate(self, dtype: str) -> float:
        """Floating-point operations per second for ops of that dtype; the default rate where it has none of its own."""
        if not isinstance(self.flops_per_s, Mapping):
            return float(self.flops_per_s)
        return float(self.flops_per_s.get(dtype, self.flops_per_s["default"]))


@dataclass(frozen=True)
class Link:
    """What one ordered pair of devices has: bytes a second, after a latency (rule 4 of the simulator).

    >>> from loadmaster.cost import send_time_ns
    >>> send_time_ns(Link(12e9, 10_000), 1_000_000)  # 10 us, and a megabyte at 12 GB/s, rounded up
    93334

    Attributes:
        bytes_per_s: None: a transfer takes its latency only, however large.
        latency_ns: of every transfer.
    """

    bytes_per_s: float | None
    latency_ns: int = 0


@dataclass(frozen=True, eq=False)
class Cluster:
    """Devices, and a link and a channel number for each ordered pair of them.

    Pairs with the same channel number share one wire, on which transfers wait for each other (rule 5 of the simulator);
    `contention=False` lifts that. Presets are named by count, kind and wiring, with "+" between unlike ones.

    >>> cluster = Cluster.preset("2xp100-pcie+1xcpu")
    >>> cluster.device_names
    ('p100-pcie:0', 'p100-pcie:1', 'cpu:0')
    >>> cluster.with_memory(4 * GIB).memory_bytes.tolist()[:2]
    [4294967296, 4294967296]

    Attributes:
        name: of the preset or the file.
        devices: in the order that plans number them by.
        links: by (from, to), for every ordered pair of two devices.
        channel: [devices, devices] number of the wire from one to the other, -1 on the diagonal.
        op_ns: when given, every op takes this long everywhere, as in REGAL's setting.
        mode: how kernels are asked for, one of MODES; "": nobody waits for a host.
        dispatch_ns: by mode, the time a host thread needs to ask for one kernel (rule 14); 0: nobody waits for it.
        basis: where its rates come from, "data sheet" or "measured".
        contention: False: links carry any number of transfers at once, as much of the literature has it.

    Raises:
        InvalidCluster: no devices or more than 1,024, two of one name, a rate that is not positive, a negative number
            or one beyond reason, a pair without a link or a channel, an unknown mode; the fix says what to give.
    """

    name: str
    devices: tuple[Device, ...]
    links: Mapping[tuple[int, int], Link]
    channel: Ints  # [devices, devices]
    op_ns: int | None = None
    mode: str = ""
    dispatch_ns: Mapping[str, int] = field(default_factory=dict)
    basis: str = "data sheet"
    contention: bool = True

    @property
    def num_devices(self) -> int:
        """How many, hosts included."""
        return len(self.devices)

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """Unique, in the order that plans number devices by."""
        return tuple(device.name for device in self.devices)

    @property
    def has_gpu(self) -> bool:
        """Whether a torch model would run on CUDA here: Apple's GPUs and devices of no known kind have other kernels
        than that."""
        return any(not device.kind.startswith(("cpu", "device", "m1-", "m2-", "m4-")) for device in self.devices)

    @property
    def memory_bytes(self) -> Ints:
        """[devices] limits that plans are to keep."""
        return ints([device.memory_bytes for device in self.devices])

    @cached_property
    def digest(self) -> str:
        """Of all that decides times: rates, launches, links, channels, `op_ns`, the host's time, contention. Memory
        sizes and names are left out, so that a plan can be tried under another memory limit."""
        rates = [
            (
                sorted(d.flops_per_s.items()) if isinstance(d.flops_per_s, Mapping) else d.flops_per_s,
                d.bytes_per_s,
                d.launch_ns,
            )
            for d in self.devices
        ]
        links = [(pair, link.bytes_per_s, link.latency_ns) for pair, link in sorted(self.links.items())]
        host = [self.host_ns] if self.host_ns else []
        free = () if self.contention else ("no contention",)
        return digest("cluster/1", rates, links, self.channel, self.op_ns, *host, *free)

    @property
    def host_ns(self) -> int:
        """What the host needs to ask for one kernel in the cluster's mode."""
        return self.dispatch_ns.get(self.mode, 0)

    def with_mode(self, mode: str) -> Cluster:
        """The same devices, with kernels asked for in another way: "eager", "planned", "compiled" or "graphs". Raises
        UnknownName for any other word. It matters where `dispatch_ns` has a time for the mode."""
        if mode not in MODES:
            raise UnknownName.among("mode of execution", mode, MODES)
        return replace(self, mode=mode)

    def with_memory(self, memory_bytes: int) -> Cluster:
        """The same cluster with at most this much memory on every device; a host beside others keeps what it has."""
        hosts = {device.kind == "cpu" for device in self.devices} == {True, False}
        limits = [d.memory_bytes if hosts and d.kind == "cpu" else memory_bytes for d in self.devices]
        devices = zip(self.devices, limits, strict=True)
        return replace(self, devices=tuple(replace(d, memory_bytes=min(d.memory_bytes, at)) for d, at in devices))

    @staticmethod
    def of(given: Cluster | str | PathLike[str]) -> Cluster:
        """A cluster from whatever names one: a preset, a JSON file (by its suffix, or a slash in its name), or a
        Cluster itself.

        Raises InvalidSetting for anything else, UnknownName for a preset that there is none of, with the nearest names,
        and UnreadableFile or InvalidCluster where the file is not one.
        """
        if isinstance(given, Cluster):
            return given
        if not isinstance(given, (str, PathLike)):
            fix = "give the name of a preset ('2xa100-nvlink'), a cluster file, or a Cluster"
            raise InvalidSetting.instead_of("cluster", given, "", fix)
        name = fspath(given)
        is_file = not isinstance(given, str) or "/" in name or name.endswith((".json", ".json.gz", ".json.xz"))
        return Cluster.load(name) if is_file else Cluster.preset(name)

    @staticmethod
    def load(path: str | Path) -> Cluster:
        """Reads a cluster file (schema loadmaster.cluster/1)."""
        from loadmaster.files import load_cluster

        return load_cluster(path)

    @staticmethod
    def preset(name: str) -> Cluster:
        """A cluster by name: "regal", "placeto-4", "4xp100-pcie", "2xa100-nvlink+1xcpu"."""
        from loadmaster.cluster.presets import preset

        return preset(name)

    def __post_init__(self) -> None:
        if not self.devices:
            raise InvalidCluster("the cluster has no devices", self.name, "give at least one device")
        if len(self.devices) > MOST_DEVICES:
            what = f"the cluster has {len(self.devices):,} devices"
            raise InvalidCluster(what, self.name, f"give {MOST_DEVICES:,} at most")
        if len(set(self.device_names)) < len(self.devices):
            raise InvalidCluster("two devices have the same name", self.name, "give every device its own name")
        self._check_devices()
        self._check_links()
        if self.mode and self.mode not in MODES:
            raise InvalidCluster(f"'{self.mode}' is no mode", self.name, f"use one of {', '.join(MODES)}")
        if any(time < 0 for time in self.dispatch_ns.values()):
            raise InvalidCluster("a dispatch time is negative", self.name, "give a number of at least 0")

    def _check_devices(self) -> None:
        for device in self.devices:
            rates = device.flops_per_s.values() if isinstance(device.flops_per_s, Mapping) else [device.flops_per_s]
            if isinstance(device.flops_per_s, Mapping) and "default" not in device.flops_per_s:
                what = f"device '{device.name}' has no default rate"
                raise InvalidCluster(what, self.name, "give flops_per_s a 'default'")
            if not all(0 < rate < float("inf") for rate in (*rates, device.bytes_per_s)):
                what = f"device '{device.name}' has a rate that is not positive"
                raise InvalidCluster(what, self.name, "give rates per second")
            if (device.idle_watts or 0.0) > (device.watts or 0.0):
                what = f"device '{device.name}' draws more when it is idle than when it computes"
                raise InvalidCluster(what, self.name, "give watts of at least its idle_watts")
            if device.memory_bytes < 0 or device.launch_ns < 0:
                what = f"device '{device.name}' has a negative number"
                raise InvalidCluster(what, self.name, "give a number of at least 0")
            if device.memory_bytes > MOST_MEMORY_BYTES or device.launch_ns > MOST_NS:
                what = f"device '{device.name}' has a memory or a launch time beyond any device"
                raise InvalidCluster(what, self.name, "check their units: memory_bytes and launch_ns, 2^50 at most")

    def _check_links(self) -> None:
        for src, dst in np.ndindex(self.num_devices, self.num_devices):
            if src != dst and (src, dst) not in self.links:
                pair = f"'{self.devices[src].name}' to '{self.devices[dst].name}'"
                raise InvalidCluster(
                    f"there is no link from {pair}", self.name, "add the link, or a default_link for such pairs"
                )
        for (src, dst), link in self.links.items():
            pair = f"'{self.devices[src].name}' to '{self.devices[dst].name}'"
            if not 0 <= link.latency_ns <= MOST_NS or not (
                link.bytes_per_s is None or 0 < link.bytes_per_s < float("inf")
            ):
                what = f"the link from {pair} cannot be: {link}"
                raise InvalidCluster(what, self.name, "give a positive rate, or null for free")
        count = self.num_devices
        if self.channel.shape != (count, count) or (self.channel[~np.eye(count, dtype=bool)] < 0).any():
            fix = "give every ordered pair a channel number from 0 on"
            raise InvalidCluster("a pair of devices has no channel", self.name, fix)

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, {self.num_devices} devices, {self.digest})"


def dense_channels(channel: Ints) -> Ints:
    """The same wires numbered 0, 1, 2, … in order of their old numbers; -1 stays."""
    used = np.unique(channel[channel >= 0])
    return ints(np.where(channel >= 0, np.searchsorted(used, channel), -1))


# Sizes of memory as people write them

_WRITTEN = {"b": 1} | {f"{letter}ib": 2 ** (10 * power) for power, letter in enumerate("kmgt", 1)}
_WRITTEN |= {f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)}


def parse_size(text: str, where: str) -> int:
    """Bytes of 16GiB, 512 MiB, 2GB or 1048576B; InvalidSetting for a number without a unit, and for any other text.

    >>> parse_size("1.5GiB", "memory_limit"), parse_size("2GB", "memory_limit")
    (1610612736, 2000000000)
    """
    match = None if len(text) > 40 else re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match and not match[2]:
        raise InvalidSetting(
            f"'{text}' has no unit", where, f"write {match[1]}GiB, {match[1]}MiB or {match[1]}B (bytes)"
        )
    scale = _WRITTEN.get(match[2].lower()) if match else None
    if match is None or scale is None:
        fix = "write a number and a unit: 16GiB, 512MiB, 2GB or 1048576B (bytes)"
        raise InvalidSetting(f"'{text[:40]}' is not a size", where, fix)
    nbytes = float(match[1]) * scale if "." in match[1] else int(match[1]) * scale
    if not 1 <= nbytes < 2**50:
        raise InvalidSetting(f"'{text}' is not a size a device can have", where, "give 1 byte to 1023TiB")
    return int(nbytes)
