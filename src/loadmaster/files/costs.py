"""Measured costs as JSON, schema loadmaster.costs/1: what ops took alone, by kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.cost import Calibrated, Measured, OpTime
from loadmaster.errors import InvalidSetting
from loadmaster.files.text import Row, read_json, write_json

COSTS_SCHEMA = "loadmaster.costs/1"


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
        calibrated = costs.fallback.get(kind)
        devices[kind] = {"calibrated": None if calibrated is None else calibrated.as_json(), "ops": rows}
    return {"schema": COSTS_SCHEMA, "columns": ["signature", *OpTime._fields], "devices": devices}


def costs_from_json(data: Any, where: str) -> Measured:
    """Measured times from plain data; what is not of the format is refused with its place."""
    head = Row(data, where, InvalidSetting, frozenset(("schema", "columns", "devices")))
    if data.get("schema") != COSTS_SCHEMA:
        raise InvalidSetting("it is no file of measured costs", where, "write one with 'loadmaster measure MODEL'")
    times: dict[str, Mapping[str, OpTime]] = {}
    fallback: dict[str, Calibrated] = {}
    for kind, entry in head.any("devices").items():
        try:
            times[kind] = {row[0]: OpTime(*row[1:]) for row in entry["ops"]}
            if entry["calibrated"] is not None:
                fallback[kind] = Calibrated.of_json(entry["calibrated"])
        except (KeyError, TypeError, IndexError, AssertionError):
            fix = f"an op is a list of {len(OpTime._fields) + 1} entries; write the file afresh"
            raise InvalidSetting(f"the costs of '{kind}' cannot be read", where, fix) from None
    return Measured(times, fallback)
