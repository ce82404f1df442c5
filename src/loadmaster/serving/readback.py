"""Reading back: an export as its runtime will take it, held against the plan and against memory.

In: a plan of modules and a target. `exported` writes the target's words, parses them again into the placement that
runtime makes of them (the table of words with the first stage or on llama.cpp's host, the head with the last, tied
weights on both), and refuses what is not the plan or does not fit, with the nearest that can be said.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from loadmaster.errors import DoesNotFit, InvalidPlan
from loadmaster.serving.exports import ExportTarget, ModulePlan, ModuleRow, main_device
from loadmaster.serving.llama_options import Options, cut
from loadmaster.serving.reserve import reserve_of

SMALL = 0.002  # of all weights: norms and position tables, which go where the runtime has them
MOST_MOVED = 12  # layers that a border is moved for the nearest cut


@dataclass(frozen=True)
class Exported:
    """Words of a runtime, and what it will make of them.

    Attributes:
        text: to be typed or pasted.
        plan: as the runtime will have it.
        peak_bytes: by device: weights, cache, what a step works in, and the reserve.
        reserve_bytes: by device: of that the reserve.
        notes: what has to be said beside the text.
    """

    text: str
    plan: ModulePlan
    peak_bytes: dict[str, int]
    reserve_bytes: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def over_bytes(self) -> int:
        """Beyond the memory of the devices."""
        limits = zip(self.plan.devices, self.plan.memory_bytes, strict=True)
        return sum(max(0, self.peak_bytes[name] - limit) for name, limit in limits)


def exported(plan: ModulePlan, target: ExportTarget) -> Exported:
    """The target's words for the plan; InvalidPlan or DoesNotFit where these would not be the plan, or not fit."""
    found = as_taken(plan, target)
    different = differences(plan, found.plan)
    if not different and not found.over_bytes:
        return found
    near = _nearest(plan, target)
    fix = f"the nearest that can be said and fits: {near.text}" if near else f"plan again with --for {target.name}"
    if found.over_bytes:
        name = max(found.peak_bytes, key=lambda one: found.peak_bytes[one] - _limit(plan, one))
        sizes = f"{found.peak_bytes[name] / 2**30:.2f} of {_limit(plan, name) / 2**30:.2f} GiB on {name}"
        why = f"; {different[0]}" if different else ""
        raise DoesNotFit(f"{target.name} would take {sizes}{why}", plan.model, fix)
    more = f" and {len(different) - 1} more" if len(different) > 1 else ""
    raise InvalidPlan(f"{target.name} would not keep to the plan: {different[0]}{more}", plan.model, fix)


def as_taken(plan: ModulePlan, target: ExportTarget) -> Exported:
    """The words, and the placement that the runtime makes of them; whatever it is."""
    text = target.write(plan)
    rows, notes = _READERS[target.name](text, plan)
    taken = replace(plan, rows=tuple(rows))
    reserve = {name: _reserve(plan, name, target) for name in plan.devices}
    working = max(plan.working_bytes, default=0)
    peaks = {}
    for name in plan.devices:
        held = _held(taken, name)
        peaks[name] = held + (reserve[name] + working if held else 0)
    return Exported(text, taken, peaks, reserve, tuple(notes))


def differences(plan: ModulePlan, taken: ModulePlan) -> list[str]:
    """Where modules of any size go elsewhere than planned, in words."""
    least = SMALL * sum(row.weight_bytes for row in plan.rows)
    found = []
    for row, other in zip(plan.rows, taken.rows, strict=True):
        large = max(row.weight_bytes, other.weight_bytes, row.cache_bytes) > least
        if large and (row.device, row.home) != (other.device, other.home):
            found.append(f"'{row.module}' goes to {other.home}, not to {row.home}")
    return found


def _limit(plan: ModulePlan, name: str) -> int:
    return plan.memory_bytes[plan.devices.index(name)]


def _reserve(plan: ModulePlan, name: str, target: ExportTarget) -> int:
    return 0 if plan.on_host(name) else reserve_of(target.name).of(_limit(plan, name))


def _held(plan: ModulePlan, name: str) -> int:
    """Weights and cache; of weights that are streamed to it, the largest two of one step."""
    kept = sum(row.weight_bytes for row in plan.rows if row.home == name)
    kept += sum(row.cache_bytes for row in plan.rows if row.device == name)
    sent = sorted(row.weight_bytes for row in plan.rows if row.device == name != row.home)
    return kept + sum(sent[-2:])


def _placed(row: ModuleRow, device: str) -> ModuleRow:
    return replace(row, device=device, home=device)


def _staged(plan: ModulePlan, devices: Sequence[str], first: str | None = None) -> Iterator[ModuleRow]:
    """Rows with the layers on `devices`; what comes before the first layer with it or on `first`, what comes after the
    last with that. A head that shares the weights of a module elsewhere has a copy."""
    layers = {row.module: device for row, device in zip(plan.layers, devices, strict=True)}
    sizes, homes = {row.module: row.weight_bytes for row in plan.rows}, dict[str, str]()
    at = first or devices[0]
    for row in plan.rows:
        inside = next((layer for layer in layers if row.module.startswith(f"{layer}.")), row.module)
        if inside in layers:
            homes[row.module] = layers[inside]
            at = devices[-1]
        else:
            homes[row.module] = at
        copied = row.tied and homes.get(row.tied) != homes[row.module]
        yield _placed(replace(row, weight_bytes=sizes[row.tied]) if copied else row, homes[row.module])


def _counted(counts: Sequence[int], devices: Sequence[str]) -> list[str]:
    return [device for device, count in zip(devices, counts, strict=True) for _ in range(count)]


def _of_vllm(text: str, plan: ModulePlan) -> tuple[Iterator[ModuleRow], list[str]]:
    order = [plan.gpus[int(one)] for one in _setting("CUDA_VISIBLE_DEVICES", text).split(",")]
    counts = [int(one) for one in _setting("VLLM_PP_LAYER_PARTITION", text).split(",")]
    return _staged(plan, _counted(counts, order)), []


def _setting(name: str, text: str) -> str:
    found = re.search(rf"{name}=(\S+)", text)
    assert found, text
    return found[1]


def _of_megatron(text: str, plan: ModulePlan) -> tuple[Iterator[ModuleRow], list[str]]:
    order = [plan.gpus[int(one)] for one in _setting("CUDA_VISIBLE_DEVICES", text).split(",")]
    layout = text.rpartition("-layout ")[2].strip('"')
    counts = [sum(int(n or 1) for n in re.findall(r"t(?:\*(\d+))?", stage)) for stage in layout.split("|")]
    return _staged(plan, _counted(counts, order)), []


def _of_pipelining(text: str, plan: ModulePlan) -> tuple[Iterator[ModuleRow], list[str]]:
    order = re.findall(r"[^,\s]+", text.partition("runs on: ")[2].splitlines()[0])
    names = [row.module for row in plan.layers]
    if found := re.search(r"^starts = \((.*)\)$", text, re.M):
        starts = [int(one) for one in found[1].split(",")]
        return _staged(plan, _counted([end - start for start, end in pairwise(starts)], order)), []
    ends = [names.index(name) for name in re.findall(r'"([^"]+)": SplitPoint', text)] + [len(names)]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return _staged(plan, _counted(counts, order)), []


def _of_llama_cpp(text: str, plan: ModulePlan) -> tuple[Iterator[ModuleRow], list[str]]:
    words = shlex.split(text)
    given = dict(zip(words[1::2], words[2::2], strict=True))
    host = next((name for name in plan.devices if plan.on_host(name)), "host")
    count = len(plan.layers)
    split = tuple(int(one) for one in given.get("-ts", "1").split(","))
    where = [host if d < 0 else plan.gpus[d] for d in cut(count, Options(int(given["-ngl"]), split), len(plan.gpus))]
    rules = [rule.rpartition("=")[0] for rule in given.get("-ot", "").split(",") if rule]
    notes = [] if host in plan.devices else ["llama.cpp keeps the table of words in host memory"]

    def rows() -> Iterator[ModuleRow]:
        layers = {row.module: i for i, row in enumerate(plan.layers)}
        before = plan.layers[0].module
        first = next(i for i, row in enumerate(plan.rows) if row.module == before)
        for at, row in enumerate(_staged(plan, where[:-1], host)):
            inside = next((layer for layer in layers if row.module.startswith(f"{layer}.")), row.module)
            if at < first:
                yield row if host in plan.devices else plan.rows[at]
            elif inside not in layers:
                yield _placed(row, where[-1])
            else:
                experts = inside != row.module
                names = [f"blk.{layers[inside]}.ffn_up_exps.weight"]
                names += [] if experts else [f"blk.{layers[inside]}.attn_q.weight"]
                away = any(re.search(rule, names[-1]) for rule in rules)
                yield _placed(row, host) if away else row

    return rows(), notes


def _of_device_map(text: str, plan: ModulePlan) -> tuple[Iterator[ModuleRow], list[str]]:
    found, main = json.loads(text), main_device(plan)
    host = next((name for name in plan.devices if plan.on_host(name)), plan.devices[0])
    notes = []
    if main == "cpu" and plan.gpus:
        notes.append('give dispatch_model(model, device_map, main_device="cpu"), else host modules are streamed')

    def row_of(row: ModuleRow) -> ModuleRow:
        place = next(found[p] for p in _paths(row.module) if p in found)
        home = host if place == "cpu" else plan.gpus[place]
        streamed = place == "cpu" and main != "cpu"
        return replace(row, home=home, device=plan.gpus[int(main)] if streamed else home)

    return (row_of(row) for row in plan.rows), notes


def _paths(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]


def _of_onnxruntime(text: str, plan: ModulePlan) -> tuple[Iterator[ModuleRow], list[str]]:
    places = {}
    host = next((name for name in plan.devices if plan.on_host(name)), plan.devices[0])
    for part in json.loads(text)["session.layer_assignment_settings"].split("; "):
        label, names = part.rstrip(")").split("(", 1)
        device = host if label == "cpu" else plan.gpus[int(label.partition(":")[2])]
        places.update(dict.fromkeys((name.removeprefix("=") for name in names.split(", ")), device))
    return (_placed(row, places[re.sub(r"[(),;=]", "_", row.module)]) for row in plan.rows), []


_Reader = Callable[[str, ModulePlan], tuple[Iterator[ModuleRow], list[str]]]
_READERS: dict[str, _Reader] = {
    "vllm": _of_vllm,
    "megatron": _of_megatron,
    "pipelining": _of_pipelining,
    "llama.cpp": _of_llama_cpp,
    "device-map": _of_device_map,
    "onnxruntime": _of_onnxruntime,
}


def _nearest(plan: ModulePlan, target: ExportTarget) -> Exported | None:
    """The words that move the fewest layers from where the plan has them and fit; None where none was found."""
    if not target.contiguous or not plan.layers:
        return None
    order = list(dict.fromkeys(row.device for row in plan.layers))
    ends = [sum(row.device in order[: i + 1] for row in plan.layers) for i in range(len(order) - 1)]
    most = MOST_MOVED if len(ends) < 3 else 2
    shifts = sorted(product(range(-most, most + 1), repeat=len(ends)), key=lambda some: sum(map(abs, some)))
    for shift in shifts:
        borders = [0, *(end + by for end, by in zip(ends, shift, strict=True)), len(plan.layers)]
        counts = [end - start for start, end in pairwise(borders)]
        if min(counts) < 1:
            continue
        moved = replace(plan, rows=tuple(_staged(plan, _counted(counts, order))))
        try:
            found = as_taken(replace(moved, rows=tuple(_uncopied(plan, moved))), target)
        except InvalidPlan:
            return None
        if not found.over_bytes:
            return found
    return None


def _uncopied(plan: ModulePlan, moved: ModulePlan) -> Iterator[ModuleRow]:
    """Rows with the bytes that the plan counts: reading back adds what is there twice."""
    for row, other in zip(plan.rows, moved.rows, strict=True):
        yield replace(other, weight_bytes=row.weight_bytes)
