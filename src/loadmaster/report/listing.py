"""The names there are, as rows: for `loadmaster tools list` and its JSON.

What a method is for is the first paragraph of its class's docstring, its settings are its fields.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from loadmaster import catalog
from loadmaster.catalog.specs import make_method, spec_of
from loadmaster.cluster import Cluster, preset_names
from loadmaster.errors import MissingExtra


def method_rows() -> list[dict[str, Any]]:
    """Name, settings with their defaults, and the first sentence of what it is."""
    return [_method_row(name) for name in catalog.methods()]


def _method_row(name: str) -> dict[str, Any]:
    try:
        made = make_method(name)
    except (ImportError, MissingExtra) as error:
        return {"name": name, "settings": {}, "summary": f"cannot be used here: {error}"}
    settings = {field.name: _shown(getattr(made, field.name)) for field in dataclasses.fields(made)}
    about = inspect.cleandoc(type(made).__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    return {"name": name, "settings": settings, "summary": about}


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(_shown, value))}]"
    if dataclasses.is_dataclass(value):
        return spec_of(value)
    return "none" if value is None else str(value)


def cluster_rows() -> list[dict[str, Any]]:
    """The presets, with one device of each and the link between two; None where it can be any number, or free."""
    return [_cluster_row(name) for name in preset_names()]


def _cluster_row(name: str) -> dict[str, Any]:
    cluster = Cluster.preset(name.replace("Nx", "2x"))
    device, link = cluster.devices[0], cluster.links[0, 1]
    rates = device.flops_per_s
    return {
        "name": name,
        "devices": None if name.startswith("Nx") else cluster.num_devices,
        "memory_bytes": device.memory_bytes,
        "flops_per_s": rates["default"] if isinstance(rates, Mapping) else rates,
        "bytes_per_s": device.bytes_per_s,
        "launch_ns": device.launch_ns,
        "link_bytes_per_s": link.bytes_per_s,
        "link_latency_ns": link.latency_ns,
        "op_ns": cluster.op_ns,
    }
