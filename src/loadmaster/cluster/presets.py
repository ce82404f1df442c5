"""Presets: clusters of real machines by name, each with the source of its figures.

A name is parts joined with "+", each "COUNTxKIND", "KIND:MEMORY" or a size alone; machines are joined with "@NETWORK@".
Arithmetic and memory rates are the vendors' peaks, links what one direction sustains; `cost.Learned` and `loadmaster
measure` say what real kernels reach of them. "regal" and "placeto-2", "placeto-4" are the settings of those papers.

>>> preset("2xa100+cpu").device_names
('a100-nvlink:0', 'a100-nvlink:1', 'cpu:0')
>>> preset("4090:20GiB").memory_bytes.tolist()
[21474836480]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.cluster.cluster import GIB, Cluster, Device, Link, dense_channels, parse_size
from loadmaster.errors import InvalidCluster, InvalidSetting, UnknownName


@dataclass(frozen=True)
class _Part:
    """A kind of device and how such devices are joined among themselves."""

    device: Device
    link: Link
    wires: str  # "pair": a wire per ordered pair; "out": one outgoing bus per device
    host: Link | None = None  # to unlike devices of the same machine; None: as in machines of the P100's years


def _gpu(kind: str, memory_gib: float, tflops: Mapping[str, float], gb_per_s: float, launch_ns: int) -> Device:
    rates = {dtype: rate * 1e12 for dtype, rate in tflops.items()}
    return Device(kind, kind, int(memory_gib * GIB), rates, gb_per_s * 1e9, launch_ns)


def _halves(rate: float) -> dict[str, float]:
    return {"float16": rate, "bfloat16": rate}


# One direction of a slot of 16 lanes carries 15.75, 31.5 and 63 GB/s (PCI Express 3.0, 4.0, 5.0: 8, 16, 32 GT/s,
# 128b/130b); copies reach about four fifths of it: 54 GB/s were measured on the PCIe 5.0 of an H200 (docs/fidelity.md).
_PCIE4, _PCIE5 = Link(25e9, 10_000), Link(52e9, 8_000)


def _card(device: Device, slot: Link) -> _Part:
    """A GPU whose only way out is its slot."""
    return _Part(device, slot, "out", slot)


# Peak figures of the vendors' data sheets; links at the rate one direction sustains. Launch: a few microseconds
# is what eager frameworks need between two small kernels on these generations.
_A100 = {"default": 19.5, "float64": 9.7, **_halves(312)}
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
    # NVIDIA A100 data sheet (2021), 40 GB: 1,555 GB/s; 80 GB PCIe: 1,935 GB/s; arithmetic as above.
    "a100-40-nvlink": _Part(_gpu("a100-40-nvlink", 40, _A100, 1555, 4_000), Link(270e9, 7_000), "out", _PCIE4),
    "a100-40-pcie": _card(_gpu("a100-40-pcie", 40, _A100, 1555, 4_000), _PCIE4),
    "a100-80-pcie": _card(_gpu("a100-80-pcie", 80, _A100, 1935, 4_000), _PCIE4),
    # NVIDIA H100 PCIe data sheet: 51 TFLOP/s fp32, 756 bf16 dense, 26 fp64, 2,000 GB/s, 80 GB.
    "h100-pcie": _card(_gpu("h100-pcie", 80, {"default": 51, "float64": 26, **_halves(756)}, 2000, 3_500), _PCIE5),
    # NVIDIA HGX B200 data sheet, one of its eight GPUs: 75 TFLOP/s fp32, 2,250 bf16 dense, 37 fp64, 180 GB at 7,700
    # GB/s; NVLink 5.0, 900 GB/s a direction.
    "b200": _Part(
        _gpu("b200", 180, {"default": 75, "float64": 37, **_halves(2250)}, 7700, 3_500),
        Link(800e9, 6_000),
        "out",
        _PCIE5,
    ),
    # NVIDIA L4 data sheet: 30.3 TFLOP/s fp32, 121 bf16 dense (242 with sparsity), 300 GB/s, 24 GB.
    "l4": _card(_gpu("l4", 24, {"default": 30.3, **_halves(121)}, 300, 4_000), _PCIE4),
    # NVIDIA L40S data sheet: 91.6 TFLOP/s fp32, 362 bf16 dense, 864 GB/s, 48 GB.
    "l40s": _card(_gpu("l40s", 48, {"default": 91.6, **_halves(362)}, 864, 4_000), _PCIE4),
    # NVIDIA A10G data sheet (for AWS G5): 35 TFLOP/s fp32, 70 bf16 dense, 600 GB/s, 24 GB.
    "a10g": _card(_gpu("a10g", 24, {"default": 35, **_halves(70)}, 600, 4_500), _PCIE4),
    # NVIDIA's Ampere, Ada and Blackwell architecture papers for GeForce: fp32, and half precision with float32 sums.
    "rtx-3090": _card(_gpu("rtx-3090", 24, {"default": 35.6, **_halves(71)}, 936, 4_500), _PCIE4),
    "rtx-4090": _card(_gpu("rtx-4090", 24, {"default": 82.6, **_halves(165.2)}, 1008, 4_000), _PCIE4),
    "rtx-5090": _card(_gpu("rtx-5090", 32, {"default": 104.8, **_halves(209.5)}, 1792, 3_500), _PCIE5),
    # AMD Instinct MI300X data sheet: 163.4 TFLOP/s fp32, 1,307 bf16 dense, 81.7 fp64 vector, 5,300 GB/s, 192 GB;
    # Infinity Fabric, 64 GB/s a direction between any two of eight.
    "mi300x": _Part(
        _gpu("mi300x", 192, {"default": 163.4, "float64": 81.7, **_halves(1307)}, 5300, 5_000),
        Link(50e9, 10_000),
        "pair",
        _PCIE5,
    ),
    # Apple's announcements: M1 Max 10.4 TFLOP/s and 400 GB/s, M2 Ultra 27.2 and 800; M4 Max 546 GB/s, its 40 cores x
    # 128 lanes x 2 at 1.8 GHz. Memory is shared with the CPU. Between machines: Thunderbolt 4, 40 Gb/s.
    "m1-max": _Part(_gpu("m1-max", 64, {"default": 10.4}, 400, 8_000), Link(3e9, 40_000), "out"),
    "m2-ultra": _Part(_gpu("m2-ultra", 192, {"default": 27.2}, 800, 8_000), Link(3e9, 40_000), "out"),
    "m4-max": _Part(_gpu("m4-max", 128, {"default": 18.4}, 546, 8_000), Link(3e9, 40_000), "out"),
    # AMD Ryzen 9 7950X: 16 cores x 4.5 GHz x 32 fp32 FLOP a cycle, two channels of DDR5-5200. Intel Core i9-14900K: 8
    # cores x 5.2 GHz x 32 and 16 x 4.0 GHz x 16, two channels of DDR5-5600.
    "cpu-7950x": _Part(
        Device("cpu-7950x", "cpu", 64 * GIB, {"default": 2.3e12, "float64": 1.15e12}, 83e9, 500),
        Link(20e9, 5_000),
        "out",
        _PCIE5,
    ),
    "cpu-14900k": _Part(
        Device("cpu-14900k", "cpu", 64 * GIB, {"default": 2.3e12, "float64": 1.15e12}, 89e9, 500),
        Link(20e9, 5_000),
        "out",
        _PCIE5,
    ),
    # A two-socket server of the P100's years (2 x Xeon E5-2690 v4: 28 cores x 2.6 GHz x 32 fp32 FLOP per cycle at half
    # efficiency, 8 channels of DDR4-2400). Joined to GPUs by PCIe 3.0.
    "cpu": _Part(
        Device("cpu", "cpu", 256 * GIB, {"default": 1.1e12, "float64": 0.55e12}, 120e9, 1_000), Link(12e9, 5_000), "out"
    ),
}
_ALIASES = {"h100": "h100-nvswitch", "a100": "a100-nvlink", "v100": "v100-nvlink", "p100": "p100-pcie"}
_ALIASES |= {f"{rtx}{year}": f"rtx-{year}" for year in (3090, 4090, 5090) for rtx in ("", "rtx")}
_SIZE = r"\d[\d.]*[kmgtKMGT]?i?[bB]"
_ANY_GPU = "rtx-4090"  # what a GPU computes of which only the memory is known
# Between unlike parts: PCIe 3.0 x16 through host memory.
_BETWEEN = Link(10e9, 15_000)
# Between machines, one adapter each: 92 % of the line rate, as TCP or RDMA over 9,000-byte frames leaves (IEEE 802.3bs,
# InfiniBand NDR and EDR); latency of a message from one GPU's memory to another's, by way of the host on Ethernet.
NETWORKS = {
    "25gbe": Link(2.9e9, 40_000),
    "100gbe": Link(11.5e9, 30_000),
    "400gbe": Link(46e9, 20_000),
    "ib-100": Link(11.5e9, 8_000),
    "ib-400": Link(46e9, 6_000),
}
THIS_MACHINE = "this-machine"  # by data sheets, as `machine` finds it
SINGLE_PRESETS = ("regal", "placeto-2", "placeto-4")


def preset_names() -> list[str]:
    """What `--on` takes besides a file; N is any number of devices. Machines are joined by a network: A@100gbe@B."""
    return [*SINGLE_PRESETS, *(f"Nx{part}" for part in _PARTS)]


def preset(name: str) -> Cluster:
    """The cluster of that name; parts of a machine are joined with '+', machines with '@' and the name of a network.

    A part is "2xa100", with its free memory where that is less than the whole ("4090:20GiB"), or only a size ("24GiB").
    Among devices of one kind a transfer takes the kind's own link, between unlike ones the slower slot of the two, PCIe
    3.0 where these are not known.

    Raises:
        UnknownName: no such kind; the nearest names are in the fix.
        InvalidCluster: more than 64 devices, none, or machines that no one network joins.
    """
    if not isinstance(name, str):
        raise InvalidSetting.instead_of("name of a cluster", name, "preset", "give one such as '2xa100-nvlink'")
    if name == THIS_MACHINE:
        from loadmaster.cluster.machine import this_machine

        return this_machine()
    if name == "regal":
        return _regal()
    if match := re.fullmatch(r"placeto-([24])", name):
        return _placeto(int(match[1]))
    machines, networks = name.split("@")[::2], name.split("@")[1::2]
    parts = [[_parse_part(part, name) for part in machine.split("+")] for machine in machines]
    if sum(count for machine in parts for count, _, _ in machine) > 64:
        raise InvalidCluster(
            f"'{name}' has more than 64 devices", "", "presets go up to 64; write a cluster file for more"
        )
    kinds = [kind for machine in parts for count, kind, _ in machine for _ in range(count)]
    sizes = [size for machine in parts for count, _, size in machine for _ in range(count)]
    node = [number for number, machine in enumerate(parts) for count, _, _ in machine for _ in range(count)]
    joined = _join(name, kinds, node, _network(name, machines, networks))
    devices = [
        device if size is None else replace(device, memory_bytes=size)
        for device, size in zip(joined.devices, sizes, strict=True)
    ]
    return replace(joined, devices=tuple(devices))


def _network(name: str, machines: list[str], networks: list[str]) -> Link:
    """The one that joins all machines; any link where there is but one machine."""
    if not networks:
        return _BETWEEN
    if len(networks) >= len(machines) or len(set(networks)) > 1 or networks[0] not in NETWORKS:
        fix = f"write MACHINE@NETWORK@MACHINE, with one of {', '.join(NETWORKS)} each time"
        raise InvalidCluster(f"'{name}' does not say which network joins its machines", "", fix)
    return NETWORKS[networks[0]]


def _parse_part(text: str, name: str) -> tuple[int, str, int | None]:
    """(count, kind, memory where it is said) of "2xa100", "4090:20GiB", or "24GiB": a GPU of which no more is known."""
    match = re.fullmatch(rf"(?:(\d{{1,3}})x)?(?:({_SIZE})|([a-z0-9-]+)(?::({_SIZE}))?)", text)
    named = match[3] or _ANY_GPU if match else text
    kind = _ALIASES.get(named, named)
    if not match and (joined := "+".join(re.split(r"[,;\s]+", name.strip()))) != name:
        raise UnknownName(f"there is no cluster called '{name}'", "", f"did you mean {joined}?")
    if not match or kind not in _PARTS:
        raise UnknownName.among("cluster", name, preset_names(), "a preset, presets joined with '+', or a JSON file")
    count = int(match[1] or 1)
    if count < 1:
        raise InvalidCluster(f"'{name}' asks for {count} devices", "", "ask for at least one")
    size = match[2] or match[4]
    return count, kind, None if size is None else parse_size(size, name)


def _join(name: str, kinds: list[str], node: list[int], network: Link) -> Cluster:
    devices = tuple(
        replace(_PARTS[kind].device, name=f"{kind}:{kinds[:i].count(kind)}") for i, kind in enumerate(kinds)
    )
    count = len(kinds)
    links, channel = {}, np.full((count, count), -1, np.int64)
    for src in range(count):
        for dst in range(count):
            if src == dst:
                continue
            if node[src] != node[dst]:  # one adapter out of each machine
                links[src, dst], channel[src, dst] = network, 2 * count + count * count + node[src]
                continue
            alike = kinds[src] == kinds[dst]
            links[src, dst] = _PARTS[kinds[src]].link if alike else _between(kinds[src], kinds[dst])
            # A bus out of the device for its own kind, another one (PCIe) for the rest; pairs are numbered after them.
            own_wire = alike and _PARTS[kinds[src]].wires == "pair"
            channel[src, dst] = 2 * count + src * count + dst if own_wire else 2 * src + (not alike)
    return Cluster(name, devices, links, dense_channels(channel))


def _between(src: str, dst: str) -> Link:
    """The slower slot of two unlike devices."""
    slots = [slot for slot in (_PARTS[src].host, _PARTS[dst].host) if slot is not None]
    return min(slots, key=lambda slot: slot.bytes_per_s or 0.0) if len(slots) == 2 else _BETWEEN


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
