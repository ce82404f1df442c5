"""The same problem on changed hardware: one more device, faster links, more memory. Op times stay as priced.

For what-if questions: columns of the Problem are changed, nothing is priced anew, so that differences are due to the
change alone.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from loadmaster.cluster import Cluster, Link, dense_channels
from loadmaster.cost import send_time_ns
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import Problem

FIRST_LINK = Link(10e9, 15_000)  # for the second device of a cluster: PCIe 3.0 x16


def with_links(problem: Problem, faster: float | None) -> Problem:
    """Every link `faster` times as fast; None: links that take no time."""
    links = {pair: _sped_up(link, faster) for pair, link in problem.cluster.links.items()}
    return _relinked(problem, replace(problem.cluster, links=links))


def _sped_up(link: Link, faster: float | None) -> Link:
    if faster is None:
        return Link(None, 0)
    return Link(None if link.bytes_per_s is None else link.bytes_per_s * faster, link.latency_ns)


def _relinked(problem: Problem, cluster: Cluster) -> Problem:
    kinds = sorted(set(cluster.links.values()), key=lambda link: (link.bytes_per_s or 0, link.latency_ns))
    send_class = np.zeros((cluster.num_devices, cluster.num_devices), np.int64)
    for pair, link in cluster.links.items():
        send_class[pair] = kinds.index(link)
    sizes, where = np.unique(problem.graph.nbytes, return_inverse=True)
    table = np.array([[send_time_ns(link, int(size)) for link in kinds] for size in sizes], np.int64)
    send_ns = ints(table.reshape(len(sizes), len(kinds))[where])
    return replace(problem, cluster=cluster, send_class=ints(send_class), send_ns=send_ns)


def with_memory(problem: Problem, times: float | None) -> Problem:
    """Every device with so many times its memory; None: without a limit."""
    sizes = [2**60 if times is None else int(size * times) for size in problem.memory_bytes]
    pairs = zip(problem.cluster.devices, sizes, strict=True)
    devices = tuple(replace(device, memory_bytes=size) for device, size in pairs)
    return replace(problem, cluster=replace(problem.cluster, devices=devices), memory_bytes=ints(sizes))


def with_twin(problem: Problem, device: int) -> Problem:
    """One device more, the twin of this one: it runs ops as fast and is linked alike."""
    count = problem.num_devices
    cluster = problem.cluster
    twin = replace(cluster.devices[device], name=_free_name(cluster, device))
    links = dict(cluster.links)
    others = [other for other in range(count) if other != device]
    for other in others:
        links[count, other], links[other, count] = cluster.links[device, other], cluster.links[other, device]
    same = [other for other in others if cluster.devices[other].kind == cluster.devices[device].kind]
    alike = next(iter([*same, *others]), None)
    between = FIRST_LINK if alike is None else cluster.links[device, alike]
    links[device, count] = links[count, device] = between
    wider = replace(
        problem,
        op_ns=_doubled(problem.op_ns, device),
        compute_ns=_doubled(problem.compute_ns, device),
        fixed_ns=_doubled(problem.fixed_ns, device),
        bytes_per_s=_doubled(problem.bytes_per_s, device),
        launch_ns=_doubled(problem.launch_ns, device),
        memory_bytes=_doubled(problem.memory_bytes, device),
    )
    channel = _channels(cluster, device, alike)
    return _relinked(wider, Cluster(cluster.name, (*cluster.devices, twin), links, channel, cluster.op_ns))


def _doubled(column: Ints, device: int) -> Ints:
    return ints(np.concatenate([column, column[..., device : device + 1]], axis=-1))


def _free_name(cluster: Cluster, device: int) -> str:
    stem = cluster.devices[device].name.rpartition(":")[0] or cluster.devices[device].name
    taken = set(cluster.device_names)
    return next(name for number in range(len(taken) + 1) if (name := f"{stem}:{number}") not in taken)


def _channels(cluster: Cluster, device: int, alike: int | None) -> Ints:
    """Wires of the twin: its own wherever the device has its own, the shared one wherever that is shared.

    With two devices nobody can tell a wire of a pair from a bus out of a device; it is taken to be a bus.
    """
    count, old = cluster.num_devices, cluster.channel
    channel = np.full((count + 1, count + 1), -1, np.int64)
    channel[:count, :count] = old
    fresh = itertools.count(int(old.max(initial=-1)) + 1)
    mine: dict[int, int] = {}

    def shared(src: int, wire: int) -> bool:
        return count == 2 or int((old[src] == wire).sum()) > 1

    def of_twin(wire: int) -> int:
        if (np.delete(old, device, axis=0) == wire).any():
            return wire
        return mine.setdefault(wire, next(fresh))

    for other in range(count):
        like = alike if other == device else device
        if like is None:
            channel[other, count], channel[count, other] = next(fresh), next(fresh)
            continue
        into, out = int(old[other, like]), int(old[device, like if other == device else other])
        channel[other, count] = into if shared(other, into) else next(fresh)
        channel[count, other] = of_twin(out) if other != device or shared(device, out) else next(fresh)
    return dense_channels(channel)
