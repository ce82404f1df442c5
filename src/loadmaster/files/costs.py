"""Measured costs as JSON, schema loadmaster.costs/1: what ops took alone, by kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.cost import Learned, Measured, OpTime
from loadmaster.cost.features import GROUPS
from loadmaster.errors import InvalidSetting
from loadmaster.files.text import Row, read_json, shown, write_json
from loadmaster.graph.graph import MOST_BYTES, MOST_FLOPS, MOST_NS

COSTS_SCHEMA = "loadmaster.costs/1"
MOST_SCALE = 1e6  # times what the network says


def load_costs(path: str | Path) -> Measured:
    """Reads what `save_costs` wrote."""
    return costs_from_json(read_json(path), str(path))


def save_costs(costs: Measured, path: str | Path) -> None:
    """Writes measured times to a JSON file (schema loadmaster.costs/1), which `--costs` reads."""
    write_json(costs_to_json(costs), path)


def costs_to_json(costs: Measured) -> dict[str, Any]:
    """Measured times as plain data, by kind of device and signature."""
    devices: dict[str, Any] = {}
    for kind in sorted({*costs.times, *costs.fallback}):
        rows = [[signature, *time] for signature, time in sorted(costs.times.get(kind, {}).items())]
        learned = costs.fallback.get(kind)
        devices[kind] = {"scale": None if learned is None else dict(learned.scale), "ops": rows}
    return {"schema": COSTS_SCHEMA, "columns": ["signature", *OpTime._fields], "devices": devices}


def costs_from_json(data: Any, where: str) -> Measured:
    """Measured times from plain data; what is not of the format is refused with its place."""
    head = Row(data, where, InvalidSetting, frozenset(("schema", "columns", "devices")))
    if data.get("schema") != COSTS_SCHEMA:
        raise InvalidSetting("it is no file of measured costs", where, "write one with 'loadmaster measure MODEL'")
    times: dict[str, Mapping[str, OpTime]] = {}
    fallback: dict[str, Learned] = {}
    if not isinstance(head.any("devices"), dict):
        raise head.wrong("devices", "an object, by kind of device")
    for kind, entry in head.any("devices").items():
        row = Row(entry, f"{where}: devices: {shown(kind)}", InvalidSetting, frozenset(("scale", "calibrated", "ops")))
        times[kind] = dict(_op_time(op, f"{row.where}: ops[{i}]") for i, op in enumerate(row.rows("ops")))
        if row.has("scale"):  # older files have efficiencies, which nothing reads
            fallback[kind] = _scaled(row.any("scale"), f"{row.where}: scale")
    return Measured(times, fallback)


_MOST = {"flops": MOST_FLOPS, "bytes_moved": MOST_BYTES, "workspace_bytes": MOST_BYTES}  # all others are ns
_WORDS, _FLAGS, _OLDER = ("signature", "kind", "dtype"), ("stable",), 1  # older files have no reference


def _op_time(data: Any, where: str) -> tuple[str, OpTime]:
    columns = ("signature", *OpTime._fields)
    if not isinstance(data, list) or not len(columns) - _OLDER <= len(data) <= len(columns):
        raise InvalidSetting("this is no row of an op", where, f"give a list of {len(columns)}: {', '.join(columns)}")
    row = Row(dict(zip(columns, data, strict=False)), where, InvalidSetting)
    for name in row.data:
        if name in _WORDS:
            row.text(name)
        elif name in _FLAGS:
            row.flag(name)
        else:
            row.data[name] = row.whole(name, _MOST.get(name, MOST_NS))
    signature, *fields = row.data.values()
    return signature, OpTime(*fields)


def _scaled(data: Any, where: str) -> Learned:
    row = Row(data, where, InvalidSetting, frozenset(GROUPS))
    for group in row.data:
        if not 1 / MOST_SCALE <= row.rate(group) <= MOST_SCALE:
            raise row.wrong(group, f"a factor from {1 / MOST_SCALE} to {MOST_SCALE:.0f}")
    return Learned(dict(row.data))
