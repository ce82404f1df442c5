"""Static addresses as JSON, schema loadmaster.addresses/1.

For other tools: loadmaster writes it (`--addresses`) and does not read it back. Offsets are bytes from the start of the
device's arena.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadmaster.plans import Plan
from loadmaster.problem import Problem

if TYPE_CHECKING:
    from loadmaster.simulator.arenas import Arenas

ADDRESSES_SCHEMA = "loadmaster.addresses/1"


def addresses_to_json(arenas: Arenas, plan: Plan, problem: Problem) -> dict[str, Any]:
    """One row per device, per tensor on a device, and per op that needs workspace; names are there to be read."""
    devices = problem.cluster.device_names
    sizes = zip(devices, arenas.size_bytes.tolist(), arenas.peak_bytes.tolist(), strict=True)
    return {
        "schema": ADDRESSES_SCHEMA,
        "graph": {"name": problem.source.name, "digest": plan.graph_digest},
        "cluster": {"name": problem.cluster.name, "digest": plan.cluster_digest, "devices": list(devices)},
        "arenas": [
            {"device": device, "on": name, "arena_bytes": size, "peak_bytes": peak}
            for device, (name, size, peak) in enumerate(sizes)
        ],
        "tensors": [*_own(arenas, problem), *_in_place(arenas, problem)],
        "workspaces": [
            {"op": op, "name": problem.graph.op_name[op], **_block(arenas, problem, block)}
            for block, op in enumerate(arenas.op.tolist())
            if op >= 0
        ],
    }


def _own(arenas: Arenas, problem: Problem) -> list[dict[str, Any]]:
    names = problem.graph.tensor_name
    return [
        {"tensor": tensor, "name": names[tensor], **_block(arenas, problem, block), "in_place_of": None}
        for block, tensor in enumerate(arenas.tensor.tolist())
        if tensor >= 0
    ]


def _in_place(arenas: Arenas, problem: Problem) -> list[dict[str, Any]]:
    """Tensors without a block of their own: they lie in that of the tensor they are written over."""
    names, base, home = problem.graph.tensor_name, arenas.base.tolist(), arenas.maker_device.tolist()
    places = zip(arenas.tensor.tolist(), arenas.device.tolist(), strict=True)
    block_of = {place: block for block, place in enumerate(places)}
    rows = []
    for tensor, device in enumerate(home):
        under = tensor
        while (under, device) not in block_of and base[under] >= 0 and home[under] == device:
            under = base[under]
        if under != tensor and (under, device) in block_of:
            place = _block(arenas, problem, block_of[under, device])
            rows.append({"tensor": tensor, "name": names[tensor], **place, "in_place_of": under})
    return rows


def _block(arenas: Arenas, problem: Problem, block: int) -> dict[str, Any]:
    device, end = int(arenas.device[block]), int(arenas.end[block])
    return {
        "on": problem.cluster.device_names[device],
        "device": device,
        "offset": int(arenas.offset[block]),
        "bytes": int(arenas.nbytes[block]),
        "from_ns": int(arenas.round_ns[arenas.begin[block]]),
        "to_ns": int(arenas.round_ns[end]) if end < len(arenas.round_ns) else None,
    }
