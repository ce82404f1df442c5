"""Writes afresh what methods and training do unasked: python -m tests.golden.settings

Of every setting that a user can give, its default. Published figures are of these; one that changes unawares makes them
wrong.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import MISSING, fields
from pathlib import Path

from loadmaster.catalog import OPTIMIZERS
from loadmaster.catalog.specs import make_optimizer, spec_of

FILE = Path(__file__).with_suffix(".json")
TRAINING = {
    "go": "go2020.settings:GoSettings",
    "placeto": "placeto2019.training:PlacetoSettings",
    "plans": "plans:PlanSettings",
    "recurrent": "recurrent.training:RecurrentSettings",
    "regal": "regal2020.settings:RegalSettings",
    "schedules": "scheduling.command:ScheduleSettings",
    "schedules, each step": "scheduling.training:Settings",
}


def defaults() -> dict[str, dict[str, str]]:
    found = {}
    for name in OPTIMIZERS:
        method = make_optimizer(name)
        values = {field.name: getattr(method, field.name) for field in fields(method)}
        found[name] = {
            key: spec_of(value) if hasattr(value, "optimize") else repr(value) for key, value in values.items()
        }
    for name, place in TRAINING.items():
        module, _, kind = place.partition(":")
        known = fields(getattr(importlib.import_module(f"loadmaster.learn.{module}"), kind))
        found[f"train {name}"] = {field.name: repr(field.default) for field in known if field.default is not MISSING}
    return found


def _text(value: object) -> str:
    return spec_of(value) if hasattr(value, "optimize") else repr(value)


def main() -> None:
    rows = [f"{json.dumps(name)}: {json.dumps(told)}" for name, told in defaults().items()]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
