"""Clusters as JSON, schema loadmaster.cluster/1.

A file may say little: a `default_link` stands for every pair that is not listed, with a wire for each pair, one out of
each device, or one for all. What is written says every link, and reads back to a cluster of the same digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.cluster import MODES, Cluster, Device, Link, dense_channels
from loadmaster.cluster.cluster import MOST_MEMORY_BYTES
from loadmaster.errors import InvalidCluster
from loadmaster.files.text import Row
from loadmaster.graph import MOST_NS
from loadmaster.graph.columns import Ints
from loadmaster.graph.graph import MOST_DEVICES

CLUSTER_SCHEMA = "loadmaster.cluster/1"
MOST_CHANNEL = 2**31 - 1  # channels are counted in 32 bits in the compiled loops

_KEYS = frozenset(
    [
        "schema",
        "name",
        "devices",
        "links",
        "default_link",
        "op_ns",
        "overlap",
        "mode",
        "dispatch_ns",
        "basis",
        "contention",
    ]
)
_EXPENSE_KEYS = ("price_per_hour", "watts", "idle_watts")
_DEVICE_KEYS = frozenset(
    ("name", "kind", "memory_bytes", "flops_per_s", "bytes_per_s", "launch_ns", "overlap", *_EXPENSE_KEYS)
)


def cluster_from_json(data: Any, where: str = "cluster") -> Cluster:
    """The cluster of parsed JSON; `where` says in errors what was read."""
    head = Row(data, where, InvalidCluster, _KEYS)
    overlap = head.flag("overlap") if head.has("overlap") else True
    devices = tuple(_device(row, f"{where}: devices[{i}]", overlap) for i, row in enumerate(head.rows("devices")))
    if len(devices) > MOST_DEVICES:  # before a link is made for every pair
        raise InvalidCluster(f"the cluster has {len(devices):,} devices", where, f"give {MOST_DEVICES:,} at most")
    if not devices:
        raise InvalidCluster("the cluster has no devices", where, "give at least one device")
    names = [device.name for device in devices]
    number = {name: i for i, name in enumerate(names)}
    if len(number) < len(names):
        twin = next(name for i, name in enumerate(names) if number[name] != i)
        raise InvalidCluster(f"two devices are called '{twin}'", where, "give every device its own name")
    links, wires = _links(head, number, where)
    _fill_default(head, links, wires, len(devices), where)
    op_ns = head.whole("op_ns", MOST_NS) if head.has("op_ns") else None
    name = head.text("name", Path(where).name.partition(".")[0])
    mode = head.text("mode") if head.has("mode") else ""
    basis = head.text("basis") if head.has("basis") else "data sheet"
    contention = head.flag("contention") if head.has("contention") else True
    hosts = (mode, _dispatch(head, where), basis)
    return Cluster(name, devices, links, _channels(wires, len(devices)), op_ns, *hosts, contention)


def _dispatch(head: Row, where: str) -> dict[str, int]:
    """By mode of execution, what the host needs to ask for one kernel."""
    if not head.has("dispatch_ns"):
        return {}
    row = Row(head.data["dispatch_ns"], f"{where}: dispatch_ns", InvalidCluster, frozenset(MODES))
    return {mode: row.whole(mode, MOST_NS) for mode in MODES if row.has(mode)}


def _device(data: Any, where: str, overlap: bool) -> Device:
    row = Row(data, where, InvalidCluster, _DEVICE_KEYS)
    name = row.text("name")
    row.where = f"{where} '{name}'"
    memory = row.whole("memory_bytes", MOST_MEMORY_BYTES)
    rates = row.any("flops_per_s")
    speed: float | dict[str, float] = (
        row.rate("flops_per_s") if not isinstance(rates, dict) else _rates(rates, row.where)
    )
    launch = row.whole("launch_ns", MOST_NS) if row.has("launch_ns") else 0
    overlap = row.flag("overlap") if row.has("overlap") else overlap
    price, watts, idle = (row.amount(key) if row.has(key) else None for key in _EXPENSE_KEYS)
    return Device(name, row.text("kind"), memory, speed, row.rate("bytes_per_s"), launch, price, watts, idle, overlap)


def _rates(data: dict[str, Any], where: str) -> dict[str, float]:
    row = Row(data, f"{where}: flops_per_s", InvalidCluster)
    if "default" not in data:
        raise InvalidCluster(
            "'default' is missing", row.where, 'add "default", the rate for dtypes that are not listed'
        )
    return {dtype: row.rate(dtype) for dtype in data}


Wire = tuple[int, int | str]  # what kind of label, and the label


def _links(
    head: Row, number: Mapping[str, int], where: str
) -> tuple[dict[tuple[int, int], Link], dict[tuple[int, int], Wire]]:
    links: dict[tuple[int, int], Link] = {}
    wires: dict[tuple[int, int], Wire] = {}
    for i, data in enumerate(head.rows("links") if head.has("links") else []):
        row = Row(
            data,
            f"{where}: links[{i}]",
            InvalidCluster,
            frozenset(["from", "to", "bytes_per_s", "latency_ns", "channel"]),
        )
        ends = row.text("from"), row.text("to")
        for key, name in zip(("from", "to"), ends, strict=True):
            if name not in number:
                raise InvalidCluster(
                    f"'{key}' names '{name}', which is no device", row.where, f"use {', '.join(number)}"
                )
        pair = number[ends[0]], number[ends[1]]
        if pair[0] == pair[1]:
            raise row.wrong("to", "another device than 'from'")
        if pair in links:
            raise InvalidCluster(f"there are two links from '{ends[0]}' to '{ends[1]}'", row.where, "keep one")
        links[pair] = _link(row)
        wires[pair] = _wire(row, pair)
    return links, wires


def _link(row: Row) -> Link:
    free = row.any("bytes_per_s") is None
    return Link(None if free else row.rate("bytes_per_s"), row.whole("latency_ns", MOST_NS))


def _wire(row: Row, pair: tuple[int, int]) -> Wire:
    if not row.has("channel"):
        return 2, f"{pair[0]}>{pair[1]}"
    if isinstance(row.data["channel"], str):
        return 1, row.text("channel")
    if type(row.data["channel"]) is not int:
        raise row.wrong("channel", "a whole number or a name; links with the same one share a wire")
    return 0, row.whole("channel", MOST_CHANNEL)


def _fill_default(
    head: Row, links: dict[tuple[int, int], Link], wires: dict[tuple[int, int], Wire], count: int, where: str
) -> None:
    if not head.has("default_link"):
        return
    row = Row(
        head.data["default_link"], f"{where}: default_link", InvalidCluster, {"bytes_per_s", "latency_ns", "channel"}
    )
    link, channel = _link(row), row.data["channel"] if row.has("channel") else "pair"
    if channel not in ("pair", "out", "bus"):
        raise row.wrong("channel", '"pair" (a wire per pair), "out" (one out of each device) or "bus" (one for all)')
    for pair in np.ndindex(count, count):
        if pair[0] != pair[1] and pair not in links:
            links[pair] = link
            label = {"pair": f"{pair[0]}>{pair[1]}", "out": f"{pair[0]}>", "bus": ">"}[channel]
            wires[pair] = 2, label


def _channels(wires: Mapping[tuple[int, int], Wire], count: int) -> Ints:
    """[devices, devices] numbers keep their order; names and wires without either follow, as they first come."""
    numbers = sorted({wire for wire in wires.values() if wire[0] == 0})
    labels = dict.fromkeys(wire for _, wire in sorted(wires.items(), key=lambda item: item[0]) if wire[0])
    number = {wire: i for i, wire in enumerate([*numbers, *labels])}
    channel = np.full((count, count), -1, np.int64)
    for pair, wire in wires.items():
        channel[pair] = number[wire]
    return dense_channels(channel)


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
    """What cluster_from_json reads back to a cluster of the same digest; every link is written out."""
    names = cluster.device_names
    data: dict[str, Any] = {"schema": CLUSTER_SCHEMA, "name": cluster.name}
    if cluster.op_ns is not None:
        data["op_ns"] = cluster.op_ns
    if cluster.basis != "data sheet":
        data["basis"] = cluster.basis
    if cluster.mode:
        data["mode"] = cluster.mode
    if cluster.dispatch_ns:
        data["dispatch_ns"] = dict(cluster.dispatch_ns)
    if not cluster.contention:
        data["contention"] = False
    data["devices"] = [
        {
            "name": device.name,
            "kind": device.kind,
            "memory_bytes": device.memory_bytes,
            "flops_per_s": dict(device.flops_per_s) if isinstance(device.flops_per_s, Mapping) else device.flops_per_s,
            "bytes_per_s": device.bytes_per_s,
            "launch_ns": device.launch_ns,
            **{key: value for key in _EXPENSE_KEYS if (value := getattr(device, key)) is not None},
            **({} if device.overlap else {"overlap": False}),
        }
        for device in cluster.devices
    ]
    data["links"] = [
        {
            "from": names[src],
            "to": names[dst],
            "bytes_per_s": link.bytes_per_s,
            "latency_ns": link.latency_ns,
            "channel": int(cluster.channel[src, dst]),
        }
        for (src, dst), link in sorted(cluster.links.items())
    ]
    return data
