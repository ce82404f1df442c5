"""Growing: the same cluster with a host, or with more devices like its first, and how to ask for that.

For reports that say what would make a plan fit or a step shorter (`report.remedies`): each function returns the larger
cluster and what to type for it. A preset grows by its name, so that its links are those of real machines; of any other
cluster a device is joined by PCIe 4.0, with wires of its own.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from loadmaster.cluster.cluster import GIB, Cluster, Device, Link, dense_channels
from loadmaster.cluster.presets import SINGLE_PRESETS, THIS_MACHINE, preset
from loadmaster.errors import LoadmasterError
from loadmaster.graph.columns import ints

HOST = Device("cpu:0", "cpu", 256 * GIB, {"default": 1.1e12}, 120e9, 1_000)  # as the preset "cpu"
PCIE4 = Link(25e9, 10_000)  # x16, as copies from pinned memory reach it


def has_host(cluster: Cluster) -> bool:
    """Whether one of the devices is a CPU, on which tensors can wait."""
    return any(device.kind.startswith("cpu") for device in cluster.devices)


def with_host(cluster: Cluster) -> tuple[Cluster, str]:
    """(the cluster with a host, what to type for it)."""
    if _is_preset(cluster):
        name = f"{cluster.name}+cpu"
        return preset(name), f"--on {name}"
    return _joined(cluster, HOST), f"--on a cluster file like {cluster.name} with a host of 256 GiB"


def with_more(cluster: Cluster, count: int) -> tuple[Cluster, str]:
    """(the cluster with so many more devices like its first, what to type for it)."""
    if _is_preset(cluster) and "@" not in cluster.name:
        first = re.sub(r"^\d{1,3}x", "", cluster.name.split("+")[0])
        name = f"{cluster.name}+{count}x{first}"
        return preset(name), f"--on {name}"
    first_device = cluster.devices[0]
    for i in range(count):
        cluster = _joined(cluster, replace(first_device, name=f"{first_device.name}.more{i}"))
    return cluster, f"--on a cluster file like {cluster.name} with {count} more '{first_device.kind}'"


def _is_preset(cluster: Cluster) -> bool:
    """Whether its name alone gives it back, memory and all, and can be joined with others."""
    if cluster.name in (*SINGLE_PRESETS, THIS_MACHINE):
        return False
    try:
        named = preset(cluster.name)
    except LoadmasterError:
        return False
    return named.digest == cluster.digest and named.memory_bytes.tolist() == cluster.memory_bytes.tolist()


def _joined(cluster: Cluster, device: Device) -> Cluster:
    count = cluster.num_devices
    links = dict(cluster.links)
    channel = np.full((count + 1, count + 1), -1, np.int64)
    channel[:count, :count] = cluster.channel
    top = int(cluster.channel.max(initial=-1)) + 1
    for other in range(count):
        links[other, count] = links[count, other] = PCIE4
        channel[other, count], channel[count, other] = top + 2 * other, top + 2 * other + 1
    devices = (*cluster.devices, device)
    return replace(cluster, devices=devices, links=links, channel=dense_channels(ints(channel)))
