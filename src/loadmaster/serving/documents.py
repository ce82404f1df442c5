"""Module plans as JSON, schema loadmaster.modules/1.

What `loadmaster export` reads: a row for each module, with its device and the home of its weights, and what the
placement is modelled to cost. Errors name the place in the file.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import InvalidPlan
from loadmaster.files.text import Field, Row, read_fields, read_json, up_to, write_json
from loadmaster.serving.exports import ModulePlan, ModuleRow
from loadmaster.serving.placing import Placement
from loadmaster.serving.services import Service, cache_bytes

MODULES_SCHEMA = "loadmaster.modules/1"
_DEVICE = {
    "name": Field(Row.text),
    "kind": Field(Row.text),
    "memory_bytes": Field(up_to(2**60)),
    "working_bytes": Field(up_to(2**60), 0),
}
_MODULE = {
    **dict.fromkeys(("module", "device", "home"), Field(Row.text)),
    **dict.fromkeys(("weight_bytes", "time_ns"), Field(up_to(2**60))),
    "cache_bytes": Field(up_to(2**60), 0),
    "tied": Field(Row.text, ""),
}


def module_plan(model: str, service: Service, placement: Placement) -> ModulePlan:
    """The placement in words."""
    names = service.cluster.device_names
    work = sum(
        phase.times * phase.unit_ns[np.arange(len(service.names)), placement.compute] for phase in service.phases
    )
    time_ns, cache = np.round(work).astype(np.int64), cache_bytes(service)
    rows = tuple(
        ModuleRow(
            module,
            names[placement.compute[u]],
            names[placement.home[u]],
            int(service.weight_bytes[u]),
            int(time_ns[u]),
            int(cache[u]),
            "" if service.together[u] == u else service.names[service.together[u]],
        )
        for u, module in enumerate(service.names)
    )
    cluster, memory = service.cluster, service.cluster.memory_bytes + service.reserve_bytes
    kept = np.bincount(placement.home, service.weight_bytes, len(names)) + np.bincount(
        placement.compute, cache, len(names)
    )
    working = np.maximum(placement.peak_bytes - kept, 0).astype(np.int64)
    kinds = tuple(device.kind for device in cluster.devices)
    return ModulePlan(model, names, kinds, tuple(memory.tolist()), rows, tuple(working.tolist()))


def save_modules(plan: ModulePlan, service: Service, placement: Placement, path: str | Path) -> None:
    """Writes the plan and what it is modelled to cost."""
    write_json({**to_json(plan), "serving": summary(service, placement)}, path)


def to_json(plan: ModulePlan) -> dict[str, Any]:
    """A plan of modules as plain data (schema loadmaster.modules/1)."""
    working = plan.working_bytes or (0,) * len(plan.devices)
    devices = zip(plan.devices, plan.kinds, plan.memory_bytes, working, strict=True)
    return {
        "schema": MODULES_SCHEMA,
        "model": plan.model,
        "devices": [dict(zip(_DEVICE, device, strict=True)) for device in devices],
        "modules": [asdict(row) for row in plan.rows],
    }


def summary(service: Service, placement: Placement) -> dict[str, Any]:
    """Times, sizes and the bound, as plain data."""
    requests, first, later = service.requests, placement.step_ns[0], placement.step_ns[1:]
    token = sum(later) / max(1, len(later))
    return {
        "requests": str(requests),
        "goal": service.goal,
        "cost_model": f"{service.cluster.basis} rates",
        "first_token_ns": first,
        "per_token_ns": round(token),
        "request_ns": round(first + requests.new * token),
        "tokens_per_s": round(tokens_per_s(service, placement), 3),
        "peak_bytes": dict(zip(service.cluster.device_names, placement.peak_bytes.tolist(), strict=True)),
        "reserve_bytes": dict(zip(service.cluster.device_names, service.reserve_bytes.tolist(), strict=True)),
        "fits": placement.fits,
        "value_ns": round(placement.value),
        "bound_ns": round(placement.bound),
    }


def tokens_per_s(service: Service, placement: Placement) -> float:
    """New tokens a second, of all sequences that are under way."""
    requests = service.requests
    times = [phase.times for phase in service.phases]
    latency = sum(t * step for t, step in zip(times, placement.step_ns, strict=True))
    each = placement.value if service.goal == "throughput" else latency
    return requests.batch * requests.new / (each / 1e9)


def load_modules(path: str | Path) -> ModulePlan:
    """Reads a module plan; errors say what is wrong where."""
    data = read_json(path)
    where = str(path)
    head = Row(data, where, InvalidPlan)
    if data.get("schema") != MODULES_SCHEMA:
        what = f"'{path}' is not a plan of modules (schema {data.get('schema')!r})"
        raise InvalidPlan(what, where, "give what 'loadmaster plan --serve … --save' or 'plan --granularity' wrote")
    devices = [read_fields(Row(row, f"{where}: devices", InvalidPlan), _DEVICE) for row in head.rows("devices")]
    names, kinds, memory, working = (tuple(device[key] for device in devices) for key in _DEVICE)
    rows = []
    for i, one in enumerate(head.rows("modules")):
        rows.append(ModuleRow(**read_fields(Row(one, f"{where}: modules[{i}]", InvalidPlan), _MODULE)))
        for device in (rows[-1].device, rows[-1].home):
            if device not in names:
                raise InvalidPlan(f"there is no device '{device}'", f"{where}: modules[{i}]", f"use {', '.join(names)}")
    return ModulePlan(head.text("model"), names, kinds, memory, tuple(rows), working)
