"""Which module runs where: few modules, the heaviest unfolded first, with their time on every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.report.schedule import Schedule
from loadmaster.report.scopes import folded, paths_of

# As many as can be told apart at a glance; what is left over is grey. The same in page.css (--c0 to --c7).
COLOURS = ("#5b82b5", "#e39b4b", "#6aa56a", "#b383ab", "#7fbab4", "#d9bd4f", "#d4706b", "#9a7b66")
GREY = "#b3aea6"


@dataclass(frozen=True)
class ModuleWork:
    """A module of the model and the work of its kernels.

    Attributes:
        name: module path, folded.
        ops: of it.
        device_ns: [devices] time of its kernels there.
        weight_bytes: of the weights and states it reads.
    """

    name: str
    ops: int
    device_ns: tuple[int, ...]  # [devices]
    weight_bytes: int

    @property
    def time_ns(self) -> int:
        return sum(self.device_ns)


def module_labels(schedule: Schedule, most: int) -> list[str]:
    """[kernels] the module each is shown under: at most `most` of them."""
    return folded(paths_of(schedule.problem.graph), (schedule.end_ns - schedule.start_ns).tolist(), most)


def coloured(labels: Sequence[str], time_ns: Ints) -> tuple[Ints, list[str]]:
    """([kernels] number of its colour, names): the heaviest modules get one each, all others share the last number."""
    total: dict[str, int] = {}
    for label, time in zip(labels, time_ns.tolist(), strict=True):
        total[label] = total.get(label, 0) + time
    heavy = set(sorted(total, key=lambda name: -total[name])[: len(COLOURS)])
    names = [name for name in total if name in heavy]
    number = {name: at for at, name in enumerate(names)}
    return ints([number.get(label, len(names)) for label in labels]), names


def module_table(schedule: Schedule, most: int) -> list[ModuleWork]:
    """In the order of the program."""
    labels, graph = module_labels(schedule, most), schedule.problem.graph
    names = list(dict.fromkeys(labels))
    number = {name: at for at, name in enumerate(names)}
    label = np.array([number[name] for name in labels], np.int64)
    time_ns, ops = np.zeros((len(names), schedule.num_devices), np.int64), np.zeros(len(names), np.int64)
    np.add.at(time_ns, (label, schedule.device), schedule.end_ns - schedule.start_ns)
    np.add.at(ops, label, schedule.members)
    reader = np.repeat(label, np.diff(graph.read_start))
    kept = np.unique(np.stack([reader, graph.reads])[:, ~graph.is_made[graph.reads]], axis=1)
    weights = np.bincount(kept[0], graph.nbytes[kept[1]].astype(np.float64), len(names)).astype(np.int64)
    rows = zip(names, ops.tolist(), time_ns.tolist(), weights.tolist(), strict=True)
    return [ModuleWork(name, count, tuple(times), nbytes) for name, count, times, nbytes in rows]


def places_text(module: ModuleWork, devices: Sequence[str]) -> str:
    """gpu:2, or gpu:1 (70 %), gpu:0 (30 %); shares under one in a hundred are left out."""
    total = module.time_ns
    if not total:
        return "-"
    shares = sorted(((time, name) for time, name in zip(module.device_ns, devices, strict=True) if time), reverse=True)
    shown = [(time, name) for time, name in shares if 100 * time >= total] or shares[:1]
    if len(shown) == 1:
        return shown[0][1]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return ", ".join(f"{name} ({100 * time / total:.0f} %)" for time, name in shown[:4]) + more
