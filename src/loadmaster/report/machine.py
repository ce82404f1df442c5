"""Tables for what was measured: a machine, the ops of a model, and a race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loadmaster.report.terminal import filled_table
from loadmaster.report.units import count_text, size_text, time_text

if TYPE_CHECKING:
    from loadmaster.cluster import Cluster


def machine_tables(cluster: Cluster, ops: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Devices and links of a cluster; how many ops were timed."""
    tables = [_devices(cluster)]
    if cluster.links:
        tables.append(_links(cluster))
    if ops:
        tables.append(_ops(ops))
    return tables


def _devices(cluster: Cluster) -> Any:
    rows = []
    for device in cluster.devices:
        rates = device.flops_per_s if isinstance(device.flops_per_s, Mapping) else {"default": device.flops_per_s}
        shown = ", ".join(f"{_dtype(dtype)} {count_text(rate, 'FLOP/s')}" for dtype, rate in rates.items())
        traffic = count_text(device.bytes_per_s, "B/s")
        rows.append(
            [device.name, device.kind, size_text(device.memory_bytes), shown, traffic, time_text(device.launch_ns)]
        )
    dispatch = f", {time_text(cluster.host_ns)} of host time a kernel ({cluster.mode})" if cluster.host_ns else ""
    heads = ["device", "kind", "memory", "arithmetic", "traffic", "launch"]
    return filled_table(heads, rows, title=f"{cluster.name}: {cluster.basis}{dispatch}")


def _dtype(name: str) -> str:
    return "float32" if name == "default" else name


def _links(cluster: Cluster) -> Any:
    names, rows = cluster.device_names, []
    for (src, dst), link in sorted(cluster.links.items()):
        rate = "free" if link.bytes_per_s is None else count_text(link.bytes_per_s, "B/s")
        rows.append([names[src], names[dst], rate, time_text(link.latency_ns), str(cluster.channel[src, dst])])
    return filled_table(["from", "to", "bandwidth", "latency", "wire"], rows)


def _ops(ops: Sequence[Mapping[str, Any]]) -> Any:
    keys = ("kind", "distinct", "timed", "unstable", "busy", "learned")
    heads = [
        "device",
        "distinct ops",
        "timed alone",
        "of these unstable",
        "on a busy machine",
        "by the learned model",
    ]
    return filled_table(heads, [[str(row[key]) for key in keys] for row in ops])


def race_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Modelled and measured beside each other; empty where nothing was modelled or could be measured."""
    heads = ["", ">step modelled", "rests on", ">step measured", ">spread", ">peak modelled", ">peak measured"]
    cells = []
    for row in rows:
        spread = f"{time_text(row['low_ns'])} to {time_text(row['high_ns'])}"
        modelled = "" if row["modelled_ns"] is None else time_text(row["modelled_ns"])
        sizes = (row["modelled_bytes"], row["measured_bytes"])
        peaks = ["" if size is None else size_text(size) for size in sizes]
        cells.append([row["name"], modelled, row["basis"], time_text(row["measured_ns"]), spread, *peaks])
    return filled_table(heads, cells)
