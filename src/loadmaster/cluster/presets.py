"""Presets: clusters of real machines by name, each with the source of its figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.cluster.cluster import GIB, Cluster, Device, Link, dense_channels
from loadmaster.errors import InvalidCluster, UnknownName


@dataclass(frozen=True)
class _Part:
    """A kind of device and how such devices are joined among themselves."""

    device: Device
    link: Link
    wires: str  # "pair": a wire per ordered pair; "out": one outgoing bus per device


def _gpu(kind: str, memory_gib: float, tflops: Mapping[str, float], gb_per_s: float, launch_ns: int) -> Device:
    rates = {dtype: rate * 1e12 for dtype, rate in tflops.items()}
    return Device(kind, kind, int(memory_gib * GIB), rates, gb_per_s * 1e9, launch_ns)


def _halves(rate: float) -> dict[str, float]:
    return {"float16": rate, "bfloat16": rate}


# Peak figures of the vendors' data sheets; links at the rate one direction sustains. Launch: a few microseconds
# is what eager frameworks need between two small kernels on these generations.
_PARTS = {
    # NVIDIA Tesla P100 PCIe 16 GB data sheet: 9.3 TFLOP/s fp32, 18.7 fp16, 4.7 fp64, 732 GB/s. PCIe 3.0 x16: 12 GB/s
    # of 15.75.
    "p100-pcie": _Part(
        _gpu("p100-pcie", 16, {"default": 9.3, "float16": 18.7, "float64": 4.7}, 732, 5_000), Link(12e9, 10_000), "out"
    ),
    # NVIDIA Tesla K80 board specification, one of its two GK210: 4.37 TFLOP/s fp32 with boost for half the board's
    # 8.74,
    # 240 GB/s, 12 GB. PCIe 3.0 x16 shared by the two halves.
    "k80": _Part(_gpu("k80", 12, {"default": 4.37, "float64": 1.46}, 240, 6_000), Link(10e9, 15_000), "out"),
    # NVIDIA V100 SXM2 32 GB data sheet: 15.7 TFLOP/s fp32, 125 fp16 tensor, 900 GB/s. NVLink 2.0: 25 GB/s a link and
    # direction, two links between neighbours.
    "v100-nvlink": _Part(
        _gpu("v100-nvlink", 32, {"default": 15.7, "float16": 125, "float64": 7.8}, 900, 4_500),
        Link(48e9, 8_000),
        "pair",
    ),
    # NVIDIA A100 SXM 80 GB data sheet: 19.5 TFLOP/s fp32, 312 bf16 and fp16, 2,039 GB/s; NVLink 3.0, 300 GB/s a
    # direction.
    "a100-nvlink": _Part(
        _gpu("a100-nvlink", 80, {"default": 19.5, "float64": 9.7, **_halves(312)}, 2039, 4_000),
        Link(270e9, 7_000),
        "out",
    ),
    # NVIDIA H100 SXM 80 GB data sheet: 67 TFLOP/s fp32, 989 bf16, 3,350 GB/s; NVLink 4.0 through NVSwitch, 450 GB/s
    # a direction.
    "h100-nvswitch": _Part(
        _gpu("h100-nvswitch", 80, {"default": 67, "float64": 34, **_halves(989)}, 3350, 3_500),
        Link(400e9, 6_000),
        "out",
    ),
    # NVIDIA H200 SXM 141 GB data sheet: arithmetic as H100, 4,800 GB/s.
    "h200": _Part(
        _gpu("h200", 141, {"default": 67, "float64": 34, **_halves(989)}, 4800, 3_500), Link(400e9, 6_000), "out"
    ),
    # A two-socket server of the P100's years (2 x Xeon E5-2690 v4: 28 cores x 2.6 GHz x 32 fp32 FLOP per cycle at half
    # efficiency, 8 channels of DDR4-2400). Joined to GPUs by PCIe 3.0.
    "cpu": _Part(
        Device("cpu", "cpu", 256 * GIB, {"default": 1.1e12, "float64": 0.55e12}, 120e9, 1_000), Link(12e9, 5_000), "out"
    ),
}
_ALIASES = {"h100": "h100-nvswitch", "a100": "a100-nvlink", "v100": "v100-nvlink", "p100": "p100-pcie"}
# Between unlike parts: PCIe 3.0 x16 through host memory.
_BETWEEN = Link(10e9, 15_000)
SINGLE_PRESETS = ("regal", "placeto-2", "placeto-4")


def preset_names() -> list[str]:
    """What `--on` takes besides a file; N is any number of devices."""
    return [*SINGLE_PRESETS, *(f"Nx{part}" for part in _PARTS)]


def preset(name: str) -> Cluster:
    """The cluster of that name; parts are joined with '+'."""
    if name == "regal":
        return _regal()
    if match := re.fullmatch(r"placeto-([24])", name):
        return _placeto(int(match[1]))
    parts = [_parse_part(part, name) for part in name.split("+")]
    if sum(count for count, _ in parts) > 64:
        raise InvalidCluster(
            f"'{name}' has more than 64 devices", "", "presets go up to 64; write a cluster file for more"
        )
    return _join(name, [kind for count, kind in parts for _ in range(count)])


def _parse_part(text: str, name: str) -> tuple[int, str]:
    match = re.fullmatch(r"(?:(\d{1,3})x)?([a-z0-9-]+)", text)
    kind = _ALIASES.get(match[2], match[2]) if match else text
    if not match or kind not in _PARTS:
        raise UnknownName.among("cluster", name, preset_names(), "a preset, presets joined with '+', or a JSON file")
    count = int(match[1] or 1)
    if count < 1:
        raise InvalidCluster(f"'{name}' asks for {count} devices", "", "ask for at least one")
    return count, kind


def _join(name: str, kinds: list[str]) -> Cluster:
    devices = tuple(
        replace(_PARTS[kind].device, name=f"{kind}:{kinds[:i].count(kind)}") for i, kind in enumerate(kinds)
    )
    count = len(kinds)
    links, channel = {}, np.full((count, count), -1, np.int64)
    for src in range(count):
        for dst in range(count):
            if src == dst:
                continue
            alike = kinds[src] == kinds[dst]
            links[src, dst] = _PARTS[kinds[src]].link if alike else _BETWEEN
            # A bus out of the device for its own kind, another one (PCIe) for the rest; pairs are numbered after them.
            own_wire = alike and _PARTS[kinds[src]].wires == "pair"
            channel[src, dst] = 2 * count + src * count + dst if own_wire else 2 * src + (not alike)
    return Cluster(name, devices, links, dense_channels(channel))


def _equal(name: str, count: int, device: Device, link: Link, op_ns: int | None, bus: bool) -> Cluster:
    devices = tuple(replace(device, name=f"{device.kind}:{i}") for i in range(count))
    pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst]
    channel = np.full((count, count), -1, np.int64)
    for src, dst in pairs:
        channel[src, dst] = src if bus else src * count + dst
    return Cluster(name, devices, dict.fromkeys(pairs, link), dense_channels(channel), op_ns)


def _regal() -> Cluster:
    # REGAL (arXiv 1905.02494): two equal devices, 16 GiB each, free links, every op the same time.
    device = Device("", "device", 16 * GIB, 1e12, 1e12, 0)
    return _equal("regal", 2, device, Link(None, 0), 1_000, bus=False)


def _placeto(count: int) -> Cluster:
    # Placeto's simulator (arXiv 1906.08879): 5.7 us launch, one outgoing bus per device at 7,600 bytes per us, 25 us
    # latency.
    device = replace(_PARTS["p100-pcie"].device, launch_ns=5_700)
    return _equal(f"placeto-{count}", count, device, Link(7.6e9, 25_000), None, bus=True)
