"""Overheads: what a runtime adds to the rates of devices and links, so that a plan for it is priced as it will run.

Measured of each runtime and kept with its target (`exports`): how long it takes to ask for an op, how fast it copies
from the host, what of the host's bandwidth its products reach.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadmaster.cluster import Cluster, Device, Link


@dataclass(frozen=True)
class Overheads:
    """Of one runtime, beside what the hardware needs.

    Attributes:
        op_ns: an op takes at least this long: the host asks for it one op at a time.
        host_op_ns: on the host itself.
        copy_bytes_per_s: between host memory and a GPU, at most.
        host_share: of the host's memory bandwidth that its products reach.
    """

    op_ns: int
    host_op_ns: int
    copy_bytes_per_s: float
    host_share: float


# transformers under accelerate's hooks, eager, measured beside an H200 with 16 cores (benchmarks/serving_gpu.py): large
# weights are copied from pageable memory at 7.3 GB/s, where the slot carries 54 from pinned memory. A decoder layer is
# about 40 ops: on the GPU it takes 1.03 ms however little it computes; on the host 5.0 ms with 201 MB of weights, 8.5
# with 436, which is 2.1 ms and 68 GB/s of the 168 that a copy reaches. Hooks on every module add some 1.9 ms a layer:
# passes of two models that streamed 4.2 and 7.2 GB took 0.67 and 1.06 s, one with 8 layers on the host 0.12 to 0.14.
ACCELERATE = Overheads(op_ns=75_000, host_op_ns=100_000, copy_bytes_per_s=7.4e9, host_share=0.4)


def as_run(cluster: Cluster, overheads: Overheads | None) -> Cluster:
    """The cluster as the runtime has it; the same one where nothing is known."""
    if overheads is None:
        return cluster
    devices = tuple(_device(device, overheads) for device in cluster.devices)
    hosts = {i for i, device in enumerate(cluster.devices) if is_host(device)}
    links = {
        pair: replace(link, bytes_per_s=_at_most(link, overheads.copy_bytes_per_s)) if hosts & set(pair) else link
        for pair, link in cluster.links.items()
    }
    return replace(cluster, devices=devices, links=links)


def is_host(device: Device) -> bool:
    """Whether it is a CPU, which keeps what does not fit elsewhere."""
    return device.kind.startswith("cpu")


def _device(device: Device, overheads: Overheads) -> Device:
    if not is_host(device):
        return replace(device, launch_ns=max(device.launch_ns, overheads.op_ns))
    bandwidth = device.bytes_per_s * overheads.host_share
    return replace(device, launch_ns=max(device.launch_ns, overheads.host_op_ns), bytes_per_s=bandwidth)


def _at_most(link: Link, bytes_per_s: float) -> float:
    return bytes_per_s if link.bytes_per_s is None else min(link.bytes_per_s, bytes_per_s)
