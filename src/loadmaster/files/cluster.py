"""Clusters as JSON, schema loadmaster.cluster/1.

A file may say little: a `default_link` stands for every pair that is not listed, with a wire for each pair, one out of
each device, or one for all. What is written says every link, and reads back to a cluster of the same digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.cluster import MODES, Cluster, Device, Link, dense_channels
from loadmaster.cluster.cluster import MOST_MEMORY_BYTES
from loadmaster.errors import InvalidCluster
from loadmaster.files.text import CLUSTER_SCHEMA, Field, Row, read_fields, up_to, without_defaults
from loadmaster.graph import MOST_NS
from loadmaster.graph.columns import Ints
from loadmaster.graph.graph import MOST_DEVICES

MOST_CHANNEL = 2**31 - 1  # channels are counted in 32 bits in the compiled loops


def _mode_times(row: Row, key: str) -> dict[str, int]:
    """By mode of execution, what the host needs to ask for one kernel."""
    inner = Row(row.any(key), f"{row.where}: {key}", InvalidCluster, frozenset(MODES))
    return {mode: inner.whole(mode, MOST_NS) for mode in MODES if inner.has(mode)}


def _speed(row: Row, key: str) -> float | dict[str, float]:
    """One rate, or one for each dtype with a default."""
    data = row.any(key)
    if not isinstance(data, dict):
        return row.rate(key)
    inner = Row(data, f"{row.where}: {key}", InvalidCluster)
    if "default" not in data:
        fix = 'add "default", the rate for dtypes that are not listed'
        raise InvalidCluster("'default' is missing", inner.where, fix)
    return {dtype: inner.rate(dtype) for dtype in data}


def _bandwidth(row: Row, key: str) -> float | None:
    return None if row.any(key) is None else row.rate(key)


_SETTINGS = {
    "op_ns": Field(up_to(MOST_NS), None),
    "basis": Field(Row.text, "data sheet"),
    "mode": Field(Row.text, ""),
    "dispatch_ns": Field(_mode_times, {}),
    "contention": Field(Row.flag, True),
}
_DEVICE = {
    "name": Field(Row.text),
    "kind": Field(Row.text),
    "memory_bytes": Field(up_to(MOST_MEMORY_BYTES)),
    "flops_per_s": Field(_speed),
    "bytes_per_s": Field(Row.rate),
    "launch_ns": Field(up_to(MOST_NS), 0),
    "price_per_hour": Field(Row.amount, None),
    "watts": Field(Row.amount, None),
    "idle_watts": Field(Row.amount, None),
    "overlap": Field(Row.flag, True),
}
_LINK = {"bytes_per_s": Field(_bandwidth), "latency_ns": Field(up_to(MOST_NS))}
_HEAD_KEYS = frozenset((*_SETTINGS, "schema", "name", "devices", "links", "default_link", "overlap"))
_ENDS = ("from", "to")


def cluster_from_json(data: Any, where: str = "cluster") -> Cluster:
    """The cluster of parsed JSON; `where` says in errors what was read."""
    head = Row(data, where, InvalidCluster, _HEAD_KEYS)
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
    name = head.text("name", Path(where).name.partition(".")[0])
    return Cluster(name, devices, links, _channels(wires, len(devices)), **read_fields(head, _SETTINGS))


def _device(data: Any, where: str, overlap: bool) -> Device:
    row = Row(data, where, InvalidCluster, _DEVICE.keys())
    row.where = f"{where} '{row.text('name')}'"
    return Device(**read_fields(row, {**_DEVICE, "overlap": Field(Row.flag, overlap)}))


Wire = tuple[int, int | str]  # what kind of label, and the label


def _links(
    head: Row, number: Mapping[str, int], where: str
) -> tuple[dict[tuple[int, int], Link], dict[tuple[int, int], Wire]]:
    links: dict[tuple[int, int], Link] = {}
    wires: dict[tuple[int, int], Wire] = {}
    for i, data in enumerate(head.rows("links") if head.has("links") else []):
        row = Row(data, f"{where}: links[{i}]", InvalidCluster, {*_ENDS, *_LINK, "channel"})
        ends = row.text("from"), row.text("to")
        for key, name in zip(_ENDS, ends, strict=True):
            if name not in number:
                raise InvalidCluster(
                    f"'{key}' names '{name}', which is no device", row.where, f"use {', '.join(number)}"
                )
        pair = number[ends[0]], number[ends[1]]
        if pair[0] == pair[1]:
            raise row.wrong("to", "another device than 'from'")
        if pair in links:
            raise InvalidCluster(f"there are two links from '{ends[0]}' to '{ends[1]}'", row.where, "keep one")
        links[pair] = Link(**read_fields(row, _LINK))
        wires[pair] = _wire(row, pair)
    return links, wires


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
    row = Row(head.data["default_link"], f"{where}: default_link", InvalidCluster, {*_LINK, "channel"})
    link, channel = Link(**read_fields(row, _LINK)), row.data["channel"] if row.has("channel") else "pair"
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
    devices = ({**without_defaults(device, _DEVICE), "launch_ns": device.launch_ns} for device in cluster.devices)
    links = (
        {"from": names[src], "to": names[dst], **asdict(link), "channel": int(cluster.channel[src, dst])}
        for (src, dst), link in sorted(cluster.links.items())
    )
    head = {"schema": CLUSTER_SCHEMA, "name": cluster.name, **without_defaults(cluster, _SETTINGS)}
    return {**head, "devices": list(devices), "links": list(links)}
